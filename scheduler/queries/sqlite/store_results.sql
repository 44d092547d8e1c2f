INSERT INTO results (
    project, result_key, position, made_by, checkpoint_id, image, checkpoint, packed_bytes, content_bytes, stored_at
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, unhex(value ->> 6),
    value ->> 7, value ->> 8, $2
FROM json_each($1)
WHERE true
ON CONFLICT (project, result_key) DO UPDATE SET
    position = excluded.position, made_by = excluded.made_by, checkpoint_id = excluded.checkpoint_id,
    image = excluded.image, checkpoint = excluded.checkpoint, packed_bytes = excluded.packed_bytes,
    content_bytes = excluded.content_bytes, stored_at = excluded.stored_at
