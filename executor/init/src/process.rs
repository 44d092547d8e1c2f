//! One process: fork, become the user with nothing left to lose, exec. What went wrong comes back
//! through a pipe that a successful exec closes.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sandbox_init::message::{Spawn, Stage};

use crate::errno;

/// Open files of a process unless it raises its soft limit.
const NOFILE_SOFT: u64 = 4096;
const NOFILE_HARD: u64 = 65_536;
/// Searched for a program without a slash when the environment names no PATH.
const PATH_DEFAULT: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type Failure = (Stage, i32);

/// Everything exec needs, made before the fork.
struct Program {
    /// Paths to try in order.
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
}

/// Starts the process and returns its pid once exec succeeded.
pub fn start(spawn: &Spawn, stdout: &OwnedFd, stderr: &OwnedFd) -> Result<i32, Failure> {
    let program = Program::new(spawn).ok_or((Stage::Request, libc::EINVAL))?;
    let (mut report, reporter) =
        std::io::pipe().map_err(|error| (Stage::Pipe, error.raw_os_error().unwrap_or(libc::EIO)))?;
    // SAFETY: this process has one thread, so the child may do anything the parent may.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err((Stage::Fork, errno()));
    }
    if pid == 0 {
        drop(report);
        let failure = match above_stdio(&OwnedFd::from(reporter)) {
            Err(_) => (Stage::Stdio, libc::EMFILE),
            Ok(reporter) => {
                let failure = become_program(spawn, &program, stdout.as_raw_fd(), stderr.as_raw_fd());
                let mut bytes = [0; 5];
                bytes[0] = failure.0 as u8;
                bytes[1..].copy_from_slice(&failure.1.to_le_bytes());
                let _ = File::from(reporter).write_all(&bytes);
                failure
            }
        };
        let _ = failure;
        // SAFETY: ends the child without running what the parent registered for its exit.
        unsafe { libc::_exit(127) }
    }
    drop(reporter);
    let mut bytes = [0; 5];
    match report.read_exact(&mut bytes) {
        // Closed by exec, or by the child's death: its exit status then tells.
        Err(_) => Ok(pid),
        Ok(()) => {
            let [stage, errno @ ..] = bytes;
            let mut status = 0;
            // SAFETY: our own child, which is about to end.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            Err((Stage::from_byte(stage).unwrap_or(Stage::Request), i32::from_le_bytes(errno)))
        }
    }
}

impl Program {
    fn new(spawn: &Spawn) -> Option<Self> {
        let name = spawn.argv.first().filter(|name| !name.is_empty())?;
        let list = |entries: &[Vec<u8>]| {
            entries.iter().map(|entry| CString::new(entry.as_slice()).ok()).collect::<Option<Vec<_>>>()
        };
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
            argv: list(&spawn.argv)?,
            env: list(&spawn.env)?,
            cwd: CString::new(spawn.cwd.as_slice()).ok()?,
        })
    }
}

/// A close-on-exec copy that no later dup2 onto 0, 1 or 2 can hit.
fn above_stdio(fd: &OwnedFd) -> Result<OwnedFd, Failure> {
    // SAFETY: gives a fresh descriptor that we own.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: as above; checked to be a descriptor.
    if copy < 0 { Err((Stage::Stdio, errno())) } else { Ok(unsafe { OwnedFd::from_raw_fd(copy) }) }
}

/// Returns only if something failed.
fn become_program(spawn: &Spawn, program: &Program, stdout: RawFd, stderr: RawFd) -> Failure {
    match prepare(spawn, program, stdout, stderr) {
        Err(failure) => failure,
        Ok(()) => (Stage::Exec, exec(program)),
    }
}

fn check(stage: Stage, result: i32) -> Result<(), Failure> {
    if result < 0 { Err((stage, errno())) } else { Ok(()) }
}

fn prepare(spawn: &Spawn, program: &Program, stdout: RawFd, stderr: RawFd) -> Result<(), Failure> {
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

        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        check(Stage::Stdio, null)?;
        for (from, to) in [(null, 0), (stdout, 1), (stderr, 2)] {
            // Received descriptors are above 3 (the channel), so none is overwritten before use.
            check(Stage::Stdio, libc::dup2(from, to))?;
        }
        let mark = libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
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
        drop_capabilities()?;

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

fn drop_capabilities() -> Result<(), Failure> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// _LINUX_CAPABILITY_VERSION_3: two sets of effective, permitted, inheritable.
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = Header { version: VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: version 3 reads a header and two data entries of three words each.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, none.as_ptr()) };
    if done < 0 { Err((Stage::Capabilities, errno())) } else { Ok(()) }
}

/// Tries each candidate as execvp does; returns the errno that tells most.
fn exec(program: &Program) -> i32 {
    let pointers = |list: &[CString]| {
        list.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (argv, env) = (pointers(&program.argv), pointers(&program.env));
    let mut denied = false;
    for path in &program.candidates {
        // SAFETY: both arrays end in null and point into `program`, which is alive.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        match errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR => {}
            other => return other,
        }
    }
    if denied { libc::EACCES } else { libc::ENOENT }
}
