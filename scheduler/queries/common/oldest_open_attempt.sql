SELECT min(placed_at) AS placed_at FROM attempts WHERE ended_at IS NULL
