INSERT INTO checkpoints (
    job, group_index, sample, refill, step, attempt, ordinal,
    checkpoint_id, image, checkpoint, packed_bytes, content_bytes, kind, taken_at
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
    value ->> 7, value ->> 8, unhex(value ->> 9), value ->> 10, value ->> 11, value ->> 12, $2
FROM json_each($1)
