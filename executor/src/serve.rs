use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use images::layers::LayerStore;
use rollout::{IncarnationId, NodeId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Parts};
use crate::attempt::spares::Spares;
use crate::capacity::{self, Measured, Vitals};
use crate::lease::Lease;
use crate::lifecycle::Book;
use crate::link::{COMMAND_QUEUE_MAX, Link};
use crate::sessions::{self, Sessions, pressure};
use crate::workspace::Workspaces;
use crate::{Backends, Config, Error, adoption, census, private_dir};

const LOCK_FILE: &str = "executor.lock";
const ATTEMPTS_DIR: &str = "attempts";
/// On the file system of the attempts; nothing in it is worth keeping.
const SPARES_DIR: &str = "spares";
/// What the sessions of this life and of earlier ones recorded.
const ACTIONS_DIR: &str = "actions";
const SANDBOXES_SOCKET: &str = "sandboxes.sock";
/// Between two looks at memory, disk and load.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// A running executor.
#[derive(Debug)]
pub struct Handle {
    token: CancellationToken,
    incarnation: watch::Receiver<IncarnationId>,
    task: JoinHandle<Result<(), Error>>,
}

impl Handle {
    /// This life of the executor; a new one begins when a lease was lost.
    pub fn incarnation(&self) -> IncarnationId {
        *self.incarnation.borrow()
    }

    /// Tells the executor to end: attempts are killed and reported, sandboxes destroyed.
    pub fn shut_down(&self) {
        self.token.cancel();
    }

    /// Waits for the end. An error if the backend ended by itself.
    pub async fn join(self) -> Result<(), Error> {
        self.task.await.map_err(Error::Task)?
    }
}

/// Runs an executor in the background until `token`.
///
/// What a previous life left goes on if the backends inherited it; all else in the data directory's
/// `attempts` is removed first. Sandboxes are the backends' to find: they sweep while they are made.
pub fn serve(
    config: Config,
    backends: impl Into<Backends>,
    token: CancellationToken,
) -> Result<Handle, Error> {
    let backends = backends.into();
    let lock = lock(&config.data_dir)?;
    let attempts_dir = config.data_dir.join(ATTEMPTS_DIR);
    let left = backends.first().inheritance();
    // Without the name of the incarnation, or a lease, nothing can go on under it.
    let left = left.and_then(|left| Some((adoption::incarnation(&config.data_dir)?, left.ends_at?)));
    if left.is_none() {
        empty_dir(&attempts_dir)?;
    }
    let spares_dir = config.data_dir.join(SPARES_DIR);
    let of_spares = |action| {
        let path = spares_dir.clone();
        move |source| Error::DataDir { action, path, source }
    };
    private_dir::make(&spares_dir).map_err(of_spares("make"))?;
    let spares = Arc::new(Spares::new(spares_dir.clone()).map_err(of_spares("list"))?);
    let layers_dir = census::layers_dir(&config.data_dir);
    private_dir::make(&layers_dir).map_err(|source| Error::DataDir {
        action: "make",
        path: layers_dir.clone(),
        source,
    })?;
    // Without a link on its way: the broker follows none to what lies under a sandbox.
    let layers_dir = layers_dir.canonicalize().map_err(|source| Error::DataDir {
        action: "resolve",
        path: layers_dir.clone(),
        source,
    })?;
    let layers = LayerStore::open(&layers_dir, config.layer_bytes_max.0)
        .map_err(|source| Error::Layers { path: layers_dir, source: Box::new(source) })?;
    let offered = capacity::offered(&config.data_dir, config.capacity, config.reserves, backends.ceilings())?;
    let now = capacity::measured(&config.data_dir)?;
    let (sampled, measured) = watch::channel(now);
    let (vitals, heartbeats) = watch::channel(Vitals { measured: now, ..Vitals::default() });
    let (to_agent, from_link) = mpsc::channel(COMMAND_QUEUE_MAX);
    let fresh = || IncarnationId::from_bits(rand::random());
    let this_life = left.as_ref().map_or_else(fresh, |(incarnation, _)| *incarnation);
    let path = config.data_dir.clone();
    adoption::set_incarnation(&path, this_life).map_err(|source| Error::DataDir {
        action: "write in",
        path: path.clone(),
        source,
    })?;
    // What goes on does so under the lease it had.
    let goes_until = left.as_ref().map(|(_, ends_at)| *ends_at);
    let held = left.map(|(incarnation, ends_at)| Lease { incarnation, ends_at });
    let (lease_sender, lease) = watch::channel(held);
    let (incarnation_sender, incarnation) = watch::channel(this_life);
    let link = Link::new(&config, to_agent, heartbeats, lease_sender)?;
    let data_dir = config.data_dir.clone();
    let bounds = config.pressure;
    let actions_dir = data_dir.join(ACTIONS_DIR);
    private_dir::make(&actions_dir).map_err(|source| Error::DataDir {
        action: "make",
        path: actions_dir.clone(),
        source,
    })?;
    let sessions = Arc::new(Sessions::new(NodeId(config.node.clone()), actions_dir));
    sessions.prune();
    let socket = data_dir.join(SANDBOXES_SOCKET);
    let listener = sessions::listen(&socket).map_err(|source| Error::Listen { path: socket, source })?;
    let workspaces = Arc::new(Workspaces::new(layers, config.images_dir.clone()));
    let made_by = backends.clone();
    let (adopting, adopted_by) = (Arc::clone(&workspaces), backends.clone());
    let (attempts, capture_bytes_max) = (attempts_dir.clone(), config.capture_bytes_max);
    let leases = lease.clone();
    let spares_max = config.spares;
    let mut agent = Agent::new(Parts {
        book: Book::new(offered, config.reserves, now),
        config,
        backends,
        attempts_dir,
        spares: Arc::clone(&spares),
        workspaces,
        from_link,
        lease,
        measured,
        vitals,
        incarnation: incarnation_sender,
        sessions: Arc::clone(&sessions),
        sandboxes_url: listener.url(),
    });
    let ended = CancellationToken::new();
    let agent_token = token.clone();
    let task = tokio::spawn(async move {
        // Held as long as the executor runs, whatever becomes of the handle.
        let _lock = lock;
        let estate = adoption::adopt(&adopted_by, &adopting, &attempts, capture_bytes_max, goes_until).await;
        agent.take_over(estate);
        drop(adopting);
        let keeping = tokio::spawn(keep_until(adopted_by, leases));
        let link = tokio::spawn(link.run(ended.clone()));
        let sampler = tokio::spawn(sample(data_dir, sampled, ended.clone()));
        let pressure = tokio::spawn(pressure::watch(Arc::clone(&sessions), bounds, ended.clone()));
        let calls = tokio::spawn(listener.serve(sessions, ended.clone()));
        let stocking = ended.clone();
        let stock = tokio::task::spawn_blocking(move || spares.stock(spares_max, || stocking.is_cancelled()));
        let ended_by = agent.run(agent_token).await;
        made_by.wind_up().await;
        ended.cancel();
        for (name, task) in [
            ("link", link),
            ("sampler", sampler),
            ("sandboxes", calls),
            ("pressure", pressure),
            ("spares", stock),
        ] {
            if let Err(error) = task.await {
                tracing::error!(name, %error, "a task of the executor failed");
            }
        }
        keeping.abort();
        ended_by
    });
    Ok(Handle { token, incarnation, task })
}

