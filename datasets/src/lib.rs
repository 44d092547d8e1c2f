//! Arrow tables of what happened: schemas, the task-row readers, the recorder that turns a closed
//! group into rows, shard files and their manifest.
//!
//! Depends on `std::fs` and Arrow; never on a runtime, a database or a socket.

pub mod record;
