DELETE FROM attempts
WHERE (job, group_index, sample, refill, step, attempt) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each($1)
)
