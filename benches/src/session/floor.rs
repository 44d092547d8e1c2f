//! The floor of a call into a sandbox: a resident process at the other end of a SEQPACKET socket pair
//! starts a static binary (by vfork and exec), waits for it and answers. No wall, nothing recorded.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use anyhow::{Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// Ends its process when it is dropped.
#[derive(Debug)]
pub struct Resident {
    socket: Option<OwnedFd>,
    pid: Pid,
}

impl Resident {
    /// Call it while this process has one thread only. `program` is what each call runs.
    pub fn start(program: &Path) -> Result<Self> {
        let program = CString::new(program.as_os_str().as_encoded_bytes())?;
        let (near, far) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: this process has one thread, so the child may do what any process may.
        match unsafe { fork() }? {
            ForkResult::Child => {
                drop(near);
                let code = serve(&far, &program);
                // SAFETY: ends the child without running what the parent has registered for its end.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => Ok(Self { socket: Some(near), pid: child }),
        }
    }

    /// Asks, and waits for the answer.
    pub fn call(&self) -> Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut answer = [0u8];
        // SAFETY: one byte each, in memory that outlives the calls.
        let done = unsafe {
            libc::send(socket.as_raw_fd(), [1u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) == 1
                && libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), 1, 0) == 1
        };
        ensure!(done, "the resident process does not answer: {}", io::Error::last_os_error());
        ensure!(answer == [0], "it could not run the program");
        Ok(())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.socket.take();
        // Its socket has ended, so it does.
        let _ = waitpid(self.pid, None);
    }
}

fn serve(socket: &OwnedFd, program: &CString) -> i32 {
    loop {
        let mut asked = [0u8];
        // SAFETY: one byte, in memory that outlives the call.
        if unsafe { libc::recv(socket.as_raw_fd(), asked.as_mut_ptr().cast(), 1, 0) } != 1 {
            return 0;
        }
        let answer = [u8::from(!run(program))];
        // SAFETY: as above.
        if unsafe { libc::send(socket.as_raw_fd(), answer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL) } != 1 {
            return 1;
        }
    }
}

/// `posix_spawn` of glibc is vfork and exec.
fn run(program: &CString) -> bool {
    let (mut pid, mut status) = (0, 0);
    let argv = [program.as_ptr().cast_mut(), ptr::null_mut()];
    let env = [ptr::null_mut()];
    // SAFETY: C strings and arrays that outlive the calls; `pid` is our child, waited for once.
    unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            ptr::null(),
            ptr::null(),
            argv.as_ptr(),
            env.as_ptr(),
        ) == 0
            && libc::waitpid(pid, &raw mut status, 0) == pid
            && status == 0
    }
}
