//! The executor's end of its keepers: starts them, and puts, borrows and drops descriptors.
//!
//! Calls that are not `async` block: they belong on a thread that may. The keeper answers at once, except to a drop,
//! which waits for the kernel. What is put is not waited for at all, until it is asked for.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use sandbox_init::packet;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::MARK;
use super::lines::{Answer, Line};
use super::protocol::{
    CALLS, CONNECTIONS, DATAGRAM_MAX, DROPS, Hello, Kind, PUTS, Ready, Refusal, Reply, Request,
};
use crate::broker::client::{receive, shut, watched};
use crate::broker::serve::lock;

/// Keepers of one executor.
pub(crate) const KEEPERS_MAX: u64 = 8;
/// Its root, its writable tree, its channel, and two streams of the command that runs in it. The streams of
/// persistent shells come on top, as far as there is room.
pub(crate) const FDS_PER_SANDBOX: u64 = 5;
/// A keeper that takes longer to answer is given up.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Why a descriptor was not kept, or not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the keeper refused: {0}")]
    Refused(#[from] Refusal),
    #[error("asking the keeper")]
    Io(#[from] io::Error),
    #[error("the keeper answered another question")]
    Answer,
    #[error("descriptors of keepers are at their limit: {used} of {limit}")]
    Full { used: u64, limit: u64 },
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(source) => source,
            other => Self::other(other),
        }
    }
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Held from a request to its answer.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Keeper {
    puts: Arc<Line>,
    drops: [Arc<Line>; DROPS],
    connections: [Connection; CALLS],
    next: AtomicUsize,
    /// Descriptors promised to sandboxes.
    promised: AtomicU64,
    room: u64,
    /// Its end is how we see the keeper's, and it ours.
    control: Arc<AsyncFd<OwnedFd>>,
}

/// All keepers of an executor. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Keepers {
    keepers: Vec<Keeper>,
    /// Why one of them is gone; none while all live.
    gone: Arc<watch::Sender<Option<String>>>,
    /// They go on without this executor.
    is_left: AtomicBool,
    /// Their answers are read on it.
    runtime: Handle,
}

impl Keepers {
    /// Starts as many as `sandboxes` need, and entrusts the control socket of each to the broker. Blocks until they are ready. Call within a tokio runtime.
    pub fn start(
        sandboxes: u64,
        data_lock: &OwnedFd,
        entrust: impl FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let gone = Arc::new(watch::Sender::new(None));
        let none = Self { keepers: Vec::new(), gone, is_left: false.into(), runtime: Handle::current() };
        none.grown(sandboxes, data_lock, entrust)
    }

    /// With as many more as are missing: the executor before may have been killed while it started them.
    fn grown(
        mut self,
        sandboxes: u64,
        data_lock: &OwnedFd,
        mut entrust: impl FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let needed = sandboxes.saturating_mul(FDS_PER_SANDBOX);
        loop {
            let room: u64 = self.keepers.iter().map(|keeper| keeper.room).sum();
            if room >= needed && !self.keepers.is_empty() {
                return Ok(self);
            }
            if self.keepers.len() as u64 >= KEEPERS_MAX {
                let few = format!("{KEEPERS_MAX} keepers hold {room} descriptors, of {needed} needed");
                return Err(io::Error::other(few));
            }
            let keeper = Keeper::start(data_lock)?;
            entrust(keeper.control.get_ref())?;
            tokio::spawn(watch_over(Arc::clone(&keeper.control), Arc::clone(&self.gone)));
            self.keepers.push(keeper);
        }
    }

    /// Those that an executor which was killed left behind, by their control sockets, and as many more as are
    /// missing. Blocks. Call within a tokio runtime.
    pub fn inherit(
        controls: Vec<OwnedFd>,
        sandboxes: u64,
        data_lock: &OwnedFd,
        entrust: impl FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let gone = Arc::new(watch::Sender::new(None));
        let mut keepers = Vec::with_capacity(controls.len());
        for control in controls {
            let keeper = Keeper::meet(control, None)?;
            tokio::spawn(watch_over(Arc::clone(&keeper.control), Arc::clone(&gone)));
            keepers.push(keeper);
        }
        Self { keepers, gone, is_left: false.into(), runtime: Handle::current() }
            .grown(sandboxes, data_lock, entrust)
    }

