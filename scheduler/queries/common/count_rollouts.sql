-- A replaced rollout has no valid reward.
SELECT count(*) - count(superseded_at) AS admitted, count(status) - count(superseded_at) AS ended,
    count(superseded_at) AS superseded, count(reward_value) AS valid,
    coalesce(sum(reward_value), 0.0) AS reward_sum,
    count(CASE WHEN reward_value >= $2 THEN 1 END) AS successes
FROM rollouts WHERE job = $1
