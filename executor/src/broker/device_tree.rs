//! Trees that are made once and shared read-only by every sandbox: /dev and what lies over the
//! masked files of /proc.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use sandbox_init::birth::{DEV, Mask, PROC};

use crate::host::mounts::{self, Context};
use crate::host::open;

/// Name, major and minor of each device, all 0666: reading and writing them touches no hardware.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];
const LINKS: [(&CStr, &CStr); 5] = [
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"ptmx", c"pts/ptmx"),
];

/// An empty file and an empty directory, to lie over others.
const MASK_FILE: &CStr = c"file";
const MASK_DIR: &CStr = c"dir";

fn small_tmpfs() -> io::Result<OwnedFd> {
    let context = Context::open(c"tmpfs")?;
    context.string(c"size", c"64k")?;
    context.string(c"nr_inodes", c"64")?;
    context.string(c"mode", c"0755")?;
    context.mount(mounts::NO_SUID | mounts::NO_EXEC)
}

/// A detached, read-only /dev. pts and shm are empty: each sandbox mounts its own.
pub fn dev() -> io::Result<OwnedFd> {
    let tree = small_tmpfs()?;
    for (name, major, minor) in DEVICES {
        let mode = libc::S_IFCHR | 0o666;
        // SAFETY: the name is a C string.
        let made =
            unsafe { libc::mknodat(tree.as_raw_fd(), name.as_ptr(), mode, libc::makedev(major, minor)) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        open::change_mode(tree.as_fd(), name, 0o666)?;
    }
    for (name, target) in LINKS {
        // SAFETY: both are C strings.
        if unsafe { libc::symlinkat(target.as_ptr(), tree.as_raw_fd(), name.as_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for name in [c"pts", c"shm"] {
        open::make_dir(tree.as_fd(), name, 0o755)?;
    }
    mounts::set_attributes(tree.as_fd(), mounts::READ_ONLY | mounts::NO_ATIME, None)?;
    Ok(tree)
}

/// A detached, read-only tree of [`MASK_FILE`] and [`MASK_DIR`], and of places for mounts.
pub fn masks() -> io::Result<OwnedFd> {
    let tree = small_tmpfs()?;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    open::beneath(tree.as_fd(), MASK_FILE, flags, 0o444, 0)?;
    for dir in [MASK_DIR, PROC, DEV] {
        open::make_dir(tree.as_fd(), dir, 0o555)?;
    }
    mounts::set_attributes(tree.as_fd(), mounts::READ_ONLY | mounts::NO_DEV | mounts::NO_ATIME, None)?;
    Ok(tree)
}

/// Files and directories of /proc that tell of the host or act on it, beneath `/proc`.
const MASKED_FILES: [&CStr; 21] = [
    c"cmdline",
    c"kcore",
    c"kallsyms",
    c"keys",
    c"key-users",
    c"kmsg",
    c"kpagecount",
    c"kpageflags",
    c"kpagecgroup",
    c"latency_stats",
    c"modules",
    c"slabinfo",
    c"interrupts",
    c"sched_debug",
    c"sysrq-trigger",
    c"timer_list",
    c"timer_stats",
    c"vmallocinfo",
    c"pagetypeinfo",
    c"config.gz",
    c"sys/kernel/core_pattern",
];
const MASKED_DIRS: [&CStr; 5] = [c"acpi", c"asound", c"scsi", c"fs", c"irq"];

/// The masks of those that this kernel has.
pub fn masked(proc: std::os::fd::BorrowedFd<'_>) -> io::Result<Vec<Mask>> {
    let files = MASKED_FILES.map(|path| (path, MASK_FILE));
    let dirs = MASKED_DIRS.map(|path| (path, MASK_DIR));
    files
        .into_iter()
        .chain(dirs)
        .filter(|(path, _)| open::at(proc, path, libc::O_PATH).is_ok())
        .map(|(path, cover)| {
            let place = CString::new([b"../proc/", path.to_bytes()].concat())?;
            Ok(Mask { cover: cover.to_owned(), place })
        })
        .collect()
}
