SELECT step, state FROM step_states
WHERE job = $1 AND group_index = $2 AND sample = $3 AND refill = $4
ORDER BY step
