//! What the executor and a keeper say to each other: one JSON datagram each way, with descriptors.
//! Both are the same build of the same program, so the encoding is no contract.
//!
//! Descriptors are put on one connection, dropped on some, which nobody waits for in turn; they are borrowed on others, one
//! request at a time. Connections are many, so that what is slow (the kernel takes down a mount with its last
//! descriptor) holds up nothing else.

use sandbox_init::packet::FDS_MAX;
use serde::{Deserialize, Serialize};

/// The largest datagram in either direction, in bytes.
pub const DATAGRAM_MAX: usize = 1024;
/// Of the names in one answer, in bytes: the rest is for its encoding.
pub const NAME_BYTES_MAX: usize = 512;
/// Names in one answer.
pub const NAMES_MAX: usize = 64;
/// Connections on which descriptors are put.
pub const PUTS: usize = 1;
/// Connections on which those of a sandbox that ends are dropped.
pub const DROPS: usize = 4;
/// Connections for the rest, one request at a time.
pub const CALLS: usize = 2;
/// The hello carries the lock and the keeper's end of every connection.
pub const CONNECTIONS: usize = PUTS + DROPS + CALLS;

const _: () = assert!(CONNECTIONS < FDS_MAX);

/// Descriptors of its own, and those that are on their way.
pub const RESERVED: u64 = 64;

/// What a descriptor of a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A mount of the writable tree alone, without what lies over it in the sandbox.
    Root,
    /// The raw writable tree, which has only what was changed.
    Upper,
    /// The channel to init.
    Channel,
    /// The executor's end of a stream of one process, which has a number in its sandbox.
    Stream { process: u32, index: u8 },
}

/// With the keeper's end of every connection; the first one of all with the lock of the data directory
/// before them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub nonce: u64,
}

/// The keeper's word that it serves.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ready {
    /// Descriptors it can hold.
    pub room: u64,
    /// Said again from the hello it answers.
    pub nonce: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// With one descriptor of each kind, in order. All of them are taken, or none.
    Put {
        id: String,
        kinds: Vec<Kind>,
    },
    Get {
        id: String,
        kind: Kind,
    },
    /// The streams of one process. One that is not there is no error.
    Forget {
        id: String,
        process: u32,
    },
    /// Everything of a sandbox. One that is not there is no error.
    Drop {
        id: String,
    },
    /// Sandboxes it holds something of, in order, from behind this one.
    Names {
        after: Option<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Kept,
    /// With the descriptor.
    Lent,
    /// Closed: no mount is held any more.
    Dropped,
    /// As many as one answer holds. Empty: there are no more.
    Names(Vec<String>),
    Refused(Refusal),
}

/// Why a keeper did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("it holds no {kind:?} of {id}")]
    Unknown { id: String, kind: Kind },
    #[error("it holds a {kind:?} of {id} already")]
    Taken { id: String, kind: Kind },
    #[error("descriptors of the keeper are at their limit: {used} of {limit}")]
    Full { used: u64, limit: u64 },
    #[error("{kinds} kinds came with {fds} descriptors")]
    Malformed { kinds: usize, fds: usize },
}