    /// What a sandbox of an earlier life has here, and the channel to its init. None: no keeper has it.
    /// Blocks.
    pub fn find(self: &Arc<Self>, id: &str) -> Result<Option<(Kept, OwnedFd)>, Error> {
        for (index, keeper) in self.keepers.iter().enumerate() {
            keeper.promised.fetch_add(FDS_PER_SANDBOX, Ordering::Relaxed);
            let mut kept = Kept::new(self, index, id, Answer::kept());
            match kept.get(Kind::Channel) {
                Ok(channel) => return Ok(Some((kept, channel))),
                Err(error) => {
                    // Nothing is to be dropped there.
                    *kept.released.get_mut() = true;
                    keeper.promised.fetch_sub(FDS_PER_SANDBOX, Ordering::Relaxed);
                    if !matches!(error, Error::Refused(Refusal::Unknown { .. })) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Drops what is of none of these: the executor before was killed between the end of a sandbox and
    /// that of its descriptors. Blocks; before anything is put.
    pub fn retain(&self, sandboxes: &[String]) -> Result<(), Error> {
        let known: BTreeSet<&String> = sandboxes.iter().collect();
        for keeper in &self.keepers {
            let mut after = None;
            loop {
                let names = match keeper.ask(&Request::Names { after: after.take() }, &[])?.0 {
                    Reply::Names(names) => names,
                    Reply::Refused(refusal) => return Err(refusal.into()),
                    _ => return Err(Error::Answer),
                };
                let Some(last) = names.last().cloned() else { break };
                after = Some(last);
                for id in names.into_iter().filter(|id| !known.contains(id)) {
                    keeper.ask(&Request::Drop { id }, &[])?;
                }
            }
        }
        Ok(())
    }

    /// Drops what a sandbox has in any of them. Blocks.
    pub fn forget(&self, id: &str) -> Result<(), Error> {
        for keeper in &self.keepers {
            keeper.ask(&Request::Drop { id: id.to_owned() }, &[])?;
        }
        Ok(())
    }

    /// Hands over the first descriptors of a sandbox, to the keeper with the most room. They are sent when this
    /// returns; whether they are kept is for [`Kept::settled`] to say.
    pub async fn place(self: &Arc<Self>, id: &str, kinds: &[Kind], fds: &[OwnedFd]) -> Result<Kept, Error> {
        let mut kept = self.room_for(id)?;
        kept.pending.first = kept.send(kinds, fds).await?;
        Ok(kept)
    }

    fn room_for(self: &Arc<Self>, id: &str) -> Result<Kept, Error> {
        let mut by_room: Vec<_> = self.keepers.iter().enumerate().collect();
        by_room.sort_by_key(|(_, keeper)| keeper.promised.load(Ordering::Relaxed));
        for (index, keeper) in by_room {
            let room = |promised: u64| {
                let after = promised + FDS_PER_SANDBOX;
                (after <= keeper.room).then_some(after)
            };
            if keeper.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
                return Ok(Kept::new(self, index, id, Answer::kept()));
            }
        }
        let sum = |count: fn(&Keeper) -> u64| self.keepers.iter().map(count).sum();
        let (used, limit) =
            (sum(|keeper| keeper.promised.load(Ordering::Relaxed)), sum(|keeper| keeper.room));
        Err(Error::Full { used, limit })
    }

    /// Resolves when a keeper is gone, with the reason.
    pub fn ended(&self) -> impl Future<Output = String> + use<> {
        let mut gone = self.gone.subscribe();
        async move {
            let reason = gone.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            // Without a sender there are no keepers any more, and nobody who asks.
            reason.unwrap_or_else(|| "the keepers are gone".into())
        }
    }

    /// They go on for the next executor, as long as the broker does.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Lets every keeper end, with what it holds.
    pub fn close(&self) {
        self.keepers.iter().for_each(Keeper::close);
    }
}

impl Drop for Keepers {
    fn drop(&mut self) {
        if !*self.is_left.get_mut() {
            self.close();
        }
    }
}

/// Waits for the end of a keeper and says so.
async fn watch_over(control: Arc<AsyncFd<OwnedFd>>, gone: Arc<watch::Sender<Option<String>>>) {
    let reason = match receive(&control, &mut [0; 1]).await {
        Ok(_) => "a keeper is gone".to_owned(),
        Err(error) => format!("watching a keeper: {error}"),
    };
    gone.send_if_modified(|known| {
        let first = known.is_none();
        known.get_or_insert(reason);
        first
    });
}

impl Keeper {
    fn start(data_lock: &OwnedFd) -> io::Result<Self> {
        let (control, theirs) = packet::pair()?;
        let mut process = Command::new("/proc/self/exe")
            .arg0(MARK)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C at a terminal is for the executor.
            .process_group(0)
            .spawn()?;
        let reaper = std::thread::Builder::new().name("keeper-reaper".into());
        reaper.spawn(move || match process.wait() {
            Ok(status) if status.success() => tracing::debug!("keeper ended"),
            Ok(status) => tracing::error!(%status, "keeper ended badly"),
            Err(error) => tracing::error!(%error, "waiting for a keeper"),
        })?;
        Self::meet(control, Some(data_lock))
    }

    /// Makes connections to a keeper. It gets the lock once.
    fn meet(control: OwnedFd, data_lock: Option<&OwnedFd>) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        // The executor before this one may have watched it.
        fcntl(&control, FcntlArg::F_SETFL(OFlag::empty()))?;
        let wait = TimeVal::new(i64::try_from(ANSWER_WAIT.as_secs()).unwrap_or(i64::MAX), 0);
        setsockopt(&control, sockopt::ReceiveTimeout, &wait)?;
        let mut lines = Vec::with_capacity(PUTS + DROPS);
        let mut calls = Vec::with_capacity(CALLS);
        let mut ends = Vec::with_capacity(CONNECTIONS);
        for _ in 0..PUTS + DROPS {
            let (our, their) = packet::pair()?;
            lines.push(our);
            ends.push(their);
        }
        for _ in 0..CALLS {
            let (our, their) = packet::pair()?;
            setsockopt(&our, sockopt::ReceiveTimeout, &wait)?;
            setsockopt(&our, sockopt::SendTimeout, &wait)?;
            calls.push(Connection { socket: our, turn: Mutex::default() });
            ends.push(their);
        }
        let fds: Vec<_> = data_lock.into_iter().chain(&ends).map(AsRawFd::as_raw_fd).collect();
        let hello = Hello { nonce: rand::random() };
        packet::send(control.as_fd(), &serde_json::to_vec(&hello)?, &fds, 0)?;
        let mut buffer = [0; DATAGRAM_MAX];
        let room = loop {
            let (len, _) = packet::receive(control.as_fd(), &mut buffer, 0)?.ok_or_else(|| {
                io::Error::other("a keeper ended before it was ready; its standard error says why")
            })?;
            let Ready { room, nonce } = serde_json::from_slice(&buffer[..len])?;
            // Another is for an executor that was killed before it read it.
            if nonce == hello.nonce {
                break room;
            }
        };
        let other = || io::Error::other("another number of connections was made");
        let connections = calls.try_into().map_err(|_| other())?;
        let control = Arc::new(watched(control)?);
        let line = |socket| {
            let ended = Arc::downgrade(&control);
            Line::over(socket, move || {
                if let Some(control) = ended.upgrade() {
                    shut(control.get_ref());
                }
            })
        };
        let mut lines = lines.into_iter().map(line).collect::<io::Result<Vec<_>>>()?.into_iter();
        let puts = lines.next().ok_or_else(other)?;
        let drops = lines.collect::<Vec<_>>().try_into().map_err(|_| other())?;
        Ok(Self {
            puts,
            drops,
            connections,
            next: AtomicUsize::new(0),
            promised: AtomicU64::new(0),
            room,
            control,
        })
    }

    /// One request and its answer. Whoever breaks the order of a connection ends the keeper: what
    /// came next on it would answer another question.
    fn ask(&self, request: &Request, fds: &[OwnedFd]) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let bytes = serde_json::to_vec(request).map_err(io::Error::from)?;
        // One that is free, else the next in turn.
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut each = self.connections.iter();
        let free = each.find_map(|connection| Some((connection, connection.turn.try_lock().ok()?)));
        let (connection, _turn) =
            free.unwrap_or_else(|| (&self.connections[turn], lock(&self.connections[turn].turn)));
        let socket = connection.socket.as_fd();
        let given: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let mut buffer = [0; DATAGRAM_MAX];
        let answered = packet::send(socket, &bytes, &given, 0)
            .and_then(|()| packet::receive(socket, &mut buffer, 0))
            .and_then(|answered| answered.ok_or_else(|| io::ErrorKind::BrokenPipe.into()))
            .and_then(|(len, fds)| Ok((serde_json::from_slice(&buffer[..len])?, fds)));
        answered.map_err(|error| {
            self.close();
            Error::Io(error)
        })
    }

    /// Whoever waits for an answer is woken by this.
    fn close(&self) {
        shut(self.control.get_ref());
        self.drops.iter().chain([&self.puts]).for_each(|line| line.close());
        self.connections.iter().for_each(|connection| shut(&connection.socket));
    }

    /// One that takes too long is given up, and with it what it holds: nothing is known of it any more.
    fn heard<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(&result, Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut) {
            self.close();
        }
        result
    }

