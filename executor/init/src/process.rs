//! One process: be born, become the user with nothing left to lose, exec. Until then it runs in the memory of init,
//! which waits: no page table is copied, and what went wrong lies there. So it allocates nothing that outlives it. A
//! terminal is opened by the process itself, as the user it then belongs to; its other end comes back over a socket.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sandbox_init::kernel::capabilities;
use sandbox_init::message::{REPORT_FD, Spawn, Stage, Streams};
use sandbox_init::packet;

use crate::errno;
use crate::furnish::hide;

/// Open files of a process unless it raises its soft limit.
const NOFILE_SOFT: u64 = 4096;
const NOFILE_HARD: u64 = 65_536;
/// Searched for a program without a slash when the environment names no PATH.
const PATH_DEFAULT: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type Failure = (Stage, i32);

/// Everything exec needs, made before the birth.
struct Program {
    /// Paths to try in order.
    candidates: Vec<CString>,
    argv: Strings,
    env: Strings,
    cwd: CString,
}

/// As exec takes them.
struct Strings {
    /// Into what is owned below, then null.
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Strings {
    /// None: one has a NUL byte.
    fn new(entries: &[Vec<u8>]) -> Option<Self> {
        let owned =
            entries.iter().map(|entry| CString::new(entry.as_slice()).ok()).collect::<Option<Vec<_>>>()?;
        let pointers = owned.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect();
        Some(Self { pointers, _owned: owned })
    }
}

/// What a process before its exec and init, which waits for that, both see.
struct Birth<'a> {
    spawn: &'a Spawn,
    program: &'a Program,
    given: &'a Given,
    handover: Option<&'a OwnedFd>,
    /// Set by the process, if exec did not come.
    failure: Option<Failure>,
}

/// Deep enough for what is done before exec, a path of the longest kind included. Its pages stay with init.
#[repr(C, align(16))]
struct Stack(MaybeUninit<[u8; 16 << 10]>);

/// The descriptors that came with a request, each in its place.
pub struct Given {
    /// stdin, stdout, stderr.
    streams: [Option<OwnedFd>; 3],
    report: Option<OwnedFd>,
    group: Option<OwnedFd>,
}

impl Given {
    /// None: more or fewer came than the request says.
    pub fn new(spawn: &Spawn, fds: Vec<OwnedFd>) -> Option<Self> {
        let expected =
            spawn.streams.descriptors() + usize::from(spawn.has_report) + usize::from(spawn.has_group);
        if fds.len() != expected {
            return None;
        }
        let mut fds = fds.into_iter();
        let streams = match spawn.streams {
            Streams::Output => [None, fds.next(), fds.next()],
            Streams::Given => [fds.next(), fds.next(), fds.next()],
            Streams::Terminal { .. } => [None, None, None],
        };
        let report = if spawn.has_report { fds.next() } else { None };
        let group = if spawn.has_group { fds.next() } else { None };
        Some(Self { streams, report, group })
    }
}

/// Starts the process and returns its pid once exec succeeded, with the other end of its terminal.
pub fn start(spawn: &Spawn, given: &Given) -> Result<(i32, Option<OwnedFd>), Failure> {
    let program = Program::new(spawn).ok_or((Stage::Request, libc::EINVAL))?;
    let failed = |error: std::io::Error| (Stage::Pipe, error.raw_os_error().unwrap_or(libc::EIO));
    // Sockets show in the sandbox, so there are none where no terminal has to be handed over.
    let handover = match spawn.streams {
        Streams::Terminal { .. } => Some(packet::pair().map_err(failed)?),
        Streams::Output | Streams::Given => None,
    };
    let near = handover.as_ref().map(|(_, near)| near);
    let mut birth = Birth { spawn, program: &program, given, handover: near, failure: None };
    let mut stack = Stack(MaybeUninit::uninit());
    // SAFETY: the child runs `born` on a stack of its own, which is aligned and lives on, as `birth` does, for with
    // CLONE_VFORK this process, which has one thread, goes on only when the child has left this memory: by exec or by its end.
    let pid = unsafe {
        let top = (&raw mut stack).add(1).cast::<c_void>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(born, top, flags, (&raw mut birth).cast())
    };
    if pid < 0 {
        return Err((Stage::Fork, errno()));
    }
    if let Some(failure) = birth.failure {
        let mut status = 0;
        // SAFETY: our own child, which is about to end.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        return Err(failure);
    }
    // It was exec, or the child's death: its exit status then tells. A terminal was sent before.
    let terminal = handover.and_then(|(far, _)| {
        let received = packet::receive_into(far.as_fd(), &mut [0; 1], libc::MSG_DONTWAIT);
        received.ok().and_then(|received| received.fds.into_iter().flatten().next())
    });
    Ok((pid, terminal))
}

