-- Whose task rows may still be run, or run again. A sandbox does not run again; what was saved of it may
-- be started from.
SELECT job FROM jobs
WHERE finished_at IS NULL
   OR finished_at + retain_checkpoints > $1
      AND (kind = 'rollouts' OR job IN (SELECT job FROM checkpoints WHERE removed_at IS NULL))
ORDER BY job
