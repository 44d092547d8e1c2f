//! The child between clone and exec of init: it mounts what it was handed, forgets the host, and
//! gives up every privilege init does not need.
//!
//! ```text
//! cloned ──furniture──> /proc, /dev ──leaves──> its cgroups ──order──> its root and names ──> init
//! ```
//! The furniture needs nothing of the request: the broker makes the root beside it, or it stands before
//! anybody asked (a [blank](super::blank)).
//!
//! It is a fork of a process with several threads, so nothing here allocates, locks or panics. The
//! order matters: /proc before the old root goes (a user namespace may mount it only while it
//! still sees one in full), no_new_privs before Landlock and seccomp, seccomp last.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use sandbox_init::{CHANNEL_FD, packet};

use super::INIT_ID;
use super::device_tree::{self, Mask};
use super::protocol::Step;
use super::serve::Broker;
use crate::host::cgroup::JOINS_MAX;
use crate::host::mounts::{self, Context};
use crate::host::{capabilities, landlock, open, seccomp};

/// Where the child keeps what it needs, right above the channel.
const INIT_FD: RawFd = CHANNEL_FD + 1;
/// Terminals of one sandbox.
const TERMINALS_MAX: &CStr = c"256";
/// Copies are made from here up before they go to their places, so none hits another.
const COPIES_FROM: RawFd = 64;

/// Descriptors of the furniture, in order.
const FURNITURE_DEV: usize = 0;
const FURNITURE_MASKS: usize = 1;
/// What a blank says when it is furnished: not as long as a report of what failed.
const FURNISHED: &[u8] = b"f";

/// Everything the child reads, made before the clone.
#[derive(Debug)]
pub struct Plan<'a> {
    pub channel: BorrowedFd<'a>,
    pub init: BorrowedFd<'a>,
    pub masked: &'a [Mask],
    pub filter: &'a [libc::sock_filter],
    pub landlock_abi: Option<u32>,
    /// It says when it is furnished, and waits for its order.
    pub is_blank: bool,
    /// Of the steps until it is furnished.
    pub fail_after: Option<Step>,
}

impl<'a> Plan<'a> {
    /// Of a child that is cloned for a request, and fails of itself alone.
    pub fn of(broker: &'a Broker, channel: BorrowedFd<'a>) -> Self {
        Self {
            channel,
            init: broker.init.as_fd(),
            masked: &broker.masked,
            filter: &broker.filter,
            landlock_abi: broker.landlock_abi,
            is_blank: false,
            fail_after: None,
        }
    }
}

/// What makes it the sandbox that was asked for. With descriptors: its root, and what goes over /usr if anything
/// does.
#[derive(Debug)]
pub struct Order<'a> {
    pub hostname: &'a CStr,
    /// `size=` of /dev/shm.
    pub shm_size: &'a CStr,
    /// Of the steps after it was furnished.
    pub fail_after: Option<Step>,
}

/// A hostname, a number, their ends, and a byte before them.
const ORDER_BYTES_MAX: usize = 128;
/// A datagram that nothing is to fail after.
const NO_STEP: u8 = u8::MAX;

fn step_byte(fail_after: Option<Step>) -> u8 {
    fail_after.map_or(NO_STEP, |step| step as u8)
}

impl<'a> Order<'a> {
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![step_byte(self.fail_after)];
        bytes.extend_from_slice(self.hostname.to_bytes_with_nul());
        bytes.extend_from_slice(self.shm_size.to_bytes_with_nul());
        if bytes.len() > ORDER_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        Ok(bytes)
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&fail_after, bytes) = bytes.split_first()?;
        let hostname = CStr::from_bytes_until_nul(bytes).ok()?;
        let shm_size = CStr::from_bytes_until_nul(bytes.get(hostname.count_bytes() + 1..)?).ok()?;
        Some(Self { hostname, shm_size, fail_after: Step::from_byte(fail_after) })
    }
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

fn fail(step: Step, errno: i32) -> Failed {
    (step, io::Error::from_raw_os_error(errno))
}

/// Goes on, or stops after this step as if the kernel had refused it.
fn done(step: Step, result: io::Result<()>, fail_after: Option<Step>) -> Result<(), Failed> {
    match result {
        Err(error) => Err((step, error)),
        Ok(()) if fail_after == Some(step) => Err(fail(step, libc::EIO)),
        Ok(()) => Ok(()),
    }
}

