-- protobuf rollyard.v1.Job with counts, rewards and failures alone; set as the job ends, so that a
-- list of jobs looks at no rollout.
ALTER TABLE jobs ADD COLUMN sums BLOB;
CREATE INDEX jobs_unfinished_by_age ON jobs (created_at, job) WHERE finished_at IS NULL;
