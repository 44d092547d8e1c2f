INSERT INTO sandboxes (job, image, labels, start_timeout, timeout, idle_timeout, base)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, unhex(value ->> 6)
FROM json_each($1)
