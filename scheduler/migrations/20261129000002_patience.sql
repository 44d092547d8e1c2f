-- What a step has to go by beside its attempts.
CREATE TABLE step_books (
    job          TEXT    NOT NULL REFERENCES jobs (job),
    group_index  INTEGER NOT NULL,
    sample       INTEGER NOT NULL,
    refill       INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    chain_breaks INTEGER NOT NULL,
    refusals     INTEGER NOT NULL,
    -- until when it waits; null if it does not
    not_before   INTEGER,
    PRIMARY KEY (job, group_index, sample, refill, step)
) STRICT, WITHOUT ROWID;

-- The last final ends of each step of a job, as its breaker counts them: a ring.
CREATE TABLE breaker_ends (
    job        TEXT    NOT NULL REFERENCES jobs (job),
    step       INTEGER NOT NULL,
    -- end_number modulo the length of the ring
    slot       INTEGER NOT NULL,
    end_number INTEGER NOT NULL,
    -- null for an end that does not count against the job
    code       TEXT,
    PRIMARY KEY (job, step, slot)
) STRICT, WITHOUT ROWID;