/// In the child. Descriptors are its own from here on; memory is init's.
extern "C" fn born(birth: *mut c_void) -> c_int {
    // SAFETY: as `start` gave it, which touches it again only when this process has left its memory.
    let birth = unsafe { &mut *birth.cast::<Birth<'_>>() };
    birth.failure = Some(become_program(birth.spawn, birth.program, birth.given, birth.handover));
    127
}

impl Program {
    fn new(spawn: &Spawn) -> Option<Self> {
        let name = spawn.argv.first().filter(|name| !name.is_empty())?;
        let candidates = if name.contains(&b'/') {
            vec![CString::new(name.as_slice()).ok()?]
        } else {
            let path = spawn.env.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
            path.unwrap_or(PATH_DEFAULT)
                .split(|byte| *byte == b':')
                .map(|folder| if folder.is_empty() { b"." } else { folder })
                .map(|folder| Path::new(OsStr::from_bytes(folder)).join(OsStr::from_bytes(name)))
                .map(|path| CString::new(path.as_os_str().as_bytes()).ok())
                .collect::<Option<_>>()?
        };
        Some(Self {
            candidates,
            argv: Strings::new(&spawn.argv)?,
            env: Strings::new(&spawn.env)?,
            cwd: CString::new(spawn.cwd.as_slice()).ok()?,
        })
    }
}

/// A close-on-exec copy that no later dup2 onto 0, 1, 2 or the declared one can hit.
fn above_declared(fd: &OwnedFd) -> Result<OwnedFd, Failure> {
    // SAFETY: gives a fresh descriptor that we own.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, REPORT_FD + 1) };
    // SAFETY: as above; checked to be a descriptor.
    if copy < 0 { Err((Stage::Stdio, errno())) } else { Ok(unsafe { OwnedFd::from_raw_fd(copy) }) }
}

/// Returns only if something failed.
fn become_program(spawn: &Spawn, program: &Program, given: &Given, handover: Option<&OwnedFd>) -> Failure {
    match prepare(spawn, program, given, handover) {
        Err(failure) => failure,
        Ok(()) => (Stage::Exec, exec(program)),
    }
}

fn check(stage: Stage, result: i32) -> Result<(), Failure> {
    if result < 0 { Err((stage, errno())) } else { Ok(()) }
}

fn prepare(
    spawn: &Spawn,
    program: &Program,
    given: &Given,
    handover: Option<&OwnedFd>,
) -> Result<(), Failure> {
    // SAFETY: each call gets valid pointers to locals or to `program`, which outlive it; none of
    // them keeps a pointer.
    unsafe {
        check(Stage::Session, libc::setsid())?;
        // The broker ignores SIGPIPE and the signals of a terminal, and init blocks SIGCHLD: a
        // program expects none of it.
        for signal in 1..libc::SIGRTMIN() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        check(Stage::Session, libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))?;

        if let Some(group) = &given.group {
            // "0" is whoever writes: this process, before it can have a child.
            if libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) < 0 {
                return Err((Stage::Group, errno()));
            }
        }
        if !matches!(spawn.streams, Streams::Terminal { .. }) {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            check(Stage::Stdio, null)?;
            for (stream, to) in given.streams.iter().zip(0..) {
                // Received descriptors are above 3 (the channel), so none is overwritten before use.
                check(Stage::Stdio, libc::dup2(stream.as_ref().map_or(null, AsRawFd::as_raw_fd), to))?;
            }
        }
        let kept = match &given.report {
            None => REPORT_FD,
            Some(report) => {
                check(Stage::Stdio, libc::dup2(report.as_raw_fd(), REPORT_FD))?;
                REPORT_FD + 1
            }
        };
        let mark =
            libc::syscall(libc::SYS_close_range, kept.cast_unsigned(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        if mark < 0 {
            return Err((Stage::Stdio, errno()));
        }

        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(Stage::Limits, libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files))?;
        files.rlim_max = files.rlim_max.min(NOFILE_HARD);
        files.rlim_cur = NOFILE_SOFT.min(files.rlim_max);
        let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(Stage::Limits, libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files))?;
        check(Stage::Limits, libc::setrlimit(libc::RLIMIT_CORE, &raw const core))?;
        libc::umask(0o022);

        // The bounding set first (it needs SETPCAP), so that root in the sandbox regains nothing
        // at exec either; then the user; then what root would have kept.
        for capability in 0..=63 {
            // Init lacks most already; to look is far cheaper than to drop again.
            match libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) {
                0 => {}
                1 => {
                    let dropped = libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                    check(Stage::Capabilities, dropped)?;
                }
                _ if errno() == libc::EINVAL => break,
                _ => return Err((Stage::Capabilities, errno())),
            }
        }
        check(Stage::Groups, libc::setgroups(0, std::ptr::null()))?;
        check(Stage::Gid, libc::setresgid(spawn.gid, spawn.gid, spawn.gid))?;
        check(Stage::Uid, libc::setresuid(spawn.uid, spawn.uid, spawn.uid))?;
        capabilities::keep_only(0).map_err(|_| (Stage::Capabilities, errno()))?;
        // The memory is init's until exec.
        hide().map_err(|_| (Stage::Uid, errno()))?;
        if let (Streams::Terminal { columns, rows }, Some(handover)) = (spawn.streams, handover) {
            let other_end = take_terminal(columns, rows)?;
            packet::send(handover.as_fd(), b"t", &[other_end.as_raw_fd()], 0)
                .map_err(|error| (Stage::Terminal, error.raw_os_error().unwrap_or(libc::EIO)))?;
        }

        check(Stage::Cwd, libc::chdir(program.cwd.as_ptr()))?;
        // A directory outside the root shows as "(unreachable)"; there must be none to find.
        let mut cwd = [0u8; libc::PATH_MAX as usize];
        if libc::getcwd(cwd.as_mut_ptr().cast(), cwd.len()).is_null() {
            return Err((Stage::Cwd, errno()));
        }
        if cwd[0] != b'/' {
            return Err((Stage::Cwd, libc::EXDEV));
        }
    }
    Ok(())
}

