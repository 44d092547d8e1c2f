-- Workspaces that steps share by the key of their result.
CREATE TABLE results (
    project       TEXT    NOT NULL,
    result_key    TEXT    NOT NULL,
    -- order of storing in the yard
    position      INTEGER NOT NULL,
    -- the attempt that made it; its job may be gone
    made_by       TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    image         TEXT    NOT NULL,
    -- protobuf rollyard.v1.Checkpoint
    checkpoint    BLOB    NOT NULL,
    packed_bytes  INTEGER NOT NULL,
    content_bytes INTEGER NOT NULL,
    stored_at     INTEGER NOT NULL,
    PRIMARY KEY (project, result_key)
) STRICT;
CREATE INDEX results_by_age ON results (position);

-- Steps that are complete with what was stored under their key. The checkpoint is theirs, whatever
-- becomes of the result.
CREATE TABLE results_used (
    job           TEXT    NOT NULL REFERENCES jobs (job),
    group_index   INTEGER NOT NULL,
    sample        INTEGER NOT NULL,
    refill        INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    result_key    TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    -- protobuf rollyard.v1.Checkpoint
    checkpoint    BLOB    NOT NULL,
    used_at       INTEGER NOT NULL,
    PRIMARY KEY (job, group_index, sample, refill, step)
) STRICT;

-- Rollouts that somebody wants run again, until another takes their place or nothing is to be done.
CREATE TABLE retries (
    job         TEXT    NOT NULL REFERENCES jobs (job),
    group_index INTEGER NOT NULL,
    sample      INTEGER NOT NULL,
    refill      INTEGER NOT NULL,
    asked_at    INTEGER NOT NULL,
    settled_at  INTEGER,
    PRIMARY KEY (job, group_index, sample, refill)
) STRICT, WITHOUT ROWID;
CREATE INDEX retries_open ON retries (job, group_index, sample, refill) WHERE settled_at IS NULL;

-- What was answered to a request to run rollouts again.
CREATE TABLE retry_requests (
    request_key  TEXT    NOT NULL PRIMARY KEY,
    -- sha256 over everything the request asks for, hex
    request_hash TEXT    NOT NULL,
    -- protobuf rollyard.v1.RetryReply, without the job
    reply        BLOB    NOT NULL,
    asked_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The seq that a group which was open again had closed under before.
ALTER TABLE groups ADD COLUMN replaces_seq INTEGER;
-- When a job that had ended was last made to run again; its timeout counts from there.
ALTER TABLE jobs ADD COLUMN retried_at INTEGER;
