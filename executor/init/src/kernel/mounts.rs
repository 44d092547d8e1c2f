//! The mount API by descriptors: nothing is ever mounted by a path that a sandbox could bend.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{checked, fresh_fd};

pub const READ_ONLY: u64 = 0x1;
pub const NO_SUID: u64 = 0x2;
pub const NO_DEV: u64 = 0x4;
pub const NO_EXEC: u64 = 0x8;
pub const NO_ATIME: u64 = 0x10;
/// The access time settings are one choice: setting one clears this field first.
const ATIME_FIELD: u64 = 0x70;
const ID_MAPPED: u64 = 0x10_0000;

const OPEN_TREE_CLONE: u32 = 1;
const OPEN_TREE_CLOEXEC: u32 = libc::O_CLOEXEC.cast_unsigned();
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const MOVE_FROM_EMPTY_PATH: u32 = 0x4;
const MOVE_TO_EMPTY_PATH: u32 = 0x40;
const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH.cast_unsigned();

const CONFIG_FLAG: u32 = 0;
const CONFIG_STRING: u32 = 1;
const CONFIG_FD: u32 = 5;
const CONFIG_CREATE: u32 = 6;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A filesystem that is being configured.
#[derive(Debug)]
pub struct Context(OwnedFd);

impl Context {
    pub fn open(kind: &CStr) -> io::Result<Self> {
        // SAFETY: the kind is a C string.
        fresh_fd(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) }).map(Self)
    }

    pub fn string(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        // SAFETY: both are C strings.
        self.config(CONFIG_STRING, key.as_ptr(), value.as_ptr(), 0)
    }

    pub fn flag(&self, key: &CStr) -> io::Result<()> {
        self.config(CONFIG_FLAG, key.as_ptr(), std::ptr::null(), 0)
    }

    pub fn descriptor(&self, key: &CStr, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.config(CONFIG_FD, key.as_ptr(), std::ptr::null(), fd.as_raw_fd())
    }

    /// Creates the filesystem and a detached mount of it.
    pub fn mount(self, attributes: u64) -> io::Result<OwnedFd> {
        self.config(CONFIG_CREATE, std::ptr::null(), std::ptr::null(), 0)?;
        // SAFETY: no memory involved.
        fresh_fd(unsafe { libc::syscall(libc::SYS_fsmount, self.0.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) })
    }

    fn config(
        &self,
        command: u32,
        key: *const libc::c_char,
        value: *const libc::c_char,
        aux: i32,
    ) -> io::Result<()> {
        // SAFETY: key and value are C strings of the caller, or null where the command takes none.
        checked(unsafe { libc::syscall(libc::SYS_fsconfig, self.0.as_raw_fd(), command, key, value, aux) })?;
        Ok(())
    }
}

/// A detached read-only overlay of directories, bottom first, at least two: to look at them as one.
pub fn stack(lowers: &[OwnedFd]) -> io::Result<OwnedFd> {
    let context = Context::open(c"overlay")?;
    for lower in lowers.iter().rev() {
        context.descriptor(c"lowerdir+", lower.as_fd())?;
    }
    for (key, value) in
        [(c"redirect_dir", c"nofollow"), (c"metacopy", c"off"), (c"index", c"off"), (c"xino", c"off")]
    {
        context.string(key, value)?;
    }
    context.mount(READ_ONLY | NO_SUID | NO_DEV | NO_EXEC)
}

/// A detached copy of the one mount at `dir`/`path` (empty path: at `dir`), without submounts.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | EMPTY_PATH;
    // SAFETY: the path is a C string.
    fresh_fd(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags) })
}

/// Sets attributes of a mount, and the id mapping of `userns` on it if given.
pub fn set_attributes(mount: BorrowedFd<'_>, set: u64, userns: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let (mapped, userns_fd) = match userns {
        Some(fd) => (ID_MAPPED, u64::from(fd.as_raw_fd().cast_unsigned())),
        None => (0, 0),
    };
    let clear = if set & ATIME_FIELD == 0 { 0 } else { ATIME_FIELD };
    let attr = MountAttr { set: set | mapped, clear, propagation: 0, userns_fd };
    // SAFETY: `attr` is alive and of the stated size.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Attaches a detached mount over `to`/`path` (empty path: over `to` itself).
pub fn attach(mount: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let flags = MOVE_FROM_EMPTY_PATH | if path.is_empty() { MOVE_TO_EMPTY_PATH } else { 0 };
    // SAFETY: both paths are C strings.
    checked(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            to.as_raw_fd(),
            path.as_ptr(),
            flags,
        )
    })?;
    Ok(())
}

/// Attaches a copy of what lies at `from` over `to`, with the attributes of its mount. By paths:
/// only where nobody else can have bent them.
pub fn bind(from: &CStr, to: &CStr) -> io::Result<()> {
    let (kind, data) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both paths are C strings; a bind reads no type and no data.
    checked(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind, libc::MS_BIND, data) }.into())?;
    Ok(())
}

/// Makes `root` (an attached mount) the root of this mount namespace and lets the old one go.
pub fn pivot(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: descriptors and C strings only.
    unsafe {
        checked(libc::fchdir(root.as_raw_fd()).into())?;
        checked(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        // The old root lies over the new one now, and "." names it.
        checked(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
        checked(libc::chdir(c"/".as_ptr()).into())?;
    }
    Ok(())
}

/// Makes `root` (a mount over the root of this mount namespace) the root of this process. To the kernel it is the root
/// of the namespace from then on, for whoever joins that too: it looks for the topmost mount there.
pub fn enter(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: descriptors and C strings only.
    unsafe {
        checked(libc::fchdir(root.as_raw_fd()).into())?;
        checked(libc::chroot(c".".as_ptr()).into())?;
    }
    Ok(())
}

/// Gives the calling thread a mount namespace of its own from which nothing propagates.
pub fn privatise() -> io::Result<()> {
    // SAFETY: no memory involved; null source, type and data are allowed for a propagation change.
    unsafe {
        checked(libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS).into())?;
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        checked(
            libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()).into(),
        )?;
    }
    Ok(())
}

pub fn detach(path: &CStr) -> io::Result<()> {
    // SAFETY: the path is a C string.
    checked(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }.into())?;
    Ok(())
}
