//! The child between clone and exec of init: it mounts what it was handed, forgets the host, and
//! gives up every privilege init does not need.
//!
//! It is a fork of a process with two threads, so nothing here allocates, locks or panics. The
//! order matters: /proc before the old root goes (a user namespace may mount it only while it
//! still sees one in full), no_new_privs before Landlock and seccomp, seccomp last.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use sandbox_init::{CHANNEL_FD, packet};

use super::INIT_ID;
use super::device_tree::Mask;
use super::protocol::Step;
use crate::host::cgroup::JOINS_MAX;
use crate::host::mounts::{self, Context};
use crate::host::{capabilities, landlock, open, seccomp};

/// Where the child keeps what it needs, right above the channel.
const INIT_FD: RawFd = CHANNEL_FD + 1;
const JOINS_FD: RawFd = CHANNEL_FD + 2;
/// Terminals of one sandbox.
const TERMINALS_MAX: &CStr = c"256";
/// Copies are made from here up before they go to their places, so none hits another.
const COPIES_FROM: RawFd = 64;

/// Mount descriptors of the hand-in message, in order.
pub const HANDED_ROOT: usize = 0;
pub const HANDED_DEV: usize = 1;
pub const HANDED_MASKS: usize = 2;
pub const HANDED_USR: usize = 3;

/// Everything the child reads, made before the clone.
#[derive(Debug)]
pub struct Plan<'a> {
    pub channel: BorrowedFd<'a>,
    pub init: BorrowedFd<'a>,
    /// Of each v1 hierarchy, where the child moves itself into its leaf.
    pub joins: &'a [OwnedFd],
    pub hostname: &'a CStr,
    /// `size=` of /dev/shm.
    pub shm_size: &'a CStr,
    pub masked: &'a [Mask],
    pub filter: &'a [libc::sock_filter],
    pub landlock_abi: Option<u32>,
    pub fail_after: Option<Step>,
}

/// Never returns: init runs, or the parent reads from the channel what failed.
pub fn run(plan: &Plan<'_>) -> ! {
    let (step, error) = match enter(plan) {
        Err(failed) => failed,
        Ok(()) => (Step::Exec, io::Error::last_os_error()),
    };
    let mut bytes = [0; 5];
    bytes[0] = step as u8;
    bytes[1..].copy_from_slice(&error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes());
    // SAFETY: if the descriptor is not open the send fails and the parent sees the end instead.
    let channel = unsafe { BorrowedFd::borrow_raw(CHANNEL_FD) };
    let _ = packet::send(channel, &bytes, &[], 0);
    // SAFETY: ends the child at once, running nothing of the parent's.
    unsafe { libc::_exit(1) }
}

type Failed = (Step, io::Error);

