-- Their sums are not final any more.
UPDATE jobs
SET retried_at = $2, sums = NULL
FROM json_each($1) AS change
WHERE jobs.job = change.value ->> 0
