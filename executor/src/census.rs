//! What carries Rollyard's mark for one executor, and its removal at the next start.
//!
//! The mark is the instance: a hash of the canonical data directory. It names the cgroup parents,
//! and the data directory holds everything that has a path. Nothing else is ever looked at, so
//! nothing else can be touched.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::host::cgroup::memory_groups::POOLED;
use crate::host::cgroup::{Layout, PARENT, Tree, sandbox_of};
use crate::host::{loop_disk, open};

/// How often a sweep looks whether what it killed is gone, in pauses of [`GONE_PAUSE`].
const GONE_TRIES_MAX: u32 = 5_000;
const GONE_PAUSE: Duration = Duration::from_millis(2);

/// What there is. Sandboxes' mounts and network namespaces live and die with their processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Census {
    /// Leaves under `rollyard/<instance>`, in any hierarchy.
    pub cgroups: Vec<String>,
    /// Pids in those leaves.
    pub processes: Vec<i32>,
    /// Loop devices over files of the data directory.
    pub loops: Vec<u32>,
    /// Disk images of sandboxes.
    pub files: Vec<PathBuf>,
    /// Layers that were being made, or removed.
    pub staged: Vec<PathBuf>,
    /// What is ready for sandboxes to come, and of no sandbox yet.
    pub ahead: Ahead,
}

/// What a broker made ahead. Its network namespaces have no name, and end with it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Ahead {
    pub cgroups: Vec<String>,
    /// Host pids of children that wait for a sandbox to ask for them.
    pub processes: Vec<i32>,
    pub loops: Vec<u32>,
    pub files: Vec<PathBuf>,
}

impl Census {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing is there but what is ready for sandboxes to come: while a broker lives.
    pub fn holds_no_sandbox(&self) -> bool {
        *self == Self { ahead: self.ahead.clone(), ..Self::default() }
    }
}

impl Census {
    /// What is none of these sandboxes' and not of a broker that lives.
    fn without(mut self, data_dir: &Path, sandboxes: &[String], has_broker: bool) -> Self {
        let all = std::mem::take(&mut self.cgroups);
        let (theirs, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|leaf| sandboxes.contains(leaf));
        self.cgroups = others;
        if !theirs.is_empty() {
            // Of leaves that are removed with their processes.
            self.processes.clear();
        }
        if has_broker {
            self.ahead = Ahead::default();
            let disks = disks_dir(data_dir);
            let is_theirs = |file: &Path| sandboxes.iter().any(|id| file == disks.join(format!("{id}.img")));
            self.files.retain(|file| !is_theirs(file));
            // The file of a sandbox's disk has lost its name: only its device tells, and the broker has it.
            self.loops.clear();
        }
        self
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cgroups, processes, loops, files, staged, ahead } = self;
        write!(f, "cgroups {cgroups:?}, processes {processes:?}, loop devices {loops:?}, files {files:?}, ")?;
        write!(f, "unfinished layers {staged:?}, made ahead: cgroups {:?}, ", ahead.cgroups)?;
        write!(f, "processes {:?}, ", ahead.processes)?;
        write!(f, "loop devices {:?}, files {:?}", ahead.loops, ahead.files)
    }
}

/// Why the census could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("finding the cgroup hierarchies")]
    Layout(#[from] crate::host::cgroup::LayoutError),
    #[error("{action}")]
    Read { action: &'static str, source: io::Error },
}

/// The mark of an executor, from its canonical data directory.
pub fn instance(data_dir: &Path) -> String {
    hex::encode(&Sha256::digest(data_dir.as_os_str().as_bytes())[..6])
}

/// Where the disk images of sandboxes lie.
pub fn disks_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("disks")
}

/// Where the layers of workspaces lie.
pub fn layers_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("layers")
}

/// Counts what there is for the executor of this (canonical) data directory.
pub fn take(data_dir: &Path) -> Result<Census, Error> {
    let mut census = Census::default();
    for (name, leaf) in leaves(data_dir)? {
        let procs = fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default();
        let is_ahead = name.starts_with(POOLED);
        let processes = if is_ahead { &mut census.ahead.processes } else { &mut census.processes };
        processes.extend(procs.lines().filter_map(|pid| pid.parse::<i32>().ok()));
        (if is_ahead { &mut census.ahead.cgroups } else { &mut census.cgroups }).push(name);
    }
    for processes in [&mut census.processes, &mut census.ahead.processes] {
        processes.sort_unstable();
        processes.dedup();
    }
    for cgroups in [&mut census.cgroups, &mut census.ahead.cgroups] {
        cgroups.sort();
        cgroups.dedup();
    }
    let disks = disks_dir(data_dir);
    let is_ahead = |file: &Path| {
        file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(POOLED))
    };
    let loops = loop_disk::beneath(&disks)
        .map_err(|source| Error::Read { action: "listing loop devices", source })?;
    for (number, file) in loops {
        (if is_ahead(&file) { &mut census.ahead.loops } else { &mut census.loops }).push(number);
    }
    if let Ok(entries) = fs::read_dir(&disks) {
        for file in entries.flatten().map(|entry| entry.path()) {
            (if is_ahead(&file) { &mut census.ahead.files } else { &mut census.files }).push(file);
        }
        census.files.sort();
        census.ahead.files.sort();
    }
    if let Ok(entries) = fs::read_dir(layers_dir(data_dir).join(images::layers::STAGED_DIR)) {
        census.staged = entries.flatten().map(|entry| entry.path()).collect();
        census.staged.sort();
    }
    Ok(census)
}

