-- Each refill replaces the rollout of the round before.
UPDATE rollouts
SET superseded_at = $2
FROM json_each($1) AS refill
WHERE rollouts.job = refill.value ->> 0 AND rollouts.group_index = refill.value ->> 1
  AND rollouts.sample = refill.value ->> 2 AND rollouts.refill = (refill.value ->> 3) - 1
