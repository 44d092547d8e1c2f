SELECT sample, refill, step, attempt, node, incarnation, base, outcome
FROM attempts
WHERE job = $1 AND group_index = $2
ORDER BY sample, refill, position
