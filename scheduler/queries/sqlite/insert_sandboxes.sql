INSERT INTO sandboxes (job, image, labels, start_timeout, timeout, base)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, unhex(value ->> 5)
FROM json_each($1)
