//! What executor and init both ask of the kernel, one file each. Nothing here decides: each function is one thing
//! done, with the errno if it is refused.

pub mod capabilities;
pub mod landlock;
pub mod mounts;
pub mod open;
pub mod seccomp;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A raw system call result: an error for -1.
pub fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A raw system call result that is a fresh descriptor.
pub fn fresh_fd(result: i64) -> io::Result<OwnedFd> {
    let fd = i32::try_from(checked(result)?).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel just made this descriptor for the caller; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
