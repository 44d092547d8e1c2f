//! The agent: the one task that owns the books of this executor. It takes events, asks
//! [`Book`] what follows, and does that; it never waits for anything slow itself.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use rollout::failure::{Failure, FailureCode};
use rollout::{AttemptId, IncarnationId, Timestamp};
use rollout_wire::v1;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adoption::{self, Estate, Heir, Work};
use crate::attempt::record::Changes;
use crate::attempt::spares::Spares;
use crate::attempt::{self, Assignment, Finished, Tools};
use crate::capacity::{Measured, Vitals};
use crate::capture::{self, Stream};
use crate::clock::boot_now;
use crate::identity::{self, IDENTIFYING_MAX};
use crate::lease::Lease;
use crate::lifecycle::{
    Action, Adopted, At, Book, Finish, Kill, Order, Progress, Refusal, RefusalClass, Report,
};
use crate::link::{FromLink, Opening, Session};
use crate::logs::{self, LOG_READS_MAX};
use crate::messages::{self, Command, LogRequest};
use crate::sandbox::Sandbox;
use crate::sessions::Sessions;
use crate::storage::Storage;
use crate::workspace::Workspaces;
use crate::{Backends, Config, Error};

/// How often the lease and the end of a shutdown are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Phases and checkpoints on their way from runners: two phases for each attempt that can be held.
pub(crate) const PROGRESS_QUEUE_MAX: usize = 1 << 17;
/// At a shutdown: for killed attempts to be torn down.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
/// At a shutdown: for the scheduler to acknowledge the last ends.
const LAST_ACKS_TIMEOUT: Duration = Duration::from_secs(2);

/// What the agent is made of.
pub(crate) struct Parts {
    pub config: Config,
    pub backends: Backends,
    pub book: Book,
    pub attempts_dir: PathBuf,
    pub spares: Arc<Spares>,
    pub workspaces: Arc<Workspaces>,
    pub from_link: mpsc::Receiver<FromLink>,
    pub lease: watch::Receiver<Option<Lease>>,
    /// What was measured, from the sampler.
    pub measured: watch::Receiver<Measured>,
    /// The same with what the book counts, for the heartbeats.
    pub vitals: watch::Sender<Vitals>,
    pub incarnation: watch::Sender<IncarnationId>,
    pub sessions: Arc<Sessions>,
    /// Where they are called.
    pub sandboxes_url: String,
}

pub(crate) struct Agent {
    parts: Parts,
    storage: Option<Storage>,
    session: Option<Session>,
    opening: Option<oneshot::Sender<Opening>>,
    runners: JoinSet<(At, Finished)>,
    kills: BTreeMap<At, watch::Sender<Option<Kill>>>,
    /// Captured output of every attempt held.
    dirs: BTreeMap<At, PathBuf>,
    /// The same of those whose sandbox waits: only the record is left of it.
    waiting: BTreeMap<At, PathBuf>,
    kept: BTreeMap<AttemptId, Box<dyn Sandbox>>,
    /// Attempts whose runner has the sandbox of another one, and that one.
    continues: BTreeMap<At, AttemptId>,
    /// The latter, with where their output was once they are acknowledged. Until the runner is done a
    /// record of theirs names the sandbox: that of its own may not be written yet.
    passed: BTreeMap<AttemptId, Option<PathBuf>>,
    /// What runs waits for it, if this executor adopted it before it was attached.
    storages: watch::Sender<Option<Storage>>,
    progress: mpsc::Sender<(At, Progress)>,
    progressed: Option<mpsc::Receiver<(At, Progress)>>,
    /// Teardowns and creations nobody waits for.
    stragglers: TaskTracker,
    /// To the records of attempts.
    changes: Changes,
    log_reads: Arc<Semaphore>,
    identifying: Arc<Semaphore>,
    serial: u64,
    is_abandoning: bool,
}