fn enter(plan: &Plan<'_>) -> Result<(), Failed> {
    let done = |step: Step, result: io::Result<()>| match result {
        Err(error) => Err((step, error)),
        Ok(()) if plan.fail_after == Some(step) => Err((step, io::Error::from_raw_os_error(libc::EIO))),
        Ok(()) => Ok(()),
    };
    done(Step::Credentials, keep_only_needed(plan))?;
    // SAFETY: `keep_only_needed` put an open descriptor there, which lives until exec.
    let channel = unsafe { BorrowedFd::borrow_raw(CHANNEL_FD) };

    let mut handed = match packet::receive_into(channel, &mut [0; 1], 0) {
        Ok(received) if received.len > 0 => received.fds,
        // The parent gave up or died.
        Ok(_) => return Err((Step::HandIn, io::Error::from_raw_os_error(libc::EPIPE))),
        Err(error) => return Err((Step::HandIn, error)),
    };
    let mut take = |at: usize| handed.get_mut(at).and_then(Option::take);
    let (Some(root), Some(dev), Some(masks)) = (take(HANDED_ROOT), take(HANDED_DEV), take(HANDED_MASKS))
    else {
        return Err((Step::HandIn, io::Error::from_raw_os_error(libc::EBADMSG)));
    };
    let usr = take(HANDED_USR);

    done(Step::Credentials, become_root())?;
    done(Step::Root, open::directory(c"/").and_then(|top| mounts::attach(root.as_fd(), top.as_fd(), c"")))?;
    let proc = match mount_proc(root.as_fd(), masks.as_fd()) {
        Ok(proc) => proc,
        Err(error) => return Err((Step::Proc, error)),
    };
    done(Step::Proc, Ok(()))?;
    done(Step::Masks, mask(proc.as_fd(), masks.as_fd(), plan.masked))?;
    done(Step::Dev, mount_dev(root.as_fd(), dev.as_fd(), plan.shm_size))?;
    if let Some(usr) = usr {
        done(Step::Usr, attach_beneath(usr.as_fd(), root.as_fd(), c"usr"))?;
    } else {
        done(Step::Usr, Ok(()))?;
    }
    done(Step::Pivot, mounts::pivot(root.as_fd()))?;
    drop((root, proc, dev, masks));
    done(Step::Attach, join_cgroups(plan.joins.len()))?;
    done(Step::Names, take_names(plan.hostname))?;
    done(Step::Stdio, null_stdio())?;
    done(Step::Privileges, drop_privileges())?;
    done(Step::Landlock, plan.landlock_abi.map_or(Ok(()), landlock::restrict))?;
    done(Step::Seccomp, seccomp::install(plan.filter))?;
    if plan.fail_after == Some(Step::Exec) {
        return Err((Step::Exec, io::Error::from_raw_os_error(libc::EIO)));
    }
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
    Ok(())
}

