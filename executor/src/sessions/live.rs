//! One session that runs: its sandbox, lent to calls; who drives it; when it was last heard of; and how it
//! is to end. The attempt's runner owns it from beginning to end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout::checkpoint::{Checkpoint, Layer};
use rollout::outcome::{Parked, ParkedClaim, StoredLog};
use rollout::plan::{ResolvedStep, SessionPlan};
use rollout::{BootTime, Bytes, NodeId, SandboxId, Timestamp};
use rollout_wire::v1;
use tokio::sync::{
    Mutex as AsyncMutex, Notify, OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc, watch,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claim::Claim;
use super::ending::{End, Ending};
use super::error::{Refusal, SandboxCode};
use super::ladder::Ladder;
use super::log::ActionLog;
use super::paused::Paused;
use super::reached::Reached;
use super::shell::Shells;
use crate::attempt::{FREEZE_MAX, Tools};
use crate::broker::serve::lock;
use crate::clock::{began_at, wall_now};
use crate::lifecycle::At;
use crate::sandbox::{Driven, Sandbox};
use crate::storage::chain;
use crate::workspace::{SaveError, Saving, save};

/// Recorded actions at work in one session.
pub(super) const ACTIONS_RUNNING_MAX: usize = 64;
/// Processes with streams at once in one session.
pub(super) const EXECS_MAX: usize = 256;
/// Forwarded connections at once of one session.
pub(super) const FORWARDS_MAX: usize = 256;
/// Files on their way to or from one session.
pub(super) const TRANSFERS_MAX: usize = 32;
/// Processes left in the background whose output is still taken (and dropped).
pub(super) const BACKGROUND_MAX: usize = 256;
/// At the end: for calls to let go of the sandbox, and for actions to be recorded.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);
/// For a checkpoint to be taken by its runner.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Of one that stands still it is written down when it was last heard of, so often at least.
pub(crate) const NOTE_EVERY: Duration = Duration::from_secs(30);
/// Checkpoints that wait to be told.
pub(crate) const SAVED_QUEUE_MAX: usize = 16;

/// What a session is made of.
pub(crate) struct Parts {
    pub at: At,
    pub node: NodeId,
    pub step: ResolvedStep,
    pub plan: SessionPlan,
    /// Of every process, below what a call says.
    pub env: BTreeMap<String, String>,
    /// Of this attempt; uploads are gathered here.
    pub dir: PathBuf,
    pub tools: Tools,
    pub log: ActionLog,
    pub saved: mpsc::Sender<Checkpoint>,
    /// It goes on where it was parked.
    pub parked: Option<Parked>,
    /// When this executor took it over from one that was killed.
    pub adopted: Option<BootTime>,
    /// It stands still, as that one left it.
    pub paused: Option<Paused>,
    /// A later step goes on in its sandbox.
    pub serves_others: bool,
}

/// What is stored of a session that leaves its node.
#[derive(Debug, Clone)]
pub(crate) struct Leaving {
    pub checkpoint: Checkpoint,
    pub log: Option<StoredLog>,
    pub version: u64,
}

/// In the directory of an attempt.
const CLAIM_FILE: &str = "claim";

/// What an executor that was killed left there.
fn read_claim(dir: &std::path::Path) -> Option<ParkedClaim> {
    let written = std::fs::read(dir.join(CLAIM_FILE)).ok()?;
    serde_json::from_slice(&written).ok()
}

type Slot = Option<Box<dyn Sandbox>>;

#[derive(Debug)]
pub(crate) struct Live {
    pub at: At,
    node: NodeId,
    pub step: ResolvedStep,
    pub plan: SessionPlan,
    pub env: BTreeMap<String, String>,
    pub dir: PathBuf,
    tools: Tools,
    pub(super) log: Arc<ActionLog>,
    pub(super) shells: Shells,
    pub(super) reached: Reached,
    pub(super) ladder: AsyncMutex<Ladder>,
    /// Read: a process is being started, which init must be able to do. Write: it may be paused. Taken
    /// before the ladder.
    pub(super) starts: RwLock<()>,
    /// Told when it goes on after a pause.
    pub(super) woken: Notify,
    sandbox: Arc<RwLock<Slot>>,
    claim: Mutex<Claim>,
    /// Held while the claim is written down.
    claim_file: Mutex<()>,
    activity: Mutex<Activity>,
    pub(crate) end: End,
    /// Every call ends with it.
    closed: CancellationToken,
    /// Actions at work: they outlive the calls that began them.
    tasks: TaskTracker,
    pub(super) limits: Limits,
    saved: mpsc::Sender<Checkpoint>,
    last_saved: AsyncMutex<Option<Layer>>,
    uploads: AtomicU64,
    /// It was made elsewhere and may be called by the name it had there.
    pub(super) has_moved: bool,
    pub(super) serves_others: bool,
    /// Set once it is parked.
    pub(super) leaving: watch::Sender<Option<Leaving>>,
}

#[derive(Debug)]
pub(super) struct Limits {
    pub actions: Arc<Semaphore>,
    pub execs: Arc<Semaphore>,
    pub named_execs: Arc<Semaphore>,
    pub forwards: Arc<Semaphore>,
    pub transfers: Arc<Semaphore>,
    pub background: Arc<Semaphore>,
}

#[derive(Debug)]
struct Activity {
    /// The last traffic of any kind.
    heard_at: Instant,
    /// Calls that somebody waits for.
    busy: usize,
}

/// Somebody waits for what goes on: the session is not idle meanwhile.
#[derive(Debug)]
pub(super) struct Busy(Arc<Live>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        lock(&self.0.activity).busy -= 1;
    }
}

