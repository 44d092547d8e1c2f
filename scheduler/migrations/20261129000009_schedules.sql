-- Specs that run again and again. One a name in its project; '' is no project.
CREATE TABLE schedules (
    schedule        TEXT    NOT NULL PRIMARY KEY,
    project         TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    document        TEXT    NOT NULL,
    source_name     TEXT    NOT NULL,
    spec_hash       TEXT    NOT NULL,
    -- as asked for; '' is what the spec says
    table_root      TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    request_hash    TEXT    NOT NULL,
    cron            TEXT    NOT NULL,
    timezone        TEXT    NOT NULL,
    overlap         TEXT    NOT NULL,
    catch_up        INTEGER NOT NULL,
    enabled         INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    -- fire times up to here are decided
    cursor_at       INTEGER NOT NULL,
    last_job        TEXT,
    last_fire_at    INTEGER,
    -- the fire that waits for the end of the last job, and the key of its job
    waiting_at      INTEGER,
    waiting_key     TEXT,
    fired           INTEGER NOT NULL,
    skipped         INTEGER NOT NULL,
    missed          INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    -- of the last fire that started no job; '' is none
    problem         TEXT    NOT NULL,
    UNIQUE (project, name)
) STRICT;

-- Client files a schedule names, stored by content: every fire reads these.
CREATE TABLE schedule_files (
    schedule TEXT    NOT NULL REFERENCES schedules (schedule),
    path     TEXT    NOT NULL,
    sha256   TEXT    NOT NULL,
    size     INTEGER NOT NULL,
    PRIMARY KEY (schedule, path)
) STRICT, WITHOUT ROWID;
