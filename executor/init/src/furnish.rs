//! What a fresh init does before it serves: it mounts what it is handed, forgets the host, and gives up every
//! privilege it does not need.
//!
//! It starts in its namespaces with every capability in its own user namespace, as nobody: the ids are mapped by the
//! time the first word comes. The furniture needs nothing of the request: the broker makes the root beside it, or it
//! stands before anybody asked. The order matters: /proc before the old root goes (a user namespace may mount it only
//! while it still sees one in full), no_new_privs before Landlock and seccomp, seccomp last.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use sandbox_init::birth::{
    DEV, Furniture, INIT_ID, Mask, ORDER_MAX, Order, PLAN_MAX, PROC, Plan, Step, say_failed, say_furnished,
};
use sandbox_init::kernel::mounts::{self, Context};
use sandbox_init::kernel::{capabilities, landlock, open, seccomp};
use sandbox_init::packet;

/// Terminals of one sandbox.
const TERMINALS_MAX: &CStr = c"256";
/// Beside a broker nobody is to take a blank for one.
const BLANK_NAME: &CStr = c"rollyard-blank";
const NAME: &CStr = c"init";

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

/// False: the broker was told what failed.
pub fn enter(channel: BorrowedFd<'_>) -> bool {
    match become_init(channel) {
        Ok(()) => true,
        Err((step, error)) => {
            say_failed(channel, step, &error);
            false
        }
    }
}

/// What stands in every sandbox. Of one that is made for a request it lies over /proc and /dev of the host's
/// tree that it was born with. A blank has let go of that tree, for which the kernel takes its time: the masks are its root.
struct Furnished {
    proc: OwnedFd,
    dev: OwnedFd,
}

fn become_init(channel: BorrowedFd<'_>) -> Result<(), Failed> {
    let mut word = [0; Furniture::LEN];
    let received = told(channel, &mut word)?;
    let furniture = word.get(..received.len).and_then(Furniture::decode);
    let mut fds = received.fds.into_iter().flatten();
    let (Some(furniture), Some(plan), Some(dev), Some(masks)) =
        (furniture, fds.next(), fds.next(), fds.next())
    else {
        return Err(fail(Step::HandIn, libc::EBADMSG));
    };
    // SAFETY: a C string.
    unsafe {
        let name = if furniture.is_blank { BLANK_NAME } else { NAME };
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0)
    };
    let plan = read_plan(plan)?;
    done(Step::Credentials, become_root(), furniture.fail_after)?;
    let furnished = mount_furniture(furniture, &plan.masked, dev, masks)?;

    let mut word = [0; 1];
    let leaves = told(channel, &mut word)?.fds;
    done(Step::Attach, join_cgroups(leaves), Step::from_byte(word[0]))?;
    if furniture.is_blank {
        done(Step::HandIn, say_furnished(channel), None)?;
    }

    let mut bytes = [0; ORDER_MAX];
    let received = told(channel, &mut bytes)?;
    let order = bytes.get(..received.len).and_then(Order::decode);
    let mut fds = received.fds.into_iter().flatten();
    let (Some(order), Some(root)) = (order, fds.next()) else {
        return Err(fail(Step::HandIn, libc::EBADMSG));
    };
    let usr = fds.next();
    take_root(furniture.is_blank, &furnished, &root, usr.as_ref(), &order)?;
    drop((furnished, root, usr));

    let done = |step, result| done(step, result, order.fail_after);
    if furniture.is_blank {
        // SAFETY: a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0) };
    }
    done(Step::Names, take_names(order.hostname))?;
    done(Step::Stdio, null_stdio())?;
    done(Step::Privileges, drop_privileges())?;
    done(Step::Landlock, plan.landlock_abi.map_or(Ok(()), landlock::restrict))?;
    done(Step::Seccomp, seccomp::install(&plan.filter))?;
    done(Step::Exec, Ok(()))
}

