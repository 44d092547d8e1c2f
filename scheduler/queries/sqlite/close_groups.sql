UPDATE groups
SET closed_seq = change.value ->> 2, closed_as = change.value ->> 3, closed_valid = change.value ->> 4, closed_at = $2
FROM json_each($1) AS change
WHERE groups.job = change.value ->> 0 AND groups.group_index = change.value ->> 1
