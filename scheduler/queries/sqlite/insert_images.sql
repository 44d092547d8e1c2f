INSERT INTO images (job, reference, pinned)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each($1)
