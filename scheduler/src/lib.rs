//! The scheduler as a service: the driver loop around the pure core, the store, the link to
//! executors, the API for clients, and the recorder.
//!
//! It owns the data directory (`yard.db`, `scheduler.lock`, by default `blobs/`) and its
//! listeners, which are Unix sockets or loopback addresses. It never decides what runs where
//! (that is `scheduler-core`) and never runs anything itself (that is `executor`); blobs never
//! enter the database.
//!
//! Invariant: a command, and an acknowledgement to a client, leaves only after the commit of what
//! it rests on. Killed at any point, the next start goes on from what is stored.

mod api;
mod clock;
mod config;
mod driver;
mod error;
mod forward;
mod garbage;
mod health;
mod inbox;
mod jobs;
mod link;
mod listener;
mod lock;
mod news;
mod place;
mod reader;
mod recorder;
mod retry;
mod route;
mod rows;
mod schedules;
mod service;
pub mod store;
mod sums;

pub use api::ApiCode;
pub use clock::ScheduleClock;
pub use config::Config;
pub use error::Error;
pub use link::CloseCode;
pub use listener::Listener;
pub use reader::Reader;
pub use service::{Handle, Scheduler};
