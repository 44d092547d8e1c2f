//! The executor's end of the broker: starts it, sends requests, hands each reply to whoever waits.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use rollout::BootTime;
use sandbox_init::packet;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, oneshot, watch};

use super::MARK;
use super::protocol::{Action, DATAGRAM_MAX, Estate, Hello, Knock, Outcome, Reply, Request};
use super::serve::lock;
use super::{build, orphaned};

/// Requests on their way to or in the broker. More wait here, in order.
const IN_FLIGHT_MAX: usize = 64;

/// For room in the socket to the broker, in milliseconds.
const TELL_WAIT_MS: i32 = 1_000;
/// For a broker to hand over: as long as it may wait for its executor's end first.
const KNOCK_WAIT_S: i64 = 30;

type Answer = (Outcome, Vec<OwnedFd>);

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// Of a creation: what to destroy if nobody waits for it any more.
    created: Option<String>,
}

/// What an executor that was killed left behind.
#[derive(Debug)]
pub struct Inherited {
    pub client: Arc<Client>,
    /// The lock of the data directory.
    pub data_lock: OwnedFd,
    /// Their control sockets.
    pub keepers: Vec<OwnedFd>,
    /// Names of what lives.
    pub sandboxes: Vec<String>,
    /// Until then it may live; none: no lease ever covered it.
    pub ends_at: Option<BootTime>,
}

#[derive(Debug)]
pub struct Client {
    socket: AsyncFd<OwnedFd>,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    next_ticket: AtomicU64,
    room: Semaphore,
    /// Why the broker is gone; none while it lives.
    gone: watch::Sender<Option<String>>,
}

impl Client {
    /// Starts a broker. Blocks until it is ready. Call within a tokio runtime.
    pub fn start(hello: &Hello, data_lock: &OwnedFd) -> io::Result<Arc<Self>> {
        let (ours, theirs) = packet::pair()?;
        let mut broker = Command::new("/proc/self/exe")
            .arg0(MARK)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C at a terminal is for the executor, which ends the broker when it is done.
            .process_group(0)
            .spawn()?;
        let hello = serde_json::to_vec(hello)?;
        let mut buffer = [0; 16];
        let ready = packet::send(ours.as_fd(), &hello, &[data_lock.as_raw_fd()], 0)
            .and_then(|()| packet::receive(ours.as_fd(), &mut buffer, 0));
        // A thread of its own, since the broker may outlive every runtime by its cleaning up.
        let reaper = std::thread::Builder::new().name("broker-reaper".into());
        reaper.spawn(move || {
            match broker.wait() {
                Ok(status) if status.success() => tracing::debug!("broker ended"),
                Ok(status) => tracing::error!(%status, "broker ended badly"),
                Err(error) => tracing::error!(%error, "waiting for the broker"),
            };
        })?;
        if ready?.is_none() {
            return Err(io::Error::other(
                "the broker ended before it was ready; its standard error says why",
            ));
        }
        Self::over(ours)
    }

    /// Asks the broker that an executor of this directory left behind for what it keeps. Blocks. None: there
    /// is none, or it is of another build and destroys everything now. Call within a tokio runtime.
    pub fn inherit(data_dir: &Path) -> io::Result<Option<Inherited>> {
        let Some(socket) = orphaned::knock(data_dir)? else { return Ok(None) };
        let wait = TimeVal::new(KNOCK_WAIT_S, 0);
        setsockopt(&socket, sockopt::ReceiveTimeout, &wait)?;
        packet::send(socket.as_fd(), &serde_json::to_vec(&Knock { build: build::id()? })?, &[], 0)?;
        let mut buffer = vec![0; DATAGRAM_MAX];
        let (mut data_lock, mut ends_at_us, mut keepers, mut sandboxes) =
            (None, None, Vec::new(), Vec::new());
        loop {
            let Some((len, fds)) = packet::receive(socket.as_fd(), &mut buffer, 0)? else { return Ok(None) };
            match serde_json::from_slice(&buffer[..len]) {
                Ok(Estate::Begin { ends_at_us: until }) => {
                    ends_at_us = until.map(BootTime);
                    data_lock = fds.into_iter().next();
                }
                Ok(Estate::Keeper) => keepers.extend(fds),
                Ok(Estate::Names(names)) => sandboxes.extend(names),
                Ok(Estate::Done) => break,
                Ok(Estate::Refused { build }) => {
                    tracing::warn!(build, "sandboxes of another build are destroyed, not adopted");
                    return Ok(None);
                }
                Err(_) => {
                    tracing::warn!("a broker that cannot be understood: its sandboxes are destroyed");
                    return Ok(None);
                }
            }
        }
        let missing = || io::Error::other("the broker gave no lock");
        let data_lock = data_lock.ok_or_else(missing)?;
        let client = Self::over(socket)?;
        Ok(Some(Inherited { client, data_lock, keepers, sandboxes, ends_at: ends_at_us }))
    }

    fn over(socket: OwnedFd) -> io::Result<Arc<Self>> {
        let client = Arc::new(Self {
            socket: watched(socket)?,
            waiting: Mutex::default(),
            next_ticket: AtomicU64::new(1),
            room: Semaphore::new(IN_FLIGHT_MAX),
            gone: watch::Sender::new(None),
        });
        tokio::spawn(Arc::clone(&client).read());
        Ok(client)
    }

