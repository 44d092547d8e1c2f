SELECT
    c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal, c.checkpoint, c.kind,
    c.packed_bytes, c.content_bytes, c.taken_at, c.removed_at, c.removed_why,
    k.expires_at, k.job IS NOT NULL AND k.open AS needed
FROM checkpoints AS c
LEFT JOIN kept_checkpoints AS k
    ON k.job = c.job AND k.group_index = c.group_index AND k.sample = c.sample AND k.refill = c.refill
    AND k.step = c.step AND k.attempt = c.attempt AND k.ordinal = c.ordinal
WHERE (c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal) > ($1, $2, $3, $4, $5, $6, $7)
  AND ($8 IS NULL OR c.job = $8)
  AND ($9 IS NULL OR (c.group_index = $9 AND c.sample = $10 AND c.refill = $11))
  AND ($12 OR c.removed_at IS NULL)
ORDER BY c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal
LIMIT $13