/// Opens a fresh terminal of this sandbox, makes it the controlling one and the three streams, and
/// gives the other end. It belongs to whoever opens it: call this as the user.
fn take_terminal(columns: u16, rows: u16) -> Result<OwnedFd, Failure> {
    /// `_IOW('T', 0x31, int)` and `_IO('T', 0x41)`: unlock, and open the near end without a path.
    const UNLOCK: libc::Ioctl = 0x4004_5431;
    const OPEN_PEER: libc::Ioctl = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: paths are C strings, pointers are to locals that outlive their call, and each fresh
    // descriptor is owned once.
    unsafe {
        let fd = libc::open(c"/dev/pts/ptmx".as_ptr(), flags);
        check(Stage::Terminal, fd)?;
        let other_end = OwnedFd::from_raw_fd(fd);
        let unlocked: c_int = 0;
        check(Stage::Terminal, libc::ioctl(fd, UNLOCK, &raw const unlocked))?;
        let near = libc::ioctl(fd, OPEN_PEER, flags);
        check(Stage::Terminal, near)?;
        let near = OwnedFd::from_raw_fd(near);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        check(Stage::Terminal, libc::ioctl(fd, libc::TIOCSWINSZ, &raw const size))?;
        check(Stage::Terminal, libc::ioctl(near.as_raw_fd(), libc::TIOCSCTTY, 0))?;
        let near = above_declared(&near)?;
        // 0 to 2 are free or /dev/null of init; the other end stays clear of them.
        let other_end = above_declared(&other_end)?;
        for to in 0..3 {
            check(Stage::Terminal, libc::dup2(near.as_raw_fd(), to))?;
        }
        Ok(other_end)
    }
}

/// Tries each candidate as execvp does; returns the errno that tells most.
fn exec(program: &Program) -> i32 {
    let (argv, env) = (&program.argv.pointers, &program.env.pointers);
    let mut denied = false;
    for path in &program.candidates {
        // SAFETY: both arrays end in null and point into `program`, which init keeps.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        match errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR => {}
            other => return other,
        }
    }
    if denied { libc::EACCES } else { libc::ENOENT }
}
