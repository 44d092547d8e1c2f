SELECT job, group_index, sample, refill, step, attempt, ended_at
FROM attempts
WHERE base = $1
ORDER BY ended_at IS NOT NULL, position
LIMIT $2
