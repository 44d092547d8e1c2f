//! The node agent: takes attempts from the scheduler, runs each in a sandbox, reports what the
//! kernel says happened.
//!
//! It owns the sandboxes of its node and the end of every attempt it took. It never decides what
//! runs (the scheduler does), never lets an agent's process near its own channel, and never
//! reports what it did not see: a missing exit code stays missing.
//!
//! ```text
//! scheduler <── link: attach, heartbeats ──> agent ──> lifecycle::Book (pure: event -> actions)
//!                                              │
//!                                              └──> attempt: one runner each ──> sandbox::Backend
//! ```

mod adoption;
mod agent;
mod attempt;
mod backends;
pub mod broker;
mod capacity;
mod capture;
mod ceilings;
pub mod census;
mod clock;
pub mod config;
pub mod doctor;
mod error;
mod grading;
mod host;
mod identity;
mod keeper;
mod lease;
pub mod lifecycle;
mod link;
mod logs;
mod messages;
mod outputs;
mod private_dir;
pub mod sandbox;
mod serve;
mod sessions;
mod storage;
mod tree;
mod workspace;

pub use backends::Backends;
pub use capacity::{Capacity, Measured};
pub use config::{Config, Endpoint};
pub use error::Error;
pub use serve::{Handle, check_free, serve};
pub use sessions::SandboxCode;
