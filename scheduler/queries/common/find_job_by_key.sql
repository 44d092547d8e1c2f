SELECT
    job, kind, name, spec_hash, table_root, request_hash, groups_total, group_size,
    state, reason, hold, unrecorded, cancel_code, next_group, next_seq, created_at, retried_at, finished_at, sums
FROM jobs WHERE idempotency_key = $1
