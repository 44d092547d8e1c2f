//! The node agent: takes attempts from the scheduler, runs each in a sandbox, reports what the
//! kernel says happened.

pub mod broker;
pub mod census;
pub mod doctor;
mod host;
pub mod sandbox;
