SELECT group_index, closed_seq, closed_as FROM groups
WHERE job = $1 AND sealed_at IS NULL
ORDER BY group_index
