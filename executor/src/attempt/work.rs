//! The command and everything after it: wait for its end or its deadline, kill what it left, read
//! its reward and its outputs, store what it wrote.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout::classify::End;
use rollout::failure::FailureCode;
use rollout::outcome::Outcome;
use rollout::plan::{COLLECT_MAX, StepKind};
use rollout::reward::RewardProblem;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::account::Account;
use super::meter::{LOOK_EVERY, LOOK_FIRST, Meter, look_after};
use super::provision::{Ready, start_timeout_words};
use super::record::{Begun, Book, Stage};
use super::saving::Saver;
use super::{Clock, Tools, environment, killed};
use crate::capture::{self, Capture, Stream};
use crate::ceilings::{FILES_PER_CAPTURE, descriptors};
use crate::clock::{began_at, boot_now, elapsed, wall_now};
use crate::grading;
use crate::lifecycle::{Kill, Order, Phase, Progress};
use crate::outputs::{self, CollectError};
use crate::sandbox::{Exit, Process, Sandbox, Spawn, SpawnError};
use crate::storage::{StorageError, chain};

/// For the kernel to take every process of the sandbox.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// For the status of a process that was killed.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// For reading and storing everything a step made.
const SIGTERM: i32 = 15;

pub(super) struct Work<'a> {
    pub tools: &'a Tools,
    pub order: &'a Order,
    pub sandbox: &'a dyn Sandbox,
    pub dir: &'a Path,
    pub clock: Clock,
    pub env: BTreeMap<String, String>,
    pub saver: &'a Saver<'a>,
    pub book: &'a Book,
}

/// A command that another executor began.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub begun: Begun,
    pub process: Box<dyn Process>,
    pub stdout: Capture,
    pub stderr: Capture,
}

type Kills = watch::Receiver<Option<Kill>>;

/// The two captures of a step.
struct Captures {
    stdout: Capture,
    stderr: Capture,
}