/// The sandbox, for the time of one call.
pub(super) struct Lent {
    slot: OwnedRwLockReadGuard<Slot>,
    name: String,
    /// Of a call: nothing is paused under it.
    _busy: Option<Busy>,
}

impl Lent {
    pub fn sandbox(&self) -> Result<&dyn Sandbox, Refusal> {
        self.slot.as_deref().ok_or_else(|| Refusal::ended(&self.name))
    }

    pub fn driven(&self) -> Result<&dyn Driven, Refusal> {
        let missing = || Refusal::new(SandboxCode::NotAvailableYet, "this backend serves no sessions");
        self.sandbox()?.driven().ok_or_else(missing)
    }
}

impl Live {
    pub fn new(parts: Parts, sandbox: Box<dyn Sandbox>) -> Arc<Self> {
        let Parts {
            at,
            node,
            step,
            plan,
            env,
            dir,
            tools,
            log,
            saved,
            parked,
            adopted,
            paused,
            serves_others,
        } = parts;
        // What it was when an executor was killed is newer than what it was parked with.
        let claim = read_claim(&dir).or_else(|| parked.as_ref().and_then(|parked| parked.claim.clone()));
        let claim = claim.map_or_else(Claim::default, |claim| Claim::restored(&claim, Instant::now()));
        let now = Instant::now();
        let heard_at = paused.map_or(now, |paused| now.min(began_at(paused.heard_at) + NOTE_EVERY));
        let bounded = |max| Arc::new(Semaphore::new(max));
        Arc::new(Self {
            at,
            node,
            step,
            plan,
            env,
            dir,
            tools,
            log: Arc::new(log),
            shells: Shells::default(),
            reached: Reached::default(),
            ladder: AsyncMutex::new(Ladder::after(parked.as_ref(), adopted, paused.as_ref())),
            starts: RwLock::default(),
            woken: Notify::new(),
            sandbox: Arc::new(RwLock::new(Some(sandbox))),
            claim: Mutex::new(claim),
            claim_file: Mutex::default(),
            activity: Mutex::new(Activity { heard_at, busy: 0 }),
            end: End::default(),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
            limits: Limits {
                actions: bounded(ACTIONS_RUNNING_MAX),
                execs: bounded(EXECS_MAX),
                named_execs: bounded(super::reached::NAMED_EXECS_MAX),
                forwards: bounded(FORWARDS_MAX),
                transfers: bounded(TRANSFERS_MAX),
                background: bounded(BACKGROUND_MAX),
            },
            saved,
            last_saved: AsyncMutex::default(),
            uploads: AtomicU64::new(0),
            has_moved: parked.is_some(),
            serves_others,
            leaving: watch::Sender::new(None),
        })
    }

