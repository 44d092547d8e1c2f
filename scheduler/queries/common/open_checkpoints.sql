SELECT group_index, sample, refill, step, attempt, ordinal, kind, checkpoint
FROM checkpoints
WHERE job = $1 AND removed_at IS NULL
  AND group_index IN (SELECT group_index FROM groups WHERE job = $1 AND sealed_at IS NULL)
ORDER BY group_index, sample, refill, step, attempt, ordinal
