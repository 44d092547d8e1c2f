//! How many sandboxes may live at once: every ceiling of this host in one table, tightest first. The
//! first row is what the node advertises and the name by which it refuses more.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use rollout::Bytes;

use crate::broker::ranges::RANGES_MAX;
use crate::capacity;
use crate::host::budgets;
use crate::keeper::client::{FDS_PER_SANDBOX, KEEPERS_MAX};
use crate::keeper::protocol;

pub(crate) mod descriptors;

/// Descriptors of the executor beside those of its sandboxes and their work: its sockets, and what a
/// call opens for as long as it has one of the threads that may block.
const FILES_RESERVED: u64 = 1024;
/// Of an idle sandbox in the executor: the channel to init.
const FILES_PER_SANDBOX: u64 = 1;
/// Of an output that is captured: its pipe, and the file.
pub(crate) const FILES_PER_CAPTURE: u32 = 2;
/// The part of the executor's descriptors that is for work: commands, connections, files on their way.
const WORK_PERCENT: u64 = 45;
/// Tasks the node needs beside its sandboxes, and those an idle sandbox and its first process take.
const TASKS_RESERVED: u64 = 1024;
const TASKS_PER_SANDBOX: u64 = 2;
/// Files of the whole host for an idle sandbox: both ends of its channel, its root, its writable
/// tree, what init holds open, with room for a command.
const HOST_FILES_PER_SANDBOX: u64 = 16;
/// Groups and network namespaces that others have, or that the kernel has not let go of yet.
const KERNEL_RESERVED: u64 = 1024;
/// Ids of memory cgroups in a kernel.
const MEMORY_CGROUPS: u64 = 65_535;
/// Watches of the channel and of both outputs of a command.
const WATCHES_PER_SANDBOX: u64 = 3;
/// What an idle sandbox takes of the machine, kernel memory included (bench `density`).
const IDLE_KIB: u64 = 1024;

/// One limit, and the sandboxes it allows: what is left of it after the reserve, by what each takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ceiling {
    pub name: &'static str,
    pub limit: u64,
    pub reserved: u64,
    pub each: u64,
}

impl Ceiling {
    pub const fn sandboxes(&self) -> u64 {
        self.limit.saturating_sub(self.reserved) / self.each
    }
}

/// What the ceilings follow from. None = this kernel has no such limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Host {
    /// Soft and hard limit of open files of this process.
    pub open_files: (u64, u64),
    pub pid_max: Option<u64>,
    pub threads_max: Option<u64>,
    pub file_max: Option<u64>,
    pub net_namespaces: Option<u64>,
    pub epoll_watches: Option<u64>,
    /// Memory cgroups there are now.
    pub memory_cgroups: Option<u64>,
    pub memory_available: Option<Bytes>,
}

impl Host {
    /// Reads them now.
    pub fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        Self {
            open_files: getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((FILES_RESERVED, FILES_RESERVED)),
            pid_max: number("/proc/sys/kernel/pid_max"),
            threads_max: number("/proc/sys/kernel/threads-max"),
            file_max: number("/proc/sys/fs/file-max"),
            net_namespaces: budgets::NET_NAMESPACES.value(),
            epoll_watches: budgets::EPOLL_WATCHES.value(),
            memory_cgroups: fs::read_to_string("/proc/cgroups").ok().and_then(|text| memory_cgroups(&text)),
            memory_available: capacity::memory_available().ok(),
        }
    }

    /// Descriptors for work in all sandboxes together.
    fn for_work(&self) -> u64 {
        self.open_files.0.saturating_sub(FILES_RESERVED) / 100 * WORK_PERCENT
    }

    /// Every ceiling, tightest first.
    pub fn ceilings(&self) -> Vec<Ceiling> {
        let (soft, hard) = self.open_files;
        let memory_kib = self.memory_available.map(|bytes| bytes.0 / 1024);
        let ceiling =
            |name, limit: Option<u64>, reserved, each| Some(Ceiling { name, limit: limit?, reserved, each });
        let rows = [
            ceiling(
                "open files of the executor",
                Some(soft),
                FILES_RESERVED + self.for_work(),
                FILES_PER_SANDBOX,
            ),
            ceiling(
                "open files of the keepers",
                Some(hard.saturating_mul(KEEPERS_MAX)),
                protocol::RESERVED * KEEPERS_MAX,
                FDS_PER_SANDBOX,
            ),
            ceiling("kernel.pid_max", self.pid_max, TASKS_RESERVED, TASKS_PER_SANDBOX),
            ceiling("kernel.threads-max", self.threads_max, TASKS_RESERVED, TASKS_PER_SANDBOX),
            ceiling("fs.file-max", self.file_max, KERNEL_RESERVED, HOST_FILES_PER_SANDBOX),
            ceiling(budgets::NET_NAMESPACES.name, self.net_namespaces, KERNEL_RESERVED, 1),
            ceiling(budgets::EPOLL_WATCHES.name, self.epoll_watches, KERNEL_RESERVED, WATCHES_PER_SANDBOX),
            ceiling(
                "memory cgroups of the kernel",
                self.memory_cgroups.map(|_| MEMORY_CGROUPS),
                self.memory_cgroups.unwrap_or(0) + KERNEL_RESERVED,
                1,
            ),
            ceiling("KiB of free memory", memory_kib, 0, IDLE_KIB),
            ceiling("uid ranges", Some(RANGES_MAX.into()), 0, 1),
        ];
        let mut rows: Vec<_> = rows.into_iter().flatten().collect();
        rows.sort_by_key(Ceiling::sandboxes);
        rows
    }

    /// The tightest: its name, and the sandboxes it allows.
    pub fn tightest(&self) -> (&'static str, u32) {
        let ranges = ("uid ranges", RANGES_MAX);
        self.ceilings()
            .first()
            .and_then(|first| Some((first.name, u32::try_from(first.sandboxes()).ok()?)))
            .unwrap_or(ranges)
    }
}

