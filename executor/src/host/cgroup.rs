//! Control groups: a parent `rollyard/<instance>` in each hierarchy in use, one leaf a sandbox.
//!
//! A v2 leaf always carries birth (clone into it), kill and cpu time. Limits live where the
//! controller does: on a v1 hierarchy, or on the same v2 leaf. Everything goes through directory
//! descriptors, so it works in a mount namespace that no longer shows the cgroup trees.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rollout::Bytes;
use rollout::quantity::Limit;

use super::open;

pub mod memory_groups;
mod names;
mod trees;

pub use names::sandbox_of;

/// The one name Rollyard uses at the top of a hierarchy.
pub const PARENT: &str = "rollyard";
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
// One descriptor of each v1 hierarchy goes to an init in one datagram.
const _: () = assert!(CONTROLLERS.len() <= sandbox_init::packet::FDS_MAX);
/// The bandwidth period, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// What all sandboxes together weigh, for each CPU of this executor: in v1's shares, of which a task beside
/// their group has 1,024, as has a group of the host that nobody gave another weight. So what runs in them goes
/// before what makes new ones.
const SHARES_PER_CPU: u64 = 4_096;
/// The kernel takes no more.
const SHARES_MAX: u64 = 262_144;
/// Of v2's weights a task outside of groups has 100.
const WEIGHT_MAX: u64 = 10_000;
/// The smallest quota the kernel takes, in microseconds.
const CPU_QUOTA_MIN_US: u64 = 1_000;
/// A group stays busy for a moment after its last task was reaped: rmdir is tried this often.
const REMOVE_TRIES_MAX: u32 = 2_000;
const REMOVE_PAUSE: Duration = Duration::from_micros(50);
/// In a group whose swap the kernel counts: with its memory (v1), or alone (v2).
pub const SWAP_V1: &CStr = c"memory.memsw.limit_in_bytes";
pub const SWAP_V2: &CStr = c"memory.swap.max";
/// Of a group of processor time, on v1 and v2 alike.
pub const CPU_IDLE: &str = "cpu.idle";
/// What waits in the sockets of a sandbox may be this part of its memory limit, beside it, and no more than that.
const SOCKETS_PART: u64 = 4;
const SOCKETS_MAX: u64 = 64 << 20;
/// No page of memory is larger.
const PAGE_MAX: u64 = 64 << 10;
/// A control file is never longer.
const FILE_MAX: u64 = 1 << 20;
const FIRST_READ_BYTES: usize = 4096;

/// What a host offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where the v2 tree is mounted.
    pub v2: PathBuf,
    /// Mount point of the v1 hierarchy of each controller; none = on v2.
    pub memory_v1: Option<PathBuf>,
    pub cpu_v1: Option<PathBuf>,
    pub pids_v1: Option<PathBuf>,
}

/// Why this host's cgroups cannot hold a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("no cgroup v2 tree is mounted: a sandbox could not be killed as a whole")]
    NoV2,
    #[error("no hierarchy has the `{0}` controller: its limit could not be enforced")]
    NoController(&'static str),
    #[error("reading {path}")]
    Read { path: PathBuf, source: io::Error },
}

