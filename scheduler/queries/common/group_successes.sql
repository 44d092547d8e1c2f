-- Closed groups by valid members and successes, for pass@k.
SELECT valid, successes, count(*) AS groups_count
FROM (
    SELECT count(rollouts.reward_value) AS valid, count(CASE WHEN rollouts.reward_value >= $2 THEN 1 END) AS successes
    FROM rollouts
    JOIN groups ON groups.job = rollouts.job AND groups.group_index = rollouts.group_index
    WHERE rollouts.job = $1 AND groups.closed_seq IS NOT NULL
    GROUP BY rollouts.group_index
) AS per_group
GROUP BY valid, successes
