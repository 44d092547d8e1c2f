//! What the executor and its broker say to each other: one JSON datagram each way, with
//! descriptors. Both are the same build of the same program, so the encoding is no contract.

use std::path::PathBuf;

use rollout::Bytes;
use rollout::quantity::Limit;
pub use sandbox_init::birth::Step;
use serde::{Deserialize, Serialize};

/// The largest datagram in either direction, in bytes.
pub const DATAGRAM_MAX: usize = 64 * 1024;

/// Trees below one sandbox: an image's and a workspace's together. Their paths fit a datagram.
pub const LOWERS_MAX: usize = 128;

/// The first datagram. With one descriptor: the lock of the data directory, held until both
/// processes are gone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub data_dir: PathBuf,
    pub instance: String,
    pub landlock_abi: Option<u32>,
    /// Whether anything is made ahead of creations.
    pub ahead: bool,
}

/// The first datagram on the broker's listener, of an executor that wants what an earlier one left.
#[derive(Debug, Serialize, Deserialize)]
pub struct Knock {
    pub build: String,
}

/// What comes back to a [`Knock`], one datagram each, up to `Done` or `Refused`.
#[derive(Debug, Serialize, Deserialize)]
pub enum Estate {
    /// It is of another build. Everything is destroyed, and then the broker ends.
    Refused {
        build: String,
    },
    /// With the lock of the data directory.
    Begin {
        /// Until then the sandboxes may live: CLOCK_BOOTTIME, in microseconds. None: no executor had a
        /// lease that covered them.
        ends_at_us: Option<u64>,
    },
    /// With the control socket of a keeper.
    Keeper,
    /// Of sandboxes.
    Names(Vec<String>),
    Done,
}

/// Names in one datagram: each has at most 63 bytes.
pub const NAMES_EACH: usize = 512;

#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub ticket: u64,
    pub action: Action,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Action {
    Create(Create),
    Destroy {
        id: String,
    },
    /// How much is made ahead.
    Levels,
    /// Of this there is no reply: the next child made ahead fails after the step. For tests.
    FailBlank(Step),
    /// Of these there is no reply. With the control socket of a keeper, for the next executor.
    Keeper,
    /// Without its executor the broker keeps the sandboxes until then: CLOCK_BOOTTIME, in microseconds.
    KeepUntil {
        ends_at_us: u64,
    },
    /// The executor ends in order: everything is destroyed now.
    End,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Create {
    pub id: String,
    /// The read-only trees below the writable one, bottom first; at least one, at most
    /// [`LOWERS_MAX`].
    pub lowers: Vec<PathBuf>,
    /// The host's own /usr goes over theirs.
    pub host_usr: bool,
    pub limit: Limit,
    pub workdir: String,
    /// Owner of `workdir`, as the sandbox numbers users.
    pub uid: u32,
    pub gid: u32,
    /// Fails after this step, as if the kernel had refused it. For tests of the failure path.
    pub fail_after: Option<Step>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    pub ticket: u64,
    pub outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// With three descriptors: the channel to init, the root (a mount of the writable tree alone,
    /// without what lies over it in the sandbox), and the raw writable tree, which has only what
    /// was changed.
    Created(Created),
    Failed(Failure),
    /// What would not go.
    Destroyed {
        left: Vec<String>,
    },
    Levels(Levels),
}

/// What is made ahead of creations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Levels {
    /// Children cloned and furnished, each with a network namespace.
    pub blanks: u32,
    /// Network namespaces ready, beside those.
    pub networks: u32,
    /// Network namespaces of ended sandboxes that waited for the kernel when last looked at.
    pub networks_pending: u32,
    /// Memory groups ready.
    pub groups: u32,
    /// Whether memory groups are made ahead and handed on here at all.
    pub hands_on_groups: bool,
    /// Disks ready, of all sizes.
    pub disks: u32,
    /// Memory groups that went back among the ready ones after a sandbox, since the start.
    pub groups_handed_on: u64,
    /// Memory groups that did not, since what was left in them did not go.
    pub groups_given_up: u64,
    /// Pieces of any kind begun since the start.
    pub begun: u64,
    /// Creations in 1,000 seconds that can be kept up, what they take made again; 0 before the first.
    pub creations_per_s_milli: u64,
    /// Nothing is short, and nothing is on its way back.
    pub is_full: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The host's number of the sandbox's uid and gid 0.
    pub id_base: u32,
    /// The host's pid of init.
    pub init_pid: i32,
    /// Size of the writable layer if its pages count as memory, else 0.
    pub memory_disk: Bytes,
    /// What its v2 leaf is called, if not by its id.
    pub leaf: Option<String>,
}

/// Which step of provisioning failed, and why. Everything was undone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub step: Step,
    pub problem: Problem,
    /// What could not be undone.
    pub left: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Problem {
    Errno(i32),
    /// The tree cannot be a root.
    BadRootfs(String),
    Full {
        ceiling: String,
        used: u64,
        limit: u64,
    },
}
