UPDATE jobs
SET sums = unhex(change.value ->> 1)
FROM json_each($1) AS change
WHERE jobs.job = change.value ->> 0
