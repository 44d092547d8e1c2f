//! What a runner gathers on its way, and the outcome it makes of it.

use rollout::classify::{End, Facts, OutputProblem, classify};
use rollout::failure::{Failure, FailureCode};
use rollout::outcome::{Artifact, Captured, Outcome, Reward, Times};
use rollout::reward::RewardProblem;
use rollout::{Millis, Timestamp};

use super::Clock;
use super::meter::Meter;
use crate::clock::wall_now;
use crate::lifecycle::{Kill, Order};

#[derive(Debug)]
pub(super) struct Account {
    pub end: End,
    pub timed_out: bool,
    /// Wins over everything the step did: it was killed, its sandbox started too late, or what it
    /// made cannot be stored.
    pub verdict: Option<Failure>,
    /// The command ran from then on, for so long.
    pub started: Option<(Timestamp, Millis)>,
    pub boot: Millis,
    pub meter: Meter,
    pub stdout: Captured,
    pub stderr: Captured,
    pub artifacts: Vec<Artifact>,
    pub output_problems: Vec<OutputProblem>,
    pub reward: Option<Result<Reward, RewardProblem>>,
}

impl Account {
    pub fn new(meter: Meter, boot: Millis) -> Self {
        Self {
            end: End::Unknown,
            timed_out: false,
            verdict: None,
            started: None,
            boot,
            meter,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts: Vec::new(),
            output_problems: Vec::new(),
            reward: None,
        }
    }

    /// The first verdict stands.
    pub fn decide(&mut self, code: FailureCode, message: String) {
        self.verdict.get_or_insert_with(|| Failure::new(code, message));
    }

    pub fn killed(&mut self, kill: &Kill) {
        let message = match self.started {
            Some((_, run)) => format!("{}; it had run {run}", kill.reason),
            None => format!("{}; it was not running yet", kill.reason),
        };
        self.decide(kill.code, message);
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.end, End::Lost { .. })
    }

    pub fn outcome(self, order: &Order, clock: Clock, image_digest: &str) -> Outcome {
        let counters = self.meter.counters();
        let (reward, reward_problem) = match self.reward {
            None => (None, None),
            Some(Ok(reward)) => (Some(reward), None),
            Some(Err(problem)) => (None, Some(problem)),
        };
        let run = self.started.map(|(_, run)| run);
        let facts = Facts {
            kind: order.step.kind,
            per: order.step.per,
            end: self.end.clone(),
            timed_out: self.timed_out,
            run: run.unwrap_or_default(),
            timeout: order.step.timeout,
            limit: order.step.resources.limit,
            counters,
            outputs: &self.output_problems,
            reward: reward_problem.as_ref(),
        };
        let failure = self.verdict.or_else(|| classify(&facts));
        // A grader's reward counts only if the attempt does.
        let reward = reward.filter(|_| failure.is_none());
        Outcome {
            failure,
            exit_code: if let End::Exited(code) = self.end { Some(code) } else { None },
            signal: if let End::Signalled(signal) = self.end { Some(signal) } else { None },
            oom: counters.oom(),
            timed_out: self.timed_out,
            silent: false,
            stdout: self.stdout,
            stderr: self.stderr,
            artifacts: self.artifacts,
            reward,
            times: Times {
                taken_at: clock.taken_at,
                started_at: self.started.map(|(at, _)| at),
                ended_at: wall_now(),
                boot: Some(self.boot),
                run,
                checkpoint: None,
            },
            usage: self.meter.usage(),
            image_digest: image_digest.to_owned(),
            checkpoint: None,
            actions: None,
            parked: None,
        }
    }
}
