-- Images of a job by digest: what a reference meant when the job was submitted.
CREATE TABLE images (
    job       TEXT NOT NULL REFERENCES jobs (job),
    reference TEXT NOT NULL,
    pinned    TEXT NOT NULL,
    PRIMARY KEY (job, reference)
) STRICT, WITHOUT ROWID;
