//! What there is of one executor, read from the host by code of its own: a census of the product
//! would share the product's blind spots.
//!
//! Entries are counted by what they are, not by their numbers (pids, inodes), so that two censuses
//! of the same state are equal. What is made ahead of sandboxes (named `pool.`) is left out, and with
//! it the mount the broker holds of each disk; its network namespaces have no name: wait until the
//! backend says that all of them are there.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The deepest folder below a data directory that is looked at.
const DEPTH_MAX: usize = 12;

/// What attempts left to be used again: `spares` of an executor, wherever its data directory lies.
fn is_spare(top: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(top).unwrap_or(path);
    below.components().any(|part| part.as_os_str() == "spares")
}

/// A whole layer in the store of the node: kept after its sandboxes on purpose, up to a bound of the
/// store. What is half made has another name.
fn is_cached_layer(top: &Path, path: &Path) -> bool {
    let name =
        path.strip_prefix(top).ok().and_then(|path| path.strip_prefix("layers").ok()).and_then(Path::to_str);
    name.is_some_and(|name| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The sandbox that a leaf in the v2 tree was given to which was made under another name.
fn given_to(leaf: &Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(leaf.as_os_str().as_bytes()).ok()?;
    let mut id = [0_u8; 64];
    let name = c"trusted.rollyard.sandbox";
    // SAFETY: two C strings, and a buffer of the stated length.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), id.as_mut_ptr().cast(), id.len()) };
    Some(String::from_utf8_lossy(id.get(..usize::try_from(len).ok()?)?).into_owned())
}

/// A leaf by the sandbox it belongs to.
fn named(leaf: &Path) -> PathBuf {
    given_to(leaf).map_or_else(|| leaf.to_owned(), |id| leaf.with_file_name(id))
}

/// Made ahead, for no sandbox yet.
fn is_ahead(path: &Path) -> bool {
    given_to(path).is_none()
        && path.file_name().and_then(std::ffi::OsStr::to_str).is_some_and(|name| name.starts_with("pool."))
}

/// Counted things, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census(BTreeMap<&'static str, BTreeMap<String, usize>>);

impl Census {
    /// Whether something was being made ahead or handed on as it was taken: its files are open then.
    pub fn is_of_a_maker_at_work(&self) -> bool {
        let descriptors = self.0.get("descriptors");
        descriptors.is_some_and(|kinds| kinds.keys().any(|kind| kind.contains("/pool.")))
    }

    /// Everything of the executor that runs in this process on this (canonical) data directory.
    pub fn take(data_dir: &Path) -> io::Result<Self> {
        let mut census = Self::default();
        let leaves = leaves(data_dir)?;
        let mut pids = descendants(std::process::id().cast_signed());
        // Children that wait for a sandbox, by the leaf they are in: any process may take their name.
        let blanks: Vec<i32> =
            leaves.iter().filter(|leaf| is_ahead(leaf)).flat_map(|leaf| members(leaf)).collect();
        pids.retain(|pid| !blanks.contains(pid));
        for leaf in leaves.iter().filter(|leaf| !is_ahead(leaf)) {
            census.count("cgroups", named(leaf).display());
            pids.extend(members(leaf));
        }
        pids.sort_unstable();
        pids.dedup();
        let own_network = namespace(std::process::id().cast_signed(), "net");
        for &pid in &pids {
            census.count("processes", status(pid, "Name").unwrap_or_else(|| "gone".to_owned()));
            let network = namespace(pid, "net");
            if network.is_some() && network != own_network {
                census.count("network namespaces", network.unwrap_or_default());
            }
        }
        // This process is the executor; of its children, these are outside of every leaf.
        let own = |pid: i32| match status(pid, "Name").as_deref() {
            _ if pid == std::process::id().cast_signed() => Some("executor"),
            Some("rollyard-broker") => Some("broker"),
            Some("rollyard-keeper") => Some("keeper"),
            _ => None,
        };
        pids.push(std::process::id().cast_signed());
        for (pid, who) in pids.iter().filter_map(|pid| Some((*pid, own(*pid)?))) {
            for kind in descriptors(pid) {
                census.count("descriptors", format_args!("{who} {kind}"));
            }
            // One that has ended and is not reaped yet has none, and is still a process.
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            for mount in mounts.lines() {
                let point = mount.split(' ').nth(4).unwrap_or_default();
                census.count("mounts", format_args!("{who} {point}"));
            }
        }
        for backing in loop_files()?.into_iter().filter(|backing| backing.starts_with(data_dir)) {
            if is_ahead(&backing) {
                census.uncount("descriptors", "broker /");
            } else {
                census.count("loop devices", "one");
            }
        }
        census.walk(data_dir, data_dir, 0)?;
        Ok(census)
    }

    fn count(&mut self, kind: &'static str, what: impl std::fmt::Display) {
        *self.0.entry(kind).or_default().entry(what.to_string()).or_default() += 1;
    }

    fn uncount(&mut self, kind: &'static str, what: &str) {
        let counts = self.0.entry(kind).or_default();
        if let Some(count) = counts.get_mut(what).filter(|count| **count > 1) {
            *count -= 1;
        } else {
            counts.remove(what);
        }
    }

    fn walk(&mut self, top: &Path, dir: &Path, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("{} is too deep", dir.display())));
        }
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let path = entry.path();
            if is_cached_layer(top, &path) || is_ahead(&path) {
                continue;
            }
            if is_spare(top, &path) {
                // They come and go; what must not stay is a byte of an attempt.
                let kind = entry.metadata();
                if kind.as_ref().is_ok_and(|found| found.is_file() && found.len() > 0) {
                    self.count("bytes in spares", path.strip_prefix(top).unwrap_or(&path).display());
                }
            } else {
                self.count("paths", path.strip_prefix(top).unwrap_or(&path).display());
            }
            if entry.file_type()?.is_dir() {
                self.walk(top, &path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// For a process that does more than execute.
    #[must_use]
    pub fn without_descriptors_of(mut self, who: &str) -> Self {
        if let Some(descriptors) = self.0.get_mut("descriptors") {
            descriptors.retain(|kind, _| !kind.starts_with(who));
        }
        self
    }

    /// What differs, one thing a line; none if nothing does.
    pub fn difference(&self, after: &Self) -> Option<String> {
        let mut lines = Vec::new();
        let kinds: std::collections::BTreeSet<_> = self.0.keys().chain(after.0.keys()).collect();
        for kind in kinds {
            let (empty, other_empty) = (BTreeMap::new(), BTreeMap::new());
            let before = self.0.get(kind).unwrap_or(&empty);
            let now = after.0.get(kind).unwrap_or(&other_empty);
            let things: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
            for thing in things {
                let (was, is) = (before.get(thing).unwrap_or(&0), now.get(thing).unwrap_or(&0));
                if was != is {
                    lines.push(format!("{kind}: {thing}: {was} before, {is} after"));
                }
            }
        }
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Whether the brokers of this process have every network namespace and every child that they make ahead,
/// and are at work on nothing else that is.
pub fn is_ahead_of_sandboxes() -> bool {
    let pids = descendants(std::process::id().cast_signed());
    let mut brokers = pids.iter().filter(|pid| status(**pid, "Name").as_deref() == Some("rollyard-broker"));
    brokers.all(|pid| {
        let descriptors = descriptors(*pid);
        // Beside those it holds the host's.
        descriptors.iter().filter(|kind| *kind == "net").count() > executor::broker::NETWORKS_AHEAD
            && !descriptors.iter().any(|path| path.contains("/pool."))
            && children(*pid).into_iter().filter(|child| is_blank(*child)).count()
                >= executor::broker::BLANKS_AHEAD
    })
}

fn is_blank(pid: i32) -> bool {
    status(pid, "Name").as_deref() == Some("rollyard-blank")
}

/// Mount points of every cgroup hierarchy; v2 first.
pub fn hierarchies() -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut found = (Vec::new(), Vec::new());
    for line in table.lines() {
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let Some(point) = head.split(' ').nth(4) else { continue };
        match tail.split(' ').next() {
            Some("cgroup2") => found.0.push(PathBuf::from(point)),
            Some("cgroup") => found.1.push(PathBuf::from(point)),
            _ => {}
        }
    }
    found.0.append(&mut found.1);
    Ok(found.0)
}

/// Cgroups below the executor's own, in every hierarchy.
fn leaves(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let instance = executor::census::instance(data_dir);
    let mut leaves = Vec::new();
    for top in hierarchies()? {
        let Ok(entries) = fs::read_dir(top.join("rollyard").join(&instance)) else { continue };
        leaves.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    Ok(leaves)
}

/// Host pids of the processes of a cgroup.
fn members(leaf: &Path) -> Vec<i32> {
    let procs = fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default();
    procs.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// Host pids of the processes of one sandbox, init among them.
pub fn processes(data_dir: &Path, sandbox: &str) -> io::Result<Vec<i32>> {
    let instance = executor::census::instance(data_dir);
    let top = hierarchies()?.into_iter().next().ok_or_else(|| io::Error::other("no cgroups"))?;
    let parent = top.join("rollyard").join(instance);
    let leaves = fs::read_dir(&parent)?.flatten().map(|entry| entry.path());
    let leaf = leaves.into_iter().find(|leaf| named(leaf) == parent.join(sandbox));
    Ok(members(&leaf.ok_or(io::ErrorKind::NotFound)?))
}

/// A field of /proc/PID/status.
pub fn status(pid: i32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Which namespace of this kind a process is in.
pub fn namespace(pid: i32, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// What each open descriptor of a process is, without its number.
pub fn descriptors(pid: i32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let plain = |link: PathBuf| {
        let text = link.to_string_lossy().into_owned();
        let listing = text.starts_with("/proc/") && text.ends_with("/fd");
        let kind = match text.split_once(":[") {
            Some((kind, number)) if number.starts_with(|c: char| c.is_ascii_digit()) => kind.to_owned(),
            _ => text,
        };
        (!listing).then_some(kind)
    };
    links.filter_map(plain).collect()
}

/// Pids of the children of a process.
pub fn children(of: i32) -> Vec<i32> {
    let is_child = |pid: &i32| status(*pid, "PPid").is_some_and(|parent| parent == of.to_string());
    pids().into_iter().filter(is_child).collect()
}

fn descendants(of: i32) -> Vec<i32> {
    let parent = |pid: i32| status(pid, "PPid")?.parse::<i32>().ok();
    let all: Vec<(i32, i32)> =
        pids().into_iter().filter_map(|pid| parent(pid).map(|parent| (pid, parent))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let next = found[at];
        found.extend(all.iter().filter(|(_, parent)| *parent == next).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Files behind loop devices; those without a name keep the one they had.
fn loop_files() -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir("/sys/block")?.flatten() {
        if let Ok(text) = fs::read_to_string(entry.path().join("loop/backing_file")) {
            files.push(PathBuf::from(text.trim_end().trim_end_matches(" (deleted)")));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_more_and_what_is_less() {
        let mut before = Census::default();
        before.count("mounts", "/a");
        let mut after = Census::default();
        after.count("processes", "sleep");
        after.count("processes", "sleep");
        assert_eq!(before.difference(&before), None);
        assert_eq!(
            before.difference(&after).as_deref(),
            Some("mounts: /a: 1 before, 0 after\nprocesses: sleep: 0 before, 2 after")
        );
    }

    #[test]
    fn a_child_a_descriptor_and_a_file_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let before = Census::take(&path).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let _file = fs::File::create(path.join("left")).unwrap();
        let difference = before.difference(&Census::take(&path).unwrap()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        for seen in ["processes: sleep", "descriptors: executor /", "paths: left"] {
            assert!(difference.contains(seen), "{seen} in {difference}");
        }
    }
}
