SELECT job, group_index, sample, refill, step, attempt, ordinal
FROM kept_checkpoints
WHERE expires_at <= $1
ORDER BY job, group_index, sample, refill, step, attempt, ordinal
LIMIT $2
