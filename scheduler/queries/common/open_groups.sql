SELECT group_index, closed_seq, closed_as FROM groups
WHERE job = $1 AND (sealed_at IS NULL AND $2 IS NULL OR group_index = $2)
ORDER BY group_index
