//! Keepers: small processes that hold descriptors of sandboxes for one executor.
//!
//! The root of a sandbox and its writable tree lie on detached mounts, which no path leads to: a
//! descriptor that is closed cannot be opened again. At two a sandbox the executor would run out of
//! descriptors long before the machine runs out of anything else, so it hands them to a keeper and
//! borrows one when a call needs it. Keepers are the same executable, started again under another
//! name, like the broker; there are as many as the sandboxes of the node need.
//!
//! A keeper decides nothing and opens nothing. It ends when the executor and the broker are gone, and
//! what it held goes with it: so the next executor finds what one that was killed put there. If a keeper dies, its sandboxes can be neither read nor packed any more: the backend ends.

pub(crate) mod client;
mod lines;
pub(crate) mod protocol;
mod serve;

/// `argv[0]` of a keeper.
pub const MARK: &str = "rollyard-keeper";

pub(crate) use serve::run;
