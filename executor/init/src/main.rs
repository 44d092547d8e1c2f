//! PID 1 of a sandbox: starts what the executor asks for, reaps everything, reports what the
//! kernel says, and ends (with it the whole sandbox) when its channel closes.
//!
//! It starts with its channel at descriptor 3 in its namespaces, is told what it is to become ([`furnish`]), and
//! serves with four capabilities in its own user namespace (SETUID, SETGID, KILL, SETPCAP), no_new_privs and every
//! filter in force.

#![no_main]

mod furnish;
mod process;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use sandbox_init::message::{BODY_MAX, Event, MESSAGE_MAX, Request, Spawn, Stage};
use sandbox_init::{CHANNEL_FD, packet};

use crate::process::Given;

/// Processes started by request and alive at once. Past it a spawn is refused with EAGAIN.
const PROCESSES_MAX: usize = 4096;

/// Ends that are remembered, for an executor that was not told of them. The oldest are forgotten: a command
/// that somebody still waits for is the last one of its sandbox, and of shells that run a few are there.
const ENDS_MAX: usize = 256;

/// The C library calls this: what Rust would do before its own `main` is for programs with
/// threads and standard streams, and each sandbox would wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn main() -> libc::c_int {
    if furnish::hide().is_err() {
        return 2;
    }
    // SAFETY: the executor's side put the channel here before exec; nothing else owns it.
    let channel = unsafe { OwnedFd::from_raw_fd(CHANNEL_FD) };
    if !furnish::enter(channel.as_fd()) {
        return 1;
    }
    match Init::new(channel).and_then(|mut init| init.serve()) {
        Ok(()) => 0,
        Err(_) => 3,
    }
}

struct Init {
    channel: OwnedFd,
    /// Readable when a child changed state: SIGCHLD is blocked and read here.
    children_changed: OwnedFd,
    /// Ticket of each live process that was asked for, by pid.
    tickets: BTreeMap<i32, u32>,
    /// The largest of them so far.
    last: u32,
    /// Ticket and wait status of the processes that ended last.
    ends: VecDeque<(u32, i32)>,
}

impl Init {
    fn new(channel: OwnedFd) -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before use; signalfd gives a fresh
        // descriptor that we own.
        let children_changed = unsafe {
            if libc::fcntl(channel.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let (tickets, ends) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { channel, children_changed, tickets, last: 0, ends })
    }

    fn serve(&mut self) -> io::Result<()> {
        self.send(Event::Ready)?;
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let mut ready = [&self.channel, &self.children_changed].map(|fd| libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: `ready` has the two entries the call is told of.
            if unsafe { libc::poll(ready.as_mut_ptr(), 2, -1) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            if ready[1].revents != 0 {
                self.drain_signals();
                self.reap(libc::WNOHANG)?;
            }
            if ready[0].revents != 0 {
                let Some((len, fds)) = packet::receive(self.channel.as_fd(), &mut buffer, 0)? else {
                    return Ok(());
                };
                self.handle(&buffer[..len], fds)?;
            }
        }
    }

    fn drain_signals(&self) {
        let mut info = [0u8; 512];
        // SAFETY: the buffer is as long as stated; the descriptor does not block.
        while unsafe {
            libc::read(self.children_changed.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) > 0
        } {}
    }

    fn handle(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        // A malformed request means the two ends disagree on the protocol: end, and be seen to.
        let request = Request::decode(bytes).map_err(io::Error::other)?;
        match request {
            Request::Spawn { ticket, spawn } => self.spawn(ticket, Ok(spawn), fds),
            Request::SpawnFromFile { ticket } => {
                let mut fds = fds;
                let body = fds.pop().ok_or(libc::EBADMSG).and_then(read_body);
                self.spawn(ticket, body, fds)
            }
            Request::Signal { ticket, process, signal } => {
                let pid = self.tickets.iter().find(|(_, known)| **known == process).map(|(pid, _)| *pid);
                let errno = match pid {
                    None => libc::ESRCH,
                    // SAFETY: kill touches no memory; the pid is of our unreaped child, so it
                    // names that child's own group.
                    Some(pid) => match unsafe { libc::kill(-pid, signal) } {
                        0 => 0,
                        _ => errno(),
                    },
                };
                self.send(Event::Signalled { ticket, errno })
            }
            Request::KillAll { ticket } => {
                // SAFETY: as PID 1 this reaches every process of this namespace but us. The
                // kernel walks them under a lock that forks respect: none slips through.
                unsafe { libc::kill(-1, libc::SIGKILL) };
                let reaped = self.reap(0)?;
                self.send(Event::KilledAll { ticket, reaped })
            }
            Request::Replay { ticket } => self.replay(ticket),
        }
    }

    fn spawn(&mut self, ticket: u32, spawn: Result<Spawn, i32>, fds: Vec<OwnedFd>) -> io::Result<()> {
        let started = match spawn {
            _ if self.tickets.len() >= PROCESSES_MAX => Err((Stage::Request, libc::EAGAIN)),
            Ok(spawn) => match Given::new(&spawn, fds) {
                Some(given) => process::start(&spawn, &given),
                None => Err((Stage::Request, libc::EBADMSG)),
            },
            Err(errno) => Err((Stage::Request, errno)),
        };
        match started {
            Ok((pid, terminal)) => {
                self.tickets.insert(pid, ticket);
                self.last = self.last.max(ticket);
                let event = Event::Started { ticket, pid }.encode();
                let terminal = terminal.as_ref().map(AsRawFd::as_raw_fd);
                packet::send(self.channel.as_fd(), &event, terminal.as_slice(), 0)
            }
            Err((stage, errno)) => self.send(Event::NotStarted { ticket, stage, errno }),
        }
    }

    fn replay(&self, ticket: u32) -> io::Result<()> {
        for (&pid, &ticket) in &self.tickets {
            self.send(Event::Started { ticket, pid })?;
        }
        for &(ticket, status) in &self.ends {
            self.send(Event::Exited { ticket, status })?;
        }
        self.send(Event::Replayed { ticket, last: self.last })
    }

    /// Collects ended children: with WNOHANG those there are, with 0 until none is left.
    fn reap(&mut self, flags: i32) -> io::Result<u32> {
        let mut reaped = 0;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the result.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
            if pid < 0 && errno() == libc::EINTR {
                continue;
            }
            if pid <= 0 {
                return Ok(reaped);
            }
            reaped += 1;
            if let Some(ticket) = self.tickets.remove(&pid) {
                if self.ends.len() >= ENDS_MAX {
                    self.ends.pop_front();
                }
                self.ends.push_back((ticket, status));
                self.send(Event::Exited { ticket, status })?;
            }
        }
    }

    fn send(&self, event: Event) -> io::Result<()> {
        packet::send(self.channel.as_fd(), &event.encode(), &[], 0)
    }
}

fn read_body(file: OwnedFd) -> Result<Spawn, i32> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = BODY_MAX as u64 + 1;
    std::fs::File::from(file)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    if bytes.len() > BODY_MAX {
        return Err(libc::E2BIG);
    }
    Spawn::decode(&bytes).map_err(|_| libc::EBADMSG)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
