-- Ended rollouts without a valid reward, of a job, of group $2, or the one that is sample $3 and refill $4.
SELECT group_index, sample, refill, status, stop_reason, failure_domain, failure_code, failure_message, reward,
    EXISTS (
        SELECT 1 FROM retries
        WHERE retries.job = rollouts.job AND retries.group_index = rollouts.group_index
          AND retries.sample = rollouts.sample AND retries.refill = rollouts.refill AND settled_at IS NULL
    ) AS asked
FROM rollouts
WHERE job = $1 AND superseded_at IS NULL AND status IS NOT NULL AND reward_value IS NULL
  AND ($2 IS NULL OR group_index = $2) AND ($3 IS NULL OR (sample = $3 AND refill = $4))
ORDER BY group_index, sample, refill
LIMIT $5
