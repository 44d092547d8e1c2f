DELETE FROM results
WHERE (project, result_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each($1))