    pub fn id(&self) -> SandboxId {
        let (rollout, step) = (self.at.attempt.rollout, self.at.attempt.step);
        SandboxId { rollout, step, node: Some(self.node.clone()) }
    }

    pub fn name(&self) -> String {
        self.id().to_string()
    }

    // ---- who drives it ------------------------------------------------------------------------

    /// The token of `driver`, if it may have the session.
    pub(super) async fn take_claim(self: &Arc<Self>, driver: &str, ttl: Duration) -> Option<String> {
        if self.plan.unclaimed || self.is_over() || self.has_left() {
            return None;
        }
        let fresh = hex::encode(rand::random::<[u8; 16]>());
        self.keep_of_who_waits();
        let token = lock(&self.claim).take(driver, ttl, fresh, Instant::now())?;
        let live = Arc::clone(self);
        if let Err(error) = tokio::task::spawn_blocking(move || live.write_claim()).await {
            tracing::error!(sandbox = %self.id(), %error, "a claim would not outlive the executor");
        }
        self.touch();
        Some(token)
    }

    /// Where the next executor finds it, if this one is killed. Blocks.
    fn write_claim(&self) {
        let _one_by_one = lock(&self.claim_file);
        // As it is by now: of two that are taken, the later must not be written first.
        let Some(claim) = lock(&self.claim).kept(Instant::now()) else { return };
        let path = self.dir.join(CLAIM_FILE);
        let staged = path.with_extension("staged");
        let written = serde_json::to_vec(&claim).map_err(std::io::Error::from);
        let written = written.and_then(|bytes| std::fs::write(&staged, bytes));
        if let Err(error) = written.and_then(|()| std::fs::rename(&staged, &path)) {
            tracing::warn!(sandbox = %self.id(), %error, "a claim would not outlive the executor");
        }
    }

    pub(super) fn is_held_by(&self, driver: &str) -> bool {
        self.keep_of_who_waits();
        lock(&self.claim).driver(Instant::now()) == Some(driver)
    }

    /// Whether a call with this claim may be served. It is heard of by that.
    pub(super) fn check_claim(&self, token: &str) -> Result<Duration, Refusal> {
        if self.is_over() || self.has_left() {
            return Err(self.over_words());
        }
        if self.plan.unclaimed {
            if token.is_empty() {
                self.touch();
                return Ok(Duration::from_millis(self.plan.idle_timeout.0));
            }
            return Err(Refusal::bad(
                "claim",
                "a sandbox that a client created is not claimed: leave it empty",
            ));
        }
        self.keep_of_who_waits();
        let heard = lock(&self.claim).hear(token, Instant::now());
        let lost = || {
            let words = format!("session {} is not held by this claim", self.name());
            Refusal::new(SandboxCode::ClaimLost, words)
        };
        let ttl = heard.ok_or_else(lost)?;
        self.touch();
        Ok(ttl)
    }

    /// A driver that waits for a call has not gone, however long it takes.
    fn keep_of_who_waits(&self) {
        if lock(&self.activity).busy > 0 {
            lock(&self.claim).keep(Instant::now(), true);
        }
    }

    // ---- when it was last heard of ------------------------------------------------------------

    /// Traffic of any kind.
    pub(super) fn touch(&self) {
        let now = Instant::now();
        let waits = {
            let mut activity = lock(&self.activity);
            activity.heard_at = now;
            activity.busy > 0
        };
        lock(&self.claim).keep(now, waits);
    }

    /// Somebody calls. Refused once it is parked: see [`part`](Self::part).
    pub(super) fn busy(self: &Arc<Self>) -> Result<Busy, Refusal> {
        let mut activity = lock(&self.activity);
        if self.has_left() {
            return Err(self.over_words());
        }
        activity.busy += 1;
        Ok(Busy(Arc::clone(self)))
    }

    /// It is parked, unless somebody calls: who calls afterwards is told so, and nothing is begun here any more
    /// that what was stored of it does not know.
    pub(super) fn part(&self, leaving: impl FnOnce() -> Result<Leaving, Refusal>) -> Result<(), Refusal> {
        let activity = lock(&self.activity);
        if activity.busy > 0 || self.acts() {
            return Err(Refusal::new(SandboxCode::VersionConflict, "a call came before it was parked"));
        }
        self.leaving.send_replace(Some(leaving()?));
        Ok(())
    }

