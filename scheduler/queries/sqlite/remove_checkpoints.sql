UPDATE checkpoints
SET removed_at = $2, removed_why = change.value ->> 7
FROM json_each($1) AS change
WHERE checkpoints.job = change.value ->> 0 AND checkpoints.group_index = change.value ->> 1
  AND checkpoints.sample = change.value ->> 2 AND checkpoints.refill = change.value ->> 3
  AND checkpoints.step = change.value ->> 4 AND checkpoints.attempt = change.value ->> 5
  AND checkpoints.ordinal = change.value ->> 6
