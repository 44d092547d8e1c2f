SELECT
    schedule, project, name, spec_hash, table_root, idempotency_key, request_hash, cron, timezone, overlap,
    catch_up, enabled, created_at, cursor_at, last_job, last_fire_at, waiting_at, waiting_key, fired, skipped,
    missed, failed, problem
FROM schedules
ORDER BY project, name
