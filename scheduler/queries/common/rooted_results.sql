-- What a key stands for, and what jobs that may still start steps from it took for a key.
SELECT result_key, checkpoint FROM results
UNION ALL
SELECT u.result_key, u.checkpoint
FROM results_used AS u
JOIN jobs AS j ON j.job = u.job
WHERE j.finished_at IS NULL OR j.finished_at + j.retain_checkpoints > $1
