//! openat2: paths that a sandbox can touch are opened beneath its root, through no symlink.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{checked, fresh_fd};

/// Beneath the root, no symlink, no magic link, no other mount.
pub const CONFINED: u64 =
    libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_XDEV;
/// As [`CONFINED`], but the root's own symlinks are followed, beneath the root.
pub const IN_ROOT: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

/// EAGAIN (a rename raced a `..`) is tried this often.
const TRIES_MAX: u32 = 16;

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// openat2. O_CLOEXEC is added.
pub fn beneath(
    root: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    mode: u32,
    resolve: u64,
) -> io::Result<OwnedFd> {
    let how = OpenHow {
        flags: u64::from((flags | libc::O_CLOEXEC).cast_unsigned()),
        mode: u64::from(mode),
        resolve,
    };
    let mut tries = 0;
    loop {
        // SAFETY: path and `how` are alive; the size is that of `how`.
        let opened = fresh_fd(unsafe {
            libc::syscall(
                libc::SYS_openat2,
                root.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size_of::<OpenHow>(),
            )
        });
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < TRIES_MAX => tries += 1,
            other => return other,
        }
    }
}

/// A directory of this process's own view, as a place to start from.
pub fn directory(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    fresh_fd(unsafe { libc::open(path.as_ptr(), flags) }.into())
}

/// A directory by its real name: no part of the path is followed through a symlink.
pub fn directory_itself(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    beneath(directory(c"/")?.as_fd(), path, flags, 0, resolve)
}

/// Plain openat with O_CLOEXEC, for trees no sandbox can touch (cgroup, proc, sys).
pub fn at(dir: BorrowedFd<'_>, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the path is a C string.
    fresh_fd(unsafe { libc::openat(dir.as_raw_fd(), path.as_ptr(), flags | libc::O_CLOEXEC) }.into())
}

pub fn make_dir(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: the name is a C string.
    checked(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }.into())?;
    Ok(())
}

pub fn remove(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> io::Result<()> {
    // SAFETY: the name is a C string.
    checked(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }.into())?;
    Ok(())
}

pub fn rename(dir: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    let fd = dir.as_raw_fd();
    // SAFETY: both names are C strings.
    checked(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) }.into())?;
    Ok(())
}

/// fstat; works on O_PATH descriptors.
pub fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: all-zero is a valid stat; the call fills it.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH;
        checked(libc::fstatat(fd.as_raw_fd(), c"".as_ptr(), &raw mut found, flags).into())?;
        Ok(found)
    }
}

/// chown of what the descriptor names (O_PATH too), never of a link's target.
pub fn change_owner(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: an empty C string and integers.
    let done = unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) };
    checked(done.into())?;
    Ok(())
}

/// chmod by name in a directory only we can change, else by an open file.
pub fn change_mode(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: the name is a C string.
    checked(unsafe { libc::fchmodat(dir.as_raw_fd(), name.as_ptr(), mode, 0) }.into())?;
    Ok(())
}

/// Writes `bytes` at once, as control files of the kernel want it.
pub fn write_at(dir: BorrowedFd<'_>, name: &CStr, bytes: &[u8]) -> io::Result<()> {
    let file = at(dir, name, libc::O_WRONLY)?;
    // SAFETY: pointer and length are of `bytes`.
    checked(unsafe { libc::write(file.as_fd().as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64)?;
    Ok(())
}

/// Gives a file that was opened with O_TMPFILE its first name.
pub fn link_nameless(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: both names are C strings.
    let linked = unsafe {
        libc::linkat(file.as_raw_fd(), c"".as_ptr(), dir.as_raw_fd(), name.as_ptr(), libc::AT_EMPTY_PATH)
    };
    if linked < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
