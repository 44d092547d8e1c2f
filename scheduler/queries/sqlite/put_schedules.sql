INSERT INTO schedules (
    schedule, project, name, document, source_name, spec_hash, table_root, idempotency_key, request_hash,
    cron, timezone, overlap, catch_up, enabled, created_at, cursor_at, last_job, last_fire_at,
    waiting_at, waiting_key, fired, skipped, missed, failed, problem
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14,
    value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20, value ->> 21,
    value ->> 22, value ->> 23, value ->> 24
FROM json_each($1)
WHERE true
ON CONFLICT (schedule) DO UPDATE SET
    project = excluded.project, name = excluded.name, document = excluded.document,
    source_name = excluded.source_name, spec_hash = excluded.spec_hash, table_root = excluded.table_root,
    idempotency_key = excluded.idempotency_key, request_hash = excluded.request_hash, cron = excluded.cron,
    timezone = excluded.timezone, overlap = excluded.overlap, catch_up = excluded.catch_up,
    enabled = excluded.enabled, created_at = excluded.created_at, cursor_at = excluded.cursor_at,
    last_job = excluded.last_job, last_fire_at = excluded.last_fire_at, waiting_at = excluded.waiting_at,
    waiting_key = excluded.waiting_key, fired = excluded.fired, skipped = excluded.skipped,
    missed = excluded.missed, failed = excluded.failed, problem = excluded.problem