    async fn release(&self, id: String) -> Result<(), Error> {
        let shortest = self.drops.iter().min_by_key(|line| line.len()).unwrap_or(&self.puts);
        let sent = shortest.send(&Request::Drop { id }, &[], ANSWER_WAIT).await;
        let dropped = match sent {
            Ok(answer) => answer.settled(ANSWER_WAIT).await,
            Err(error) => Err(error),
        };
        self.heard(dropped)?;
        self.promised.fetch_sub(FDS_PER_SANDBOX, Ordering::Relaxed);
        Ok(())
    }
}

/// The descriptors of one sandbox in a keeper. Dropped, they are closed in the background.
#[derive(Debug)]
pub(crate) struct Kept {
    keepers: Arc<Keepers>,
    index: usize,
    id: String,
    released: AtomicBool,
    pending: Pending,
}

/// Answers to come.
#[derive(Debug)]
struct Pending {
    /// Of its root, its writable tree and its channel.
    first: Arc<Answer>,
    later: Mutex<Vec<Arc<Answer>>>,
}

impl Pending {
    /// Waits until everything that was put has its answer: a request on another connection would overtake it. What came of
    /// the first, without which nothing is to be had. Blocks.
    fn settle(&self) -> Result<(), Error> {
        let later = lock(&self.later).clone();
        for answer in later {
            // Whoever put it is told what came of it.
            let _ = answer.wait(ANSWER_WAIT);
        }
        self.first.wait(ANSWER_WAIT)
    }

