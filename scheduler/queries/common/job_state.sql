SELECT state FROM jobs WHERE job = $1
