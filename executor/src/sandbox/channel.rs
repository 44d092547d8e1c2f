//! The executor's end of the channel to one init.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_init::birth::{self, Step};
use sandbox_init::message::{Event, MESSAGE_MAX, Request, Spawn, Stage};
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use super::Exit;
use crate::broker::client::{receive, send, shut, watched};
use crate::broker::serve::lock;

/// How long init may take to say that it serves.
const READY_WAIT: Duration = Duration::from_secs(30);
/// Requests to one init that wait for an answer. Past it a request is refused.
const WAITING_MAX: usize = 1024;

/// What init answered to a request.
#[derive(Debug)]
pub enum Answer {
    /// Its number in the sandbox, and the other end of its terminal if it has one.
    Started(i32, Option<OwnedFd>),
    NotStarted(Stage, i32),
    Signalled(i32),
    KilledAll,
    /// The largest ticket that was ever a process's.
    Replayed(u32),
}

#[derive(Debug, Default)]
struct Expected {
    answers: BTreeMap<u32, oneshot::Sender<Answer>>,
    exits: BTreeMap<u32, watch::Sender<Option<Exit>>>,
    /// While an earlier life is asked for: what init tells of it, in order.
    told: Option<BTreeMap<u32, Told>>,
}

/// What init knows of a process that another executor started.
#[derive(Debug, Clone)]
pub struct Told {
    exited: watch::Receiver<Option<Exit>>,
}

impl Told {
    pub fn exited(&self) -> watch::Receiver<Option<Exit>> {
        self.exited.clone()
    }
}

/// Asks for what an earlier executor was told: no request of its has this one.
const REPLAY: u32 = u32::MAX;

#[derive(Debug)]
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
    expected: Mutex<Expected>,
    next_ticket: AtomicU32,
    dead: watch::Sender<Option<String>>,
}

/// Why a request got no answer.
#[derive(Debug)]
pub enum ChannelError {
    Dead(String),
    Io(io::Error),
}

impl Channel {
    /// Takes the channel of an init that is on its way, and waits until it serves. Call within a tokio runtime.
    ///
    /// # Errors
    /// At which step it failed.
    pub async fn born(socket: OwnedFd) -> Result<Arc<Self>, (Step, io::Error)> {
        let failed = |error| (Step::Exec, error);
        let socket = watched(socket).map_err(failed)?;
        let mut word = [0; 16];
        let heard = tokio::time::timeout(READY_WAIT, first_word(&socket, &mut word)).await;
        let len =
            heard.map_err(|_| failed(io::Error::from_raw_os_error(libc::ETIMEDOUT)))?.map_err(failed)?;
        let word = &word[..len];
        if let Some((step, errno)) = birth::failure(word) {
            return Err((step, io::Error::from_raw_os_error(errno)));
        }
        // Gone without a word, or what came is no beginning.
        if !matches!(Event::decode(word), Ok(Event::Ready)) {
            return Err(failed(io::Error::from_raw_os_error(libc::ECHILD)));
        }
        let channel = Arc::new(Self {
            socket,
            expected: Mutex::default(),
            next_ticket: AtomicU32::new(1),
            dead: watch::Sender::new(None),
        });
        tokio::spawn(Arc::clone(&channel).read());
        Ok(channel)
    }

    /// Takes the channel of an init that another executor spoke with, and gives the processes init tells of.
    /// Call within a tokio runtime.
    pub async fn adopt(socket: OwnedFd) -> Result<(Arc<Self>, BTreeMap<u32, Told>), ChannelError> {
        let channel = Arc::new(Self {
            socket: watched(socket).map_err(ChannelError::Io)?,
            expected: Mutex::new(Expected { told: Some(BTreeMap::new()), ..Expected::default() }),
            next_ticket: AtomicU32::new(REPLAY),
            dead: watch::Sender::new(None),
        });
        tokio::spawn(Arc::clone(&channel).read());
        let answer = channel.ask(REPLAY, &Request::Replay { ticket: REPLAY }.encode(), &[]).await?;
        let Answer::Replayed(last) = answer else {
            return Err(ChannelError::Io(io::Error::other("init answered another question")));
        };
        channel.next_ticket.store(last.wrapping_add(1), Ordering::Relaxed);
        let told = lock(&channel.expected).told.take().unwrap_or_default();
        Ok((channel, told))
    }

    pub fn ticket(&self) -> u32 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a process under `ticket` with the descriptors that `spawn` says; its exit comes through
    /// the receiver.
    pub async fn spawn(
        &self,
        ticket: u32,
        spawn: Spawn,
        given: &[RawFd],
    ) -> Result<(Answer, watch::Receiver<Option<Exit>>), ChannelError> {
        let (exit, exited) = watch::channel(None);
        lock(&self.expected).exits.insert(ticket, exit);
        // Not started, or nobody waits for the answer: nobody is told of its exit either.
        let mut unheard = Unheard { channel: self, ticket: Some(ticket) };
        let mut fds = given.to_vec();
        let inline = Request::Spawn { ticket, spawn };
        let bytes = inline.encode();
        let (bytes, body) = match inline {
            Request::Spawn { spawn, .. } if bytes.len() > MESSAGE_MAX => {
                let body = body_file(&spawn.encode()).map_err(ChannelError::Io)?;
                (Request::SpawnFromFile { ticket }.encode(), Some(body))
            }
            _ => (bytes, None),
        };
        fds.extend(body.as_ref().map(AsRawFd::as_raw_fd));
        let answer = self.ask(ticket, &bytes, &fds).await?;
        if matches!(answer, Answer::Started(..)) {
            unheard.ticket = None;
        }
        Ok((answer, exited))
    }

