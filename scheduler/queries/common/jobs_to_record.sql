-- A job that was cancelled may have ended without the rows of groups that cannot be recorded.
SELECT DISTINCT groups.job
FROM groups JOIN jobs ON jobs.job = groups.job
WHERE groups.sealed_at IS NULL AND groups.closed_seq IS NOT NULL AND jobs.finished_at IS NULL
  AND jobs.kind = 'rollouts'
