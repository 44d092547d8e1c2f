SELECT document, source_name FROM jobs WHERE job = $1
