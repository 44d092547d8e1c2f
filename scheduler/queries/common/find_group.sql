SELECT closed_at FROM groups WHERE job = $1 AND group_index = $2
