//! The work of a session: its sandbox is lent to the calls of a driver until one of them, a deadline, a
//! kill or the sandbox itself ends it. Then it is taken back and goes the way of every attempt.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout::classify::{OutputProblem, SessionEnd, SessionFacts, classify_session};
use rollout::failure::{Failure, FailureCode};
use rollout::outcome::{Artifact, Captured, Outcome, Parked, Reward, Times};
use rollout::plan::{COLLECT_MAX, SessionPlan};
use rollout::{Millis, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};

use super::meter::Meter;
use super::record::{Begun, Book, Stage};
use super::{Clock, Tools, killed};
use crate::clock::{began_at, boot_now, elapsed, wall_now};
use crate::lifecycle::{At, Kill, Order, Phase, Progress};
use crate::outputs::{self, CollectError};
use crate::sandbox::Sandbox;
use crate::sessions::{
    ActionLog, Ending, FREEZE_TIMEOUT, Leaving, Live, NOTE_EVERY, Parts, Paused, SAVED_QUEUE_MAX,
};
use crate::storage::chain;

/// Between two looks at the kernel's counters.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// The same for one that stands still.
const LOOK_PARKED_EVERY: Duration = NOTE_EVERY;
/// For the kernel to take every process of the sandbox.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Session<'a> {
    pub tools: &'a Tools,
    pub order: &'a Order,
    pub plan: SessionPlan,
    pub dir: &'a Path,
    pub clock: Clock,
    pub env: BTreeMap<String, String>,
    pub book: &'a Book,
    /// What another executor began, and this one goes on with.
    pub begun: Option<Begun>,
}

type Kills = watch::Receiver<Option<Kill>>;

/// What there is to tell at its end.
struct Tally {
    end: SessionEnd,
    /// Wins over everything a driver did.
    verdict: Option<Failure>,
    reward: Option<Reward>,
    meter: Meter,
    started_at: Timestamp,
    /// With what it had run before it was parked: it counts in its timeout.
    run: Millis,
    /// In this sandbox.
    stretch: Millis,
    boot: Millis,
    actions: u64,
    artifacts: Vec<Artifact>,
    problems: Vec<OutputProblem>,
}

