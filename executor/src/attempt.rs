//! One attempt, from order to outcome. A runner owns its sandbox: every way out of the work, good
//! or bad, leads through the one teardown at the end of [`run`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout::failure::{Domain, Failure, FailureCode};
use rollout::outcome::{Outcome, Times};
use rollout::plan::SessionPlan;
use rollout::{Bytes, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::clock::{elapsed, wall_now};
use crate::lifecycle::{Finish, Kill, Order, Progress};
use crate::sandbox::Sandbox;
use crate::sessions::Sessions;
use crate::storage::Storage;
use crate::workspace::Workspaces;
use crate::{Backends, adoption};

mod account;
mod environment;
mod health;
mod kept;
mod meter;
mod provision;
pub(crate) mod record;
mod saving;
mod session;
pub(crate) mod spares;
mod work;

pub(crate) use saving::FREEZE_MAX;
pub(crate) use work::Resumed;

use provision::Unready;

/// The longest teardown a runner waits for. What is left then is the census's.
pub(crate) const DESTROY_TIMEOUT: Duration = Duration::from_secs(60);

/// What every runner of this executor uses.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    pub backends: Backends,
    pub storage: Storage,
    pub workspaces: Arc<Workspaces>,
    /// Per stream.
    pub capture_bytes_max: Bytes,
    /// Where sandboxes that are driven from outside are found.
    pub sessions: Arc<Sessions>,
    /// Sandboxes whose runner stopped waiting for their creation: destroyed when they come.
    pub stragglers: TaskTracker,
    pub spares: Arc<spares::Spares>,
}

/// What one runner is given.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub order: Order,
    /// The kept sandbox to go on in.
    pub sandbox: Option<Box<dyn Sandbox>>,
    /// The name of a new sandbox.
    pub sandbox_id: String,
    /// For captured output; made by the runner.
    pub dir: PathBuf,
    /// Turns to some once, when the attempt has to end.
    pub kills: watch::Receiver<Option<Kill>>,
}

/// How the attempt ended, and its sandbox if the next step goes on in it.
#[derive(Debug)]
pub(crate) struct Finished {
    pub finish: Finish,
    pub sandbox: Option<Box<dyn Sandbox>>,
}

impl Finished {
    /// Of a runner that panicked: a fault of ours.
    pub fn panicked() -> Self {
        Self { finish: Finish::Ended { outcome: Box::new(panicked()), kept: false }, sandbox: None }
    }
}

/// Runs the attempt to its end. `progress` hears of each phase and of each checkpoint on the way.
pub(crate) async fn run(
    tools: &Tools,
    assignment: Assignment,
    progress: impl Fn(Progress) + Send + Sync,
) -> Finished {
    let Assignment { order, mut sandbox, sandbox_id, dir, mut kills } = assignment;
    let clock = Clock { taken_at: wall_now(), began: Instant::now() };
    let book = record::Book::new(Arc::clone(&tools.spares), &dir, &order, clock.taken_at);
    let ready = provision::prepare(tools, &order, &mut sandbox, sandbox_id, &dir, &mut kills).await;
    let finish = match (ready, order.step.work.session().copied(), sandbox.take()) {
        (Ok(_), Some(plan), Some(given)) => {
            let env = environment::env(&order.step, given.image_env());
            let serving = Serving { tools, order: &order, dir: &dir, clock, book: &book };
            return serving.run(plan, env, None, given, &mut kills, &progress).await;
        }
        (Ok(ready), None, Some(given)) => {
            let sandbox = sandbox.insert(given);
            let env = environment::env(&order.step, sandbox.image_env());
            let saver = saving::Saver::new(tools, &order, sandbox.as_ref(), &dir);
            let work = work::Work {
                tools,
                order: &order,
                sandbox: sandbox.as_ref(),
                dir: &dir,
                clock,
                env,
                saver: &saver,
                book: &book,
            };
            let mut outcome = work.run(ready, &mut kills, &progress).await;
            saver.save_after(&mut outcome, &mut kills).await;
            Finish::Ended { kept: should_keep(&order, &outcome), outcome: Box::new(outcome) }
        }
        (Ok(_), _, None) => {
            let failure = Failure::new(FailureCode::StartFailed, "the backend gave no sandbox");
            Finish::Ended { outcome: Box::new(clock.never_started(failure, "")), kept: false }
        }
        (Err(unready), _, left) => {
            sandbox = left;
            match unready {
                Unready::Refused(refusal) => Finish::Refused(refusal),
                Unready::Failed(failure) => {
                    let digest = sandbox.as_ref().map_or("", |sandbox| sandbox.image_digest());
                    Finish::Ended { outcome: Box::new(clock.never_started(failure, digest)), kept: false }
                }
            }
        }
    };
    ended(&book, finish, sandbox).await
}

