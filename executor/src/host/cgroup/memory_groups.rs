//! Memory groups that are handed from one sandbox to the next: renamed, emptied, and proven to hold
//! nothing of the last one.
//!
//! Only where the memory controller has a v1 hierarchy of its own. A v2 leaf carries the counters of
//! every controller, and most of those cannot be set back.

use std::io;
use std::os::fd::AsFd;

use super::{CPU, MEMORY, PIDS, Tree, field, name};
use crate::host::open;

/// Names of groups no sandbox has: an id has no `.`.
pub const POOLED: &str = "pool.";
/// Charged to a group that is handed on: what lives on of trees that others share (names, inodes, pages
/// of files), in bytes. The next sandbox has so much less of its limit at most.
pub const CHARGED_MAX: u64 = 64 << 10;
/// What a process may use that waits in a group for its sandbox, in bytes. Init uses a tenth of it.
pub const WAITING_MAX: u64 = 1 << 20;
/// Pages of files charged to a group beyond this are left alone, in bytes, and the group is given
/// up: they are the shared trees' of the node, and emptying it would drop them for every sandbox.
pub const CACHE_MAX: u64 = 1 << 20;

/// What `memory.stat` may be behind by, in bytes: a batch of 64 pages on each of a few CPUs.
const STAT_LAG_MAX: u64 = 1 << 20;

/// More than the CPUs keep at hand for a group, in bytes.
const HELD_MAX: u64 = 1 << 20;

/// The count of OOM kills, which nothing sets back, and whether one is under way. Every other setting is as it was made:
/// nothing in a sandbox can write one, and we write none but the limits, which are written anew for each.
const OOM: &str = "memory.oom_control";
/// High-water marks, which a write of 0 sets back to what is charged now.
const MARKS: [&str; 4] = [
    "memory.max_usage_in_bytes",
    "memory.memsw.max_usage_in_bytes",
    "memory.kmem.max_usage_in_bytes",
    "memory.kmem.tcp.max_usage_in_bytes",
];
/// Counters that a write of 0 sets back. Of most groups they are 0.
const COUNTERS: [&str; 4] =
    ["memory.failcnt", "memory.memsw.failcnt", "memory.kmem.failcnt", "memory.kmem.tcp.failcnt"];
/// What is charged. Swapped-out pages are in the second, sockets' buffers in the last.
const CHARGES: [&str; 4] = [
    "memory.usage_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.kmem.usage_in_bytes",
    "memory.kmem.tcp.usage_in_bytes",
];

/// What [`OOM`] says of a group that nobody has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused(String);

/// What a reset may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Takes a group that is empty as it is.
    Look,
    /// Has the CPUs give back what they keep at hand for it. A limit below what is then left sends the
    /// kernel through every filesystem of the host, for pages to take.
    Squeeze,
    /// Takes out what does not go by itself. That costs more than a new group.
    Force,
}

/// What a reset came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reset {
    /// As good as new, but that its limit is [`CHARGED_MAX`].
    Clean,
    /// Something of the last sandbox is still there and may yet go.
    Busy,
    /// What is there does not go, or cannot be told from what a next sandbox does.
    Unfit(&'static str),
}

impl Tree {
    /// Whether memory groups can be handed on here.
    pub fn hands_on_groups(&self) -> bool {
        let (place, v1) = self.places[MEMORY];
        v1 && self.places[CPU].0 != place && self.places[PIDS].0 != place
    }

    pub fn make_memory_group(&self, group: &str) -> io::Result<()> {
        open::make_dir(self.memory_dir(), &name(group)?, 0o755)
    }

    /// Gives a group another name; what is open of it stays open.
    pub fn rename_memory_group(&self, from: &str, to: &str) -> io::Result<()> {
        open::rename(self.memory_dir(), &name(from)?, &name(to)?)
    }

    /// A group that is gone is no error.
    pub fn remove_memory_group(&self, group: &str) -> io::Result<()> {
        Self::remove_from(self.memory_dir(), &name(group)?)
    }

    /// Of a group that was just made.
    pub fn unused(&self, group: &str) -> io::Result<Unused> {
        Ok(Unused(self.memory_file(group, OOM)?.unwrap_or_default()))
    }