impl Session<'_> {
    /// To its end; gives the sandbox back, if there is one to give.
    pub async fn run(
        self,
        sandbox: Box<dyn Sandbox>,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) -> (Outcome, Option<Box<dyn Sandbox>>) {
        let at = At { attempt: self.order.attempt, generation: self.order.generation };
        let digest = sandbox.image_digest().to_owned();
        let sessions = Arc::clone(&self.tools.sessions);
        // What the other executor had begun is unknown, and nothing of it goes on unseen.
        if self.begun.is_some()
            && let Err(error) = sandbox.kill_all().await
        {
            return self.not_begun(format!("its processes could not be ended: {error}"), &digest, sandbox);
        }
        let (saved, mut saves) = mpsc::channel(SAVED_QUEUE_MAX);
        let now = sandbox.stats().await;
        let begun = self.begun.clone().unwrap_or_else(|| Begun {
            number: 0,
            began: boot_now(),
            started_at: wall_now(),
            boot: elapsed(self.clock.began),
            base: now,
            planted: None,
            timed_out: false,
        });
        let mut meter = Meter::resume(begun.base, now);
        let (began, started_at, boot) = (began_at(begun.began), begun.started_at, begun.boot);
        // Before its log is made: the next executor finds neither, or goes on with both.
        if let Err(error) = self.book.write(sandbox.as_ref(), &Stage::Session(begun)) {
            tracing::warn!(attempt = %at.attempt, %error, "this session would not outlive the executor");
        }
        let log = match self.log(at).await {
            Ok(log) => log,
            Err(problem) => return self.not_begun(problem, &digest, sandbox),
        };
        let paused = match &self.begun {
            Some(_) => self.paused_again(sandbox.as_ref()).await,
            None => None,
        };
        let parts = Parts {
            at,
            node: sessions.node().clone(),
            step: self.order.step.clone(),
            plan: self.plan,
            env: self.env.clone(),
            dir: self.dir.to_owned(),
            tools: self.tools.clone(),
            log,
            saved,
            parked: self.order.parked.clone(),
            adopted: self.begun.is_some().then(boot_now),
            paused,
            serves_others: self.order.keep,
        };
        let entered = sessions.enter(parts, sandbox);
        let live = &entered.live;
        progress(Progress::Phase(Phase::Running { started_at }));
        let ended = self.wait(live, began, &mut meter, kills, &mut saves, progress).await;
        // Before anything waits: no call may be told otherwise from here on.
        let ended = match ended {
            Ended::Called(_) | Ended::Parked(_) => ended,
            Ended::Killed(_) | Ended::Session(_) => {
                live.end.by_runner().map_or_else(Ended::Called, |()| ended)
            }
        };
        let stretch = elapsed(began);
        let run = Millis(self.ran_before().0.saturating_add(stretch.0));
        let (end, kill, reward) = match ended {
            Ended::Parked(leaving) => {
                let idle = live.idle();
                let ran = (meter, started_at, run, stretch, boot);
                return self.leave(entered, leaving, idle, ran, saves, progress).await;
            }
            Ended::Killed(kill) => (SessionEnd::Finished, Some(kill), None),
            Ended::Session(end) => (end, None, None),
            Ended::Called(Ending::Finished { reward }) => (SessionEnd::Finished, None, reward),
            Ended::Called(Ending::GivenUp { problem }) => {
                let has_unknown = live.has_unknown_actions();
                (SessionEnd::GivenUp { problem, has_unknown }, None, None)
            }
            Ended::Called(Ending::ActionsSpent { actions }) => {
                (SessionEnd::ActionsSpent { actions }, None, None)
            }
        };
        progress(Progress::Phase(Phase::Collecting { started_at }));
        let mut sandbox = live.close().await;
        // What was handed over was promised.
        saves.close();
        while let Ok(checkpoint) = saves.try_recv() {
            progress(Progress::Saved(Box::new(checkpoint)));
        }
        let words = |kill: &Kill| Failure::new(kill.code, format!("{}; it had run {run}", kill.reason));
        let verdict = kill.as_ref().map(words);
        let actions = live.actions();
        let (artifacts, problems) = (Vec::new(), Vec::new());
        let mut tally = Tally {
            end,
            verdict,
            reward,
            meter,
            started_at,
            run,
            stretch,
            boot,
            actions,
            artifacts,
            problems,
        };
        match &mut sandbox {
            Some(sandbox) => self.end(sandbox.as_ref(), &mut tally, kills).await,
            None => tally.lost("its sandbox was not given back".to_owned()),
        }
        drop(entered);
        tokio::task::spawn_blocking(move || sessions.prune());
        (self.outcome(tally, &digest), sandbox)
    }

    /// One that stood still under the other executor went on only to be taken over and for its processes to
    /// end: it stands still again.
    async fn paused_again(&self, sandbox: &dyn Sandbox) -> Option<Paused> {
        let paused = Paused::read(self.dir)?;
        match sandbox.driven()?.freeze(FREEZE_TIMEOUT).await {
            Ok(()) => Some(paused),
            Err(error) => {
                tracing::warn!(attempt = %self.order.attempt, %error, "it was paused, and goes on");
                if let Err(error) = Paused::remove(self.dir) {
                    tracing::warn!(attempt = %self.order.attempt, %error, "the next executor would pause it");
                }
                None
            }
        }
    }

    fn not_begun(
        &self,
        problem: String,
        digest: &str,
        sandbox: Box<dyn Sandbox>,
    ) -> (Outcome, Option<Box<dyn Sandbox>>) {
        let failure = Failure::new(FailureCode::StorageFailed, problem);
        (self.clock.never_started(failure, digest), Some(sandbox))
    }

    /// How long it ran before it was parked.
    fn ran_before(&self) -> Millis {
        self.order.parked.as_ref().map_or(Millis(0), |parked| parked.ran)
    }

    /// Of its timeout, from when it began here. The time it was parked for has gone by.
    fn time_left(&self) -> Millis {
        self.order.parked.as_ref().map_or(self.order.step.timeout, |parked| parked.time_left)
    }

    /// Since it was ready for the first time, for one that has run for `run`; its timeout ends at that age.
    fn age(&self, run: Millis) -> Millis {
        let before = less(self.order.step.timeout, self.time_left());
        Millis(before.0.saturating_add(less(run, self.ran_before()).0))
    }

    /// A new log, or one that goes on after what was recorded before it was parked.
    async fn log(&self, at: At) -> Result<ActionLog, String> {
        let sessions = Arc::clone(&self.tools.sessions);
        let asked = Arc::clone(&sessions);
        let has_log = tokio::task::spawn_blocking(move || asked.has_log(at)).await;
        let goes_on = self.begun.is_some() && has_log.map_err(|error| error.to_string())?;
        let before = self.order.parked.as_ref().and_then(|parked| parked.log.as_ref());
        let before = before.filter(|_| !goes_on);
        let from = match before {
            None => None,
            Some(log) => {
                let path = self.dir.join("actions-before");
                let fetched = self.tools.storage.fetch(&log.sha256, Some(log.size), &path).await;
                fetched.map_err(|error| chain(&error))?;
                Some(path)
            }
        };
        let made = tokio::task::spawn_blocking(move || match from {
            None if goes_on => sessions.log_again(at),
            None => sessions.new_log(at),
            Some(from) => {
                let log = sessions.resumed_log(at, &from);
                // The log has its own copy; what stays goes with the attempt.
                let _ = std::fs::remove_file(&from);
                log
            }
        });
        made.await.map_err(|error| error.to_string())?.map_err(|error| chain(&error))
    }

    /// Ends it here: everything that it goes on from is stored.
    async fn leave(
        self,
        entered: crate::sessions::Entered,
        leaving: Leaving,
        idle: Duration,
        (mut meter, started_at, run, stretch, boot): (Meter, Timestamp, Millis, Millis, Millis),
        mut saves: mpsc::Receiver<rollout::checkpoint::Checkpoint>,
        progress: &(impl Fn(Progress) + Sync),
    ) -> (Outcome, Option<Box<dyn Sandbox>>) {
        let live = &entered.live;
        let at = live.at;
        progress(Progress::Phase(Phase::Collecting { started_at }));
        let claim = live.claim_kept();
        let sandbox = live.close().await;
        saves.close();
        while let Ok(checkpoint) = saves.try_recv() {
            progress(Progress::Saved(Box::new(checkpoint)));
        }
        if let Some(sandbox) = &sandbox {
            meter.sample(sandbox.stats().await);
        }
        let idle = Millis(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
        let parked = Parked {
            log: leaving.log,
            claim,
            ran: run,
            time_left: less(self.order.step.timeout, self.age(run)),
            idle_left: less(self.plan.idle_timeout, idle),
            version: leaving.version,
        };
        let counters = meter.counters();
        let times = Times {
            taken_at: self.clock.taken_at,
            started_at: Some(started_at),
            ended_at: wall_now(),
            boot: Some(boot),
            run: Some(stretch),
            checkpoint: None,
        };
        let digest = leaving.checkpoint.image.clone();
        let outcome = Outcome {
            oom: counters.oom(),
            usage: meter.usage(),
            image_digest: digest,
            actions: Some(live.actions()),
            parked: Some(Box::new(parked)),
            ..Outcome::found(leaving.checkpoint, times)
        };
        // No call finds neither.
        self.tools.sessions.park(at, self.order.parked.is_some());
        drop(entered);
        (outcome, sandbox)
    }

    async fn wait(
        &self,
        live: &Arc<Live>,
        began: Instant,
        meter: &mut Meter,
        kills: &mut Kills,
        saves: &mut mpsc::Receiver<rollout::checkpoint::Checkpoint>,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Ended {
        let idle_timeout = Duration::from_millis(self.plan.idle_timeout.0);
        let deadline = sleep_until(began + Duration::from_millis(self.time_left().0));
        let (died, ended, parted) = (live.died(), live.end.by_any_call(), live.left());
        tokio::pin!(deadline, died, ended, parted);
        let mut saving = Box::pin(self.save_every(live));
        let mut parking = Box::pin(self.park_when_idle(live));
        loop {
            let look_in = idle_timeout.saturating_sub(live.idle()).min(look_every(live));
            tokio::select! {
                biased;
                reason = &mut died => return Ended::Session(SessionEnd::Lost { reason }),
                ending = &mut ended => return Ended::Called(ending),
                leaving = &mut parted => return Ended::Parked(leaving),
                kill = killed(kills) => return Ended::Killed(kill),
                () = &mut deadline => return Ended::Session(SessionEnd::Deadline),
                Some(checkpoint) = saves.recv() => progress(Progress::Saved(Box::new(checkpoint))),
                never = &mut saving => match never {},
                never = &mut parking => match never {},
                () = sleep(look_in) => {
                    let idle = live.idle();
                    if idle >= idle_timeout {
                        let idle = Millis(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
                        return Ended::Session(SessionEnd::Silent { idle });
                    }
                    if live.is_parked() {
                        live.note_silence().await;
                        continue;
                    }
                    if let Some(stats) = live.stats().await {
                        meter.sample(stats);
                    }
                }
            }
        }
    }

    /// Saves again and again, and never ends. What it saved comes through the queue of the session.
    async fn save_every(&self, live: &Arc<Live>) -> Infallible {
        let Some(every) = self.order.step.checkpoint.every else { return std::future::pending().await };
        let every = Duration::from_millis(every.0.max(1));
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = live.save().await {
                tracing::info!(attempt = %self.order.attempt, %error, "checkpoint skipped");
            }
        }
    }

    /// Pauses it whenever nobody called for a while, and never ends.
    async fn park_when_idle(&self, live: &Arc<Live>) -> Infallible {
        let Some(idle) = self.order.step.idle else { return std::future::pending().await };
        let after = Duration::from_millis(idle.park_after.0);
        loop {
            let left = Some(after.saturating_sub(live.idle())).filter(|left| !left.is_zero());
            let most = look_every(live);
            sleep(if live.is_parked() { most } else { left.map_or(most, |left| left.min(most)) }).await;
            live.park(after).await;
        }
    }

    /// Everything in it is killed before what it made is read.
    async fn end(&self, sandbox: &dyn Sandbox, tally: &mut Tally, kills: &mut Kills) {
        tally.meter.sample(sandbox.stats().await);
        match timeout(KILL_TIMEOUT, sandbox.kill_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tally.lost(format!("its processes could not be ended: {error}")),
            Err(_) => {
                tally.lost(format!("its processes were not gone after {}s", KILL_TIMEOUT.as_secs()));
            }
        }
        tally.meter.sample(sandbox.stats().await);
        if tally.verdict.is_some() || matches!(tally.end, SessionEnd::Lost { .. }) {
            return;
        }
        let limit = Duration::from_millis(COLLECT_MAX.0);
        let (step, storage) = (&self.order.step, &self.tools.storage);
        let collecting = timeout(limit, outputs::collect(sandbox, step, &self.env, storage, self.dir));
        let collected = tokio::select! {
            collected = collecting => collected,
            kill = killed(kills) => {
                let message = format!("{}; it had run {}", kill.reason, tally.run);
                tally.verdict = Some(Failure::new(kill.code, message));
                return;
            }
        };
        match collected {
            Ok(Ok(collected)) => {
                (tally.artifacts, tally.problems) = (collected.artifacts, collected.problems);
                tally.meter.sample(sandbox.stats().await);
            }
            Ok(Err(CollectError::Lost(reason))) => tally.lost(reason),
            Ok(Err(CollectError::Storage(error))) => {
                tally.verdict = Some(Failure::new(FailureCode::StorageFailed, chain(&error)));
            }
            Err(_) => {
                let words = format!("its outputs were not stored within {COLLECT_MAX}");
                tally.verdict = Some(Failure::new(FailureCode::StorageFailed, words));
            }
        }
    }

    fn outcome(&self, tally: Tally, digest: &str) -> Outcome {
        let Tally {
            end,
            verdict,
            reward,
            meter,
            started_at,
            run,
            stretch,
            boot,
            actions,
            artifacts,
            problems,
        } = tally;
        let counters = meter.counters();
        let timed_out = end == SessionEnd::Deadline && verdict.is_none();
        let silent = matches!(end, SessionEnd::Silent { .. }) && verdict.is_none();
        let facts = SessionFacts {
            end,
            unclaimed: self.plan.unclaimed,
            run: self.age(run),
            timeout: self.order.step.timeout,
            limit: self.order.step.resources.limit,
            counters,
            outputs: &problems,
        };
        let failure = verdict.or_else(|| classify_session(&facts));
        let times = Times {
            taken_at: self.clock.taken_at,
            started_at: Some(started_at),
            ended_at: wall_now(),
            boot: Some(boot),
            run: Some(stretch),
            checkpoint: None,
        };
        // The driver's word counts as long as a grader's would.
        let is_valid = failure.as_ref().is_none_or(|failure| failure.code.consequence().has_valid_reward);
        Outcome {
            failure,
            exit_code: None,
            signal: None,
            oom: counters.oom(),
            timed_out,
            silent,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts,
            reward: reward.filter(|_| is_valid),
            times,
            usage: meter.usage(),
            image_digest: digest.to_owned(),
            checkpoint: None,
            actions: Some(actions),
            parked: None,
        }
    }
}

/// Thousands may stand still at once: those are looked at seldom.
fn look_every(live: &Live) -> Duration {
    if live.is_parked() { LOOK_PARKED_EVERY } else { SAMPLE_EVERY }
}

fn less(time: Millis, taken: Millis) -> Millis {
    Millis(time.0.saturating_sub(taken.0))
}

enum Ended {
    Killed(Kill),
    Session(SessionEnd),
    Called(Ending),
    Parked(Leaving),
}

impl Tally {
    fn lost(&mut self, reason: String) {
        if !matches!(self.end, SessionEnd::Lost { .. }) {
            self.end = SessionEnd::Lost { reason };
        }
    }
}
