INSERT INTO nodes (node, incarnation, lease, version, changed_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, $2 FROM json_each($1)
WHERE true
ON CONFLICT (node) DO UPDATE SET
    incarnation = excluded.incarnation, lease = excluded.lease, changed_at = excluded.changed_at,
    version = CASE WHEN excluded.version = '' THEN nodes.version ELSE excluded.version END
