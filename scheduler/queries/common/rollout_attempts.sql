SELECT step, attempt, generation, node, incarnation, placed_at, started_at, ended_at, outcome, kept
FROM attempts
WHERE job = $1 AND group_index = $2 AND sample = $3 AND refill = $4
ORDER BY position
