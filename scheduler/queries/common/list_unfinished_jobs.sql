-- Unfinished, newest first, behind ($1, $2).
SELECT
    job, kind, name, spec_hash, table_root, request_hash, groups_total, group_size,
    state, reason, hold, unrecorded, cancel_code, next_group, next_seq, created_at, retried_at, finished_at, sums
FROM jobs
WHERE kind = 'rollouts' AND finished_at IS NULL AND (created_at, job) < ($1, $2)
ORDER BY created_at DESC, job DESC
LIMIT $3
