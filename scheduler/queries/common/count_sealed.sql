SELECT count(*) AS sealed FROM groups WHERE job = $1 AND sealed_at IS NOT NULL
