SELECT sample, refill, created_at, ended_at, status, stop_reason,
    failure_domain, failure_code, failure_message, reward, superseded_at
FROM rollouts
WHERE job = $1 AND group_index = $2
ORDER BY sample, refill
