INSERT INTO step_books (job, group_index, sample, refill, step, chain_breaks, refusals, not_before, anew)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8
FROM json_each($1)
WHERE true
ON CONFLICT (job, group_index, sample, refill, step) DO UPDATE SET
    chain_breaks = excluded.chain_breaks, refusals = excluded.refusals, not_before = excluded.not_before,
    anew = excluded.anew
