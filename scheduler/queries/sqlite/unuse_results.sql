DELETE FROM results_used
WHERE (job, group_index, sample, refill, step) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each($1)
)
