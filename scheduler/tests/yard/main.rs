//! The scheduler as others meet it: a real gRPC server over a Unix socket, a real store, real
//! tables, and an executor that answers at once instead of running anything.

mod executor;
mod faults;
mod filters;
mod followers;
mod garbage;
mod heartbeats;
mod held;
mod history;
mod hostile;
mod jobs;
mod keeper;
mod liar;
mod liars;
mod lies;
mod memory;
mod readers;
mod restarts;
mod restore;
mod sandboxes;
mod schedules;
mod sessions;
mod uploads;
mod yard;
