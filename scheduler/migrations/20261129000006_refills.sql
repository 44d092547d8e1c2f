-- Replaced by a refill: the same sample with the next refill.
ALTER TABLE rollouts ADD COLUMN superseded_at INTEGER;
