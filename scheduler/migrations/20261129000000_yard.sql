-- The yard: what must survive a restart. Ready queues, load and sums are derived, never stored.
-- Times are microseconds of wall time since 1970 (UTC). Blobs (logs, artifacts, shards) are files.

CREATE TABLE meta (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    yard_id    TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    commit_seq INTEGER NOT NULL
) STRICT;

CREATE TABLE jobs (
    job             TEXT    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    document        TEXT    NOT NULL,
    source_name     TEXT    NOT NULL,
    spec_hash       TEXT    NOT NULL,
    table_root      TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL UNIQUE,
    request_hash    TEXT    NOT NULL,
    groups_total    INTEGER NOT NULL,
    group_size      INTEGER NOT NULL,
    state           TEXT    NOT NULL,
    reason          TEXT    NOT NULL,
    -- why a job that is cancelling was cancelled, a failure code
    cancel_code     TEXT,
    next_group      INTEGER NOT NULL,
    next_seq        INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    finished_at     INTEGER
) STRICT;
CREATE INDEX jobs_by_age ON jobs (created_at, job);
CREATE INDEX jobs_unfinished ON jobs (spec_hash, table_root) WHERE finished_at IS NULL;

-- Client files a job names, stored by content.
CREATE TABLE files (
    job    TEXT    NOT NULL REFERENCES jobs (job),
    path   TEXT    NOT NULL,
    sha256 TEXT    NOT NULL,
    size   INTEGER NOT NULL,
    PRIMARY KEY (job, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE groups (
    job          TEXT    NOT NULL REFERENCES jobs (job),
    group_index  INTEGER NOT NULL,
    admitted_at  INTEGER NOT NULL,
    closed_seq   INTEGER,
    closed_as    TEXT,
    closed_valid INTEGER,
    closed_at    INTEGER,
    sealed_at    INTEGER,
    PRIMARY KEY (job, group_index)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX groups_by_seq ON groups (job, closed_seq) WHERE closed_seq IS NOT NULL;
CREATE INDEX groups_open ON groups (job, group_index) WHERE sealed_at IS NULL;

CREATE TABLE rollouts (
    job            TEXT    NOT NULL REFERENCES jobs (job),
    group_index    INTEGER NOT NULL,
    sample         INTEGER NOT NULL,
    refill         INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    ended_at       INTEGER,
    status         TEXT,
    stop_reason    TEXT,
    failure_domain TEXT,
    failure_code   TEXT,
    failure_message TEXT,
    reward_value   REAL,
    -- protobuf rollyard.v1.Reward; null iff the reward is not valid
    reward         BLOB,
    PRIMARY KEY (job, group_index, sample, refill)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    job              TEXT    NOT NULL REFERENCES jobs (job),
    group_index      INTEGER NOT NULL,
    sample           INTEGER NOT NULL,
    refill           INTEGER NOT NULL,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    generation       INTEGER NOT NULL,
    node             TEXT    NOT NULL,
    incarnation      TEXT    NOT NULL,
    continue_step    INTEGER,
    continue_attempt INTEGER,
    -- order of placement in the yard
    position         INTEGER NOT NULL,
    placed_at        INTEGER NOT NULL,
    started_at       INTEGER,
    ended_at         INTEGER,
    -- protobuf rollyard.v1.Outcome; null while placed or running
    outcome          BLOB,
    kept             INTEGER NOT NULL,
    PRIMARY KEY (job, group_index, sample, refill, step, attempt)
) STRICT;

-- Step states that no attempt implies.
CREATE TABLE step_states (
    job         TEXT    NOT NULL REFERENCES jobs (job),
    group_index INTEGER NOT NULL,
    sample      INTEGER NOT NULL,
    refill      INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    state       TEXT    NOT NULL,
    PRIMARY KEY (job, group_index, sample, refill, step)
) STRICT, WITHOUT ROWID;

-- The generations of placements that were withdrawn: the next one is above these too.
CREATE TABLE withdrawn (
    job         TEXT    NOT NULL REFERENCES jobs (job),
    group_index INTEGER NOT NULL,
    sample      INTEGER NOT NULL,
    refill      INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    generation  INTEGER NOT NULL,
    PRIMARY KEY (job, group_index, sample, refill, step)
) STRICT, WITHOUT ROWID;

-- One lease per node, of its current incarnation.
CREATE TABLE nodes (
    node        TEXT    NOT NULL PRIMARY KEY,
    incarnation TEXT    NOT NULL,
    lease       TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    changed_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The catalogue: sealed shards and nothing else.
CREATE TABLE shards (
    job        TEXT    NOT NULL REFERENCES jobs (job),
    table_name TEXT    NOT NULL,
    shard      TEXT    NOT NULL,
    shard_rows INTEGER NOT NULL,
    seq_min    INTEGER NOT NULL,
    seq_max    INTEGER NOT NULL,
    sha256     TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    sealed_at  INTEGER NOT NULL,
    PRIMARY KEY (job, table_name, shard)
) STRICT, WITHOUT ROWID;
