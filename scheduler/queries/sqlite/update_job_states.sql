UPDATE jobs
SET state = change.value ->> 1, reason = change.value ->> 2, finished_at = change.value ->> 3,
    hold = change.value ->> 5, unrecorded = change.value ->> 6,
    cancel_code = coalesce(change.value ->> 4, jobs.cancel_code)
FROM json_each($1) AS change
WHERE jobs.job = change.value ->> 0
