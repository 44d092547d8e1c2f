-- What the attempts of a step held in memory, counted by size: added to as each one ends. Attempts that
-- ended before this table was made are not in it.
CREATE TABLE step_memory (
    job         TEXT    NOT NULL REFERENCES jobs (job),
    step        INTEGER NOT NULL,
    -- a quarter of a power of two wide
    bucket      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    -- bytes of anonymous memory and files in memory, the most that was seen of one attempt
    held_most   INTEGER NOT NULL,
    -- bytes, the largest peak the kernel counted for one of them; null: it counted none
    kernel_peak INTEGER,
    PRIMARY KEY (job, step, bucket)
) STRICT, WITHOUT ROWID;