impl Agent {
    /// Call within a tokio runtime.
    pub fn new(parts: Parts) -> Self {
        let stragglers = TaskTracker::new();
        let (progress, progressed) = mpsc::channel(PROGRESS_QUEUE_MAX);
        let changes = Changes::new(Arc::clone(&parts.spares), stragglers.clone());
        Self {
            parts,
            storage: None,
            session: None,
            opening: None,
            runners: JoinSet::new(),
            kills: BTreeMap::new(),
            dirs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            kept: BTreeMap::new(),
            continues: BTreeMap::new(),
            passed: BTreeMap::new(),
            storages: watch::Sender::new(None),
            progress,
            progressed: Some(progressed),
            changes,
            stragglers,
            log_reads: Arc::new(Semaphore::new(LOG_READS_MAX)),
            identifying: Arc::new(Semaphore::new(IDENTIFYING_MAX)),
            serial: 0,
            is_abandoning: false,
        }
    }

    /// Goes on with what an executor that was killed held. Before anything else.
    pub fn take_over(&mut self, estate: Estate) {
        self.serial = estate.serial;
        self.stragglers.spawn_blocking(move || adoption::clear(estate.unkept));
        for heir in estate.heirs {
            let Heir { order, dir, taken_at, held, sandbox, work } = heir;
            let at = At { attempt: order.attempt, generation: order.generation };
            tracing::info!(attempt = %at.attempt, generation = %at.generation, "taken over");
            if let Adopted::Ended { outcome, .. } = &held
                && outcome.parked.is_some()
            {
                self.parts.sessions.park(at, order.parked.is_some());
            }
            self.parts.book.adopt(&order, held);
            let dirs = if self.parts.book.is_waiting(at) { &mut self.waiting } else { &mut self.dirs };
            dirs.insert(at, dir.clone());
            match (sandbox, work) {
                (Some(sandbox), Some(work)) => self.go_on(at, Going { order, dir, taken_at, sandbox }, work),
                (Some(sandbox), None) => drop(self.kept.insert(at.attempt, sandbox)),
                (None, _) => {}
            }
        }
    }

    fn go_on(&mut self, at: At, going: Going, work: Work) {
        let Going { order, dir, taken_at, sandbox } = going;
        let (kill, mut kills) = watch::channel(None);
        self.kills.insert(at, kill);
        let mut storages = self.storages.subscribe();
        let parts = &self.parts;
        let (backends, workspaces) = (parts.backends.clone(), Arc::clone(&parts.workspaces));
        let (sessions, stragglers) = (Arc::clone(&parts.sessions), self.stragglers.clone());
        let spares = Arc::clone(&parts.spares);
        let capture_bytes_max = parts.config.capture_bytes_max;
        let tell = teller(at, self.progress.clone());
        let coming = matches!(work, Work::Session(_)).then(|| sessions.expect(at));
        self.runners.spawn(async move {
            // Whatever becomes of it.
            let _coming = coming;
            let known =
                async { storages.wait_for(Option::is_some).await.ok().and_then(|known| known.clone()) };
            let storage = tokio::select! {
                biased;
                storage = known => storage,
                kill = attempt::killed(&mut kills) => {
                    attempt::destroy(sandbox).await;
                    let outcome = Box::new(attempt::killed_unread(taken_at, &kill));
                    return (at, Finished { finish: Finish::Ended { outcome, kept: false }, sandbox: None });
                }
            };
            let Some(storage) = storage else { return (at, Finished::panicked()) };
            let tools =
                Tools { backends, storage, workspaces, capture_bytes_max, sessions, stragglers, spares };
            let adopted = attempt::Adopted { order, sandbox, dir, taken_at, kills, work };
            let running = AssertUnwindSafe(attempt::resume(&tools, adopted, tell)).catch_unwind();
            (at, running.await.unwrap_or_else(|_| Finished::panicked()))
        });
    }

