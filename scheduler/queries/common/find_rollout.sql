SELECT created_at, ended_at, status, failure_code, failure_message FROM rollouts
WHERE job = $1 AND group_index = $2 AND sample = $3 AND refill = $4
