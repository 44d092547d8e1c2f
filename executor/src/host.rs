//! The mechanisms of the kernel that sandboxes are made of, one file each. They decide nothing:
//! each function is one thing done, with the errno if it is refused.
//!
//! Those that init asks for too come with it. What runs between clone and exec ([`broker::child`](crate::broker))
//! may call [`capabilities`], which takes no lock and allocates nothing.

pub mod budgets;
pub mod cgroup;
pub mod clone;
pub(crate) mod interrupt;
pub mod loop_disk;
pub mod netns;
pub mod netns_ledger;
pub mod owner;
pub mod seccomp;
pub mod traced;

pub use sandbox_init::kernel::{capabilities, landlock, mounts, open};
pub(crate) use sandbox_init::kernel::{checked, fresh_fd};
