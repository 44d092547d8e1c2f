-- How long what a job leaves is kept, in microseconds; see `output.retain`.
ALTER TABLE jobs ADD COLUMN retain_checkpoints INTEGER NOT NULL DEFAULT 604800000000;
ALTER TABLE jobs ADD COLUMN retain_failed INTEGER NOT NULL DEFAULT 86400000000;

CREATE INDEX checkpoints_kept ON checkpoints (job, group_index) WHERE removed_at IS NULL;
CREATE INDEX attempts_open ON attempts (placed_at) WHERE ended_at IS NULL;

-- The checkpoints that may be started from, each with the time after which it goes. While its group
-- is open the scheduler has it in its books and may start a step from it: it has no such time.
CREATE VIEW kept_checkpoints AS
SELECT
    c.job, c.group_index, c.sample, c.refill, c.step, c.attempt, c.ordinal, c.checkpoint_id, c.checkpoint,
    j.finished_at IS NULL AND g.sealed_at IS NULL AS open,
    CASE
        WHEN j.finished_at IS NULL AND g.sealed_at IS NULL THEN NULL
        WHEN r.status NOT IN ('completed', 'truncated') THEN r.ended_at + j.retain_failed
        ELSE j.finished_at + j.retain_checkpoints
    END AS expires_at
FROM checkpoints AS c
JOIN jobs AS j ON j.job = c.job
JOIN groups AS g ON g.job = c.job AND g.group_index = c.group_index
LEFT JOIN rollouts AS r
    ON r.job = c.job AND r.group_index = c.group_index AND r.sample = c.sample AND r.refill = c.refill
WHERE c.removed_at IS NULL;

CREATE INDEX attempts_by_base ON attempts (base) WHERE base IS NOT NULL;
