INSERT INTO jobs (
    job, name, document, source_name, spec_hash, table_root, idempotency_key, request_hash,
    groups_total, group_size, state, reason, next_group, next_seq, created_at, retain_checkpoints, retain_failed,
    kind
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, 'running', '', 0, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
    value ->> 14
FROM json_each($1)
