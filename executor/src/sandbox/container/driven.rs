//! The container as something outside drives it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout::Bytes;
use sandbox_init::message;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::{Instant, sleep};

use super::process::{Asked, ContainerProcess, Descriptors};
use super::{ContainerSandbox, KILL_WAIT, Shared};
use crate::broker::serve::lock;
use crate::host::{interrupt, netns, open};
use crate::sandbox::driven::{Driven, Entry, Opened, Opening, Page, Pinned, Streams, TreeProcess};
use crate::sandbox::files::entries;
use crate::sandbox::packing::{Still, stands_still};
use crate::sandbox::{Exit, FileError, Process, SpawnError};

/// Trees of one sandbox that live, or of which something in the background does.
pub const TREES_MAX: usize = 1024;
/// Of the trees that were left behind, so many are looked at when a new one is made.
const LEFT_LOOKS_MAX: usize = 64;
/// Between two looks whether a killed tree is gone.
const KILL_PAUSE: Duration = Duration::from_micros(500);

/// What driving needs to remember of a sandbox.
#[derive(Debug, Default)]
pub(super) struct State {
    pub still: Still,
    trees: Arc<Trees>,
    reclaiming: Arc<AsyncMutex<()>>,
}

impl State {
    /// Of a sandbox that another executor drove: what it had begun goes on in groups that are kept apart
    /// from new ones by their numbers.
    pub fn adopted(shared: &Shared, id: &str) -> Self {
        let numbers = shared.tree.groups(id);
        let next = numbers.last().map_or(0, |last| last + 1);
        let trees =
            Trees { next: AtomicU64::new(next), left: Mutex::new(numbers.into()), ..Trees::default() };
        Self { trees: Arc::new(trees), ..Self::default() }
    }
}

/// The groups of processes of one sandbox.
#[derive(Debug, Default)]
struct Trees {
    next: AtomicU64,
    /// Held by a [`Tree`].
    live: Mutex<usize>,
    /// Their first process ended and something it started had not.
    left: Mutex<VecDeque<u64>>,
}

/// A group of processes. When it is dropped and still has some, they go on.
#[derive(Debug)]
struct Tree {
    shared: Arc<Shared>,
    trees: Arc<Trees>,
    id: String,
    number: u64,
}

impl Tree {
    /// Makes an empty one, with the file that takes a process in.
    fn make(shared: &Arc<Shared>, trees: &Arc<Trees>, id: &str) -> io::Result<(Arc<Self>, OwnedFd)> {
        let left = trees.sweep(shared, id);
        let mut live = lock(&trees.live);
        if *live + left >= TREES_MAX {
            let full = format!("{TREES_MAX} process trees live in this sandbox (TREES_MAX)");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, full));
        }
        let number = trees.next.fetch_add(1, Ordering::Relaxed);
        let door = shared.tree.make_group(id, number)?;
        *live += 1;
        let (shared, trees) = (Arc::clone(shared), Arc::clone(trees));
        Ok((Arc::new(Self { shared, trees, id: id.to_owned(), number }), door))
    }

    async fn kill(&self) -> io::Result<()> {
        let tree = &self.shared.tree;
        let until = Instant::now() + KILL_WAIT;
        tree.kill_group(&self.id, self.number)?;
        while tree.has_processes(&self.id, self.number)? {
            if Instant::now() >= until {
                let words = format!("killed processes do not end within {}s", KILL_WAIT.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            sleep(KILL_PAUSE).await;
        }
        Ok(())
    }

    /// Kills what is in it, now and until it is removed: init may be about to put a process into it.
    async fn end(&self) {
        let until = Instant::now() + KILL_WAIT;
        loop {
            let tree = &self.shared.tree;
            let ended = tree.kill_group(&self.id, self.number);
            match ended.and_then(|()| tree.remove_group(&self.id, self.number)) {
                Ok(true) => return,
                Ok(false) if Instant::now() < until => sleep(KILL_PAUSE).await,
                Ok(false) => {
                    return tracing::error!(sandbox = self.id, "a process nobody waits for does not end");
                }
                Err(error) => {
                    return tracing::error!(sandbox = self.id, %error, "a process nobody waits for goes on");
                }
            }
        }
    }
}

/// A tree whose first process init was asked for. Dropped before the answer, it never has one: what was
/// started ends, and then nothing can be started in it any more.
struct Starting(Option<Arc<Tree>>);

impl Starting {
    fn new(tree: &Arc<Tree>) -> Self {
        Self(Some(Arc::clone(tree)))
    }

    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(tree) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { tree.end().await });
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        *lock(&self.trees.live) -= 1;
        if !matches!(self.shared.tree.remove_group(&self.id, self.number), Ok(true)) {
            lock(&self.trees.left).push_back(self.number);
        }
    }
}

impl Trees {
    /// Removes some of those that were left and are empty by now; gives how many stay.
    fn sweep(&self, shared: &Shared, id: &str) -> usize {
        let mut left = lock(&self.left);
        for _ in 0..left.len().min(LEFT_LOOKS_MAX) {
            if let Some(number) = left.pop_front()
                && !matches!(shared.tree.remove_group(id, number), Ok(true))
            {
                left.push_back(number);
            }
        }
        left.len()
    }
}

#[derive(Debug)]
struct Rooted {
    process: ContainerProcess,
    tree: Arc<Tree>,
}

#[tonic::async_trait]
impl Process for Rooted {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        self.process.wait().await
    }
    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        self.process.signal(signal).await
    }
}

#[tonic::async_trait]
impl TreeProcess for Rooted {
    async fn kill_tree(&self) -> io::Result<()> {
        self.tree.kill().await
    }
}

