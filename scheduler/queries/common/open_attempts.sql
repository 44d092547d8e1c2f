SELECT group_index, sample, refill, step, attempt, generation, node, incarnation,
    continue_step, continue_attempt, base, started_at, outcome, kept
FROM attempts
WHERE job = $1 AND group_index IN (
    SELECT group_index FROM groups WHERE job = $1 AND sealed_at IS NULL AND $2 IS NULL
    UNION ALL SELECT $2 WHERE $2 IS NOT NULL
)
ORDER BY group_index, sample, refill, step, attempt
