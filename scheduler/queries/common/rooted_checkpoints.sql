-- What may be started from, and what the sandboxes of open groups were started from: what they save
-- next stands on the same layers.
SELECT job, group_index, sample, refill, step, attempt, checkpoint
FROM kept_checkpoints
WHERE expires_at IS NULL OR expires_at > $1
UNION ALL
SELECT job, group_index, sample, refill, step, attempt, checkpoint
FROM checkpoints
WHERE checkpoint_id IN (
    SELECT a.base
    FROM attempts AS a
    JOIN jobs AS j ON j.job = a.job
    JOIN groups AS g ON g.job = a.job AND g.group_index = a.group_index
    WHERE a.base IS NOT NULL
      AND (a.ended_at IS NULL OR (j.finished_at IS NULL AND g.sealed_at IS NULL))
)
