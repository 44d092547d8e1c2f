//! Disks in files: formatted and mounted ahead, of the sizes that were asked for lately. Each serves
//! one sandbox; the file has no name by then and goes with it, so no byte of it is met again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::broker::provision::{format_ext4, mount_ext4};
use crate::broker::serve::Broker;
use crate::host::cgroup::memory_groups::POOLED;
use crate::host::loop_disk::{self, LoopDevice, RELEASE_PAUSE, RELEASE_TRIES_MAX};

/// Sizes that disks are made ahead of, and disks of each.
pub const DISK_SIZES_MAX: usize = 4;
pub const DISKS_AHEAD_EACH: usize = 2;
/// How long after it was asked for last a size is kept ready.
const SIZE_KEPT: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub struct Disks {
    pub ahead: Vec<Disk>,
    /// Bytes, and when so many were asked for last.
    sizes: Vec<(u64, Instant)>,
    pub not_before: Option<Instant>,
    next: u64,
}

#[derive(Debug)]
pub struct Disk {
    pub bytes: u64,
    /// Of its file, until a sandbox takes it.
    pub name: String,
    /// Number of its loop device.
    pub device: u32,
    pub mount: OwnedFd,
}

impl Disk {
    /// Lets it go and waits until it is gone; says so if it is not.
    pub fn destroy(self, broker: &Broker) -> Option<String> {
        let path = broker.pooled_disk_path(&self.name);
        let number = self.device;
        drop(self.mount);
        let _ = fs::remove_file(&path);
        let held = || loop_disk::backing_file(&broker.sys_block, number).is_some_and(|file| file == path);
        let mut tries = 0;
        while held() && tries < RELEASE_TRIES_MAX {
            tries += 1;
            std::thread::sleep(RELEASE_PAUSE);
        }
        held().then(|| format!("loop device {number} of {} is still in use", self.name))
    }
}

impl Disks {
    pub fn is_full(&self) -> bool {
        self.sizes.iter().all(|(bytes, _)| self.of(*bytes) >= DISKS_AHEAD_EACH)
    }

    fn of(&self, bytes: u64) -> usize {
        self.ahead.iter().filter(|disk| disk.bytes == bytes).count()
    }

    pub fn take(&mut self, bytes: u64, now: Instant) -> Option<Disk> {
        self.sizes.retain(|(size, _)| *size != bytes);
        if self.sizes.len() >= DISK_SIZES_MAX {
            // The one that was asked for longest ago is at the front.
            self.sizes.remove(0);
        }
        self.sizes.push((bytes, now));
        let at = self.ahead.iter().position(|disk| disk.bytes == bytes)?;
        Some(self.ahead.swap_remove(at))
    }

    fn unasked(&self, now: Instant) -> Option<usize> {
        let wanted =
            |disk: &Disk| self.sizes.iter().any(|(bytes, at)| *bytes == disk.bytes && now < *at + SIZE_KEPT);
        self.ahead.iter().position(|disk| !wanted(disk))
    }

    pub fn take_unasked(&mut self, now: Instant) -> Option<Disk> {
        self.sizes.retain(|(_, at)| now < *at + SIZE_KEPT);
        self.unasked(now).map(|at| self.ahead.swap_remove(at))
    }

    fn short(&self) -> Option<u64> {
        // The latest asked for first.
        let mut sizes = self.sizes.iter().rev().map(|(bytes, _)| *bytes);
        sizes.find(|bytes| self.of(*bytes) < DISKS_AHEAD_EACH)
    }

    pub fn due(&self, now: Instant) -> Option<Instant> {
        let short = self.short().map(|_| self.not_before.unwrap_or(now));
        let unasked = if self.unasked(now).is_some() {
            Some(now)
        } else {
            self.sizes.iter().map(|(_, at)| *at + SIZE_KEPT).min()
        };
        short.into_iter().chain(unasked).min()
    }

    /// Bytes and name for one more.
    pub fn short_of(&mut self, now: Instant) -> Option<(u64, String)> {
        let bytes = self.short().filter(|_| self.not_before.is_none_or(|at| at <= now))?;
        self.not_before = None;
        self.next += 1;
        Some((bytes, format!("{POOLED}{}.img", self.next)))
    }
}

/// A disk in a fresh file: the number of its device, and its mount. Leaves nothing if it fails.
pub fn make(path: &Path, bytes: u64) -> io::Result<(u32, OwnedFd)> {
    let made = attach(path, bytes).and_then(|device| Ok((device.number, mount_ext4(&device)?)));
    if made.is_err() {
        let _ = fs::remove_file(path);
    }
    made
}

/// A formatted file behind a loop device.
pub fn attach(path: &Path, bytes: u64) -> io::Result<LoopDevice> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(bytes)?;
    format_ext4(path)?;
    loop_disk::attach(file.as_fd(), path)
}
