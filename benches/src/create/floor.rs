//! The floor: the kernel's own price of what a container needs, without anything of ours. One
//! operation = three cgroups with limits, a network namespace, clone3 into new user, mount, pid,
//! ipc, uts and cgroup namespaces with a uid range of its own, an overlay on a tmpfs, proc,
//! pivot_root, exec of a static binary that exits, reap, remove the cgroups.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use anyhow::{Context, Result, ensure};

use crate::create::cgroups::Cgroups;

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

pub struct Floor {
    cgroups: Cgroups,
    child: Child,
    /// Where the child mounts its tmpfs; only in its own mount namespace.
    _scratch: PathBuf,
}

/// Everything the child needs, made before the clone: after it, only system calls are allowed.
struct Child {
    root: CString,
    scratch: CString,
    upper: CString,
    work: CString,
    merged: CString,
    proc_dir: CString,
    overlay: CString,
    program: CString,
}

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).expect("no NUL in our paths")
}

impl Floor {
    /// `rootfs`: a directory with `/true` and an empty `/proc`.
    pub fn new(rootfs: &Path, scratch: &Path) -> Result<Self> {
        fs::create_dir_all(scratch)?;
        let at = |name: &str| scratch.join(name);
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            rootfs.display(),
            at("upper").display(),
            at("work").display()
        );
        let child = Child {
            root: c("/"),
            scratch: c(scratch),
            upper: c(at("upper")),
            work: c(at("work")),
            merged: c(at("merged")),
            proc_dir: c(at("merged/proc")),
            overlay: CString::new(options)?,
            program: c("/true"),
        };
        Ok(Self { cgroups: Cgroups::probe()?, child, _scratch: scratch.to_path_buf() })
    }

    /// One operation. Leaves the calling thread in the network namespace it made.
    pub fn run(&self, n: usize) -> Result<()> {
        let cgroup = self.cgroups.create(&format!("floor-{n}"))?;
        let result = self.sandbox(n, &cgroup);
        let removed = cgroup.remove();
        result?;
        removed
    }

    fn sandbox(&self, n: usize, cgroup: &crate::create::cgroups::Set) -> Result<()> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).context("unshare NEWNET")?;
        let (wait, go) = nix::unistd::pipe()?;
        let mut args = libc::clone_args {
            flags: u64::try_from(NAMESPACES)?,
            exit_signal: u64::try_from(libc::SIGCHLD)?,
            // SAFETY: plain integers; all zero means "not used".
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: clone3 without CLONE_VM copies the address space, as fork does; the child only
        // makes system calls on memory prepared above and never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
        if pid == 0 {
            let code = self.child.enter(wait.as_raw_fd(), go.as_raw_fd());
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(code) }
        }
        ensure!(pid > 0, "clone3: {}", io::Error::last_os_error());
        drop(wait);
        let released = (|| -> Result<()> {
            let base = 1_000_000 + (n % 10_000) * 65_536;
            fs::write(format!("/proc/{pid}/uid_map"), format!("0 {base} 65536")).context("uid_map")?;
            fs::write(format!("/proc/{pid}/gid_map"), format!("0 {base} 65536")).context("gid_map")?;
            cgroup.join(pid)?;
            nix::unistd::write(&go, b"g")?;
            Ok(())
        })();
        drop(go);
        let mut status = 0;
        // SAFETY: `status` outlives the call; `pid` is our child.
        let waited = unsafe { libc::waitpid(i32::try_from(pid)?, &raw mut status, 0) };
        released?;
        ensure!(waited as i64 == pid, "waitpid: {}", io::Error::last_os_error());
        ensure!(status == 0, "the child failed at step {}", libc::WEXITSTATUS(status));
        Ok(())
    }
}

