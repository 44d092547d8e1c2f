SELECT count(*) AS admitted, count(closed_seq) AS closed, count(sealed_at) AS sealed FROM groups WHERE job = $1
