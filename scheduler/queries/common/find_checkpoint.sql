SELECT
    c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal, c.checkpoint, c.kind,
    c.packed_bytes, c.content_bytes, c.taken_at, c.removed_at, c.removed_why,
    k.expires_at, k.job IS NOT NULL AND k.open AS needed
FROM checkpoints AS c
LEFT JOIN kept_checkpoints AS k
    ON k.job = c.job AND k.group_index = c.group_index AND k.sample = c.sample AND k.refill = c.refill
    AND k.step = c.step AND k.attempt = c.attempt AND k.ordinal = c.ordinal
WHERE c.checkpoint_id = $1
ORDER BY c.removed_at IS NOT NULL, needed DESC, c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal
LIMIT $2