/// Puts channel, init and joins at their numbers and closes everything else: the broker's socket,
/// the cgroup parents and the ends of other sandboxes are gone before anything else happens.
fn keep_only_needed(plan: &Plan<'_>) -> io::Result<()> {
    let mut copies = [-1; 2 + JOINS_MAX];
    let joins = plan.joins.iter().map(AsFd::as_fd);
    for (copy, fd) in copies.iter_mut().zip([plan.channel, plan.init].into_iter().chain(joins)) {
        // SAFETY: makes a descriptor that this function alone uses.
        *copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, COPIES_FROM) };
        if *copy < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the child owns its copy of the descriptor table; owners in the copied memory of the
    // parent's frames are never dropped here, since this process execs or exits.
    unsafe {
        let mut place = CHANNEL_FD;
        for copy in copies.into_iter().filter(|copy| *copy >= 0) {
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

fn result(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A change of identity of this thread, the only one there is. The C library's functions of these
/// names lock its list of threads and wait for each: of the broker's other thread, which may be
/// just starting, this copy would wait for ever.
fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: integers only.
    let change = |call| unsafe { libc::syscall(call, id, id, id) };
    for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
        if change(call) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn become_root() -> io::Result<()> {
    // SAFETY: a null list of length 0; see `become_user` for why it is not the C library's.
    if unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    become_user(0)?;
    die_with_parent()?;
    // SAFETY: an integer only.
    unsafe { libc::umask(0o022) };
    Ok(())
}

/// Opens the place beneath the root, through no symlink, and mounts over that descriptor.
fn attach_beneath(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, place: &CStr) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let place = open::beneath(root, place, flags, 0, open::CONFINED)?;
    mounts::attach(mount, place.as_fd(), c"")
}

/// The masks go to /proc first and the real /proc over them: they must be attached here for
/// copies to be made, and there nobody can reach them.
fn mount_proc(root: BorrowedFd<'_>, masks: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    attach_beneath(masks, root, c"proc")?;
    let context = Context::open(c"proc")?;
    context.string(c"hidepid", c"invisible")?;
    let proc = context.mount(mounts::NO_SUID | mounts::NO_DEV | mounts::NO_EXEC)?;
    mounts::attach(proc.as_fd(), masks, c"")?;
    Ok(proc)
}

fn mask(proc: BorrowedFd<'_>, masks: BorrowedFd<'_>, masked: &[Mask]) -> io::Result<()> {
    let settings = mounts::clone_tree(proc, c"sys")?;
    mounts::set_attributes(settings.as_fd(), mounts::READ_ONLY, None)?;
    mounts::attach(settings.as_fd(), proc, c"sys")?;
    // From the masks, `..` leads to the root and from there `proc` to what lies over the masks:
    // one call for each where descriptors would take three. Nobody else is in this namespace yet.
    // SAFETY: no memory involved.
    result(unsafe { libc::fchdir(masks.as_raw_fd()) })?;
    masked.iter().try_for_each(|mask| mounts::bind(mask.cover, &mask.place))
}

fn mount_dev(root: BorrowedFd<'_>, dev: BorrowedFd<'_>, shm_size: &CStr) -> io::Result<()> {
    attach_beneath(dev, root, c"dev")?;
    let terminals = Context::open(c"devpts")?;
    terminals.string(c"ptmxmode", c"0666")?;
    terminals.string(c"mode", c"0620")?;
    // The host has so many for all: none of them may go to one sandbox alone.
    terminals.string(c"max", TERMINALS_MAX)?;
    let terminals = terminals.mount(mounts::NO_SUID | mounts::NO_EXEC)?;
    mounts::attach(terminals.as_fd(), dev, c"pts")?;
    let shared = Context::open(c"tmpfs")?;
    shared.string(c"mode", c"1777")?;
    shared.string(c"size", shm_size)?;
    let shared = shared.mount(mounts::NO_SUID | mounts::NO_DEV)?;
    mounts::attach(shared.as_fd(), dev, c"shm")
}

/// Whoever moves itself, and alone, takes no lock that every fork of the host waits for.
fn join_cgroups(joins: usize) -> io::Result<()> {
    for place in (JOINS_FD..).take(joins) {
        // SAFETY: `keep_only_needed` put an open descriptor there; one byte is written from a
        // constant. Closing it gives up the last way to the leaf.
        unsafe {
            if libc::write(place, c"0".as_ptr().cast(), 1) < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::close(place);
        }
    }
    Ok(())
}

fn take_names(hostname: &CStr) -> io::Result<()> {
    let bytes = hostname.to_bytes();
    // SAFETY: pointer and length of the same bytes.
    unsafe {
        result(libc::sethostname(bytes.as_ptr().cast(), bytes.len()))?;
        // Only now: every cgroup is joined, and each becomes the root of what is seen.
        result(libc::unshare(libc::CLONE_NEWCGROUP))
    }
}

fn null_stdio() -> io::Result<()> {
    // SAFETY: the path is a C string; 0, 1 and 2 are closed, so nothing is lost.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        result(null)?;
        result(libc::dup2(null, 1))?;
        result(libc::dup2(null, 2))
    }
}

/// A change of user clears it: to be called after each. If the parent's thread ended before this,
/// the channel has ended too, and init sees it.
fn die_with_parent() -> io::Result<()> {
    // SAFETY: no memory involved.
    result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })
}

/// Leaves init a user of its own with the capabilities it needs, ambient so that exec keeps them.
fn drop_privileges() -> io::Result<()> {
    capabilities::no_new_privileges()?;
    // SAFETY: no memory involved.
    result(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
    become_user(INIT_ID)?;
    die_with_parent()?;
    capabilities::keep_only(capabilities::OF_INIT)
}

/// The parent's side: what a child reported. None = no report, which no event of init resembles.
pub fn failure(bytes: &[u8]) -> Option<(Step, i32)> {
    let (step, errno) = bytes.split_first()?;
    Some((Step::from_byte(*step)?, i32::from_le_bytes(errno.try_into().ok()?)))
}
