-- Whose task rows may still be run, or run again.
SELECT job FROM jobs WHERE finished_at IS NULL OR finished_at + retain_checkpoints > $1 ORDER BY job
