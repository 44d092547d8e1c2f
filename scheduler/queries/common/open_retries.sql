SELECT group_index, sample, refill FROM retries
WHERE job = $1 AND settled_at IS NULL
ORDER BY group_index, sample, refill