/// What another executor began, and this one goes on with.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub order: Order,
    pub sandbox: Box<dyn Sandbox>,
    pub dir: PathBuf,
    pub taken_at: Timestamp,
    pub kills: watch::Receiver<Option<Kill>>,
    pub work: adoption::Work,
}

/// As [`run`], from where the other executor left it.
pub(crate) async fn resume(
    tools: &Tools,
    adopted: Adopted,
    progress: impl Fn(Progress) + Send + Sync,
) -> Finished {
    let Adopted { order, sandbox, dir, taken_at, mut kills, work: begun } = adopted;
    let clock = Clock { taken_at, began: Instant::now() };
    let book = record::Book::new(Arc::clone(&tools.spares), &dir, &order, taken_at);
    let env = environment::env(&order.step, sandbox.image_env());
    let resumed = match begun {
        adoption::Work::Command(resumed) => resumed,
        adoption::Work::Session(begun) => {
            let Some(plan) = order.step.work.session().copied() else {
                destroy(sandbox).await;
                return Finished::panicked();
            };
            let serving = Serving { tools, order: &order, dir: &dir, clock, book: &book };
            return serving.run(plan, env, Some(begun), sandbox, &mut kills, &progress).await;
        }
    };
    let saver = saving::Saver::new(tools, &order, sandbox.as_ref(), &dir);
    let (order, sandbox_ref) = (&order, sandbox.as_ref());
    let work =
        work::Work { tools, order, sandbox: sandbox_ref, dir: &dir, clock, env, saver: &saver, book: &book };
    let mut outcome = work.resume(resumed, &mut kills, &progress).await;
    saver.save_after(&mut outcome, &mut kills).await;
    let finish = Finish::Ended { kept: should_keep(order, &outcome), outcome: Box::new(outcome) };
    ended(&book, finish, Some(sandbox)).await
}

/// A session, from its ready sandbox to its end.
struct Serving<'a> {
    tools: &'a Tools,
    order: &'a Order,
    dir: &'a Path,
    clock: Clock,
    book: &'a record::Book,
}

impl Serving<'_> {
    async fn run(
        self,
        plan: SessionPlan,
        env: BTreeMap<String, String>,
        begun: Option<record::Begun>,
        given: Box<dyn Sandbox>,
        kills: &mut watch::Receiver<Option<Kill>>,
        progress: &(impl Fn(Progress) + Send + Sync),
    ) -> Finished {
        let Self { tools, order, dir, clock, book } = self;
        let session = session::Session { tools, order, plan, dir, clock, env, book, begun };
        let (mut outcome, sandbox) = session.run(given, kills, progress).await;
        if let Some(sandbox) = &sandbox {
            let saver = saving::Saver::new(tools, order, sandbox.as_ref(), dir);
            saver.save_after(&mut outcome, kills).await;
        }
        let kept = should_keep(order, &outcome) && sandbox.is_some();
        ended(book, Finish::Ended { kept, outcome: Box::new(outcome) }, sandbox).await
    }
}