impl Layout {
    /// Reads where the hierarchies are mounted.
    pub fn discover() -> Result<Self, LayoutError> {
        let path = PathBuf::from("/proc/self/mountinfo");
        let mounts = fs::read_to_string(&path).map_err(|source| LayoutError::Read { path, source })?;
        Self::from_mountinfo(&mounts, |root| {
            fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    /// `controllers` reads `cgroup.controllers` of the v2 tree at a mount point.
    pub fn from_mountinfo(mounts: &str, controllers: impl Fn(&Path) -> String) -> Result<Self, LayoutError> {
        let (mut v2, mut v1) = (None, [None, None, None]);
        for line in mounts.lines() {
            let Some((head, tail)) = line.split_once(" - ") else { continue };
            let (Some(point), Some(kind)) = (head.split(' ').nth(4), tail.split(' ').next()) else {
                continue;
            };
            let options = tail.split(' ').nth(2).unwrap_or_default();
            match kind {
                "cgroup2" if v2.is_none() => v2 = Some(PathBuf::from(point)),
                "cgroup" => {
                    for (slot, name) in v1.iter_mut().zip(CONTROLLERS) {
                        if options.split(',').any(|option| option == name) {
                            slot.get_or_insert_with(|| PathBuf::from(point));
                        }
                    }
                }
                _ => {}
            }
        }
        let v2 = v2.ok_or(LayoutError::NoV2)?;
        let on_v2 = controllers(&v2);
        for (slot, name) in v1.iter().zip(CONTROLLERS) {
            if slot.is_none() && !on_v2.split_whitespace().any(|controller| controller == name) {
                return Err(LayoutError::NoController(name));
            }
        }
        let [memory_v1, cpu_v1, pids_v1] = v1;
        Ok(Self { v2, memory_v1, cpu_v1, pids_v1 })
    }

    /// The instance's parent directory in each hierarchy, each once, v2 first.
    pub fn parents(&self, instance: &str) -> Vec<PathBuf> {
        let mut parents = vec![self.v2.join(PARENT).join(instance)];
        for mount in [&self.memory_v1, &self.cpu_v1, &self.pids_v1].into_iter().flatten() {
            let parent = mount.join(PARENT).join(instance);
            if !parents.contains(&parent) {
                parents.push(parent);
            }
        }
        parents
    }
}

/// The opened parents of one executor's leaves.
#[derive(Debug)]
pub struct Tree {
    /// v2 first, then each v1 hierarchy once.
    dirs: Vec<OwnedFd>,
    /// Index into `dirs` and whether it is v1, of memory, cpu, pids.
    places: [(usize, bool); 3],
    /// The hierarchies' own roots, in the order of `dirs`.
    roots: Vec<OwnedFd>,
    instance: String,
    /// By sandbox, the name of its v2 leaf where that is another one than its id.
    leaves: Mutex<BTreeMap<String, String>>,
}

const MEMORY: usize = 0;
const CPU: usize = 1;
const PIDS: usize = 2;

/// The limit of buffers of sockets, where it is one of its own.
fn socket_buffers(memory: Bytes) -> Bytes {
    Bytes((memory.0 / SOCKETS_PART).min(SOCKETS_MAX))
}

/// The file and the value that give the group of all sandboxes its part of the processor time.
fn weight(cpus: usize, is_v1: bool) -> (&'static str, u64) {
    let shares = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(SHARES_PER_CPU);
    match is_v1 {
        true => ("cpu.shares", shares.min(SHARES_MAX)),
        false => ("cpu.weight", (shares.saturating_mul(100) / 1_024).min(WEIGHT_MAX)),
    }
}

/// Another executor that ends may remove the shared parent between our two steps.
fn make_parent(parent: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::create_dir_all(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < REMOVE_TRIES_MAX => tries += 1,
            other => return other,
        }
    }
}

impl Tree {
    /// Makes the parents if they are missing and opens them.
    pub fn open(layout: &Layout, instance: &str) -> io::Result<Self> {
        let parents = layout.parents(instance);
        for parent in &parents {
            make_parent(parent)?;
        }
        let on_v2: Vec<&str> = [&layout.memory_v1, &layout.cpu_v1, &layout.pids_v1]
            .into_iter()
            .zip(CONTROLLERS)
            .filter_map(|(v1, name)| v1.is_none().then_some(name))
            .collect();
        if !on_v2.is_empty() {
            let wanted: String = on_v2.iter().map(|name| format!("+{name} ")).collect();
            for dir in [layout.v2.clone(), layout.v2.join(PARENT), parents[0].clone()] {
                let file = dir.join("cgroup.subtree_control");
                let enabled = fs::read_to_string(&file)?;
                if on_v2.iter().any(|name| !enabled.split_whitespace().any(|on| on == *name)) {
                    fs::write(&file, &wanted)?;
                }
            }
        }
        let place = |v1: &Option<PathBuf>| match v1 {
            None => (0, false),
            Some(mount) => {
                let parent = mount.join(PARENT).join(instance);
                (parents.iter().position(|known| *known == parent).unwrap_or(0), true)
            }
        };
        let places = [place(&layout.memory_v1), place(&layout.cpu_v1), place(&layout.pids_v1)];
        let dirs = parents
            .iter()
            .map(|parent| open::directory(&name(&parent.to_string_lossy())?))
            .collect::<io::Result<_>>()?;
        let (cpu, is_v1) = places[CPU];
        if let Some(shared) = parents[cpu].parent() {
            let (file, weight) = weight(std::thread::available_parallelism()?.get(), is_v1);
            fs::write(shared.join(file), weight.to_string())?;
        }
        let roots = parents
            .iter()
            .filter_map(|parent| parent.parent()?.parent())
            .map(|root| open::directory(&name(&root.to_string_lossy())?))
            .collect::<io::Result<_>>()?;
        let tree = Self { dirs, places, roots, instance: instance.to_owned(), leaves: Mutex::default() };
        for leaf in tree.leaves()? {
            if let Some(id) = sandbox_of(tree.dirs[0].as_fd(), &name(&leaf)?) {
                tree.know(&id, &leaf);
            }
        }
        Ok(tree)
    }

    /// Removes the parents this executor made, at its end. Those that hold anything stay: a leaf
    /// that would not go, or another executor's instance beside ours.
    pub fn remove_parents(&self) {
        let (Ok(own), Ok(shared)) = (name(&format!("{PARENT}/{}", self.instance)), name(PARENT)) else {
            return;
        };
        for root in &self.roots {
            if open::remove(root.as_fd(), &own, libc::AT_REMOVEDIR).is_ok() {
                let _ = open::remove(root.as_fd(), &shared, libc::AT_REMOVEDIR);
            }
        }
    }

    /// Sets the limits of leaves that were made. What the kernel makes of that of a memory group which was handed on is
    /// read back.
    pub fn limit_made(&self, id: &str, limits: &Limits, is_handed_on: bool) -> io::Result<()> {
        self.limit(id, limits)?;
        if is_handed_on { self.check_memory_limit(id, limits) } else { Ok(()) }
    }

    /// Makes leaves of this name in every hierarchy, of memory by renaming `group` if there is one.
    pub fn make_leaves(&self, id: &str, group: Option<&str>) -> io::Result<()> {
        let leaf = name(id)?;
        if let Some(group) = group {
            self.rename_memory_group(group, id)?;
        }
        for (place, dir) in self.dirs.iter().enumerate() {
            if group.is_none() || place != self.places[MEMORY].0 {
                open::make_dir(dir.as_fd(), &leaf, 0o755)?;
            }
        }
        Ok(())
    }

    /// Writes limits. Lowering memory below the use fails with EBUSY (v1) or reclaims (v2).
    pub fn limit(&self, id: &str, limits: &Limits) -> io::Result<()> {
        let memory = limits.memory.0.to_string();
        if self.places[MEMORY].1 {
            // memsw must not be below memory at any moment: raise it first, lower it last.
            let swap_first = self.write(MEMORY, id, "memory.memsw.limit_in_bytes", &memory);
            self.write(MEMORY, id, "memory.limit_in_bytes", &memory)?;
            match swap_first {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => self.write(MEMORY, id, "memory.memsw.limit_in_bytes", &memory)?,
            }
            // What waits in sockets is counted apart, and not at all before it has a limit.
            let sockets = socket_buffers(limits.memory).0.to_string();
            match self.write(MEMORY, id, "memory.kmem.tcp.limit_in_bytes", &sockets) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        } else {
            self.write(MEMORY, id, "memory.max", &memory)?;
            match self.write(MEMORY, id, "memory.swap.max", "0") {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        let quota = (limits.cpu_milli * CPU_PERIOD_US / 1000).max(CPU_QUOTA_MIN_US);
        if self.places[CPU].1 {
            self.write(CPU, id, "cpu.cfs_quota_us", &quota.to_string())?;
        } else {
            self.write(CPU, id, "cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        self.write(PIDS, id, "pids.max", &limits.tasks.to_string())
    }

    /// Its processes run only when no other group of these wants the processor. False: this kernel has
    /// no such groups.
    pub fn yield_cpu(&self, id: &str) -> io::Result<bool> {
        match self.write(CPU, id, CPU_IDLE, "1") {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the memory limit of a leaf bounds what it swaps out too.
    pub fn counts_swap(&self) -> bool {
        let (place, v1) = self.places[MEMORY];
        let file = if v1 { SWAP_V1 } else { SWAP_V2 };
        open::at(self.dirs[place].as_fd(), file, libc::O_PATH).is_ok()
    }

    /// The v2 leaf, to clone into.
    pub fn leaf(&self, id: &str) -> io::Result<OwnedFd> {
        open::at(self.dirs[0].as_fd(), &self.path(0, id)?, libc::O_PATH | libc::O_DIRECTORY)
    }

    /// Of each v1 leaf, the file that takes a "0" from a process of one thread which moves itself.
    pub fn joins(&self, id: &str) -> io::Result<Vec<OwnedFd>> {
        let tasks = name(&format!("{id}/tasks"))?;
        self.dirs[1..].iter().map(|dir| open::at(dir.as_fd(), &tasks, libc::O_WRONLY)).collect()
    }

    /// Kills every process of the sandbox at once. A leaf that is gone is no error.
    pub fn kill(&self, id: &str) -> io::Result<()> {
        match open::write_at(self.dirs[0].as_fd(), &self.path(0, &format!("{id}/cgroup.kill"))?, b"1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Stops every process of the sandbox, or lets them go on. The kernel takes its time to stop
    /// them: see [`is_frozen`](Self::is_frozen).
    pub fn freeze(&self, id: &str, freeze: bool) -> io::Result<()> {
        let value = if freeze { b"1" } else { b"0" };
        open::write_at(self.dirs[0].as_fd(), &self.path(0, &format!("{id}/cgroup.freeze"))?, value)
    }

    /// Whether every process of the sandbox stands still.
    pub fn is_frozen(&self, id: &str) -> io::Result<bool> {
        Ok(field(&self.read(0, &format!("{id}/cgroup.events"))?, "frozen") == Some(1))
    }

    /// Removes the leaves; those that stay are named.
    pub fn remove(&self, id: &str) -> Vec<String> {
        self.remove_trees(id);
        let mut left = Vec::new();
        for (index, dir) in self.dirs.iter().enumerate() {
            let removed = self.path(index, id).and_then(|leaf| Self::remove_from(dir.as_fd(), &leaf));
            if let Err(error) = removed {
                left.push(format!("cgroup {id} of hierarchy {index}: {error}"));
            }
        }
        if left.is_empty() {
            self.forget(id);
        }
        left
    }

    fn remove_from(dir: BorrowedFd<'_>, leaf: &CStr) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match open::remove(dir, leaf, libc::AT_REMOVEDIR) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < REMOVE_TRIES_MAX => {
                    tries += 1;
                    std::thread::sleep(REMOVE_PAUSE);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                other => return other,
            }
        }
    }

    /// Pids in the v2 leaf, as the host numbers them.
    pub fn processes(&self, id: &str) -> io::Result<Vec<i32>> {
        let text = self.read(0, &format!("{id}/cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Names of the leaves in any hierarchy.
    pub fn leaves(&self) -> io::Result<Vec<String>> {
        let mut leaves = Vec::new();
        for dir in &self.dirs {
            let listed = open::at(dir.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY)?;
            let mut listed = nix::dir::Dir::from_fd(listed)?;
            for entry in listed.iter() {
                let entry = entry?;
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                let is_dir = entry.file_type() == Some(nix::dir::Type::Directory);
                if let (true, Some(name)) = (is_dir, name.to_str())
                    && name != "."
                    && name != ".."
                    && !leaves.iter().any(|known| known == name)
                {
                    leaves.push(name.to_owned());
                }
            }
        }
        Ok(leaves)
    }

    /// OOM kills since the leaf was made.
    pub fn oom_kills(&self, id: &str) -> Option<u64> {
        let file = if self.places[MEMORY].1 { "memory.oom_control" } else { "memory.events" };
        self.counter(MEMORY, id, file, "oom_kill")
    }

    /// Forks refused by the pids limit.
    pub fn forks_refused(&self, id: &str) -> Option<u64> {
        self.counter(PIDS, id, "pids.events", "max")
    }

    /// CPU time used, in microseconds. Counted on v2 whatever carries the limit.
    pub fn cpu_us(&self, id: &str) -> Option<u64> {
        field(&self.read(0, &format!("{id}/cpu.stat")).ok()?, "usage_usec")
    }

    pub fn memory_peak(&self, id: &str) -> Option<Bytes> {
        let (place, v1) = self.places[MEMORY];
        let file = if v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        self.read(place, &format!("{id}/{file}")).ok()?.trim().parse().ok().map(Bytes)
    }

    /// What its processes hold now and nobody can drop: anonymous memory, and files kept in memory
    /// alone. Cached files are not in it.
    pub fn memory_held(&self, id: &str) -> Option<Bytes> {
        let (place, v1) = self.places[MEMORY];
        held(&self.read(place, &format!("{id}/memory.stat")).ok()?, v1).map(Bytes)
    }

    fn counter(&self, controller: usize, id: &str, file: &str, key: &str) -> Option<u64> {
        field(&self.read(self.places[controller].0, &format!("{id}/{file}")).ok()?, key)
    }

    fn read(&self, place: usize, path: &str) -> io::Result<String> {
        let mut file =
            fs::File::from(open::at(self.dirs[place].as_fd(), &self.path(place, path)?, libc::O_RDONLY)?)
                .take(FILE_MAX);
        // Nearly all come whole with the first read; their size is not known before.
        let mut text = vec![0; FIRST_READ_BYTES];
        let mut length = 0;
        loop {
            match file.read(&mut text[length..]) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if length == text.len() {
                text.resize(2 * length, 0);
            }
        }
        text.truncate(length);
        String::from_utf8(text).map_err(io::Error::other)
    }

    fn write(&self, controller: usize, id: &str, file: &str, value: &str) -> io::Result<()> {
        let place = self.places[controller].0;
        let path = self.path(place, &format!("{id}/{file}"))?;
        open::write_at(self.dirs[place].as_fd(), &path, value.as_bytes())
    }
}

/// Whether any swap is on.
pub fn swap_is_on() -> io::Result<bool> {
    match fs::read_to_string("/proc/swaps") {
        Ok(swaps) => Ok(lists_swap(&swaps)),
        // A kernel that cannot swap.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Of /proc/swaps: one line of heads, then one for each area.
fn lists_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// What the kernel is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub memory: Bytes,
    pub cpu_milli: u64,
    pub tasks: u64,
}

impl Limits {
    /// `memory_disk`: size of the writable layer if its pages count as memory. Init is one task
    /// more than the sandbox was promised.
    pub fn new(limit: &Limit, memory_disk: Bytes) -> Self {
        Self {
            memory: Bytes(limit.memory.0 + memory_disk.0),
            cpu_milli: limit.cpu.0,
            tasks: u64::from(limit.pids) + 1,
        }
    }
}

/// `key value` lines.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Of memory.stat. A kernel that does not tell the files in memory alone measures nothing here.
fn held(stat: &str, v1: bool) -> Option<u64> {
    let anonymous = field(stat, if v1 { "rss" } else { "anon" })?;
    anonymous.checked_add(field(stat, "shmem")?)
}

fn name(path: &str) -> io::Result<CString> {
    CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_on_if_an_area_is_listed() {
        let heads = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        for (areas, is_on) in [("", false), ("\n", false), ("/dev/vdb  partition  1024  0  -2\n", true)] {
            assert_eq!(lists_swap(&format!("{heads}{areas}")), is_on, "{areas:?}");
        }
        assert!(!lists_swap(""));
    }

    #[test]
    fn sandboxes_weigh_two_tasks_a_cpu_as_far_as_the_kernel_goes() {
        for (cpus, shares, weight_v2) in [(1, 4_096, 400), (2, 8_192, 800), (64, 262_144, 10_000)] {
            assert_eq!(weight(cpus, true), ("cpu.shares", shares));
            assert_eq!(weight(cpus, false), ("cpu.weight", weight_v2));
        }
        assert_eq!(weight(1_024, true), ("cpu.shares", SHARES_MAX));
    }

    const HYBRID: &str = "\
25 1 254:0 / / rw - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw shared:4 - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";
    const PURE: &str = "26 25 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_hybrid_host_keeps_limits_on_v1_and_birth_and_death_on_v2() {
        let layout = Layout::from_mountinfo(HYBRID, |_| "hugetlb\n".into()).unwrap();
        assert_eq!(layout.v2, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(layout.cpu_v1.as_deref(), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(layout.parents("x").len(), 4);
    }

    #[test]
    fn a_pure_host_needs_one_leaf() {
        let layout = Layout::from_mountinfo(PURE, |_| "cpuset cpu io memory pids".into()).unwrap();
        assert_eq!(layout.parents("x"), [Path::new("/sys/fs/cgroup/rollyard/x")]);
    }

    #[test]
    fn a_missing_controller_or_tree_is_named() {
        let missing = Layout::from_mountinfo(PURE, |_| "cpu memory".into());
        assert!(matches!(missing, Err(LayoutError::NoController("pids"))));
        assert!(matches!(Layout::from_mountinfo("", |_| String::new()), Err(LayoutError::NoV2)));
    }

    #[test]
    fn held_memory_is_what_no_cache_is_part_of() {
        let v1 = "cache 4096\nrss 100\nrss_huge 7\nshmem 20\ntotal_rss 900\n";
        assert_eq!(held(v1, true), Some(120));
        assert_eq!(held("anon 100\nfile 9000\nshmem 30\n", false), Some(130));
        assert_eq!((held("cache 1\nrss 5\n", true), held(v1, false)), (None, None));
    }

    #[test]
    fn a_counter_is_read_by_its_whole_key() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "oom"), None);
    }
}
