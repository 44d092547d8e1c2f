//! The scheduler's decisions, without IO.
//!
//! [`Cluster`](cluster) takes [`Event`]s and returns values: [`Record`]s to store and
//! [`Command`]s to send *after* they are stored. The shell (`scheduler`) reads the clock, commits
//! and sends. It never touches a clock, a file, a socket or a random source.
//!
//! ```text
//! for e in batch { records += cluster.apply(now, e) }   // bookkeeping
//! plan = cluster.plan(now)                              // admission, placement, timeouts
//! commit(records + plan.records); send(plan.commands)
//! ```

pub mod command;
pub mod event;
pub mod record;
pub mod snapshot;

pub use command::Command;
pub use event::Event;
pub use record::Record;
pub use snapshot::Snapshot;
