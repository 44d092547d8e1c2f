-- microseconds without a call until its end; null: it is older than this column
ALTER TABLE sandboxes ADD COLUMN idle_timeout INTEGER;
