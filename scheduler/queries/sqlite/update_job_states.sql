UPDATE jobs
SET state = change.value ->> 1, reason = change.value ->> 2, finished_at = change.value ->> 3
FROM json_each($1) AS change
WHERE jobs.job = change.value ->> 0
