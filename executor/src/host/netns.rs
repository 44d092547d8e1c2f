//! Network namespaces: made empty, with nothing but a loopback that is up.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{checked, fresh_fd};

/// The network namespace of the calling thread.
pub fn current() -> io::Result<OwnedFd> {
    const OWN: &CStr = c"/proc/thread-self/ns/net";
    // SAFETY: the path is a C string.
    fresh_fd(unsafe { libc::open(OWN.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }.into())
}

/// Moves the calling thread into a fresh namespace, owned by the thread's user namespace.
pub fn enter_fresh() -> io::Result<()> {
    // SAFETY: no memory involved.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into())?;
    Ok(())
}

/// Makes a namespace, owned by the thread's user namespace, with its loopback up. Afterwards the
/// calling thread is back in `home`.
pub fn fresh(home: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    enter_fresh()?;
    let made = loopback_up().and_then(|()| current());
    enter(home)?;
    made
}

pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory involved.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }.into())?;
    Ok(())
}

/// Brings up the loopback of the calling thread's namespace.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: gives a fresh descriptor or an error.
    let socket =
        fresh_fd(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into())?;
    // SAFETY: all-zero is a valid ifreq; the name fits with its terminator; the union member that
    // is written is the one SIOCSIFFLAGS reads.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (slot, byte) in request.ifr_name.iter_mut().zip(*b"lo") {
            *slot = byte.cast_signed();
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP).unwrap_or(1);
        checked(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request).into())?;
    }
    Ok(())
}
