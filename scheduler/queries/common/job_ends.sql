-- Every ended rollout of a job with whether its group has closed, for the running sums.
SELECT groups.group_index, rollouts.sample, rollouts.refill, rollouts.status, rollouts.stop_reason,
    rollouts.failure_domain, rollouts.failure_code, rollouts.failure_message, rollouts.reward,
    rollouts.superseded_at, groups.closed_seq
FROM groups
LEFT JOIN rollouts ON rollouts.job = groups.job AND rollouts.group_index = groups.group_index
    AND rollouts.status IS NOT NULL
WHERE groups.job = $1
ORDER BY groups.group_index, rollouts.sample, rollouts.refill