/// Whoever keeps sandboxes for the next executor, should this one be killed, hears how long it may.
async fn keep_until(backends: Backends, mut leases: watch::Receiver<Option<Lease>>) {
    loop {
        let lease = *leases.borrow_and_update();
        if let Some(lease) = lease {
            backends.first().keep_until(lease.ends_at);
        }
        if leases.changed().await.is_err() {
            return;
        }
    }
}

/// Whether no executor has the data directory now. Asked before backends are made: those take over from an executor that
/// is gone, and wait for one that is not.
pub fn check_free(data_dir: &Path) -> Result<(), Error> {
    lock(data_dir).map(drop)
}

fn lock(data_dir: &Path) -> Result<File, Error> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::DataDir { action, path, source }
    };
    private_dir::make(data_dir).map_err(failed("make", data_dir))?;
    let path = data_dir.join(LOCK_FILE);
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::DataDirLocked { path: data_dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

fn empty_dir(path: &Path) -> Result<(), Error> {
    let path = path.to_owned();
    match std::fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(Error::DataDir { action: "empty", path, source });
        }
        _ => {}
    }
    match private_dir::make(&path) {
        Ok(()) => Ok(()),
        Err(source) => Err(Error::DataDir { action: "make", path, source }),
    }
}

/// Measures off the heartbeat's task: a file system that hangs delays the figures, never a beat.
async fn sample(data_dir: PathBuf, sampled: watch::Sender<Measured>, token: CancellationToken) {
    let mut ticks = interval(MEASURE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = token.cancelled() => return,
        }
        let data_dir = data_dir.clone();
        let measured = tokio::task::spawn_blocking(move || capacity::measured(&data_dir)).await;
        match measured {
            Ok(Ok(measured)) => drop(sampled.send_replace(measured)),
            Ok(Err(error)) => tracing::error!(%error, "the node could not be measured"),
            Err(error) => tracing::error!(%error, "measuring failed"),
        }
    }
}
