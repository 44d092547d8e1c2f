SELECT rollouts.failure_domain, rollouts.failure_code, per_code.rollouts_count, rollouts.failure_message,
    rollouts.group_index, rollouts.sample, rollouts.refill
FROM (
    SELECT failure_domain, failure_code, count(*) AS rollouts_count, min(group_index) AS first_group
    FROM rollouts
    WHERE job = $1 AND failure_code IS NOT NULL AND superseded_at IS NULL
    GROUP BY failure_domain, failure_code
) AS per_code
JOIN rollouts ON rollouts.job = $1 AND rollouts.group_index = per_code.first_group
    AND rollouts.failure_domain = per_code.failure_domain AND rollouts.failure_code = per_code.failure_code
    AND rollouts.superseded_at IS NULL
ORDER BY per_code.rollouts_count DESC, rollouts.failure_domain, rollouts.failure_code, rollouts.sample
