INSERT INTO fenced (node, reports, last_at)
SELECT value ->> 0, value ->> 1, $2 FROM json_each($1)
WHERE true
ON CONFLICT (node) DO UPDATE SET reports = fenced.reports + excluded.reports, last_at = excluded.last_at
