UPDATE groups
SET sealed_at = $2
FROM json_each($1) AS change
WHERE groups.job = change.value ->> 0 AND groups.group_index = change.value ->> 1
  AND groups.closed_seq IS NOT NULL
