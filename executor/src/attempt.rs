//! One attempt, from order to outcome. A runner owns its sandbox: every way out of the work, good
//! or bad, leads through the one teardown at the end of [`run`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout::failure::{Domain, Failure, FailureCode};
use rollout::outcome::{Outcome, Times};
use rollout::{Bytes, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::Backends;
use crate::clock::{elapsed, wall_now};
use crate::lifecycle::{Finish, Kill, Order, Progress};
use crate::sandbox::Sandbox;
use crate::sessions::Sessions;
use crate::storage::Storage;
use crate::workspace::Workspaces;

mod account;
mod environment;
mod health;
mod kept;
mod meter;
mod provision;
mod saving;
mod session;
mod work;

pub(crate) use saving::FREEZE_MAX;

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

/// Runs the attempt to its end. `progress` hears of each phase and of each checkpoint on the way.
pub(crate) async fn run(
    tools: &Tools,
    assignment: Assignment,
    progress: impl Fn(Progress) + Send + Sync,
) -> Finished {
    let Assignment { order, mut sandbox, sandbox_id, dir, mut kills } = assignment;
    let clock = Clock { taken_at: wall_now(), began: Instant::now() };
    let ready = provision::prepare(tools, &order, &mut sandbox, sandbox_id, &dir, &mut kills).await;
    let finish = match (ready, order.step.work.session().copied(), sandbox.take()) {
        (Ok(_), Some(plan), Some(given)) => {
            let env = environment::env(&order.step, given.image_env());
            let session = session::Session { tools, order: &order, plan, dir: &dir, clock, env };
            let mut outcome;
            (outcome, sandbox) = session.run(given, &mut kills, &progress).await;
            if let Some(sandbox) = &sandbox {
                let saver = saving::Saver::new(tools, &order, sandbox.as_ref(), &dir);
                saver.save_after(&mut outcome, &mut kills).await;
            }
            let kept = should_keep(&order, &outcome) && sandbox.is_some();
            Finish::Ended { kept, outcome: Box::new(outcome) }
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
async fn killed(kills: &mut watch::Receiver<Option<Kill>>) -> Kill {
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
pub(crate) fn panicked() -> Outcome {
    let failure = Failure::new(FailureCode::Unclassified, "the executor's runner of this attempt panicked");
    let clock = Clock { taken_at: wall_now(), began: Instant::now() };
    clock.never_started(failure, "")
}
