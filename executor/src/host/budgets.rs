//! Budgets of the kernel: this process's own open files, and what the host grants each user. They
//! are raised where that is allowed, never lowered, and never past a hard limit.

use std::fs;
use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A setting below /proc/sys, and what the executor wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// As sysctl(8) spells it.
    pub name: &'static str,
    pub wanted: u64,
}

/// Each sandbox has these of its own (its user namespace has an owner of its own), at the host's
/// value.
pub const INOTIFY_INSTANCES: Budget = Budget { name: "fs.inotify.max_user_instances", wanted: 1_024 };
pub const INOTIFY_WATCHES: Budget = Budget { name: "fs.inotify.max_user_watches", wanted: 262_144 };
/// Root makes the network namespaces of all sandboxes.
pub const NET_NAMESPACES: Budget = Budget { name: "user.max_net_namespaces", wanted: 65_536 };
/// Root watches the channels of all sandboxes.
pub const EPOLL_WATCHES: Budget = Budget { name: "fs.epoll.max_user_watches", wanted: 262_144 };
/// All terminals of the host together.
pub const TERMINALS: Budget = Budget { name: "kernel.pty.max", wanted: 65_536 };

/// Bytes for the compiled filters of system calls of all sandboxes, and of what runs in them: without room no sandbox
/// is made. All that the kernel gives on x86-64.
pub const FILTERS: Budget = Budget { name: "net.core.bpf_jit_limit", wanted: 1_056_964_608 };

const ALL: [Budget; 6] =
    [INOTIFY_INSTANCES, INOTIFY_WATCHES, NET_NAMESPACES, EPOLL_WATCHES, TERMINALS, FILTERS];

impl Budget {
    fn path(self) -> String {
        format!("/proc/sys/{}", self.name.replace('.', "/"))
    }

    /// The host's value; none if the kernel has no such setting.
    pub fn value(self) -> Option<u64> {
        fs::read_to_string(self.path()).ok()?.trim().parse().ok()
    }

    /// The host's value if it is as much as is wanted or more, else what it could be raised from.
    fn raise(self) -> io::Result<Option<u64>> {
        let Some(found) = self.value().filter(|found| *found < self.wanted) else { return Ok(None) };
        match fs::write(self.path(), self.wanted.to_string()) {
            // More than this kernel has at all.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            written => written?,
        }
        // The kernel may have taken less than it was given.
        if self.value().is_some_and(|now| now >= self.wanted) {
            Ok(Some(found))
        } else {
            Err(io::Error::other("the kernel took another value"))
        }
    }
}

/// Raises what the host grants, and says so once for each. What it does not allow stays, and what
/// follows from it is in the table of ceilings.
pub fn raise() {
    for budget in ALL {
        match budget.raise() {
            Ok(None) => {}
            Ok(Some(was)) => tracing::info!(setting = budget.name, was, now = budget.wanted, "raised"),
            Err(error) => {
                let (setting, value) = (budget.name, budget.value());
                tracing::warn!(setting, value, wanted = budget.wanted, %error, "stays as it is");
            }
        }
    }
}

/// The soft limit of open files becomes the hard one; answers it.
pub fn raise_open_files() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_names_its_file_and_what_is_enough_is_left_alone() {
        assert_eq!(INOTIFY_WATCHES.path(), "/proc/sys/fs/inotify/max_user_watches");
        let enough = Budget { wanted: 1, ..INOTIFY_WATCHES };
        let before = enough.value().unwrap();
        assert_eq!((enough.raise().unwrap(), enough.value()), (None, Some(before)));
        let unknown = Budget { name: "kernel.no_such_setting", wanted: 1 };
        assert_eq!((unknown.value(), unknown.raise().unwrap()), (None, None));
    }
}
