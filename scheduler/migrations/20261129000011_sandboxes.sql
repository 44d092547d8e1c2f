-- Jobs that are sandboxes of clients are in no list of jobs, and nothing of them is recorded.
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'rollouts';

CREATE INDEX jobs_listed ON jobs (created_at, job) WHERE kind = 'rollouts';
CREATE INDEX jobs_listed_unfinished ON jobs (created_at, job) WHERE kind = 'rollouts' AND finished_at IS NULL;
CREATE INDEX jobs_of_sandboxes ON jobs (created_at, job) WHERE kind = 'sandbox';
CREATE INDEX jobs_of_live_sandboxes ON jobs (created_at, job) WHERE kind = 'sandbox' AND finished_at IS NULL;

-- What such a job has beside its spec.
CREATE TABLE sandboxes (
    job           TEXT    NOT NULL PRIMARY KEY REFERENCES jobs (job),
    image         TEXT    NOT NULL,
    -- JSON object of texts
    labels        TEXT    NOT NULL,
    -- microseconds: from its creation until it must be ready, and from then until its end
    start_timeout INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    -- protobuf rollyard.v1.Checkpoint that it starts with; null: the image as it is
    base          BLOB
) STRICT, WITHOUT ROWID;
