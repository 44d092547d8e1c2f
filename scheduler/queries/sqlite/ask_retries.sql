INSERT INTO retries (job, group_index, sample, refill, asked_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, $2 FROM json_each($1)
WHERE true
ON CONFLICT (job, group_index, sample, refill) DO UPDATE SET asked_at = excluded.asked_at, settled_at = NULL
