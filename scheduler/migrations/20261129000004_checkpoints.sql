-- Workspaces at rest. A row without removed_at may be started from.
CREATE TABLE checkpoints (
    job           TEXT    NOT NULL REFERENCES jobs (job),
    group_index   INTEGER NOT NULL,
    sample        INTEGER NOT NULL,
    refill        INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    -- counts the checkpoints of an attempt from 0
    ordinal       INTEGER NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    image         TEXT    NOT NULL,
    -- protobuf rollyard.v1.Checkpoint
    checkpoint    BLOB    NOT NULL,
    packed_bytes  INTEGER NOT NULL,
    content_bytes INTEGER NOT NULL,
    -- after (the step ended) or every (while it ran)
    kind          TEXT    NOT NULL,
    taken_at      INTEGER NOT NULL,
    removed_at    INTEGER,
    -- superseded, or what a node said that refused it
    removed_why   TEXT,
    PRIMARY KEY (job, group_index, sample, refill, step, attempt, ordinal)
) STRICT;
CREATE INDEX checkpoints_by_id ON checkpoints (checkpoint_id);

-- The checkpoint that the new sandbox of an attempt started with.
ALTER TABLE attempts ADD COLUMN base TEXT;
-- The step takes a new sandbox where it was to go on in a live one.
ALTER TABLE step_books ADD COLUMN anew INTEGER NOT NULL DEFAULT 0;
