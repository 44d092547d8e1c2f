INSERT INTO step_memory (job, step, bucket, attempts, held_most, kernel_peak)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each($1)
WHERE true
ON CONFLICT (job, step, bucket) DO UPDATE SET
    attempts = step_memory.attempts + excluded.attempts,
    held_most = max(step_memory.held_most, excluded.held_most),
    kernel_peak = coalesce(
        max(step_memory.kernel_peak, excluded.kernel_peak), step_memory.kernel_peak, excluded.kernel_peak
    )
