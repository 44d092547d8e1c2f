//! Sandboxes that something outside the yard drives: the executor's half of the service `Sandboxes`.
//!
//! The runner of a session attempt enters it here when its sandbox is ready and takes it back at the end.
//! Calls find it by name, show their claim, and borrow the sandbox. Everything a driver may rely on is on
//! this node: claims, deadlines, and the log of recorded actions, which outlives the session so that a
//! driver can ask what became of its last action.
//!
//! ```text
//! client ──> scheduler ──> service ──> Live (claim, activity, log) ──> sandbox::Driven
//!                                        ^ entered and taken back by attempt::session
//! ```
//! Invariant: an action is on disk before it starts and its result before anyone is told.
//! Invariant: an action whose end is not known is never begun again.

mod actions;
mod claim;
mod commands;
mod ending;
mod error;
mod exec;
mod forward;
mod ladder;
mod live;
mod log;
mod past;
mod paused;
pub(crate) mod pressure;
mod reached;
mod record;
mod run;
mod service;
mod shell;
mod streams;
mod transfers;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rollout::{NodeId, RolloutId, SandboxId, StepIndex};
use tokio::sync::watch;

use crate::broker::serve::lock;
use crate::lifecycle::At;
use crate::sandbox::Sandbox;
use past::PastLogs;

pub(crate) use ending::Ending;
use error::Refusal;
pub use error::SandboxCode;
pub(crate) use ladder::FREEZE_TIMEOUT;
pub(crate) use live::{Leaving, Live, NOTE_EVERY, Parts, SAVED_QUEUE_MAX};
pub(crate) use log::{ActionLog, LogError};
pub(crate) use paused::Paused;
pub(crate) use service::listen;

/// How long the log of a session that is over can be asked.
const LOGS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Logs of sessions that are over, and their bytes together: the oldest go first.
const LOGS_MAX: usize = 4096;
const LOGS_BYTES_MAX: u64 = 4 << 30;

/// For a session of an earlier executor to serve again.
const COMING_WAIT: Duration = Duration::from_secs(30);

/// Between two looks at what is left.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

type Key = (RolloutId, StepIndex);

/// The sessions of this executor.
#[derive(Debug)]
pub(crate) struct Sessions {
    node: NodeId,
    logs_dir: PathBuf,
    live: Mutex<BTreeMap<Key, Arc<Live>>>,
    /// Sessions of an earlier executor that will serve in a moment: their calls wait.
    coming: watch::Sender<BTreeSet<Key>>,
    /// Sessions that were parked here, until the scheduler has stored that: as many as attempts are held.
    /// Their calls are told so. True: its caller may know it by the name of another node.
    parked: Mutex<BTreeMap<Key, (At, bool)>>,
    pruned_at: Mutex<Option<Instant>>,
    past: PastLogs,
}

/// A session that is entered. Dropped, it is no longer found, and its calls end.
#[derive(Debug)]
pub(crate) struct Entered {
    sessions: Arc<Sessions>,
    pub live: Arc<Live>,
}

/// A session that another executor began and this one is about to serve.
#[derive(Debug)]
pub(crate) struct Coming {
    sessions: Arc<Sessions>,
    key: Key,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.sessions.has_come(self.key);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let key = key(self.live.at);
        let mut live = lock(&self.sessions.live);
        if live.get(&key).is_some_and(|entered| Arc::ptr_eq(entered, &self.live)) {
            live.remove(&key);
        }
        drop(live);
        self.live.abandon();
    }
}

fn key(at: At) -> Key {
    (at.attempt.rollout, at.attempt.step)
}

impl Sessions {
    pub(crate) fn new(node: NodeId, logs_dir: PathBuf) -> Self {
        Self {
            node,
            logs_dir,
            live: Mutex::default(),
            coming: watch::Sender::default(),
            parked: Mutex::default(),
            pruned_at: Mutex::default(),
            past: PastLogs::default(),
        }
    }

    pub(crate) fn node(&self) -> &NodeId {
        &self.node
    }

    /// A new log for an attempt. Blocks.
    pub(crate) fn new_log(&self, at: At) -> Result<ActionLog, LogError> {
        ActionLog::create(&self.log_path(at))
    }

    /// A log that goes on after `from`. Blocks.
    pub(crate) fn resumed_log(&self, at: At, from: &Path) -> Result<ActionLog, LogError> {
        ActionLog::resumed(&self.log_path(at), from)
    }

    /// From now on, until [`forget`](Self::forget), its calls are told that it is parked. `has_moved`: it was
    /// parked before.
    pub(crate) fn park(&self, at: At, has_moved: bool) {
        lock(&self.parked).insert(key(at), (at, has_moved));
    }

