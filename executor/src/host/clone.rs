//! clone3 with namespaces, born inside a cgroup: as a fork, or in the memory of its parent until it execs.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP`; libc has no constant of the right width.
const INTO_CGROUP: u64 = 0x2_0000_0000;

#[derive(Debug)]
pub enum Cloned {
    Child,
    Parent { pid: i32 },
}

/// Forks into new `namespaces` (`CLONE_NEW*`), inside the v2 `cgroup` if given.
///
/// # Safety
/// If the process has more than one thread, the child may call only what is async-signal-safe
/// (no allocation, no lock) until it execs or exits.
pub unsafe fn fork(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut args = CloneArgs {
        flags: u64::from(namespaces.cast_unsigned()),
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: without CLONE_VM this is a fork: the child runs on a copy of this stack. The
    // caller keeps to what a forked thread may do. `args` outlives the call.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    let pid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    Ok(Cloned::Parent { pid })
}

/// Of a child in the memory of its parent.
#[repr(C, align(16))]
struct Stack(MaybeUninit<[u8; 32 << 10]>);

/// Runs `run` in a child in new `namespaces` (`CLONE_NEW*`), inside the v2 `cgroup` if given, on a stack of its own in
/// this memory. The calling thread waits until the child has left it, by exec or by its end.
///
/// # Safety
/// The child may call only what is async-signal-safe (no allocation, no lock: other threads of this process go on), and
/// changes what it sees of this memory for good. It sees the `errno` of the calling thread as its own. `argument` must be
/// good for `run`.
pub unsafe fn vfork(
    namespaces: i32,
    cgroup: Option<BorrowedFd<'_>>,
    run: extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> io::Result<i32> {
    let mut stack = Stack(MaybeUninit::uninit());
    let flags = namespaces | libc::CLONE_VM | libc::CLONE_VFORK;
    let mut args = CloneArgs {
        flags: u64::from(flags.cast_unsigned()),
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        stack: (&raw mut stack).expose_provenance() as u64,
        stack_size: size_of::<Stack>() as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    let result: i64;
    // SAFETY: the parent comes back from the call as from any other. The child comes back on an empty stack, which is
    // aligned, and calls `run`, which does not return. Stack, `args` and `argument` outlive it, for the parent waits.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            // By name: the one for a frame, which is cleared, could be chosen.
            in("r12") argument,
            in("r13") run,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw mut args,
            in("rsi") size_of::<CloneArgs>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            in("x20") argument,
            in("x21") run,
            inlateout("x0") &raw mut args => result,
            in("x1") size_of::<CloneArgs>(),
            in("x8") libc::SYS_clone3,
        );
    }
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(error) => Err(io::Error::from_raw_os_error(-error)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EOVERFLOW)),
    }
}

/// Waits for a child's end without a bound longer than `timeout_ms`; reaps it. False: still there.
pub fn reap(pid: i32, timeout_ms: i32) -> io::Result<bool> {
    // SAFETY: no memory involved; the pid is of our own unreaped child, so it cannot be reused.
    let pidfd = match super::fresh_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(true),
        other => other?,
    };
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as stated.
    if checked(unsafe { libc::poll(&raw mut poll, 1, timeout_ms) }.into())? == 0 {
        return Ok(false);
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    match checked(unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) }.into()) {
        Ok(found) => Ok(found != 0),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(true),
        Err(error) => Err(error),
    }
}
