UPDATE jobs
SET next_group = max(next_group, change.value ->> 1), next_seq = max(next_seq, change.value ->> 2)
FROM json_each($1) AS change
WHERE jobs.job = change.value ->> 0
