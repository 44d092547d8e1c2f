//! When an attempt's workspace is saved: at its end, if the steps after it run, and every so often
//! while it runs.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollout::Millis;
use rollout::checkpoint::Checkpoint;
use rollout::failure::{Failure, FailureCode};
use rollout::outcome::Outcome;
use rollout::plan::StepKind;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{Tools, goes_on, killed};
use crate::clock::{elapsed, wall_now};
use crate::lifecycle::{Kill, Order, Progress};
use crate::sandbox::Sandbox;
use crate::workspace::{SaveError, Saving, save};

/// The longest a step stands still for one checkpoint; past it this one is skipped.
pub(crate) const FREEZE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Saver<'a> {
    saving: Saving<'a>,
    order: &'a Order,
    spent_ms: AtomicU64,
}

impl<'a> Saver<'a> {
    pub fn new(tools: &'a Tools, order: &'a Order, sandbox: &'a dyn Sandbox, dir: &'a Path) -> Self {
        let saving = Saving {
            workspaces: &tools.workspaces,
            storage: &tools.storage,
            tasks: &tools.stragglers,
            sandbox,
            dir,
            disk_limit: order.step.resources.limit.disk,
        };
        Self { saving, order, spent_ms: AtomicU64::new(0) }
    }

    /// Saves again and again while the step runs, and never ends. Dropped, it leaves nothing half
    /// done: what stands still goes on.
    pub async fn save_every(&self, progress: &(impl Fn(Progress) + Sync)) -> Infallible {
        let Some(every) = self.order.step.checkpoint.every else { return std::future::pending().await };
        let every = Duration::from_millis(every.0.max(1));
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            let began = Instant::now();
            let saved = save(self.saving, Some(FREEZE_MAX), last.as_ref()).await;
            self.spend(began);
            let attempt = &self.order.attempt;
            match saved {
                Ok(saved) if saved.layer == last => tracing::debug!(%attempt, "nothing changed"),
                Ok(saved) => {
                    last = saved.layer;
                    progress(Progress::Saved(Box::new(saved.checkpoint)));
                }
                Err(error) => tracing::info!(%attempt, %error, "checkpoint skipped"),
            }
        }
    }

    /// Saves what the step left, if it is to be and the steps after it run. Every process is dead.
    pub async fn save_after(&self, outcome: &mut Outcome, kills: &mut watch::Receiver<Option<Kill>>) {
        if self.order.step.checkpoint.after && outcome.parked.is_none() && goes_on(outcome) {
            let began = Instant::now();
            let saved = tokio::select! {
                saved = save(self.saving, None, None) => saved,
                kill = killed(kills) => {
                    let message = format!("{}; its workspace was being saved", kill.reason);
                    fail(outcome, Failure::new(kill.code, message));
                    return self.note(outcome, began);
                }
            };
            match saved {
                Ok(saved) => outcome.checkpoint = Some(saved.checkpoint),
                Err(SaveError::Refused(problem)) => self.refuse(outcome, &problem),
                Err(error @ (SaveError::TooSlow(_) | SaveError::Storage(_) | SaveError::Over)) => {
                    fail(outcome, Failure::new(FailureCode::StorageFailed, error.to_string()));
                }
            }
            self.note(outcome, began);
        } else {
            outcome.times.checkpoint = self.spent();
        }
    }

    /// The workspace is what the step hands in. An agent that hands in none is graded all the same, on
    /// what it began with: it gains nothing by it. How it failed before stands.
    fn refuse(&self, outcome: &mut Outcome, problem: &str) {
        let code = match self.order.step.kind {
            StepKind::Agent | StepKind::Session => FailureCode::OutputMissing,
            StepKind::Run | StepKind::Grader => FailureCode::StepExit,
        };
        if matches!(self.order.step.kind, StepKind::Agent | StepKind::Session) {
            let sandbox = self.saving.sandbox;
            let layers = sandbox.layers().iter().map(|mounted| mounted.layer.clone()).collect();
            outcome.checkpoint = Some(Checkpoint { image: sandbox.image_digest().to_owned(), layers });
        }
        let message = format!("its workspace cannot be saved: {problem}");
        tracing::debug!(attempt = %self.order.attempt, message, "workspace refused");
        outcome.failure.get_or_insert_with(|| Failure::new(code, message));
    }

    fn note(&self, outcome: &mut Outcome, began: Instant) {
        self.spend(began);
        outcome.times.checkpoint = self.spent();
        outcome.times.ended_at = wall_now();
    }

    fn spend(&self, began: Instant) {
        self.spent_ms.fetch_add(elapsed(began).0.max(1), Ordering::Relaxed);
    }

    fn spent(&self) -> Option<Millis> {
        let spent = self.spent_ms.load(Ordering::Relaxed);
        (spent > 0).then_some(Millis(spent))
    }
}

/// What follows from the step's own end does not: this ended the attempt.
fn fail(outcome: &mut Outcome, failure: Failure) {
    outcome.failure = Some(failure);
    outcome.reward = None;
}
