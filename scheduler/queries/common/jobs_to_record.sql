SELECT DISTINCT job FROM groups WHERE sealed_at IS NULL AND closed_seq IS NOT NULL