/// The next datagram of the broker. If that gave up or died, it was EPIPE.
fn told(channel: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<packet::Received, Failed> {
    match packet::receive_into(channel, bytes, 0) {
        Ok(received) if received.len > 0 => Ok(received),
        Ok(_) => Err(fail(Step::HandIn, libc::EPIPE)),
        Err(error) => Err((Step::HandIn, error)),
    }
}

/// What stands in every sandbox. Of a child that is cloned for a request it lies over /proc and /dev of the host's
/// tree that it was born with. A blank has let go of that tree, for which the kernel takes its time: the masks are its root.
struct Furniture {
    masks: OwnedFd,
    proc: OwnedFd,
    dev: OwnedFd,
}

/// Beside a broker nobody is to take a blank for one.
const BLANK_NAME: &CStr = c"rollyard-blank";

fn enter(plan: &Plan<'_>) -> Result<(), Failed> {
    if plan.is_blank {
        // SAFETY: a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, BLANK_NAME.as_ptr(), 0, 0, 0) };
    }
    done(Step::Credentials, keep_only_needed(plan), None)?;
    // SAFETY: `keep_only_needed` put an open descriptor there, which lives until exec.
    let channel = unsafe { BorrowedFd::borrow_raw(CHANNEL_FD) };
    let furniture = mount_furniture(plan, channel)?;
    let mut byte = [NO_STEP];
    let leaves = told(channel, &mut byte)?.fds;
    done(Step::Attach, join_cgroups(leaves), Step::from_byte(byte[0]))?;
    if plan.is_blank {
        done(Step::HandIn, packet::send(channel, FURNISHED, &[], 0), None)?;
    }

    let mut bytes = [0; ORDER_BYTES_MAX];
    let received = told(channel, &mut bytes)?;
    let order = bytes.get(..received.len).and_then(Order::decode);
    let mut fds = received.fds.into_iter().flatten();
    let (Some(order), Some(root)) = (order, fds.next()) else {
        return Err(fail(Step::HandIn, libc::EBADMSG));
    };
    let usr = fds.next();

    let done = |step, result| done(step, result, order.fail_after);
    let (masks, proc, dev) = (furniture.masks.as_fd(), furniture.proc.as_fd(), furniture.dev.as_fd());
    done(Step::Shm, mount_shm(dev, order.shm_size))?;
    let over_usr = |root| usr.as_ref().map_or(Ok(()), |usr| attach_beneath(usr.as_fd(), root, c"usr"));
    if plan.is_blank {
        done(Step::Root, mounts::attach(root.as_fd(), masks, device_tree::ROOT))?;
        done(Step::Usr, over_usr(root.as_fd()))?;
        // The masks go where they always lie.
        done(Step::Pivot, mounts::pivot_behind(root.as_fd(), c"proc"))?;
        let moved = mounts::attach(proc, masks, c"").and_then(|()| attach_beneath(dev, root.as_fd(), c"dev"));
        done(Step::Moves, moved)?;
    } else {
        let top = open::directory(c"/");
        done(Step::Root, top.and_then(|top| mounts::attach(root.as_fd(), top.as_fd(), c"")))?;
        // Each with what lies over it.
        let moved = attach_beneath(masks, root.as_fd(), c"proc");
        done(Step::Moves, moved.and_then(|()| attach_beneath(dev, root.as_fd(), c"dev")))?;
        done(Step::Usr, over_usr(root.as_fd()))?;
        done(Step::Pivot, mounts::pivot(root.as_fd()))?;
    }
    drop(usr);
    drop((root, furniture));
    done(Step::Names, take_names(order.hostname))?;
    done(Step::Stdio, null_stdio())?;
    done(Step::Privileges, drop_privileges())?;
    done(Step::Landlock, plan.landlock_abi.map_or(Ok(()), landlock::restrict))?;
    done(Step::Seccomp, seccomp::install(plan.filter))?;
    if order.fail_after == Some(Step::Exec) {
        return Err(fail(Step::Exec, libc::EIO));
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

/// Becomes root of the sandbox and mounts what needs no root of it.
fn mount_furniture(plan: &Plan<'_>, channel: BorrowedFd<'_>) -> Result<Furniture, Failed> {
    let done = |step, result| done(step, result, plan.fail_after);
    // By the time it comes the ids are mapped.
    let mut handed = told(channel, &mut [0; 1])?.fds;
    let mut take = |at: usize| handed.get_mut(at).and_then(Option::take);
    let (Some(dev), Some(masks)) = (take(FURNITURE_DEV), take(FURNITURE_MASKS)) else {
        return Err(fail(Step::HandIn, libc::EBADMSG));
    };
    done(Step::Credentials, become_root())?;
    let proc = proc().map_err(|error| (Step::Proc, error))?;
    if plan.is_blank {
        let top = open::directory(c"/").and_then(|top| mounts::attach(masks.as_fd(), top.as_fd(), c""));
        let put = top.and_then(|()| mounts::attach(proc.as_fd(), masks.as_fd(), device_tree::PROC));
        done(Step::Proc, put)?;
        done(Step::Dev, mounts::attach(dev.as_fd(), masks.as_fd(), device_tree::DEV))?;
        done(Step::Release, mounts::pivot(masks.as_fd()))?;
    } else {
        // The masks first and the sandbox's over them: they must be attached for copies to be made, and there nobody
        // can reach them.
        let place =
            open::directory(c"/proc").and_then(|place| mounts::attach(masks.as_fd(), place.as_fd(), c""));
        done(Step::Proc, place.and_then(|()| mounts::attach(proc.as_fd(), masks.as_fd(), c"")))?;
        let place =
            open::directory(c"/dev").and_then(|place| mounts::attach(dev.as_fd(), place.as_fd(), c""));
        done(Step::Dev, place)?;
        done(Step::Release, Ok(()))?;
    }
    done(Step::Masks, mask(proc.as_fd(), masks.as_fd(), plan.masked))?;
    done(Step::Terminals, mount_terminals(dev.as_fd()))?;
    Ok(Furniture { masks, proc, dev })
}

/// Puts channel and init at their numbers and closes everything else: the broker's socket,
/// the cgroup parents and the ends of other sandboxes are gone before anything else happens.
fn keep_only_needed(plan: &Plan<'_>) -> io::Result<()> {
    let mut copies = [-1; 2];
    for (copy, fd) in copies.iter_mut().zip([plan.channel, plan.init]) {
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

fn result(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A change of identity of this thread, the only one there is. The C library's functions of these
/// names lock its list of threads and wait for each: of a thread of the broker that is
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

/// To be made while the host's, in full, is to be seen.
fn proc() -> io::Result<OwnedFd> {
    let context = Context::open(c"proc")?;
    context.string(c"hidepid", c"invisible")?;
    context.mount(mounts::NO_SUID | mounts::NO_DEV | mounts::NO_EXEC)
}

fn mask(proc: BorrowedFd<'_>, masks: BorrowedFd<'_>, masked: &[Mask]) -> io::Result<()> {
    let settings = mounts::clone_tree(proc, c"sys")?;
    mounts::set_attributes(settings.as_fd(), mounts::READ_ONLY, None)?;
    mounts::attach(settings.as_fd(), proc, c"sys")?;
    // From the masks, `..` leads to the root, which they may be themselves, and from there `proc` to what lies over the
    // host's: one call for each where descriptors would take three. Nobody else is in this namespace yet.
    // SAFETY: no memory involved.
    result(unsafe { libc::fchdir(masks.as_raw_fd()) })?;
    masked.iter().try_for_each(|mask| mounts::bind(mask.cover, &mask.place))
}

fn mount_terminals(dev: BorrowedFd<'_>) -> io::Result<()> {
    let terminals = Context::open(c"devpts")?;
    terminals.string(c"ptmxmode", c"0666")?;
    terminals.string(c"mode", c"0620")?;
    // The host has so many for all: none of them may go to one sandbox alone.
    terminals.string(c"max", TERMINALS_MAX)?;
    let terminals = terminals.mount(mounts::NO_SUID | mounts::NO_EXEC)?;
    mounts::attach(terminals.as_fd(), dev, c"pts")
}

fn mount_shm(dev: BorrowedFd<'_>, size: &CStr) -> io::Result<()> {
    let shared = Context::open(c"tmpfs")?;
    shared.string(c"mode", c"1777")?;
    shared.string(c"size", size)?;
    let shared = shared.mount(mounts::NO_SUID | mounts::NO_DEV)?;
    mounts::attach(shared.as_fd(), dev, c"shm")
}

/// Whoever moves itself, and alone, takes no lock that every fork of the host waits for.
fn join_cgroups(leaves: [Option<OwnedFd>; packet::FDS_MAX]) -> io::Result<()> {
    for place in leaves.into_iter().flatten() {
        // SAFETY: one byte is written from a constant. Closing it gives up the last way to the leaf.
        if unsafe { libc::write(place.as_raw_fd(), c"0".as_ptr().cast(), 1) } < 0 {
            return Err(io::Error::last_os_error());
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

/// When everything that was handed is closed: it came under these numbers.
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

/// The parent's side: what the child mounts before it has a root.
pub fn hand_furniture(channel: BorrowedFd<'_>, dev: BorrowedFd<'_>, masks: BorrowedFd<'_>) -> io::Result<()> {
    packet::send(channel, FURNISHED, &[dev.as_raw_fd(), masks.as_raw_fd()], 0)
}

/// Of each v1 hierarchy, the file that takes a "0" from the child, which moves itself.
pub fn hand_leaves(channel: BorrowedFd<'_>, leaves: &[OwnedFd], fail_after: Option<Step>) -> io::Result<()> {
    let mut fds = [-1; JOINS_MAX];
    for (place, leaf) in fds.iter_mut().zip(leaves) {
        *place = leaf.as_raw_fd();
    }
    packet::send(channel, &[step_byte(fail_after)], &fds[..leaves.len().min(fds.len())], 0)
}

/// Whether a blank said that it is furnished.
pub fn is_furnished(bytes: &[u8]) -> bool {
    bytes == FURNISHED
}

/// What a child reported. None = no report, which no event of init resembles.
pub fn failure(bytes: &[u8]) -> Option<(Step, i32)> {
    let (step, errno) = bytes.split_first()?;
    Some((Step::from_byte(*step)?, i32::from_le_bytes(errno.try_into().ok()?)))
}