    /// Looks whether everything of the last sandbox is out of a group, and sets it back.
    pub fn reset_memory_group(&self, group: &str, fresh: &Unused, effort: Effort) -> io::Result<Reset> {
        let tasks = self.memory_file(group, "tasks")?.unwrap_or_default();
        let below = open::stat(open::at(self.memory_dir(), &name(group)?, libc::O_PATH)?.as_fd())?.st_nlink;
        if !tasks.is_empty() || below > 2 {
            return Ok(Reset::Busy);
        }
        let charged = self.memory_number(group, "memory.usage_in_bytes")?;
        let stat = self.memory_file(group, "memory.stat")?.unwrap_or_default();
        let of = |key| field(&stat, key).unwrap_or(0);
        // Its own pages, in memory or of files in memory: some CPU still has one at hand. The kernel is up to two seconds
        // late with few of them; what is charged is exact, and no more can be there than that.
        let room = match charged {
            0 => 0,
            charged => charged
                .saturating_sub(self.optional_number(group, "memory.kmem.usage_in_bytes")?.unwrap_or(0)),
        };
        let own = of("inactive_anon").saturating_add(of("active_anon")).min(room);
        if charged > CHARGED_MAX || own > 0 {
            if of("cache").saturating_sub(of("shmem")) > CACHE_MAX {
                return Ok(Reset::Unfit("its pages are of files that others use"));
            }
            let is_filled = of("rss").saturating_add(of("shmem")) > STAT_LAG_MAX;
            match effort {
                Effort::Squeeze if charged <= HELD_MAX && own == 0 => {}
                Effort::Force if !is_filled => {
                    self.write(MEMORY, group, "memory.force_empty", "0")?;
                    if own > 0 {
                        return Ok(Reset::Busy);
                    }
                }
                Effort::Look | Effort::Squeeze | Effort::Force => return Ok(Reset::Busy),
            }
        }
        if self.unused(group)? != *fresh {
            return Ok(Reset::Unfit("it saw an OOM kill"));
        }
        // The kernel takes the limit only if no more is charged than that.
        match self.write(MEMORY, group, "memory.limit_in_bytes", &CHARGED_MAX.to_string()) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(Reset::Busy),
            other => other?,
        }
        for file in CHARGES {
            let most = if file.contains(".tcp.") { 0 } else { CHARGED_MAX };
            if self.optional_number(group, file)?.unwrap_or(0) > most {
                return Ok(Reset::Busy);
            }
        }
        // Only now: nothing is in the group that could charge more, so no mark is set back to more than was read.
        for file in MARKS {
            match self.write(MEMORY, group, file, "0") {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        for file in COUNTERS {
            if self.optional_number(group, file)?.unwrap_or(0) > 0 {
                self.write(MEMORY, group, file, "0")?;
                if self.memory_number(group, file)? > 0 {
                    return Ok(Reset::Busy);
                }
            }
        }
        Ok(Reset::Clean)
    }

    /// Raises the limit of a group that was handed on, for a process that waits in it. No sandbox's limit is lower, and
    /// so none that was its limit of swap before.
    pub fn limit_to_wait(&self, group: &str) -> io::Result<()> {
        self.write(MEMORY, group, "memory.limit_in_bytes", &WAITING_MAX.to_string())
    }

    /// The memory limit as the kernel has it, in bytes.
    pub(super) fn memory_limit(&self, group: &str) -> io::Result<u64> {
        self.memory_number(group, "memory.limit_in_bytes")
    }

    fn memory_number(&self, group: &str, file: &str) -> io::Result<u64> {
        let text = self.memory_file(group, file)?.unwrap_or_default();
        text.trim().parse().map_err(|_| io::Error::from_raw_os_error(libc::EBADMSG))
    }

    /// None: this kernel has no such file.
    fn optional_number(&self, group: &str, file: &str) -> io::Result<Option<u64>> {
        let number =
            |text: String| text.trim().parse().map_err(|_| io::Error::from_raw_os_error(libc::EBADMSG));
        self.memory_file(group, file)?.map(number).transpose()
    }

    fn memory_dir(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dirs[self.places[MEMORY].0].as_fd()
    }

    /// None: this kernel has no such file.
    fn memory_file(&self, group: &str, file: &str) -> io::Result<Option<String>> {
        match self.read(self.places[MEMORY].0, &format!("{group}/{file}")) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