    pub async fn signal(&self, process: u32, signal: i32) -> Result<Answer, ChannelError> {
        let ticket = self.ticket();
        self.ask(ticket, &Request::Signal { ticket, process, signal }.encode(), &[]).await
    }

    pub async fn kill_all(&self) -> Result<Answer, ChannelError> {
        let ticket = self.ticket();
        self.ask(ticket, &Request::KillAll { ticket }.encode(), &[]).await
    }

    async fn ask(&self, ticket: u32, bytes: &[u8], fds: &[i32]) -> Result<Answer, ChannelError> {
        let dead = || ChannelError::Dead(self.death().unwrap_or_else(|| "init is gone".into()));
        let (answer, answered) = oneshot::channel();
        {
            let mut expected = lock(&self.expected);
            // A caller that gave up leaves its ticket behind; those must not add up.
            expected.answers.retain(|_, waiting| !waiting.is_closed());
            if expected.answers.len() >= WAITING_MAX {
                let full = format!("{WAITING_MAX} requests wait for this sandbox");
                return Err(ChannelError::Io(io::Error::other(full)));
            }
            expected.answers.insert(ticket, answer);
        }
        if let Err(error) = send(&self.socket, bytes, fds).await {
            lock(&self.expected).answers.remove(&ticket);
            return Err(match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => dead(),
                _ => ChannelError::Io(error),
            });
        }
        if self.death().is_some() {
            lock(&self.expected).answers.remove(&ticket);
        }
        answered.await.map_err(|_| dead())
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; MESSAGE_MAX.min(256)];
        let reason = loop {
            match receive(&self.socket, &mut buffer).await {
                Ok(Some((len, fds))) => match Event::decode(&buffer[..len]) {
                    Ok(event) => self.take(event, fds.into_iter().next()),
                    Err(error) => break format!("init sent a {error}"),
                },
                Ok(None) => break "init is gone".to_owned(),
                Err(error) => break format!("reading from init: {error}"),
            }
        };
        self.dead.send_replace(Some(reason));
        let expected = std::mem::take(&mut *lock(&self.expected));
        drop(expected);
    }

    fn take(&self, event: Event, given: Option<OwnedFd>) {
        let mut expected = lock(&self.expected);
        let (ticket, answer) = match event {
            Event::Ready => return,
            Event::Exited { ticket, status } => {
                if expected.told.is_some() {
                    expected.tell_of(ticket);
                }
                if let (Some(exit), Some(status)) = (expected.exits.remove(&ticket), exit_of(status)) {
                    exit.send_replace(Some(status));
                }
                return;
            }
            Event::Started { ticket, .. } if expected.told.is_some() => return expected.tell_of(ticket),
            Event::Started { ticket, pid } => (ticket, Answer::Started(pid, given)),
            Event::Replayed { ticket, last } => (ticket, Answer::Replayed(last)),
            Event::NotStarted { ticket, stage, errno } => (ticket, Answer::NotStarted(stage, errno)),
            Event::Signalled { ticket, errno } => (ticket, Answer::Signalled(errno)),
            Event::KilledAll { ticket, .. } => (ticket, Answer::KilledAll),
        };
        if let Some(waiting) = expected.answers.remove(&ticket) {
            // Nobody waits any more: a started process then ends with its step.
            let _ = waiting.send(answer);
        }
    }

    /// Why the sandbox is dead, if it is.
    pub fn death(&self) -> Option<String> {
        self.dead.borrow().clone()
    }

    pub async fn died(&self) -> String {
        let mut dead = self.dead.subscribe();
        let reason = dead.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_else(|| "init is gone".into())
    }

    /// Init ends, and with it the sandbox.
    pub fn close(&self) {
        shut(self.socket.get_ref());
    }
}

/// Its length; 0: there is none. An init that ended before it read the last word of the broker leaves a reset ahead of
/// its own word: once.
async fn first_word(socket: &AsyncFd<OwnedFd>, word: &mut [u8]) -> io::Result<usize> {
    let heard = match receive(socket, word).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive(socket, word).await?,
        heard => heard?,
    };
    Ok(heard.map_or(0, |(len, _)| len))
}

impl Expected {
    /// A process of an earlier life. What is told of it again says nothing new.
    fn tell_of(&mut self, ticket: u32) {
        let Some(told) = &mut self.told else { return };
        told.entry(ticket).or_insert_with(|| {
            let (exit, exited) = watch::channel(None);
            self.exits.insert(ticket, exit);
            Told { exited }
        });
    }
}

/// Forgets an exit when it is dropped.
struct Unheard<'a> {
    channel: &'a Channel,
    ticket: Option<u32>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            lock(&self.channel.expected).exits.remove(&ticket);
        }
    }
}

fn exit_of(status: i32) -> Option<Exit> {
    if libc::WIFEXITED(status) {
        Some(Exit::Code(libc::WEXITSTATUS(status)))
    } else if libc::WIFSIGNALED(status) {
        Some(Exit::Signal(libc::WTERMSIG(status)))
    } else {
        None
    }
}

/// A spawn too large for a datagram, as a memory file read from its start.
fn body_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let fd = nix::sys::memfd::memfd_create(c"spawn", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_what_the_kernel_said() {
        assert_eq!(exit_of(7 << 8), Some(Exit::Code(7)));
        assert_eq!(exit_of(9), Some(Exit::Signal(9)));
        assert_eq!(exit_of(11 | 0x80), Some(Exit::Signal(11)), "with a core dump flag");
        assert_eq!(exit_of(0x137f), None, "stopped is not ended");
    }
}
