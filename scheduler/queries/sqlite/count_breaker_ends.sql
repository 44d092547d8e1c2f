INSERT INTO breaker_ends (job, step, slot, end_number, code)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM json_each($1)
WHERE true
ON CONFLICT (job, step, slot) DO UPDATE SET end_number = excluded.end_number, code = excluded.code
