SELECT group_index, sample, refill, step, checkpoint
FROM results_used
WHERE job = $1 AND group_index IN (SELECT group_index FROM groups WHERE job = $1 AND sealed_at IS NULL)
ORDER BY group_index, sample, refill, step
