UPDATE rollouts
SET ended_at = $2, status = change.value ->> 4, stop_reason = change.value ->> 5,
    failure_domain = change.value ->> 6, failure_code = change.value ->> 7, failure_message = change.value ->> 8,
    reward_value = change.value ->> 9, reward = unhex(change.value ->> 10)
FROM json_each($1) AS change
WHERE rollouts.job = change.value ->> 0 AND rollouts.group_index = change.value ->> 1
  AND rollouts.sample = change.value ->> 2 AND rollouts.refill = change.value ->> 3
