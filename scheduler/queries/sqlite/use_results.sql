INSERT INTO results_used (
    job, group_index, sample, refill, step, result_key, checkpoint_id, checkpoint, used_at
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
    unhex(value ->> 7), $2
FROM json_each($1)
WHERE true
ON CONFLICT (job, group_index, sample, refill, step) DO UPDATE SET
    result_key = excluded.result_key, checkpoint_id = excluded.checkpoint_id,
    checkpoint = excluded.checkpoint, used_at = excluded.used_at
