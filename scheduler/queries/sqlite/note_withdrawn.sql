INSERT INTO withdrawn (job, group_index, sample, refill, step, generation)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each($1)
WHERE true
ON CONFLICT (job, group_index, sample, refill, step) DO UPDATE SET generation = excluded.generation