/// The leaves below the executor's parents, in every hierarchy, by whose they are: the id of a sandbox, or a name
/// that begins with `pool.`. The directory may have another name, where a leaf was made ahead.
///
/// # Errors
/// The hierarchies cannot be read.
pub fn leaves(data_dir: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let mut leaves = Vec::new();
    for parent in Layout::discover()?.parents(&instance(data_dir)) {
        let Ok(entries) = fs::read_dir(&parent) else { continue };
        for leaf in entries.flatten().filter(|entry| entry.path().is_dir()) {
            let name = given_to(&parent, &leaf.file_name())
                .unwrap_or_else(|| leaf.file_name().to_string_lossy().into_owned());
            leaves.push((name, leaf.path()));
        }
    }
    Ok(leaves)
}

fn given_to(parent: &Path, leaf: &OsStr) -> Option<String> {
    let parent = open::directory(&CString::new(parent.as_os_str().as_bytes()).ok()?).ok()?;
    sandbox_of(parent.as_fd(), &CString::new(leaf.as_bytes()).ok()?)
}

/// Destroys what a previous life left and nothing adopts. Goes on past what will not go; returns
/// what was found and what is still there.
pub fn sweep(data_dir: &Path) -> Result<(Census, Census), Error> {
    sweep_beside(data_dir, &[], false)
}

/// The same, but for these sandboxes; and, if the broker that made them lives, what it made ahead.
pub(crate) fn sweep_beside(
    data_dir: &Path,
    sandboxes: &[String],
    has_broker: bool,
) -> Result<(Census, Census), Error> {
    let take = |data_dir: &Path| take(data_dir).map(|census| census.without(data_dir, sandboxes, has_broker));
    let found = take(data_dir)?;
    if !found.is_empty() {
        let layout = Layout::discover()?;
        let tree = Tree::open(&layout, &instance(data_dir))
            .map_err(|source| Error::Read { action: "opening the cgroup parents", source })?;
        for leaf in found.cgroups.iter().chain(&found.ahead.cgroups) {
            remove_leaf(&tree, leaf);
        }
        for number in found.loops.iter().chain(&found.ahead.loops) {
            // A device that is still mounted somewhere goes when that mount does.
            let _ = loop_disk::clear(Path::new(&format!("/dev/loop{number}")));
        }
        for file in found.files.iter().chain(&found.ahead.files) {
            let _ = fs::remove_file(file);
        }
        for dir in &found.staged {
            let _ = fs::remove_dir_all(dir);
        }
    }
    let mut left = take(data_dir)?;
    // The kernel takes the mounts of killed processes down by and by, and a device with its last.
    let mut tries = 0;
    while !(left.loops.is_empty() && left.ahead.loops.is_empty()) && tries < loop_disk::RELEASE_TRIES_MAX {
        tries += 1;
        std::thread::sleep(loop_disk::RELEASE_PAUSE);
        left = take(data_dir)?;
    }
    Ok((found, left))
}

/// Kills and removes one sandbox's leaves. What stays is named.
pub fn remove_leaf(tree: &Tree, leaf: &str) -> Vec<String> {
    // Processes of a sandbox are all born in its v2 leaf; a leaf without v2 half is just removed.
    let mut left = Vec::new();
    if let Err(error) = tree.kill(leaf) {
        left.push(format!("killing {leaf}: {error}"));
    }
    let mut tries = 0;
    while tries < GONE_TRIES_MAX && tree.processes(leaf).is_ok_and(|pids| !pids.is_empty()) {
        tries += 1;
        std::thread::sleep(GONE_PAUSE);
    }
    left.extend(tree.remove(leaf));
    left
}

/// Removes the executor's empty cgroup parents, for a data directory that is given up. The broker
/// does it at its end; this is for one that was killed.
pub fn remove_parents(data_dir: &Path) -> Result<(), Error> {
    let layout = Layout::discover()?;
    for parent in layout.parents(&instance(data_dir)) {
        match fs::remove_dir(&parent) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Read { action: "removing a cgroup parent", source: error });
            }
            _ => {}
        }
        // The shared one stays while another executor has an instance in it.
        if let Some(shared) = parent.parent().filter(|shared| shared.ends_with(PARENT)) {
            let _ = fs::remove_dir(shared);
        }
    }
    Ok(())
}