impl Work<'_> {
    pub async fn run(
        &self,
        ready: Ready,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Outcome {
        let mut account = Account::new(Meter::start(self.sandbox.stats().await), elapsed(self.clock.began));
        self.do_work(&mut account, ready, kills, progress).await;
        account.outcome(self.order, self.clock, self.sandbox.image_digest())
    }

    async fn do_work(
        &self,
        account: &mut Account,
        ready: Ready,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) {
        let Some(command) = self.order.step.work.command() else {
            return account.decide(FailureCode::Unclassified, "a session has no command to run".to_owned());
        };
        let opened = tokio::select! {
            opened = self.open_captures() => opened,
            kill = killed(kills) => return account.killed(&kill),
        };
        let (stdout, stderr, copies, captures) = match opened {
            Ok(opened) => opened,
            Err(source) => {
                let error = StorageError::capture(self.dir, source);
                return account.decide(FailureCode::StorageFailed, chain(&error));
            }
        };
        let spawn = Spawn {
            argv: environment::argv(command),
            env: self.env.clone(),
            cwd: self.order.step.workdir.clone(),
            user: self.order.step.user.clone(),
            stdout,
            stderr,
        };
        account.boot = elapsed(self.clock.began);
        let mut begun = Begun {
            number: self.sandbox.number(),
            began: boot_now(),
            started_at: wall_now(),
            boot: account.boot,
            base: account.meter.base(),
            planted: ready.reward_problem.as_ref().and_then(planted_path),
            timed_out: false,
        };
        // Before it runs: the next executor either finds that it never did, or goes on with it.
        self.entrust(&begun, copies).await;
        let spawned = tokio::select! {
            spawned = self.sandbox.spawn_numbered(begun.number, spawn) => spawned,
            kill = killed(kills) => return account.killed(&kill),
            () = sleep_until(ready.start_deadline) => {
                let words = start_timeout_words(elapsed(self.clock.began), self.order.step.start_timeout);
                return account.decide(FailureCode::StartTimeout, words);
            }
        };
        match spawned {
            Err(error) => {
                account.end = not_started(error);
                self.finish(ready.reward_problem, captures, account, kills, None).await;
            }
            Ok(process) => {
                progress(Progress::Phase(Phase::Running { started_at: begun.started_at }));
                let began = Instant::now();
                let kill = self.see_out(process.as_ref(), began, &mut begun, account, kills, progress).await;
                self.finish(ready.reward_problem, captures, account, kills, kill).await;
            }
        }
        self.sandbox.give_up(begun.number).await;
    }

    /// Goes on with what another executor began.
    pub async fn resume(
        &self,
        resumed: Resumed,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Outcome {
        let Resumed { mut begun, process, stdout, stderr } = resumed;
        let meter = Meter::resume(begun.base, self.sandbox.stats().await);
        let mut account = Account::new(meter, begun.boot);
        let began = began_at(begun.began);
        let kill = self.see_out(process.as_ref(), began, &mut begun, &mut account, kills, progress).await;
        let planted = begun.planted.take().map(|path| RewardProblem::Planted { path });
        self.finish(planted, Captures { stdout, stderr }, &mut account, kills, kill).await;
        self.sandbox.give_up(begun.number).await;
        account.outcome(self.order, self.clock, self.sandbox.image_digest())
    }

    /// What cannot be entrusted is not written down either: then it ends with this executor.
    async fn entrust(&self, begun: &Begun, copies: Vec<OwnedFd>) {
        let entrusted = match self.sandbox.entrust(begun.number, copies).await {
            Ok(()) => self.book.write(self.sandbox, &Stage::Command(begun.clone())),
            Err(error) => Err(error),
        };
        if let Err(error) = entrusted {
            tracing::warn!(attempt = %self.order.attempt, %error, "this attempt would not outlive the executor");
        }
    }

    /// From the beginning of the command until every process is gone.
    async fn see_out(
        &self,
        process: &dyn Process,
        began: Instant,
        begun: &mut Begun,
        account: &mut Account,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Option<Kill> {
        let started_at = begun.started_at;
        let kill = self.wait(process, began, begun, account, kills, progress).await;
        account.started = Some((started_at, elapsed(began)));
        self.end_step(process, account).await;
        progress(Progress::Phase(Phase::Collecting { started_at }));
        kill
    }

    async fn finish(
        &self,
        planted: Option<RewardProblem>,
        captures: Captures,
        account: &mut Account,
        kills: &mut Kills,
        kill: Option<Kill>,
    ) {
        if let Some(kill) = &kill {
            account.killed(kill);
        }
        if kill.is_some_and(|kill| !kill.should_store) {
            return;
        }
        let is_decided = account.verdict.is_some();
        tokio::select! {
            () = self.collect(planted, captures, account) => {}
            kill = killed_later(kills, is_decided) => account.killed(&kill),
        }
    }

    async fn open_captures(&self) -> io::Result<(OwnedFd, OwnedFd, Vec<OwnedFd>, Captures)> {
        // Both at once: two commands never wait for each other's second half.
        let held = Arc::new(descriptors::wait_for(2 * FILES_PER_CAPTURE).await?);
        let open = |stream| {
            let path = capture::path(self.dir, stream);
            Capture::start_shared(path, self.tools.capture_bytes_max, Arc::clone(&held))
        };
        let (out, out_copy, stdout) = open(Stream::Stdout).await?;
        let (err, err_copy, stderr) = open(Stream::Stderr).await?;
        Ok((out, err, vec![out_copy, err_copy], Captures { stdout, stderr }))
    }

    /// Until the command ends by itself, by its deadline or by a kill.
    async fn wait(
        &self,
        process: &dyn Process,
        began: Instant,
        begun: &mut Begun,
        account: &mut Account,
        kills: &mut Kills,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Option<Kill> {
        account.timed_out = begun.timed_out;
        let deadline = sleep_until(began + Duration::from_millis(self.order.step.timeout.0));
        let (exit, died) = (process.wait(), self.sandbox.died());
        tokio::pin!(deadline, exit, died);
        // Gone before anything else is done: what it stopped has to hear a signal.
        let mut saving = Box::pin(self.saver.save_every(progress));
        let mut look_in = LOOK_FIRST;
        loop {
            tokio::select! {
                biased;
                exit = &mut exit => {
                    account.end = ended(exit);
                    return None;
                }
                reason = &mut died => {
                    account.end = End::Lost { reason };
                    return None;
                }
                kill = killed(kills) => return Some(kill),
                () = &mut deadline => break,
                () = sleep(look_in) => {
                    if look_in < LOOK_EVERY {
                        account.meter.held(self.sandbox.memory_held().await);
                    } else {
                        account.meter.sample(self.sandbox.stats().await);
                    }
                    look_in = look_after(look_in);
                }
                never = &mut saving => match never {},
            }
        }
        drop(saving);
        (account.timed_out, begun.timed_out) = (true, true);
        if let Err(error) = self.book.write(self.sandbox, &Stage::Command(begun.clone())) {
            tracing::warn!(attempt = %self.order.attempt, %error, "its deadline is not written down");
        }
        if let Err(error) = process.signal(SIGTERM).await {
            tracing::debug!(%error, "the step could not be told to end");
        }
        tokio::select! {
            biased;
            exit = &mut exit => {
                account.end = ended(exit);
                None
            }
            reason = &mut died => {
                account.end = End::Lost { reason };
                None
            }
            kill = killed(kills) => Some(kill),
            () = sleep(Duration::from_millis(self.order.step.grace.0)) => None,
        }
    }

    /// Kills what the step left, in the background too, before anything it made is read.
    async fn end_step(&self, process: &dyn Process, account: &mut Account) {
        account.meter.sample(self.sandbox.stats().await);
        let lost = match timeout(KILL_TIMEOUT, self.sandbox.kill_all()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("its processes could not be ended: {error}")),
            Err(_) => Some(format!("its processes were not gone after {}s", KILL_TIMEOUT.as_secs())),
        };
        if account.end == End::Unknown
            && let Ok(Ok(exit)) = timeout(STATUS_TIMEOUT, process.wait()).await
        {
            account.end = ended(Ok(exit));
        }
        if let Some(reason) = lost
            && !account.is_lost()
        {
            account.end = End::Lost { reason };
        }
        account.meter.sample(self.sandbox.stats().await);
    }

    async fn collect(&self, planted: Option<RewardProblem>, captures: Captures, account: &mut Account) {
        let began = Instant::now();
        let limit = Duration::from_millis(COLLECT_MAX.0);
        let collected = timeout(limit, self.collect_all(planted, captures, account)).await;
        let error = match collected {
            Ok(Ok(())) => return,
            Ok(Err(CollectError::Lost(reason))) => {
                account.end = End::Lost { reason };
                return;
            }
            Ok(Err(CollectError::Storage(error))) => error,
            Err(_) => StorageError::TimedOut { after: elapsed(began) },
        };
        // Of a lost sandbox the output may be incomplete; that it is lost says more.
        if account.is_lost() {
            tracing::debug!(%error, "output of a lost sandbox not stored");
        } else {
            account.decide(FailureCode::StorageFailed, chain(&error));
        }
    }

    async fn collect_all(
        &self,
        planted: Option<RewardProblem>,
        captures: Captures,
        account: &mut Account,
    ) -> Result<(), CollectError> {
        let stdout = captures.stdout.finish().await?;
        let stderr = captures.stderr.finish().await?;
        account.stdout = stdout.store(&self.tools.storage).await?;
        account.stderr = stderr.store(&self.tools.storage).await?;
        let ran = matches!(account.end, End::Exited(_) | End::Signalled(_));
        if account.verdict.is_some() || !(ran || account.timed_out && !account.is_lost()) {
            return Ok(());
        }
        let step = &self.order.step;
        if let Some(plan) = &step.grader
            && !account.timed_out
        {
            let exit_code = if let End::Exited(code) = account.end { Some(code) } else { None };
            account.reward = Some(match planted {
                Some(problem) => Err(problem),
                None => grading::read(self.sandbox, step, plan, exit_code).await,
            });
        }
        // A plain step or a grader that failed is over; what an agent left is graded all the same.
        let should_collect = match step.kind {
            StepKind::Agent | StepKind::Session => true,
            StepKind::Run => account.end == End::Exited(0) && !account.timed_out,
            StepKind::Grader => !account.timed_out,
        };
        if should_collect {
            let (env, storage) = (&self.env, &self.tools.storage);
            let collected = outputs::collect(self.sandbox, step, env, storage, self.dir).await?;
            account.artifacts = collected.artifacts;
            account.output_problems = collected.problems;
            account.meter.sample(self.sandbox.stats().await);
        }
        Ok(())
    }
}

/// The only problem a grader has before it begins.
fn planted_path(problem: &RewardProblem) -> Option<String> {
    if let RewardProblem::Planted { path } = problem { Some(path.clone()) } else { None }
}

/// A kill, unless the attempt was killed already.
async fn killed_later(kills: &mut Kills, is_decided: bool) -> Kill {
    if is_decided { std::future::pending().await } else { killed(kills).await }
}

fn ended(exit: Result<Exit, SpawnError>) -> End {
    match exit {
        Ok(Exit::Code(code)) => End::Exited(code),
        Ok(Exit::Signal(signal)) => End::Signalled(signal),
        Err(SpawnError::Dead { reason }) => End::Lost { reason },
        Err(error) => End::Lost { reason: chain(&error) },
    }
}

fn not_started(error: SpawnError) -> End {
    match error {
        SpawnError::Dead { reason } => End::Lost { reason },
        // The program, the directory or the user is not there, by the image or by what ran before.
        SpawnError::Exec { .. } | SpawnError::Workdir { .. } | SpawnError::UnknownUser { .. } => {
            End::NotRun { problem: chain(&error) }
        }
        SpawnError::Setup { .. } => End::NotSpawned { problem: chain(&error) },
    }
}
