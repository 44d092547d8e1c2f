//! The owner of a user namespace, one for each sandbox.
//!
//! What the kernel counts inside a user namespace (inotify instances and watches, fanotify, message
//! queues, pending signals, locked memory, namespaces) it counts once more by the user that made it.
//! Namespaces made by root share one such budget, and one sandbox could use it up for all. So each is
//! made by a user of its own: the first of its range, which nobody on the host is.

use std::io;

use super::{capabilities, checked};

/// While it lives, the calling thread makes user namespaces as another user. It keeps every
/// capability it had.
#[derive(Debug)]
#[must_use = "dropped, the thread is itself again"]
pub struct Owner(());

impl Owner {
    /// The calling thread alone, where the C library's function of this name would change all.
    pub fn assume(uid: u32) -> io::Result<Self> {
        effective_user(uid)?;
        let owner = Self(());
        // The kernel emptied the effective set, and a clone into a cgroup needs it.
        capabilities::restore_effective()?;
        Ok(owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Its real user is root, so only a kernel without memory refuses. Whatever this thread made
        // next would belong to a sandbox.
        if effective_user(0).is_err() {
            std::process::abort();
        }
    }
}

fn effective_user(uid: u32) -> io::Result<()> {
    const UNCHANGED: u32 = u32::MAX;
    // SAFETY: integers only.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, uid, UNCHANGED) })?;
    Ok(())
}
