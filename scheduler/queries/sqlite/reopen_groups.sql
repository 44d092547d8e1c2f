-- Their rows stay in their shard under the old seq until the new ones are sealed.
UPDATE groups
SET replaces_seq = closed_seq, closed_seq = NULL, closed_as = NULL, closed_valid = NULL, closed_at = NULL,
    sealed_at = NULL
FROM json_each($1) AS change
WHERE groups.job = change.value ->> 0 AND groups.group_index = change.value ->> 1
  AND groups.sealed_at IS NOT NULL
