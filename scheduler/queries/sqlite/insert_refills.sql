INSERT INTO rollouts (job, group_index, sample, refill, created_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, $2 FROM json_each($1)