    /// The same without blocking. Kept or refused: nothing of it comes any more.
    async fn settled(&self) {
        let later = lock(&self.later).clone();
        for answer in later.iter().chain([&self.first]) {
            let _ = answer.settled(ANSWER_WAIT).await;
        }
    }
}

impl Kept {
    fn new(keepers: &Arc<Keepers>, index: usize, id: &str, first: Arc<Answer>) -> Self {
        let pending = Pending { first, later: Mutex::default() };
        let (keepers, id) = (Arc::clone(keepers), id.to_owned());
        Self { keepers, index, id, released: AtomicBool::new(false), pending }
    }

    fn keeper(&self) -> &Keeper {
        &self.keepers.keepers[self.index]
    }

    async fn send(&self, kinds: &[Kind], fds: &[OwnedFd]) -> Result<Arc<Answer>, Error> {
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let request = Request::Put { id: self.id.clone(), kinds: kinds.to_vec() };
        self.keeper().heard(self.keeper().puts.send(&request, &fds, ANSWER_WAIT).await)
    }

    /// Hands over descriptors; all of them are kept, or none.
    pub async fn put(&self, kinds: &[Kind], fds: &[OwnedFd]) -> Result<(), Error> {
        let answer = self.send(kinds, fds).await?;
        {
            let mut later = lock(&self.pending.later);
            later.retain(|answer| !answer.has_come());
            later.push(Arc::clone(&answer));
        }
        self.keeper().heard(answer.settled(ANSWER_WAIT).await)
    }

    /// Waits until what was put first is kept.
    pub async fn settled(&self) -> Result<(), Error> {
        self.keeper().heard(self.pending.first.settled(ANSWER_WAIT).await)
    }

    /// Closes the streams of one process. Blocks.
    pub fn forget(&self, process: u32) -> Result<(), Error> {
        // One that was given up half way may be on its way still.
        self.keeper().heard(self.pending.settle())?;
        match self.keeper().ask(&Request::Forget { id: self.id.clone(), process }, &[])?.0 {
            Reply::Dropped => Ok(()),
            Reply::Refused(refusal) => Err(refusal.into()),
            _ => Err(Error::Answer),
        }
    }

    /// A copy of a descriptor. Blocks.
    pub fn get(&self, kind: Kind) -> Result<OwnedFd, Error> {
        self.keeper().heard(self.pending.settle())?;
        let (reply, fds) = self.keeper().ask(&Request::Get { id: self.id.clone(), kind }, &[])?;
        match reply {
            // It was sent, and this process had no room for it: of this call alone.
            Reply::Lent => {
                fds.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE).into())
            }
            Reply::Refused(refusal) => Err(refusal.into()),
            _ => Err(Error::Answer),
        }
    }

    /// Closes what the keeper holds; the kernel takes down the mounts. Waits until that is done.
    pub async fn release(&self) -> Result<(), Error> {
        if self.released.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.pending.settled().await;
        let released = self.keeper().release(self.id.clone()).await;
        // Only now: what is given up half way is done when this is dropped.
        self.released.store(true, Ordering::Relaxed);
        released
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if *self.released.get_mut() {
            return;
        }
        let (keepers, index, id) = (Arc::clone(&self.keepers), self.index, std::mem::take(&mut self.id));
        let none = Pending { first: Answer::kept(), later: Mutex::default() };
        let pending = std::mem::replace(&mut self.pending, none);
        // When that runtime is gone, nobody uses the keepers but the next executor, which drops what it does not know.
        self.keepers.runtime.spawn(async move {
            pending.settled().await;
            if let Err(error) = keepers.keepers[index].release(id).await {
                tracing::debug!(%error, "the descriptors of a sandbox went with their keeper");
            }
        });
    }
}
