SELECT step, bucket, attempts, held_most, kernel_peak FROM step_memory WHERE job = $1 ORDER BY step, bucket
