//! The agent half of the executor: the real agent, link, runners, captures and blob store, between
//! a scheduler played over the real wire and a recording backend.

mod chains;
mod ends;
mod fake;
mod grading;
mod links;
mod provisioning;
mod workspaces;
mod yard;
