//! The scheduler's decisions, without IO.
//!
//! [`Cluster`] takes [`Event`]s and returns values: [`Record`]s to store and [`Command`]s to send
//! *after* they are stored. The shell (`scheduler`) reads the clock, commits and sends. It never
//! touches a clock, a file, a socket or a random source.
//!
//! ```text
//! for e in batch { records += cluster.apply(now, e) }   // bookkeeping
//! plan = cluster.plan(now)                              // admission, placement, timeouts
//! commit(records + plan.records); send(plan.commands)
//! ```
//!
//! `explain` answers from the predicates that decide; `check` re-derives every index and sum.

mod attempt;
mod breaker;
pub mod cadence;
mod check;
mod cluster;
pub mod command;
pub mod config;
mod contradiction;
pub mod counts;
pub mod event;
pub mod explain;
mod group;
mod hold;
mod job;
mod keyed;
mod lease;
mod member;
pub mod memory;
pub mod model;
mod node;
mod overdue;
mod pace;
pub mod parking;
mod placement;
mod plan;
mod ready;
mod reconcile;
pub mod record;
mod refill;
mod restore;
pub mod retry;
pub mod sessions;
mod settle;
pub mod snapshot;
pub mod totals;
mod workspace;

pub use cluster::Cluster;
pub use command::Command;
pub use config::{Config, Now};
pub use event::Event;
pub use explain::{Explanation, Target as ExplainTarget};
pub use hold::HoldCode;
pub use plan::Plan;
pub use record::Record;
pub use snapshot::Snapshot;
