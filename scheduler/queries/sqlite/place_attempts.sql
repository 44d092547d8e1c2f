INSERT INTO attempts (
    job, group_index, sample, refill, step, attempt,
    generation, node, incarnation, continue_step, continue_attempt, position, placed_at, kept, base
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
    value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, $2, 0, value ->> 12
FROM json_each($1)
WHERE true
ON CONFLICT (job, group_index, sample, refill, step, attempt) DO UPDATE SET
    generation = excluded.generation, node = excluded.node, incarnation = excluded.incarnation,
    continue_step = excluded.continue_step, continue_attempt = excluded.continue_attempt,
    position = excluded.position, placed_at = excluded.placed_at,
    started_at = NULL, ended_at = NULL, outcome = NULL, kept = 0, base = excluded.base
