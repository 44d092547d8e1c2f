-- The oldest unfinished job of the same spec and table root.
SELECT
    job, kind, name, spec_hash, table_root, request_hash, groups_total, group_size,
    state, reason, hold, unrecorded, cancel_code, next_group, next_seq, created_at, retried_at, finished_at, sums
FROM jobs
WHERE spec_hash = $1 AND table_root = $2 AND finished_at IS NULL AND state <> 'cancelling'
ORDER BY created_at, job
LIMIT 1