    /// The scheduler has stored that it is parked, so its log is a blob; or it is nobody's any more. Nothing
    /// of one that was not parked. Blocks for a moment.
    pub(crate) fn forget(&self, at: At) {
        {
            let mut parked = lock(&self.parked);
            if parked.get(&key(at)).is_none_or(|(known, _)| *known != at) {
                return;
            }
            parked.remove(&key(at));
        }
        let path = self.log_path(at);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "log of a parked session not removed");
            }
            _ => {}
        }
    }

    fn is_parked(&self, id: &SandboxId) -> bool {
        let is_here = id.node.as_ref().is_none_or(|node| *node == self.node);
        lock(&self.parked).get(&(id.rollout, id.step)).is_some_and(|(_, has_moved)| is_here || *has_moved)
    }

    /// Whether another executor came as far as to make it. Blocks.
    pub(crate) fn has_log(&self, at: At) -> bool {
        self.log_path(at).exists()
    }

    /// The log of an attempt that another executor began: what it had dispatched and not done is unknown.
    /// Blocks.
    pub(crate) fn log_again(&self, at: At) -> Result<ActionLog, LogError> {
        ActionLog::resume(&self.log_path(at))
    }

    fn log_path(&self, at: At) -> PathBuf {
        self.logs_dir.join(format!("{}.{}", at.attempt, at.generation))
    }

    /// From now on it is found by its name.
    pub(crate) fn enter(self: &Arc<Self>, parts: Parts, sandbox: Box<dyn Sandbox>) -> Entered {
        let live = Live::new(parts, sandbox);
        service::recall(&live);
        lock(&self.live).insert(key(live.at), Arc::clone(&live));
        self.has_come(key(live.at));
        Entered { sessions: Arc::clone(self), live }
    }

    /// Until it is entered or the guard is dropped, its calls wait.
    pub(crate) fn expect(self: &Arc<Self>, at: At) -> Coming {
        self.coming.send_if_modified(|coming| coming.insert(key(at)));
        Coming { sessions: Arc::clone(self), key: key(at) }
    }

    fn has_come(&self, key: Key) {
        self.coming.send_if_modified(|coming| coming.remove(&key));
    }

    /// As [`find`](Self::find), once a session that goes on under this executor serves. Refused: it is parked,
    /// and the scheduler may not know yet.
    async fn find_soon(&self, id: &SandboxId) -> Result<Option<Arc<Live>>, Refusal> {
        let key = (id.rollout, id.step);
        let mut coming = self.coming.subscribe();
        let come = async { coming.wait_for(|coming| !coming.contains(&key)).await.is_ok() };
        // One that does not come in time is not here.
        let _ = tokio::time::timeout(COMING_WAIT, come).await;
        match self.find(id) {
            None if self.is_parked(id) => Err(Refusal::parked(&id.to_string())),
            found => Ok(found),
        }
    }

    fn find(&self, id: &SandboxId) -> Option<Arc<Live>> {
        let live = lock(&self.live).get(&(id.rollout, id.step)).cloned()?;
        let is_here = id.node.as_ref().is_none_or(|node| *node == self.node);
        (is_here || live.has_moved).then_some(live)
    }

    fn all(&self) -> Vec<Arc<Live>> {
        lock(&self.live).values().cloned().collect()
    }

    /// Where the last attempt of a session left its log, if it did. Blocks.
    fn past_path(&self, id: &SandboxId) -> Option<PathBuf> {
        let prefix = format!("{}.{}.", id.rollout, id.step.0);
        let number = |name: &str| {
            let (attempt, generation) = name.strip_prefix(&prefix)?.split_once('.')?;
            Some((attempt.parse::<u32>().ok()?, generation.parse::<u64>().ok()?))
        };
        let names = std::fs::read_dir(&self.logs_dir).ok()?.flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let last = names.filter_map(|name| Some((number(&name)?, name))).max();
        last.map(|(_, name)| self.logs_dir.join(name))
    }

    /// Removes logs nobody may ask for any more, if that was not done lately. Blocks.
    pub(crate) fn prune(&self) {
        let now = Instant::now();
        let last = lock(&self.pruned_at).replace(now);
        if last.is_some_and(|last| now.duration_since(last) < PRUNE_EVERY) {
            *lock(&self.pruned_at) = last;
            return;
        }
        let live: BTreeSet<PathBuf> = self.all().iter().map(|live| live.log.path().to_owned()).collect();
        if let Err(error) = prune(&self.logs_dir, &live, LOGS_MAX, LOGS_BYTES_MAX) {
            tracing::warn!(dir = %self.logs_dir.display(), %error, "old action logs not removed");
        }
    }
}

fn prune(dir: &Path, live: &BTreeSet<PathBuf>, logs_max: usize, bytes_max: u64) -> std::io::Result<()> {
    let mut past = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if !live.contains(&entry.path()) {
            let data = entry.metadata()?;
            past.push((data.modified()?, data.len(), entry.path()));
        }
    }
    past.sort_unstable_by(|a, b| b.cmp(a));
    let (mut count, mut bytes) = (0, 0u64);
    for (modified, len, path) in past {
        count += 1;
        bytes = bytes.saturating_add(len);
        let is_old = SystemTime::now().duration_since(modified).is_ok_and(|age| age > LOGS_KEPT);
        if is_old || count > logs_max || bytes > bytes_max {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_past_logs_the_oldest_go_first_and_live_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let now = SystemTime::now();
        for (name, age_s) in [("old", 90_000), ("a", 300), ("b", 200), ("c", 100), ("live", 95_000)] {
            std::fs::write(at(name), [0; 10]).unwrap();
            let file = std::fs::File::options().write(true).open(at(name)).unwrap();
            file.set_modified(now - Duration::from_secs(age_s)).unwrap();
        }
        let left = || {
            let mut names: Vec<_> = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let live = BTreeSet::from([at("live")]);
        prune(dir.path(), &live, 9, 1000).unwrap();
        assert_eq!(left(), ["a", "b", "c", "live"]);
        prune(dir.path(), &live, 9, 25).unwrap();
        assert_eq!(left(), ["b", "c", "live"]);
        prune(dir.path(), &live, 1, 25).unwrap();
        assert_eq!(left(), ["c", "live"]);
    }
}