/// Processes on their way to standing still. Dropped before they do, they go on.
struct Hold<'a>(Option<&'a ContainerSandbox>);

impl<'a> Hold<'a> {
    fn new(sandbox: &'a ContainerSandbox) -> io::Result<Self> {
        sandbox.driven.still.hold(&sandbox.shared.tree, &sandbox.id)?;
        Ok(Self(Some(sandbox)))
    }

    /// They stand still until they are told otherwise.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0
            && let Err(error) = sandbox.thaw()
        {
            tracing::error!(sandbox = sandbox.id, %error, "its processes stay frozen");
        }
    }
}

#[tonic::async_trait]
impl Driven for ContainerSandbox {
    async fn open(&self, opening: Opening) -> Result<Opened, SpawnError> {
        let Opening { argv, env, cwd, user, streams, report } = opening;
        let (tree, door) = Tree::make(&self.shared, &self.driven.trees, &self.id)
            .map_err(|source| SpawnError::Setup { action: "making a process tree".to_owned(), source })?;
        let (streams, ends) = match streams {
            Streams::Pipes { stdin: None, stdout, stderr } => {
                (message::Streams::Output, vec![stdout, stderr])
            }
            Streams::Pipes { stdin: Some(stdin), stdout, stderr } => {
                (message::Streams::Given, vec![stdin, stdout, stderr])
            }
            Streams::Terminal { columns, rows } => (message::Streams::Terminal { columns, rows }, Vec::new()),
        };
        let kind = Descriptors { streams, has_report: report.is_some(), has_group: true };
        let asked = Asked { argv: &argv, env: &env, cwd: &cwd, user: &user };
        let more: Vec<&OwnedFd> = report.iter().chain([&door]).collect();
        let starting = Starting::new(&tree);
        let started = self.started(self.alive().channel.ticket(), &asked, kind, &ends, &more).await;
        starting.answered();
        let (process, (pid, terminal)) = started?;
        let process = Box::new(Rooted { process, tree });
        if terminal.is_none() && matches!(streams, message::Streams::Terminal { .. }) {
            let _ = process.kill_tree().await;
            let source = io::Error::other("init gave no terminal");
            return Err(SpawnError::Setup { action: "opening a terminal".to_owned(), source });
        }
        Ok(Opened { process, pid, terminal })
    }

    async fn stat(&self, path: &str) -> Result<Option<Entry>, FileError> {
        let id_base = self.id_base;
        self.on_files(path, move |root, workdir, path| entries::stat(root.as_fd(), workdir, path, id_base))
            .await
    }

    async fn list_page(
        &self,
        path: &str,
        after: &str,
        entries_max: usize,
    ) -> Result<Option<Page>, FileError> {
        let (id_base, after) = (self.id_base, after.to_owned());
        let list = move |root: &OwnedFd, workdir: &str, path: &str| {
            entries::list(root.as_fd(), workdir, path, &after, entries_max, id_base)
        };
        self.on_files(path, list).await
    }

    async fn open_pinned(&self, path: &str) -> Result<Option<Pinned>, FileError> {
        let id_base = self.id_base;
        self.on_files(path, move |root, workdir, path| entries::open(root.as_fd(), workdir, path, id_base))
            .await
    }

    async fn remove(&self, path: &str) -> Result<bool, FileError> {
        self.on_files(path, |root, workdir, path| entries::remove(root.as_fd(), workdir, path)).await
    }

    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let path = std::ffi::CString::new(format!("/proc/{}/ns/net", self.init_pid)).unwrap_or_default();
        let namespace = open::directory(c"/").and_then(|top| open::at(top.as_fd(), &path, libc::O_RDONLY))?;
        // Its parent reaps init only when the sandbox is destroyed or its channel is closed: if that is
        // open now, the number was init's.
        if let Some(reason) = self.alive().channel.death() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, reason));
        }
        let (sockets, made) = oneshot::channel();
        // A thread of its own, which ends with this: no other work ever runs in that namespace.
        std::thread::Builder::new().name("sandbox-port".into()).spawn(move || {
            let pair = netns::enter(namespace.as_fd())
                .and_then(|()| Ok((TcpSocket::new_v4()?, TcpSocket::new_v6().ok())));
            let _nobody_waits = sockets.send(pair);
        })?;
        let (four, six) = made.await.map_err(io::Error::other)??;
        match (four.connect((std::net::Ipv4Addr::LOCALHOST, port).into()).await, six) {
            (Err(error), Some(six)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                six.connect((std::net::Ipv6Addr::LOCALHOST, port).into()).await
            }
            (connected, _) => connected,
        }
    }

    async fn freeze(&self, within: Duration) -> io::Result<()> {
        let hold = Hold::new(self)?;
        if stands_still(&self.shared.tree, &self.id, Instant::now() + within).await? {
            hold.keep();
            return Ok(());
        }
        let words = format!("its processes did not stand still within {} ms", within.as_millis());
        Err(io::Error::new(io::ErrorKind::TimedOut, words))
    }

    fn thaw(&self) -> io::Result<()> {
        self.driven.still.release(&self.shared.tree, &self.id)
    }

    async fn reclaim(&self) -> io::Result<Bytes> {
        // Whoever gave up on it may come again before the kernel has let go: one at a time.
        let turn = Arc::clone(&self.driven.reclaiming).try_lock_owned().map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "its memory is being taken back already")
        })?;
        let (shared, id) = (Arc::clone(&self.shared), self.id.clone());
        let reclaimed = interrupt::blocking(move || {
            let _turn = turn;
            shared.tree.reclaim(&id)
        });
        reclaimed.await.map(Bytes)
    }
}