    /// Sends a request and waits for its answer. If the future is dropped, a sandbox that was
    /// being created is destroyed when its reply comes.
    pub async fn request(&self, action: Action) -> io::Result<Answer> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, self.gone_reason());
        let _room = self.room.acquire().await.map_err(|_| gone())?;
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let created = match &action {
            Action::Create(create) => Some(create.id.clone()),
            _ => None,
        };
        let bytes = serde_json::to_vec(&Request { ticket, action })?;
        if bytes.len() > DATAGRAM_MAX {
            return Err(io::Error::other(format!("the request is longer than {DATAGRAM_MAX} bytes")));
        }
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(ticket, Waiting { answer, created });
        let sent = send(&self.socket, &bytes, &[]).await;
        if self.gone.borrow().is_some() || sent.is_err() {
            lock(&self.waiting).remove(&ticket);
            return Err(gone());
        }
        answered.await.map_err(|_| gone())
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; DATAGRAM_MAX];
        let reason = loop {
            match receive(&self.socket, &mut buffer).await {
                Ok(Some((len, fds))) => match serde_json::from_slice(&buffer[..len]) {
                    Ok(reply) => self.deliver(reply, fds),
                    Err(error) => break format!("the broker sent what is no reply: {error}"),
                },
                Ok(None) => break "the broker is gone".to_owned(),
                Err(error) => break format!("reading from the broker: {error}"),
            }
        };
        self.say_gone(reason);
        // Dropping the senders wakes everyone who waits.
        lock(&self.waiting).clear();
    }

    fn deliver(self: &Arc<Self>, reply: Reply, fds: Vec<OwnedFd>) {
        let Some(waiting) = lock(&self.waiting).remove(&reply.ticket) else {
            tracing::error!(ticket = reply.ticket, "the broker answered what nobody asked");
            return;
        };
        let Err((Outcome::Created(_), fds)) = waiting.answer.send((reply.outcome, fds)) else { return };
        drop(fds);
        if let Some(id) = waiting.created {
            self.destroy_detached(id);
        }
    }

    /// Destroys without anyone waiting; what is left is logged and found by the next census.
    pub fn destroy_detached(self: &Arc<Self>, id: String) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            // No runtime, no executor: the broker destroys all when it is told of the end.
            return;
        };
        let client = Arc::clone(self);
        runtime.spawn(async move {
            match client.request(Action::Destroy { id: id.clone() }).await {
                Ok((Outcome::Destroyed { left }, _)) if left.is_empty() => {}
                Ok((outcome, _)) => tracing::error!(sandbox = id, ?outcome, "abandoned sandbox not removed"),
                Err(error) => tracing::warn!(sandbox = id, %error, "abandoned sandbox left to the broker"),
            }
        });
    }

    fn gone_reason(&self) -> String {
        self.gone.borrow().clone().unwrap_or_else(|| "the broker is gone".into())
    }

    /// Why the broker is gone, if it is.
    pub fn gone(&self) -> Option<String> {
        self.gone.borrow().clone()
    }

    /// Resolves when the broker is gone, with the reason.
    pub async fn ended(&self) -> String {
        let mut watched = self.gone.subscribe();
        // The sender is `self`: the channel cannot close meanwhile.
        let reason = watched.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| self.gone_reason())
    }

    /// The first reason stays.
    fn say_gone(&self, reason: String) {
        self.gone.send_if_modified(|gone| {
            let first = gone.is_none();
            gone.get_or_insert(reason);
            first
        });
    }

    /// As [`close`](Self::close), for a reason that whoever waits is told.
    pub fn end(&self, reason: String) {
        self.say_gone(reason);
        self.close();
    }

    /// Tells what has no answer. Never waits long.
    pub fn tell(&self, action: Action, fds: &[i32]) -> io::Result<()> {
        let bytes = serde_json::to_vec(&Request { ticket: 0, action })?;
        let socket = self.socket.get_ref();
        loop {
            match packet::send(socket.as_fd(), &bytes, fds, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut room = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one entry, as stated.
                    if unsafe { libc::poll(&raw mut room, 1, TELL_WAIT_MS) } == 0 {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// Lets the broker keep everything for the next executor.
    pub fn leave(&self) {
        shut(self.socket.get_ref());
    }

    /// Lets the broker destroy everything and end.
    pub fn close(&self) {
        if let Err(error) = self.tell(Action::End, &[]) {
            tracing::debug!(%error, "the broker is told of the end by the end of its socket");
        }
        shut(self.socket.get_ref());
    }
}

/// Ends both directions: the other side and our own reader see the end.
pub fn shut(socket: &OwnedFd) {
    // An error means that it is shut already.
    let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
}

/// Makes a socket non-blocking and watches it. Call within a tokio runtime.
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // SAFETY: an OwnedFd stays open and names the same file until it is dropped, with the AsyncFd
    // that owns it; nothing here takes it out.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// One datagram out, when there is room.
pub async fn send(socket: &AsyncFd<OwnedFd>, bytes: &[u8], fds: &[i32]) -> io::Result<()> {
    loop {
        let mut ready = socket.writable().await?;
        match ready.try_io(|socket| packet::send(socket.as_fd(), bytes, fds, libc::MSG_DONTWAIT)) {
            Ok(sent) => return sent,
            Err(_would_block) => {}
        }
    }
}

/// One datagram in. None = the other end is gone.
pub async fn receive(
    socket: &AsyncFd<OwnedFd>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        match ready.try_io(|socket| packet::receive(socket.as_fd(), buffer, libc::MSG_DONTWAIT)) {
            Ok(received) => return received,
            Err(_would_block) => {}
        }
    }
}
