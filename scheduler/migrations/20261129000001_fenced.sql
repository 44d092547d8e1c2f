-- Late and foreign reports that changed nothing, counted by the node that sent them.
CREATE TABLE fenced (
    node    TEXT    NOT NULL PRIMARY KEY,
    reports INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
