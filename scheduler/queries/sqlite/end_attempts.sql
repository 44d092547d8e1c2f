UPDATE attempts
SET ended_at = $2, outcome = unhex(change.value ->> 7), kept = change.value ->> 8
FROM json_each($1) AS change
WHERE attempts.job = change.value ->> 0 AND attempts.group_index = change.value ->> 1
  AND attempts.sample = change.value ->> 2 AND attempts.refill = change.value ->> 3
  AND attempts.step = change.value ->> 4 AND attempts.attempt = change.value ->> 5
  AND attempts.generation = change.value ->> 6