    /// For so long there was no traffic and nobody waited for anything.
    pub fn idle(&self) -> Duration {
        let activity = lock(&self.activity);
        if activity.busy > 0 { Duration::ZERO } else { activity.heard_at.elapsed() }
    }

    /// The last traffic; now, while somebody waits.
    pub(super) fn heard_at(&self) -> Instant {
        let activity = lock(&self.activity);
        if activity.busy > 0 { Instant::now() } else { activity.heard_at }
    }

    /// When it ends if nobody calls it from now on.
    pub(super) fn silent_at(&self) -> Timestamp {
        let left = Duration::from_millis(self.plan.idle_timeout.0).saturating_sub(self.idle());
        let left_us = i64::try_from(left.as_micros()).unwrap_or(i64::MAX);
        Timestamp(wall_now().0.saturating_add(left_us))
    }

    // ---- its sandbox --------------------------------------------------------------------------

    /// The sandbox for one call; one that is paused is resumed first.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lent, Refusal> {
        let busy = self.busy()?;
        self.wake().await?;
        Ok(Lent { _busy: Some(busy), ..self.lend_as_it_is().await? })
    }

    pub(super) async fn lend_as_it_is(self: &Arc<Self>) -> Result<Lent, Refusal> {
        let lent = async {
            let slot = Arc::clone(&self.sandbox).read_owned().await;
            Ok(Lent { slot, name: self.name(), _busy: None })
        };
        self.unless_over(lent).await
    }

    /// As `work`, cut short by the end of the session.
    pub(super) async fn unless_over<T>(
        &self,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(self.over_words()),
            done = work => done,
        }
    }

    /// It is parked: nothing is done here any more.
    pub(super) fn has_left(&self) -> bool {
        self.leaving.borrow().is_some()
    }

    /// Resolves when it is parked.
    pub(crate) async fn left(&self) -> Leaving {
        let mut leaving = self.leaving.subscribe();
        loop {
            if let Some(leaving) = leaving.borrow_and_update().clone() {
                return leaving;
            }
            // The sender is `self`.
            let _ = leaving.changed().await;
        }
    }

    /// Why no call is served.
    fn over_words(&self) -> Refusal {
        if self.has_left() { Refusal::parked(&self.name()) } else { Refusal::ended(&self.name()) }
    }

    /// The claim as it is now.
    pub(crate) fn claim_kept(&self) -> Option<ParkedClaim> {
        self.keep_of_who_waits();
        lock(&self.claim).kept(Instant::now())
    }

    /// The log as a blob; none if nothing is recorded.
    pub(super) async fn store_log(&self) -> Result<Option<StoredLog>, Refusal> {
        if self.log.count() == 0 {
            return Ok(None);
        }
        let stored = self.tools.storage.put_file(self.log.path()).await;
        let stored = stored.map_err(|error| {
            Refusal::new(SandboxCode::StorageFailed, format!("its log: {}", chain(&error)))
        })?;
        Ok(Some(StoredLog { sha256: stored.sha256, size: Bytes(stored.size) }))
    }

    /// Somebody waits for a call.
    pub(super) fn is_called(&self) -> bool {
        lock(&self.activity).busy > 0
    }

    /// A recorded action is at work, whether or not somebody waits for it.
    pub(super) fn acts(&self) -> bool {
        self.limits.actions.available_permits() < ACTIONS_RUNNING_MAX
    }

    pub(super) async fn over(&self) {
        self.closed.cancelled().await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// A permit of one of the limits, or the refusal that names it.
    pub(super) fn permit(
        limit: &Arc<Semaphore>,
        what: &str,
        name: &str,
        max: usize,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(limit).try_acquire_owned().map_err(|_| Refusal::too_many(what, name, max))
    }

    /// A name for a file that is gathered here.
    pub(super) fn upload_path(&self) -> PathBuf {
        self.dir.join(format!("upload-{}", self.uploads.fetch_add(1, Ordering::Relaxed)))
    }

    // ---- checkpoints --------------------------------------------------------------------------

    /// Saves the files while processes stand still for a moment.
    pub(crate) async fn save(self: &Arc<Self>) -> Result<Checkpoint, SaveError> {
        let mut last = self.last_saved.lock().await;
        let lent = self.lend_as_it_is().await.map_err(|_| SaveError::Over)?;
        let saving = Saving {
            workspaces: &self.tools.workspaces,
            storage: &self.tools.storage,
            tasks: &self.tools.stragglers,
            sandbox: lent.sandbox().map_err(|_| SaveError::Over)?,
            dir: &self.dir,
            disk_limit: self.step.resources.limit.disk,
        };
        let saved = tokio::select! {
            () = self.closed.cancelled() => return Err(SaveError::Over),
            saved = save(saving, Some(FREEZE_MAX), last.as_ref()) => saved?,
        };
        if saved.layer != *last || last.is_none() {
            self.hand_over(saved.checkpoint.clone()).await?;
        }
        *last = saved.layer;
        Ok(saved.checkpoint)
    }

    /// To the runner, which reports every one it is given. Nobody is told of one it did not get.
    async fn hand_over(&self, checkpoint: Checkpoint) -> Result<(), SaveError> {
        let given = timeout(HAND_OVER_TIMEOUT, self.saved.send(checkpoint)).await;
        let after = HAND_OVER_TIMEOUT.as_secs();
        match given {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SaveError::Over),
            Err(_) => {
                let words = format!(
                    "{SAVED_QUEUE_MAX} checkpoints wait to be reported (SAVED_QUEUE_MAX), after {after}s too"
                );
                Err(SaveError::TooSlow(words))
            }
        }
    }

    // ---- its end ------------------------------------------------------------------------------

    /// Ends it by its driver's word. When this returns the word is on disk, and it is what counts.
    pub(super) async fn finish(
        &self,
        ending: Ending,
        said: &v1::FinishSessionRequest,
    ) -> Result<(), Refusal> {
        if !self.end.by_call(ending) {
            return Err(self.over_words());
        }
        let end = self.log.finish(said)?;
        Ok(self.log.commit(end).await?)
    }

    /// Resolves when the sandbox is dead for a reason of its own.
    pub(crate) async fn died(self: &Arc<Self>) -> String {
        let slot = self.sandbox.read().await;
        match slot.as_ref() {
            Some(sandbox) => sandbox.died().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn stats(self: &Arc<Self>) -> Option<crate::sandbox::Stats> {
        match self.sandbox.read().await.as_ref() {
            Some(sandbox) => Some(sandbox.stats().await),
            None => None,
        }
    }

    pub(crate) fn actions(&self) -> u64 {
        self.log.count()
    }

    /// Whether of any action nobody knows if it happened.
    pub(crate) fn has_unknown_actions(&self) -> bool {
        self.log.has_unknown()
    }

    /// Nobody takes it back: calls end, and the sandbox goes with the last of them.
    pub(super) fn abandon(&self) {
        self.closed.cancel();
        self.tasks.close();
    }

    /// Ends every call, lets the actions at work be recorded, and gives the sandbox back. None: a call
    /// does not let go of it in time; it is destroyed with the last of them.
    pub(crate) async fn close(self: &Arc<Self>) -> Option<Box<dyn Sandbox>> {
        // Whatever stands still goes on first: nothing that is frozen answers. What parked processes do
        // from here on counts for nothing: their files are saved.
        if self.has_left()
            && let Ok(lent) = self.lend_as_it_is().await
            && let Ok(driven) = lent.driven()
            && let Err(error) = driven.thaw()
        {
            tracing::debug!(attempt = %self.at.attempt, %error, "not let go on at its end");
        }
        match timeout(CLOSE_TIMEOUT, self.wake()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) if self.has_left() => {}
            Ok(Err(refusal)) => {
                tracing::debug!(attempt = %self.at.attempt, problem = refusal.message, "not resumed at its end");
            }
            Err(_) => tracing::error!(attempt = %self.at.attempt, "a session is not resumed at its end"),
        }
        self.closed.cancel();
        self.tasks.close();
        if timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::error!(attempt = %self.at.attempt, "actions of a session do not end");
        }
        let taken = timeout(CLOSE_TIMEOUT, self.sandbox.write()).await;
        let Ok(mut slot) = taken else {
            tracing::error!(attempt = %self.at.attempt, "a call does not let go of a sandbox");
            return None;
        };
        slot.take()
    }
}