/// Of /proc/cgroups: the number of groups in the memory hierarchy.
fn memory_cgroups(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("memory\t"))?;
    line.split('\t').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 100_000_000;
    /// Of a command with both outputs captured.
    const FILES_PER_COMMAND: u64 = 2 * FILES_PER_CAPTURE as u64;

    fn host() -> Host {
        Host {
            open_files: (20_000, 20_000),
            pid_max: Some(32_768),
            threads_max: Some(192_729),
            file_max: Some(LARGE),
            net_namespaces: Some(96_364),
            epoll_watches: Some(LARGE),
            memory_cgroups: Some(400),
            memory_available: Some(Bytes(22 << 30)),
        }
    }

    #[test]
    fn twenty_thousand_open_files_hold_ten_thousand_idle_sandboxes() {
        let (name, sandboxes) = host().tightest();
        assert_eq!(name, "open files of the executor");
        assert!(sandboxes >= 10_000, "{sandboxes}");
        let all = u64::from(sandboxes) * FILES_PER_SANDBOX + host().for_work();
        assert!(all + FILES_RESERVED <= 20_000, "{all} descriptors");
        assert!(host().for_work() / FILES_PER_COMMAND >= 2_000);
    }

    #[test]
    fn each_ceiling_becomes_the_tightest_when_it_is_low() {
        let low = [
            ("open files of the executor", Host { open_files: (2_000, LARGE), ..host() }),
            ("open files of the keepers", Host { open_files: (LARGE, 200), ..host() }),
            ("kernel.pid_max", Host { pid_max: Some(4_096), ..host() }),
            ("kernel.threads-max", Host { threads_max: Some(4_096), ..host() }),
            ("fs.file-max", Host { file_max: Some(10_000), ..host() }),
            ("user.max_net_namespaces", Host { net_namespaces: Some(2_000), ..host() }),
            ("fs.epoll.max_user_watches", Host { epoll_watches: Some(4_000), ..host() }),
            ("memory cgroups of the kernel", Host { memory_cgroups: Some(64_000), ..host() }),
            ("KiB of free memory", Host { memory_available: Some(Bytes(1 << 30)), ..host() }),
        ];
        for (name, host) in low {
            assert_eq!(host.tightest().0, name, "{:#?}", host.ceilings());
            assert!(host.ceilings().is_sorted_by_key(Ceiling::sandboxes));
        }
        let free = Host { open_files: (LARGE, LARGE), pid_max: Some(LARGE), ..host() };
        assert_eq!(Host { memory_available: None, ..free }.tightest(), ("uid ranges", RANGES_MAX));
    }

    #[test]
    fn a_limit_below_its_reserve_allows_nothing() {
        let host = Host { open_files: (256, 256), ..host() };
        assert_eq!((host.tightest().1, host.for_work()), (0, 0));
    }

    #[test]
    fn groups_are_counted_as_the_kernel_writes_them() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t3\t1\nmemory\t4\t415\t1\n";
        assert_eq!(memory_cgroups(text), Some(415));
        assert_eq!(memory_cgroups("cpu\t1\t3\t1\n"), None);
    }
}
