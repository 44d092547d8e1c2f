//! The vocabulary of Rollyard: ids, quantities, the job spec, the checked plan, states, the
//! failure table and what an attempt reports.
//!
//! This crate owns *meaning*. It never touches a clock, a file, the environment, a random source,
//! a socket or a thread: everything it needs arrives as an argument and everything it decides
//! leaves as a value. The lints in `clippy.toml` hold that line.
//!
//! Words: Job > Group (one task row, n samples) > Rollout (one sample) > Step (DAG node) >
//! Attempt (one try of a step, in a sandbox).

pub mod backend;
pub mod checkpoint;
pub mod classify;
pub mod cron;
pub mod expression;
pub mod failure;
pub mod ids;
pub mod image;
pub mod name;
pub mod outcome;
pub mod plan;
pub mod quantity;
pub mod resolve;
pub mod result_key;
pub mod reward;
pub mod schedule;
pub mod selection;
pub mod spec;
pub mod state;
pub mod text;
pub mod time;

pub use backend::BackendKind;
pub use failure::{Domain, FailureCode};
pub use ids::{
    AttemptId, Generation, GroupId, IncarnationId, JobId, NodeId, RolloutId, SandboxId, ScheduleId, StepIndex,
};
pub use name::Name;
pub use quantity::{Bytes, MilliCpu, Resources};
pub use time::{BootTime, Millis, Timestamp};