/// Everything that is the same for every sandbox. The file is one for all, and where it was read to is too.
fn read_plan(file: OwnedFd) -> Result<Plan, Failed> {
    let file = File::from(file);
    // On the stack, whose pages are there: memory that is mapped and given back costs more than the reading.
    let mut bytes = [0; PLAN_MAX];
    let len = file.read_at(&mut bytes, 0).map_err(|error| (Step::HandIn, error))?;
    bytes.get(..len).and_then(Plan::decode).ok_or_else(|| fail(Step::HandIn, libc::EBADMSG))
}

/// Mounts what needs no root of the sandbox.
fn mount_furniture(
    furniture: Furniture,
    masked: &[Mask],
    dev: OwnedFd,
    masks: OwnedFd,
) -> Result<Furnished, Failed> {
    let done = |step, result| done(step, result, furniture.fail_after);
    let proc = proc().map_err(|error| (Step::Proc, error))?;
    if furniture.is_blank {
        let top = open::directory(c"/").and_then(|top| mounts::attach(masks.as_fd(), top.as_fd(), c""));
        let put = top.and_then(|()| mounts::attach(proc.as_fd(), masks.as_fd(), PROC));
        done(Step::Proc, put)?;
        done(Step::Dev, mounts::attach(dev.as_fd(), masks.as_fd(), DEV))?;
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
    done(Step::Masks, mask(proc.as_fd(), masks.as_fd(), masked))?;
    drop(masks);
    done(Step::Terminals, mount_terminals(dev.as_fd()))?;
    Ok(Furnished { proc, dev })
}

/// Puts the furniture beneath the root, and makes that the root of this namespace.
fn take_root(
    is_blank: bool,
    furnished: &Furnished,
    root: &OwnedFd,
    usr: Option<&OwnedFd>,
    order: &Order<'_>,
) -> Result<(), Failed> {
    let done = |step, result| done(step, result, order.fail_after);
    let (proc, dev) = (furnished.proc.as_fd(), furnished.dev.as_fd());
    done(Step::Shm, mount_shm(dev, order.shm_size))?;
    let top = open::directory(c"/");
    done(Step::Root, top.and_then(|top| mounts::attach(root.as_fd(), top.as_fd(), c"")))?;
    let over_usr = || usr.map_or(Ok(()), |usr| attach_beneath(usr.as_fd(), root.as_fd(), c"usr"));
    done(Step::Usr, over_usr())?;
    // Each with what lies over it.
    let moved = attach_beneath(proc, root.as_fd(), c"proc");
    done(Step::Moves, moved.and_then(|()| attach_beneath(dev, root.as_fd(), c"dev")))?;
    // The host's tree goes, and the masks with it. That of a blank went when it was furnished: below its root there is
    // nothing but the masks, and to go through every task of the host once more, as pivot_root does, would win nothing.
    done(Step::Enter, if is_blank { mounts::enter(root.as_fd()) } else { mounts::pivot(root.as_fd()) })
}

fn result(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A change of identity of this thread, the only one there is.
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
    // SAFETY: a null list of length 0.
    if unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    become_user(0)?;
    die_with_parent()?;
    // SAFETY: an integer only.
    unsafe { libc::umask(0o022) };
    // No exec comes any more but those of programs. Each capability is a call, so this is done ahead of an order.
    capabilities::bound(capabilities::OF_INIT)
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
    masked.iter().try_for_each(|mask| mounts::bind(&mask.cover, &mask.place))
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

/// Nobody traces or reads this process. Each change of identity sets this to what the host says of such programs.
pub fn hide() -> io::Result<()> {
    // SAFETY: no memory involved.
    result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// Leaves init a user of its own with the capabilities it needs.
fn drop_privileges() -> io::Result<()> {
    capabilities::no_new_privileges()?;
    // SAFETY: no memory involved.
    result(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
    become_user(INIT_ID)?;
    die_with_parent()?;
    capabilities::keep_only(capabilities::OF_INIT)?;
    // SAFETY: no memory involved.
    result(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0) })?;
    hide()
}
