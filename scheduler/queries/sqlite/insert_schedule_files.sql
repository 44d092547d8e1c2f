INSERT INTO schedule_files (schedule, path, sha256, size)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each($1)
