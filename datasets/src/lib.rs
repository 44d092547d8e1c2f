//! Arrow tables of what happened: schemas, the task-row readers, the recorder that turns a closed
//! group into rows, shard files and their manifest.
//!
//! Depends on `std::fs` and Arrow; never on a runtime, a database or a socket. It reads no clock:
//! when a shard is due by time, its caller says so.
//!
//! The way of a group: [`record::GroupRecord`] -> [`recorder::batches`] (one record batch per
//! table) -> [`table::TableWriter`] (pending, then sealed into a shard of every table) ->
//! [`read::TableReader`], or any Arrow reader.

mod columns;
mod disk;
mod error;
pub mod export;
mod frame;
pub mod harbor;
mod manifest;
pub mod read;
pub mod record;
pub mod recorder;
mod recovery;
pub mod reference;
pub mod rules;
pub mod schema;
pub mod seqs;
mod shard;
pub mod table;
pub mod tasks;

pub use error::Error;

#[cfg(test)]
extern crate self as datasets;
#[cfg(test)]
#[path = "../tests/support/sample.rs"]
mod sample;
