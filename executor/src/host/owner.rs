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
        become_user(uid)?;
        let owner = Self(());
        // The kernel emptied the effective set, and a clone into a cgroup needs it.
        capabilities::restore_effective()?;
        Ok(owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Its saved user is root, so only a kernel without memory refuses. Whatever this thread made
        // next would belong to a sandbox.
        if become_user(0).is_err() {
            std::process::abort();
        }
    }
}

/// Real and effective: an exec where the two differ loses the capabilities that it should keep. The saved one stays
/// root's, and with it what is permitted.
fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: integers only.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, 0) })?;
    Ok(())
}
