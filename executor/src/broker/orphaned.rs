//! A broker whose executor is gone without a word: it listens for the next one, until the lease that its
//! sandboxes run under is over.
//!
//! The listener has a name in the data directory, which is its owner's alone and in no sandbox.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen as begin, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use sandbox_init::packet;

use super::build;
use super::protocol::{DATAGRAM_MAX, Estate, Knock, NAMES_EACH};
use super::serve::{Broker, lock};
use crate::clock::boot_now;
use crate::host::open;

/// Name of the listener in the data directory.
const SOCKET: &str = "broker.sock";
/// How long sandboxes are kept that no lease ever covered, in milliseconds.
pub const ORPHAN_GRACE_MS: u64 = 10_000;
/// Between two looks at the clock, which goes on while the machine sleeps.
const LOOK_EVERY_MS: u64 = 500;
/// For whoever knocks to say what it is.
const KNOCK_WAIT_MS: u64 = 1_000;
/// For a place in the queue of the listener.
const CONNECT_WAIT_MS: u64 = 1_000;

/// Paths of sockets are short, and those of data directories need not be.
fn address(dir: BorrowedFd<'_>) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).as_str())?)
}

fn unix_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

fn directory(data_dir: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt as _;
    open::directory(&std::ffi::CString::new(data_dir.as_os_str().as_bytes())?)
}

/// Takes the name. Nobody is accepted before [`wait`].
pub fn listen(data_dir: &Path) -> io::Result<OwnedFd> {
    let dir = directory(data_dir)?;
    unlisten(data_dir);
    let listener = unix_socket()?;
    bind(listener.as_raw_fd(), &address(dir.as_fd())?)?;
    std::fs::set_permissions(data_dir.join(SOCKET), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    begin(&listener, Backlog::new(1)?)?;
    Ok(listener)
}

/// Gives the name up.
pub fn unlisten(data_dir: &Path) {
    // One that is not there is as well.
    let _ = std::fs::remove_file(data_dir.join(SOCKET));
}

/// A connection to the broker of this directory, if one listens there.
pub fn knock(data_dir: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = directory(data_dir)?;
    let socket = unix_socket()?;
    // The queue is short, and nobody empties it while an executor is served.
    send_within(socket.as_fd(), CONNECT_WAIT_MS)?;
    match connect(socket.as_raw_fd(), &address(dir.as_fd())?) {
        Ok(()) => {
            send_within(socket.as_fd(), 0)?;
            Ok(Some(socket))
        }
        Err(nix::Error::ENOENT | nix::Error::ECONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The socket to the next executor; none: nobody came in time, or one of another build.
pub fn wait(broker: &Broker, listener: BorrowedFd<'_>) -> Option<OwnedFd> {
    let ends_at_us = match broker.keep_until_us.load(Ordering::Acquire) {
        0 => boot_now().0 + ORPHAN_GRACE_MS * 1000,
        said => said,
    };
    loop {
        let left_ms = ends_at_us.saturating_sub(boot_now().0) / 1000;
        if left_ms == 0 {
            return None;
        }
        let wait_ms = i32::try_from(left_ms.min(LOOK_EVERY_MS)).unwrap_or(i32::MAX);
        if !is_readable(listener, wait_ms) {
            continue;
        }
        let Ok(socket) = accept(listener) else {
            // Whoever knocked waits still, so the listener stays readable: without a descriptor for it, say.
            std::thread::sleep(Duration::from_millis(left_ms.min(LOOK_EVERY_MS)));
            continue;
        };
        match answer(broker, socket.as_fd(), left_ms) {
            Ok(true) => return Some(socket),
            Ok(false) => return None,
            // It was gone before it had everything: the next one may come.
            Err(_) => {}
        }
    }
}

/// How long a send or a connect may take; 0: for ever.
fn send_within(socket: BorrowedFd<'_>, wait_ms: u64) -> io::Result<()> {
    let wait = TimeVal::milliseconds(i64::try_from(wait_ms).unwrap_or(i64::MAX));
    Ok(setsockopt(&socket, sockopt::SendTimeout, &wait)?)
}

fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC;
    // SAFETY: null pointers ask for no address; the result is a fresh descriptor or an error.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    crate::host::fresh_fd(fd.into())
}

fn is_readable(fd: BorrowedFd<'_>, wait_ms: i32) -> bool {
    let mut waiting = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as stated.
    unsafe { libc::poll(&raw mut waiting, 1, wait_ms) > 0 }
}

/// Hands everything over. False: it is of another build, and nothing is to be kept for it.
fn answer(broker: &Broker, socket: BorrowedFd<'_>, left_ms: u64) -> io::Result<bool> {
    let wait_ms = left_ms.min(KNOCK_WAIT_MS);
    if !is_readable(socket, i32::try_from(wait_ms).unwrap_or(i32::MAX)) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    send_within(socket, wait_ms)?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    let received = packet::receive(socket, &mut buffer, 0)?;
    let (len, _) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    let own = build::id()?;
    // One that cannot be read is of another build too.
    let knock: Option<Knock> = serde_json::from_slice(&buffer[..len]).ok();
    if knock.is_none_or(|knock| knock.build != own) {
        // One that gave up meanwhile takes nothing with it.
        tell(socket, &Estate::Refused { build: own }, None)?;
        return Ok(false);
    }
    let said = broker.keep_until_us.load(Ordering::Acquire);
    let begin = Estate::Begin { ends_at_us: (said > 0).then_some(said) };
    tell(socket, &begin, Some(broker.lock.as_fd()))?;
    for keeper in &*lock(&broker.keepers) {
        tell(socket, &Estate::Keeper, Some(keeper.as_fd()))?;
    }
    let names: Vec<String> = lock(&broker.records).keys().cloned().collect();
    for names in names.chunks(NAMES_EACH) {
        tell(socket, &Estate::Names(names.to_vec()), None)?;
    }
    tell(socket, &Estate::Done, None)?;
    // From here on it is asked, and reads its answers.
    send_within(socket, 0)?;
    Ok(true)
}

fn tell(socket: BorrowedFd<'_>, estate: &Estate, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds: Vec<_> = with.iter().map(AsRawFd::as_raw_fd).collect();
    packet::send(socket, &serde_json::to_vec(estate)?, &fds, 0)
}
