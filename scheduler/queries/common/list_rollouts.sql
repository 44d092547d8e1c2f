-- In order of admission, behind ($2, $3, $4).
SELECT group_index, sample, refill, created_at, ended_at, status, stop_reason,
    failure_domain, failure_code, failure_message, reward_value, superseded_at,
    EXISTS (
        SELECT 1 FROM attempts
        WHERE attempts.job = rollouts.job AND attempts.group_index = rollouts.group_index
          AND attempts.sample = rollouts.sample AND attempts.refill = rollouts.refill
    ) AS begun
FROM rollouts
WHERE job = $1 AND (group_index, sample, refill) > ($2, $3, $4)
ORDER BY group_index, sample, refill
LIMIT $5