/// The outcome is written down before anything of it is gone.
async fn ended(book: &record::Book, finish: Finish, mut sandbox: Option<Box<dyn Sandbox>>) -> Finished {
    match &finish {
        Finish::Ended { outcome, kept } => {
            let stage = record::Stage::Ended { outcome: outcome.clone(), kept: *kept };
            if let Err(error) = book.end(sandbox.as_deref(), &stage) {
                tracing::warn!(%error, "the end of an attempt is not written down");
            }
        }
        Finish::Refused(_) => book.remove(),
    }
    if !matches!(finish, Finish::Ended { kept: true, .. })
        && let Some(sandbox) = sandbox.take()
    {
        destroy(sandbox).await;
    }
    Finished { finish, sandbox }
}

/// The next step of the chain runs after a success, and after a failure that is still graded.
fn should_keep(order: &Order, outcome: &Outcome) -> bool {
    order.keep && outcome.parked.is_none() && goes_on(outcome)
}

/// The steps after this one run.
fn goes_on(outcome: &Outcome) -> bool {
    let is_graded =
        |failure: &Failure| failure.domain == Domain::Agent && failure.code.consequence().should_grade;
    outcome.failure.as_ref().is_none_or(is_graded)
}

/// The one way a sandbox ends. What will not go is logged here and found again by the census.
pub(crate) async fn destroy(sandbox: Box<dyn Sandbox>) {
    match tokio::time::timeout(DESTROY_TIMEOUT, sandbox.destroy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "sandbox not wholly removed"),
        Err(_) => {
            tracing::error!(after_s = DESTROY_TIMEOUT.as_secs(), "sandbox not removed in time");
        }
    }
}

/// Resolves when the attempt has to end.
pub(crate) async fn killed(kills: &mut watch::Receiver<Option<Kill>>) -> Kill {
    match kills.wait_for(Option::is_some).await.map(|kill| kill.clone()) {
        Ok(Some(kill)) => kill,
        // The agent is gone without a word: nobody is left to report to.
        Ok(None) | Err(_) => {
            Kill { code: FailureCode::NodeLost, reason: "the executor ended".to_owned(), should_store: false }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Clock {
    taken_at: Timestamp,
    began: Instant,
}

/// The outcome of an adopted attempt that is killed before anything could be read of it.
pub(crate) fn killed_unread(taken_at: Timestamp, kill: &Kill) -> Outcome {
    let clock = Clock { taken_at, began: Instant::now() };
    clock.never_started(Failure::new(kill.code, kill.reason.clone()), "")
}

impl Clock {
    /// The outcome of an attempt whose command never ran.
    fn never_started(self, failure: Failure, image_digest: &str) -> Outcome {
        let times = Times {
            taken_at: self.taken_at,
            started_at: None,
            ended_at: wall_now(),
            boot: Some(elapsed(self.began)),
            run: None,
            checkpoint: None,
        };
        Outcome { image_digest: image_digest.to_owned(), ..Outcome::unmeasured(failure, times) }
    }
}

/// The outcome of a runner that panicked: a fault of ours.
fn panicked() -> Outcome {
    let failure = Failure::new(FailureCode::Unclassified, "the executor's runner of this attempt panicked");
    let clock = Clock { taken_at: wall_now(), began: Instant::now() };
    clock.never_started(failure, "")
}

#[cfg(test)]
mod tests {
    use record::{Record, Stage};

    use super::*;
    use crate::lifecycle::{Refusal, RefusalClass};

    #[tokio::test]
    async fn an_end_is_written_down_though_the_sandbox_did_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job-1.record");
        let spares = record::tests::spares(dir.path());
        let book = record::tests::begun(&spares, path.clone(), &Stage::Kept);
        let finished = ended(&book, Finished::panicked().finish, None).await;
        let Finish::Ended { outcome, kept: false } = finished.finish else { panic!("it ended") };
        match Record::read(&path).unwrap().stage {
            Stage::Ended { outcome: written, kept: false } => assert_eq!(written, outcome),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn of_what_was_refused_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job-1.record");
        let spares = record::tests::spares(dir.path());
        let book = record::tests::begun(&spares, path.clone(), &Stage::Kept);
        let refusal = Refusal { class: RefusalClass::Unhealthy, message: String::new() };
        ended(&book, Finish::Refused(refusal), None).await;
        assert!(!path.exists());
    }
}
