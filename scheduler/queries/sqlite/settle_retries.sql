UPDATE retries
SET settled_at = $2
FROM json_each($1) AS change
WHERE retries.job = change.value ->> 0 AND retries.group_index = change.value ->> 1
  AND retries.sample = change.value ->> 2 AND retries.refill = change.value ->> 3