    /// Serves until `token` or the end of the backend, then ends every attempt and returns when
    /// nothing is left.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), Error> {
        let Some(mut progressed) = self.progressed.take() else { return Ok(()) };
        let backend = Arc::clone(self.parts.backends.first());
        let mut backend_ended = backend.ended();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lists = interval(self.parts.config.held_every);
        lists.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping: Option<Stopping> = None;
        loop {
            tokio::select! {
                Some(message) = self.parts.from_link.recv() => {
                    // A command that waited out the lease must not begin anything.
                    self.check_lease();
                    self.hear(message);
                }
                Some((at, progress)) = progressed.recv() => {
                    let actions = match progress {
                        Progress::Phase(phase) => self.parts.book.advance(at, phase),
                        Progress::Saved(checkpoint) => self.parts.book.saved(at, checkpoint),
                    };
                    self.act(actions);
                }
                Some(joined) = self.runners.join_next() => match joined {
                    Ok((at, finished)) => self.finish(at, finished),
                    Err(error) => tracing::error!(%error, "a runner was ended from outside"),
                },
                Ok(()) = self.parts.measured.changed() => {
                    let measured = *self.parts.measured.borrow_and_update();
                    self.parts.book.observe(measured);
                }
                _ = lists.tick() => self.report_held(),
                _ = ticks.tick() => {}
                () = token.cancelled(), if stopping.is_none() => {
                    tracing::info!(sandboxes = self.parts.book.sandboxes(), "ending");
                    stopping = Some(self.stop("the executor was told to end", Ok(())));
                }
                // Without it every attempt would fail here while another node could run it.
                reason = &mut backend_ended, if stopping.is_none() => {
                    tracing::error!(reason, "the sandbox backend ended, and so does the executor");
                    let why = format!("the sandbox backend ended: {reason}");
                    stopping = Some(self.stop(&why, Err(Error::Backend { reason })));
                }
            }
            self.check_lease();
            self.renew_when_empty();
            self.parts.vitals.send_replace(Vitals {
                measured: *self.parts.measured.borrow(),
                sandboxes: self.parts.book.sandboxes(),
                held: self.parts.book.attempts(),
                credit: backend.creation_credit(),
            });
            if stopping.as_mut().is_some_and(|stopping| self.has_stopped(stopping)) {
                return stopping.map_or(Ok(()), |stopping| stopping.result);
            }
        }
    }

    fn stop(&mut self, reason: &str, result: Result<(), Error>) -> Stopping {
        let reason = reason.to_owned();
        let kill = Kill { code: FailureCode::NodeLost, reason, should_store: false };
        let actions = self.parts.book.stop(&kill);
        self.act(actions);
        Stopping { since: Instant::now(), quiet_since: None, result }
    }

    fn is_quiet(&self) -> bool {
        self.runners.is_empty() && self.stragglers.is_empty() && self.parts.book.is_idle()
    }

    fn has_stopped(&self, stopping: &mut Stopping) -> bool {
        if stopping.since.elapsed() > STOP_TIMEOUT {
            let sandboxes = self.parts.book.sandboxes();
            tracing::error!(sandboxes, "ended before everything was removed; the next start sweeps");
            return true;
        }
        if !self.is_quiet() {
            return false;
        }
        let quiet_since = *stopping.quiet_since.get_or_insert_with(Instant::now);
        let nobody_listens = self.session.is_none();
        self.parts.book.is_settled() || nobody_listens || quiet_since.elapsed() > LAST_ACKS_TIMEOUT
    }

    fn hear(&mut self, message: FromLink) {
        match message {
            FromLink::Opening(reply) => {
                self.opening = Some(reply);
                self.answer_opening();
            }
            // Its lease ended while it attached: what it was welcomed with is gone, and the
            // scheduler has to hear that from a hello of its own.
            FromLink::Up(session) if !self.is_current(session.incarnation) => {
                tracing::warn!(incarnation = %session.incarnation, "attached too late: its lease is over");
                session.closed.cancel();
            }
            FromLink::Up(session) => {
                self.storage = Some(session.storage.clone());
                self.storages.send_replace(self.storage.clone());
                self.session = Some(session);
                for report in self.parts.book.untold() {
                    self.report(messages::report(report));
                }
            }
            FromLink::Down => self.session = None,
            // Of a link that was given up: it was meant for an incarnation that is over.
            FromLink::Command(_) if self.session.is_none() => {}
            FromLink::Command(command) => self.obey(command),
        }
    }

    fn is_current(&self, incarnation: IncarnationId) -> bool {
        !self.is_abandoning && *self.parts.incarnation.borrow() == incarnation
    }

    fn obey(&mut self, command: Command) {
        let book = &mut self.parts.book;
        let actions = match command {
            Command::Start(order) => book.start(*order),
            Command::BadStart { at, problem } => {
                let message = format!("the order cannot be read: {problem}");
                let refusal = Refusal { class: RefusalClass::NeverFits, message };
                vec![Action::Report(Report::Refused { at, refusal })]
            }
            Command::Kill { at, kill } => book.kill(at, kill),
            Command::Release(at) => book.release(at),
            Command::Acknowledge(at) => book.acknowledge(at),
            Command::ReadLog(request) => return self.read_log(request),
            Command::Identify(image) => return self.identify(image),
        };
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Launch { order, sandbox_of } => self.launch(*order, sandbox_of),
                Action::Interrupt { at, kill } => {
                    if let Some(sender) = self.kills.get(&at) {
                        sender.send_replace(Some(kill));
                    }
                }
                Action::Destroy { attempt } => {
                    if let Some(sandbox) = self.kept.remove(&attempt) {
                        self.stragglers.spawn(attempt::destroy(sandbox));
                    }
                }
                Action::Discard { at } => self.discard(at),
                Action::Report(report) => self.report(messages::report(report)),
            }
        }
    }

    fn launch(&mut self, order: Order, sandbox_of: Option<AttemptId>) {
        let at = At { attempt: order.attempt, generation: order.generation };
        let sandbox = sandbox_of.and_then(|attempt| self.kept.remove(&attempt));
        let refused = match (&self.storage, sandbox_of, &sandbox) {
            (None, ..) => Some((RefusalClass::Unhealthy, "no blob store yet")),
            (_, Some(_), None) => Some((RefusalClass::SandboxGone, "the kept sandbox is gone")),
            _ => None,
        };
        if let Some((class, message)) = refused {
            let refusal = Refusal { class, message: message.to_owned() };
            if let Some(Some(dir)) = sandbox_of.and_then(|from| self.passed.remove(&from)) {
                self.changes.remove(dir);
            }
            let actions = self.parts.book.finish(at, Finish::Refused(refusal));
            return self.act(actions);
        }
        let Some(storage) = self.storage.clone() else { return };
        if let Some(from) = sandbox_of {
            self.continues.insert(at, from);
            self.passed.entry(from).or_default();
        }
        let tools = Tools {
            backends: self.parts.backends.clone(),
            storage,
            workspaces: Arc::clone(&self.parts.workspaces),
            capture_bytes_max: self.parts.config.capture_bytes_max,
            sessions: Arc::clone(&self.parts.sessions),
            stragglers: self.stragglers.clone(),
            spares: Arc::clone(&self.parts.spares),
        };
        self.serial += 1;
        let sandbox_id = format!("{}-{}", order.attempt.rollout.group.job, self.serial);
        let dir = self.parts.attempts_dir.join(&sandbox_id);
        let (kill, kills) = watch::channel(None);
        self.kills.insert(at, kill);
        self.dirs.insert(at, dir.clone());
        tracing::debug!(attempt = %at.attempt, generation = %at.generation, sandbox = %sandbox_id, "launched");
        let tell = teller(at, self.progress.clone());
        let assignment = Assignment { order, sandbox, sandbox_id, dir, kills };
        self.runners.spawn(async move {
            let running = AssertUnwindSafe(attempt::run(&tools, assignment, tell)).catch_unwind();
            (at, running.await.unwrap_or_else(|_| Finished::panicked()))
        });
    }

    fn finish(&mut self, at: At, finished: Finished) {
        let Finished { finish, sandbox } = finished;
        self.kills.remove(&at);
        if let Some(Some(dir)) = self.continues.remove(&at).and_then(|from| self.passed.remove(&from)) {
            self.changes.remove(dir);
        }
        if let Finish::Ended { outcome, kept } = &finish {
            let failure = outcome.failure.as_ref();
            let code = failure.map_or("", |Failure { code, .. }| code.as_str());
            tracing::debug!(attempt = %at.attempt, generation = %at.generation, code, kept, "ended");
        }
        if let Some(sandbox) = sandbox {
            self.kept.insert(at.attempt, sandbox);
        }
        let actions = self.parts.book.finish(at, finish);
        self.act(actions);
    }

    /// Ends are kept in the book until they are acknowledged; a link too slow for the queue is
    /// given up, and the next attach tells again what matters.
    fn report(&mut self, report: v1::Report) {
        if let Some(session) = &self.session
            && session.reports.try_send(report).is_err()
        {
            session.closed.cancel();
        }
    }

    /// Through the same queue as every other report: what was reported before is part of the list.
    fn report_held(&mut self) {
        if self.session.is_some() {
            let kind = v1::report::Kind::Held(v1::Held { held: self.held() });
            self.report(v1::Report { kind: Some(kind) });
        }
    }

    fn held(&self) -> Vec<v1::HeldAttempt> {
        self.parts.book.held().into_iter().map(|(at, phase)| messages::held(at, phase)).collect()
    }

    fn discard(&mut self, at: At) {
        self.parts.sessions.forget(at);
        let Some(dir) = self.dirs.remove(&at) else {
            if let Some(dir) = self.waiting.remove(&at) {
                // Its sandbox goes before it is discarded, unless another attempt goes on in it.
                if self.kept.contains_key(&at.attempt) {
                    self.passed.insert(at.attempt, Some(dir));
                } else {
                    self.changes.remove(dir);
                }
            }
            return;
        };
        // Of one whose sandbox waits the record stays, until the attempt is forgotten.
        if let Some(passed) = self.passed.get_mut(&at.attempt) {
            *passed = Some(dir.clone());
            self.changes.keep(dir.clone());
        } else if self.parts.book.is_waiting(at) {
            self.waiting.insert(at, dir.clone());
            self.changes.keep(dir.clone());
        } else {
            self.changes.remove(dir.clone());
        }
        let spares = Arc::clone(&self.parts.spares);
        self.stragglers.spawn(async move {
            let removed = tokio::task::spawn_blocking({
                let dir = dir.clone();
                move || spares.remove_dir(&dir)
            });
            match removed.await.map_err(std::io::Error::other).and_then(|removed| removed) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(dir = %dir.display(), %error, "captured output not removed");
                }
                _ => {}
            }
        });
    }

    fn read_log(&mut self, request: LogRequest) {
        let held = self.parts.book.generation(request.attempt);
        let at = held.map(|generation| At { attempt: request.attempt, generation });
        let dir = at.and_then(|at| self.dirs.get(&at));
        let Some((dir, stream)) = dir.zip(Stream::named(&request.stream)) else {
            return self.report(messages::log_data(request.request, Vec::new(), true));
        };
        let Some(session) = &self.session else { return };
        let (path, reports) = (capture::path(dir, stream), session.reports.clone());
        match self.log_reads.clone().try_acquire_owned() {
            Ok(permit) => drop(tokio::spawn(logs::answer(request, path, reports, permit))),
            // Nothing new for now: the reader asks again.
            Err(_) => self.report(messages::log_data(request.request, Vec::new(), false)),
        }
    }

    /// A tree is read in the background; whoever asks is answered all the same.
    fn identify(&mut self, image: String) {
        let Some(session) = &self.session else { return };
        let (backend, reports) = (Arc::clone(self.parts.backends.first()), session.reports.clone());
        let (workspaces, storage) = (Arc::clone(&self.parts.workspaces), session.storage.clone());
        let permits = self.identifying.clone();
        drop(tokio::spawn(identity::answer(backend, workspaces, storage, image, permits, reports)));
    }

    fn check_lease(&mut self) {
        let Some(lease) = *self.parts.lease.borrow() else { return };
        let incarnation = *self.parts.incarnation.borrow();
        // The lease of another incarnation covers nothing that this one holds.
        let covers = lease.incarnation == incarnation && boot_now() < lease.ends_at;
        let has_none_yet = lease.incarnation != incarnation && self.parts.book.is_empty();
        if self.is_abandoning || covers || has_none_yet {
            return;
        }
        let sandboxes = self.parts.book.sandboxes();
        tracing::warn!(%incarnation, sandboxes, "the lease is over: everything of this incarnation ends");
        self.is_abandoning = true;
        if let Some(session) = self.session.take() {
            session.closed.cancel();
        }
        let kill = Kill {
            code: FailureCode::LeaseLost,
            reason: "the lease of this node is over".to_owned(),
            should_store: false,
        };
        let actions = self.parts.book.abandon(&kill);
        self.act(actions);
    }

    /// The next incarnation serves only when nothing of the last one is left.
    fn renew_when_empty(&mut self) {
        if !(self.is_abandoning && self.is_quiet() && self.parts.book.is_empty()) {
            return;
        }
        self.is_abandoning = false;
        let incarnation = IncarnationId::from_bits(rand::random());
        self.parts.incarnation.send_replace(incarnation);
        if let Err(error) = adoption::set_incarnation(&self.parts.config.data_dir, incarnation) {
            tracing::warn!(%error, "this incarnation would end with the executor");
            // The name of the last one covers nothing any more.
            if let Err(error) = adoption::unset_incarnation(&self.parts.config.data_dir) {
                tracing::error!(%error, "the name of the last incarnation stays");
            }
        }
        self.parts.book.renew();
        tracing::info!(%incarnation, "a new incarnation begins");
        self.answer_opening();
    }

    fn answer_opening(&mut self) {
        if self.is_abandoning {
            return;
        }
        let Some(reply) = self.opening.take() else { return };
        let capacity = self.parts.book.capacity();
        let incarnation = *self.parts.incarnation.borrow();
        let hello = v1::Hello {
            node: self.parts.config.node.to_string(),
            incarnation: incarnation.to_string(),
            capacity: Some(v1::Capacity {
                cpu_milli: capacity.total.cpu.0,
                memory_bytes: capacity.total.memory.0,
                disk_bytes: capacity.total.disk.0,
                sandboxes: capacity.sandboxes,
                disk_limit_max_bytes: capacity.disk_limit_max.0,
                backends: self.parts.backends.kinds(),
            }),
            held: self.held(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sandboxes_url: self.parts.sandboxes_url.clone(),
        };
        // The link may have gone meanwhile; it asks again.
        let _gone = reply.send(Opening { incarnation, hello });
    }
}

/// What an adopted attempt has.
struct Going {
    order: Order,
    dir: PathBuf,
    taken_at: Timestamp,
    sandbox: Box<dyn Sandbox>,
}

/// What a runner tells goes to the agent.
fn teller(at: At, progress: mpsc::Sender<(At, Progress)>) -> impl Fn(Progress) + Send + Sync {
    move |told| {
        if let Err(error) = progress.try_send((at, told)) {
            tracing::error!(attempt = %at.attempt, %error, "progress not told");
        }
    }
}

#[derive(Debug)]
struct Stopping {
    since: Instant,
    quiet_since: Option<Instant>,
    /// What the executor ends with.
    result: Result<(), Error>,
}
