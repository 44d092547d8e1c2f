SELECT count(*) AS admitted, count(status) AS ended, count(reward_value) AS valid,
    coalesce(sum(reward_value), 0.0) AS reward_sum,
    count(CASE WHEN reward_value >= $2 THEN 1 END) AS successes
FROM rollouts WHERE job = $1
