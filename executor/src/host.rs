//! The mechanisms of the kernel that sandboxes are made of, one file each. They decide nothing:
//! each function is one thing done, with the errno if it is refused.
//!
//! Everything in [`mounts`], [`open`], [`landlock`], [`capabilities`] and [`seccomp::install`] may
//! be called between clone and exec: no allocation, no lock.

pub mod budgets;
pub mod capabilities;
pub mod cgroup;
pub mod clone;
pub(crate) mod interrupt;
pub mod landlock;
pub mod loop_disk;
pub mod mounts;
pub mod netns;
pub mod netns_ledger;
pub mod open;
pub mod owner;
pub mod seccomp;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A raw system call result: an error for -1.
fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A raw system call result that is a fresh descriptor.
pub(crate) fn fresh_fd(result: i64) -> io::Result<OwnedFd> {
    let fd = i32::try_from(checked(result)?).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel just made this descriptor for the caller; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
