SELECT sample, refill, step, checkpoint, used_at
FROM results_used
WHERE job = $1 AND group_index = $2
ORDER BY sample, refill, step