impl Child {
    /// Runs in the child; the result says which step failed.
    fn enter(&self, wait: i32, go: i32) -> i32 {
        // SAFETY: system calls on descriptors this process owns and C strings that outlive it.
        unsafe {
            libc::close(go);
            let mut byte = 0u8;
            if libc::read(wait, (&raw mut byte).cast(), 1) != 1 {
                return 1;
            }
            // Until now the child is the host's root, which has no id in here.
            if libc::setresgid(0, 0, 0) != 0 || libc::setresuid(0, 0, 0) != 0 {
                return 11;
            }
            let none = ptr::null::<libc::c_char>();
            let mount = |source: &CStr,
                         target: &CStr,
                         kind: *const libc::c_char,
                         flags,
                         data: *const libc::c_char| {
                libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, data.cast()) == 0
            };
            if !mount(c"none", &self.root, none, libc::MS_REC | libc::MS_PRIVATE, none) {
                return 2;
            }
            if !mount(c"tmpfs", &self.scratch, c"tmpfs".as_ptr(), 0, c"size=64m".as_ptr()) {
                return 3;
            }
            for dir in [&self.upper, &self.work, &self.merged] {
                if libc::mkdir(dir.as_ptr(), 0o755) != 0 {
                    return 4;
                }
            }
            if !mount(c"overlay", &self.merged, c"overlay".as_ptr(), 0, self.overlay.as_ptr()) {
                return 5;
            }
            if !mount(c"proc", &self.proc_dir, c"proc".as_ptr(), 0, none) {
                return 6;
            }
            if libc::chdir(self.merged.as_ptr()) != 0 {
                return 7;
            }
            if libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) != 0 {
                return 8;
            }
            if libc::umount2(c".".as_ptr(), libc::MNT_DETACH) != 0 {
                return 9;
            }
            let argv = [self.program.as_ptr(), ptr::null()];
            let env = [ptr::null()];
            libc::execve(self.program.as_ptr(), argv.as_ptr(), env.as_ptr());
            10
        }
    }
}

/// A static binary that does nothing but exit with 0, from the system's C compiler.
pub fn build_true(rootfs: &Path) -> Result<()> {
    for dir in ["", "proc", "dev", "sys", "tmp", "etc", "workspace"] {
        fs::create_dir_all(rootfs.join(dir))?;
    }
    build_program(rootfs, "true", "")?;
    // A root must have a shell; this one is never run.
    fs::create_dir_all(rootfs.join("bin"))?;
    fs::copy(rootfs.join("true"), rootfs.join("bin/sh"))?;
    Ok(())
}

/// `/hold`, which sleeps for so long and exits with 0.
pub fn build_hold(rootfs: &Path, seconds: u64) -> Result<()> {
    let sleep = format!(
        "long t[2]={{{seconds},0}},r;\
         __asm__ volatile(\"syscall\":\"=a\"(r):\"a\"(35),\"D\"(t),\"S\"(0):\"rcx\",\"r11\",\"memory\");"
    );
    build_program(rootfs, "hold", &sleep)
}

/// A program without a library, that does this and exits with 0.
fn build_program(rootfs: &Path, name: &str, work: &str) -> Result<()> {
    let source = rootfs.parent().context("rootfs has a parent")?.join(format!("{name}.c"));
    let exit = "__asm__ volatile(\"syscall\"::\"a\"(60),\"D\"(0));for(;;);";
    fs::write(&source, format!("void _start(void){{{work}{exit}}}\n"))?;
    let status = std::process::Command::new("cc")
        .args(["-Os", "-static", "-nostdlib", "-o"])
        .arg(rootfs.join(name))
        .arg(&source)
        .status()
        .context("cc")?;
    ensure!(status.success(), "cc failed: {status}");
    Ok(())
}

/// Keeps the original network namespace of the calling thread and returns to it when dropped.
pub struct NetnsGuard(OwnedFd);

impl NetnsGuard {
    pub fn new() -> Result<Self> {
        // SAFETY: the path is a NUL-terminated literal; the result is checked.
        let fd =
            unsafe { libc::open(c"/proc/thread-self/ns/net".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        ensure!(fd >= 0, "open netns: {}", io::Error::last_os_error());
        // SAFETY: a descriptor we just opened and nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl Drop for NetnsGuard {
    fn drop(&mut self) {
        let _ = nix::sched::setns(&self.0, nix::sched::CloneFlags::CLONE_NEWNET);
    }
}
