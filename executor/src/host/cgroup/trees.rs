//! Groups of processes within one sandbox: cgroups below its v2 leaf, without limits of their own. What
//! is born in one stays in it, whatever session or parent it takes, so one order ends the whole tree.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{REMOVE_PAUSE, REMOVE_TRIES_MAX, Tree, field};
use crate::host::open;

fn group(id: &str, number: u64) -> String {
    format!("{id}/g{number}")
}

impl Tree {
    /// Makes a group and opens the file that takes a "0" from a process which moves itself into it.
    pub fn make_group(&self, id: &str, number: u64) -> io::Result<OwnedFd> {
        let dir = group(id, number);
        open::make_dir(self.dirs[0].as_fd(), &self.path(0, &dir)?, 0o755)?;
        let opened =
            open::at(self.dirs[0].as_fd(), &self.path(0, &format!("{dir}/cgroup.procs"))?, libc::O_WRONLY);
        if opened.is_err() {
            let _ = self.remove_group(id, number);
        }
        opened
    }

    /// Kills every process of the group at once. One that is gone is no error.
    pub fn kill_group(&self, id: &str, number: u64) -> io::Result<()> {
        let file = self.path(0, &format!("{}/cgroup.kill", group(id, number)))?;
        match open::write_at(self.dirs[0].as_fd(), &file, b"1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Whether a process of the group is left.
    pub fn has_processes(&self, id: &str, number: u64) -> io::Result<bool> {
        match self.read(0, &format!("{}/cgroup.events", group(id, number))) {
            Ok(events) => Ok(field(&events, "populated") == Some(1)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes an empty group. False: something still runs in it.
    pub fn remove_group(&self, id: &str, number: u64) -> io::Result<bool> {
        match open::remove(self.dirs[0].as_fd(), &self.path(0, &group(id, number))?, libc::AT_REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Numbers of the groups of a sandbox, in order.
    pub fn groups(&self, id: &str) -> Vec<u64> {
        let listed = self.path(0, id).and_then(|leaf| {
            let dir = open::at(self.dirs[0].as_fd(), &leaf, libc::O_RDONLY | libc::O_DIRECTORY)?;
            Ok(nix::dir::Dir::from_fd(dir)?)
        });
        let Ok(mut dir) = listed else { return Vec::new() };
        let number =
            |entry: nix::dir::Entry| entry.file_name().to_str().ok()?.strip_prefix('g')?.parse().ok();
        let mut numbers: Vec<u64> = dir.iter().flatten().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Removes what is empty below the leaf of a sandbox that ends. What stays shows as a leaf that
    /// cannot be removed.
    pub(super) fn remove_trees(&self, id: &str) {
        let Ok(leaf) = self.path(0, id).and_then(|leaf| open::at(self.dirs[0].as_fd(), &leaf, libc::O_PATH))
        else {
            return;
        };
        // Most have none, and to list a leaf is to name each of its files. Two are `.` and its own name.
        if open::stat(leaf.as_fd()).is_ok_and(|leaf| leaf.st_nlink <= 2) {
            return;
        }
        let listed = open::at(leaf.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY)
            .and_then(|dir| Ok(nix::dir::Dir::from_fd(dir)?));
        let Ok(mut listed) = listed else { return };
        let is_group = |entry: &nix::dir::Entry| {
            entry.file_type() == Some(nix::dir::Type::Directory)
                && entry.file_name() != c"."
                && entry.file_name() != c".."
        };
        let groups: Vec<CString> =
            listed.iter().flatten().filter(is_group).map(|entry| entry.file_name().to_owned()).collect();
        for group in groups {
            let mut tries = 0;
            while let Err(error) = open::remove(leaf.as_fd(), &group, libc::AT_REMOVEDIR) {
                // Its last processes may be on their way out.
                if error.raw_os_error() != Some(libc::EBUSY) || tries >= REMOVE_TRIES_MAX {
                    break;
                }
                tries += 1;
                std::thread::sleep(REMOVE_PAUSE);
            }
        }
    }

    /// Takes from the sandbox what memory can be taken. Gives the bytes that nothing else could have
    /// been using: anonymous and tmpfs memory that went to swap. Cached files are dropped too and not
    /// counted, since they may be of layers that others share.
    pub fn reclaim(&self, id: &str) -> io::Result<u64> {
        let before = self.own_bytes(id)?;
        let done = if self.places[super::MEMORY].1 {
            self.write(super::MEMORY, id, "memory.force_empty", "0")
        } else {
            let all = self.read(0, &format!("{id}/memory.current"))?;
            self.write(super::MEMORY, id, "memory.reclaim", all.trim())
        };
        match done {
            // Less could be taken than was there: the figures tell.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {}
            other => other?,
        }
        Ok(before.saturating_sub(self.own_bytes(id)?))
    }

    fn own_bytes(&self, id: &str) -> io::Result<u64> {
        let (place, v1) = self.places[super::MEMORY];
        let stat = self.read(place, &format!("{id}/memory.stat"))?;
        let anonymous = if v1 { "rss" } else { "anon" };
        let of = |key| field(&stat, key).unwrap_or(0);
        // On v1 the huge pages are part of `rss`.
        Ok(of(anonymous) + of("shmem"))
    }
}
