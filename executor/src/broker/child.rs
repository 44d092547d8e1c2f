//! Giving birth to an init. Until its exec the child runs in the broker's memory, and the thread that made it waits: no
//! page table is copied, and no page afterwards. So nothing here allocates, locks or panics.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use sandbox_init::CHANNEL_FD;
use sandbox_init::birth::Step;

use crate::host::{capabilities, clone};

/// Where the child keeps what it becomes, right above the channel.
const INIT_FD: RawFd = CHANNEL_FD + 1;
/// Copies are made from here up before they go to their places, so none hits another.
const COPIES_FROM: RawFd = 64;

/// What a child before its exec and the thread that made it both see.
struct Birth<'a> {
    channel: BorrowedFd<'a>,
    init: BorrowedFd<'a>,
    /// Set by the child, if exec did not come.
    failure: Option<(Step, i32)>,
}

/// Starts `init` in new namespaces and the v2 `leaf`, with its end of a channel. The pid is there even if the child ended
/// before its exec; then with what failed.
pub fn start(
    namespaces: i32,
    leaf: BorrowedFd<'_>,
    channel: BorrowedFd<'_>,
    init: BorrowedFd<'_>,
) -> io::Result<(i32, Option<(Step, io::Error)>)> {
    let mut birth = Birth { channel, init, failure: None };
    // SAFETY: `become_init` keeps to what a child in this memory may do, and `birth` outlives it.
    let pid = unsafe { clone::vfork(namespaces, Some(leaf), become_init, (&raw mut birth).cast())? };
    let failure = birth.failure.map(|(step, errno)| (step, io::Error::from_raw_os_error(errno)));
    Ok((pid, failure))
}

/// In the child. Descriptors and credentials are its own; memory is the broker's.
extern "C" fn become_init(birth: *mut c_void) -> ! {
    // SAFETY: as `start` gave it, which touches it again only when this process has left its memory.
    let birth = unsafe { &mut *birth.cast::<Birth<'_>>() };
    let failed = |step: Step| move |error: io::Error| (step, error.raw_os_error().unwrap_or(libc::EIO));
    let kept = keep_only_needed(birth.channel, birth.init).map_err(failed(Step::HandIn));
    // Its ids are not mapped yet, so to the kernel it is nobody, and an exec would leave it nothing.
    let kept = kept.and_then(|()| capabilities::keep_over_exec().map_err(failed(Step::Credentials)));
    birth.failure = Some(match kept {
        Err(failure) => failure,
        Ok(()) => failed(Step::Exec)(exec()),
    });
    // SAFETY: ends the child at once, running nothing of the parent's.
    unsafe { libc::_exit(1) }
}

/// Returns if it failed.
fn exec() -> io::Error {
    let argv = [c"init".as_ptr(), std::ptr::null()];
    let env = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end in null; the path is empty, so the descriptor is what runs.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            INIT_FD,
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Puts channel and init at their numbers and closes everything else: the broker's socket,
/// the cgroup parents and the ends of other sandboxes are gone before anything else happens.
fn keep_only_needed(channel: BorrowedFd<'_>, init: BorrowedFd<'_>) -> io::Result<()> {
    let mut copies = [-1; 2];
    for (copy, fd) in copies.iter_mut().zip([channel, init]) {
        // SAFETY: makes a descriptor that this function alone uses.
        *copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, COPIES_FROM) };
        if *copy < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the child owns its copy of the descriptor table; owners in the parent's frames are never dropped here,
    // since this process execs or exits.
    unsafe {
        let mut place = CHANNEL_FD;
        for copy in copies {
            let flags = if place == CHANNEL_FD { 0 } else { libc::O_CLOEXEC };
            if libc::dup3(copy, place, flags) < 0 {
                return Err(io::Error::last_os_error());
            }
            place += 1;
        }
        for (first, last) in [(0, CHANNEL_FD.cast_unsigned() - 1), (place.cast_unsigned(), u32::MAX)] {
            if libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}
