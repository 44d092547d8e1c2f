//! The loop: take what came, tell the core, plan once, commit, send.
//!
//! One task owns the [`Cluster`] and the store's writer. It does no other IO: it never waits for
//! a node, a client or a file. Commands and acknowledgements leave only after their commit.

mod commit;
mod sandboxes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rollout::state::JobState;
use rollout::{BootTime, FailureCode, GroupId, JobId, Millis, Timestamp};
use rollout_wire::v1;
use scheduler_core::snapshot::JobSnapshot;
use scheduler_core::{Cluster, Command, Event, Now, Record};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::error::Error;
use crate::health::HealthBoard;
use crate::inbox::{
    Commits, Fired, Inbox, Input, PASS_INPUTS_MAX, Question, Reported, Submission, SubmitRefused, Submitted,
};
use crate::jobs::Jobs;
use crate::link::Links;
use crate::news::News;
use crate::retry::{CANDIDATES_MAX, Choice, Retry, RetryRefused};
use crate::store::{Batch, NewJob, Reads, Writer};
use crate::sums;

/// The longest sleep of the loop; only a guard, nothing depends on it.
const SLEEP_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Driver {
    pub cluster: Cluster,
    pub writer: Writer,
    pub reads: Reads,
    pub jobs: Jobs,
    pub links: Arc<Links>,
    pub inbox: Inbox,
    pub inputs: mpsc::Receiver<Input>,
    pub recorder: Arc<tokio::sync::Notify>,
    /// The number of the last commit, for watchers.
    pub commits: watch::Sender<Commits>,
    pub health: HealthBoard,
    pub reconcile_every: Duration,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    pub deadlines: Deadlines,
    /// Until when sandboxes must be ready.
    pub starts: Deadlines,
    /// Wakes those who wait for a job.
    pub news: News,
    /// What restoring found to be stored; goes with the first batch.
    pub restored: Vec<Record>,
}

/// When time is up for a job: for all of it where it has a `timeout`, or for it to be ready.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(BTreeMap<(BootTime, JobId), Millis>);

impl Deadlines {
    pub(crate) fn add(&mut self, job: JobId, timeout: Option<Millis>, created_at: Timestamp, now: Now) {
        if let Some(timeout) = timeout {
            let left = timeout.0.saturating_sub(now.wall.since(created_at).0);
            self.0.insert((now.boot.after(Millis(left)), job), timeout);
        }
    }

    /// Jobs that have ended need no deadline.
    fn forget(&mut self, ended: &BTreeSet<JobId>) {
        if !ended.is_empty() {
            self.0.retain(|(_, job), _| !ended.contains(job));
        }
    }

    fn next(&self) -> Option<BootTime> {
        self.0.keys().next().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: BootTime) -> Vec<(JobId, Millis)> {
        let mut due = Vec::new();
        while let Some(entry) = self.0.first_entry()
            && entry.key().0 <= now
        {
            let ((_, job), timeout) = entry.remove_entry();
            due.push((job, timeout));
        }
        due
    }
}

/// What is answered once the batch is stored.
enum Reply {
    Submitted(oneshot::Sender<Result<Submitted, SubmitRefused>>, Submitted),
    Done(oneshot::Sender<()>),
    Cancelled(oneshot::Sender<bool>, bool),
    Retried(oneshot::Sender<Result<v1::RetryReply, RetryRefused>>, Box<v1::RetryReply>),
    Ask(Question),
}

/// One pass: what came, and what follows.
#[derive(Default)]
struct Pass {
    batch: Batch,
    replies: Vec<Reply>,
    /// Keys of the submissions of this pass.
    keys: BTreeMap<String, (JobId, String)>,
}

impl Driver {
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let mut reconcile = tokio::time::interval(self.reconcile_every);
        reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut wake_at: Option<BootTime> = Some(clock::boot());
        let mut inputs = Vec::with_capacity(PASS_INPUTS_MAX);
        loop {
            let mut missing = Vec::new();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.last_pass(inputs).await,
                _ = reconcile.tick() => missing = self.reconcile().await,
                count = self.inputs.recv_many(&mut inputs, PASS_INPUTS_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                () = self.links.beats.notified() => {}
                () = sleep_until(wake_at) => {}
            }
            // Whatever else has come meanwhile belongs to the same commit.
            while inputs.len() < PASS_INPUTS_MAX
                && let Ok(input) = self.inputs.try_recv()
            {
                inputs.push(input);
            }
            wake_at = self.pass(inputs.drain(..), missing).await?;
        }
    }

    /// What has come before the stop counts, such as what an executor handed back as it ended.
    async fn last_pass(&mut self, mut inputs: Vec<Input>) -> Result<(), Error> {
        while inputs.len() < PASS_INPUTS_MAX
            && let Ok(input) = self.inputs.try_recv()
        {
            inputs.push(input);
        }
        self.pass(inputs.drain(..), Vec::new()).await.map(|_| ())
    }

    async fn pass(
        &mut self,
        inputs: impl Iterator<Item = Input>,
        missing: Vec<Event>,
    ) -> Result<Option<BootTime>, Error> {
        let now = Now { boot: clock::boot(), wall: clock::wall() };
        let mut pass = Pass::default();
        pass.batch.records.append(&mut self.restored);
        for event in self.links.take_beats().into_iter().chain(missing) {
            self.apply(&mut pass, now, event);
        }
        for input in inputs {
            self.take(&mut pass, now, input).await?;
        }
        for (job, timeout) in self.deadlines.take_due(now.boot) {
            let reason = format!("the job ran for its whole timeout of {timeout}");
            let event = Event::JobCancelled { job, code: FailureCode::JobTimeout, reason };
            self.apply(&mut pass, now, event);
        }
        for (job, timeout) in self.starts.take_due(now.boot) {
            self.give_up_unstarted(&mut pass, now, job, timeout);
        }
        let plan = self.cluster.plan(now);
        pass.batch.records.extend(plan.records);
        self.seal_sandboxes(&mut pass, now);
        for record in &pass.batch.records {
            if let Record::JobState { job, state, .. } = record
                && state.is_final()
                && let Some(counts) = self.cluster.counts(*job)
            {
                pass.batch.sums.push((*job, sums::of_core(counts)));
            }
        }
        let fenced =
            pass.batch.records.iter().filter(|record| matches!(record, Record::Fenced { .. })).count();
        if fenced > 0 {
            tracing::info!(reports = fenced, "fenced late reports; table `fenced` counts them by node");
        }
        if !pass.batch.is_empty() {
            if pass.batch.records.iter().any(|record| matches!(record, Record::Lease { .. })) {
                pass.batch.versions = self.links.versions();
            }
            if !self.commit(&pass.batch, now.wall).await? {
                return Ok(None);
            }
        }
        let mut ended = BTreeSet::new();
        for record in &pass.batch.records {
            if let Record::JobState { job, state, .. } = record
                && state.is_final()
            {
                tracing::info!(%job, state = state.as_str(), "job ended");
                self.cluster.forget(*job);
                ended.insert(*job);
            }
        }
        self.deadlines.forget(&ended);
        self.starts.forget(&ended);
        self.news.tell(&pass.batch.records);
        let jobs_ended = ended.len() as u64;
        if !pass.batch.is_empty() {
            let seq = self.writer.seq();
            self.commits.send_modify(|commits| {
                *commits = Commits { seq, jobs_ended: commits.jobs_ended + jobs_ended };
            });
        }
        for command in plan.commands {
            self.perform(command);
        }
        for reply in pass.replies {
            match reply {
                // Whoever asked may be gone; what was stored stays stored.
                Reply::Submitted(sender, submitted) => drop(sender.send(Ok(submitted))),
                Reply::Done(sender) => drop(sender.send(())),
                Reply::Cancelled(sender, by_this) => drop(sender.send(by_this)),
                Reply::Retried(sender, reply) => drop(sender.send(Ok(*reply))),
                Reply::Ask(question) => question(&self.cluster, now),
            }
        }
        Ok(earliest(plan.wake_at, earliest(self.deadlines.next(), self.starts.next())))
    }

    fn apply(&mut self, pass: &mut Pass, now: Now, event: Event) {
        let records = self.cluster.apply(now, event);
        for record in &records {
            if let Record::Fenced { node, incarnation, generation, attempt } = record {
                tracing::debug!(%node, %incarnation, %generation, %attempt, "fenced a late report");
            }
        }
        pass.batch.records.extend(records);
    }

    async fn take(&mut self, pass: &mut Pass, now: Now, input: Input) -> Result<(), Error> {
        match input {
            Input::Event(event) => self.apply(pass, now, event),
            Input::Held { node, event, turn } => {
                drop(turn);
                let lost = self.cluster.lost_count();
                self.apply(pass, now, event);
                let lost = self.cluster.lost_count() - lost;
                if lost > 0 {
                    tracing::warn!(%node, lost, "a node does not hold what it was told to, and is told again");
                }
            }
            Input::Reported(Reported { event, bytes }) => {
                drop(bytes);
                self.apply(pass, now, event);
            }
            Input::Attached { session, event } => {
                if let Event::NodeAttached { node, .. } = &event {
                    self.links.activate(node, session);
                }
                self.apply(pass, now, event);
            }
            Input::Detached { session, node, incarnation } => {
                tracing::debug!(%node, ?session, "session ended");
                if !self.links.connected(&node, incarnation) {
                    self.apply(pass, now, Event::NodeDetached { node, incarnation });
                }
            }
            Input::Submit(submission) => self.submit(pass, now, *submission).await,
            Input::Retry(retry) => self.retry(pass, now, *retry).await,
            Input::Cancel { job, code, reason, done } => {
                let known = pass.batch.records.len();
                self.apply(pass, now, Event::JobCancelled { job, code, reason });
                let by_this = pass.batch.records[known..].iter().any(|record| {
                    matches!(record, Record::JobState { job: of, state: JobState::Cancelling, .. } if *of == job)
                });
                pass.replies.push(Reply::Cancelled(done, by_this));
            }
            Input::Sealed { groups, shards, done } => {
                pass.batch.sealed.extend(&groups);
                pass.batch.shards.extend(shards);
                self.apply(pass, now, Event::GroupsSealed { groups });
                pass.replies.push(Reply::Done(done));
            }
            Input::Schedule { change, done } => {
                pass.batch.schedules.push(change);
                pass.replies.push(Reply::Done(done));
            }
            Input::RemoveCheckpoints { records, done } => {
                // A group may have been made to run again since they were listed.
                let is_closed = |record: &Record| match record {
                    Record::CheckpointRemoved { attempt, .. } => !self.cluster.holds(attempt.rollout.group),
                    _ => true,
                };
                pass.batch.records.extend(records.into_iter().filter(is_closed));
                pass.replies.push(Reply::Done(done));
            }
            Input::Ask(question) => pass.replies.push(Reply::Ask(question)),
        }
        Ok(())
    }

    /// Who owns a key is decided here, where the only writer is: by the store and by the
    /// submissions of the same pass.
    async fn submit(&mut self, pass: &mut Pass, now: Now, submission: Submission) {
        let Submission { new_job, plan, resume, fired, reply } = submission;
        let found = match self.find(&pass.keys, &pass.batch.new_jobs, &new_job, resume).await {
            Ok(found) => found,
            Err(error) => return drop(reply.send(Err(SubmitRefused::Store(error)))),
        };
        match found {
            Some(Ok(submitted)) => pass.replies.push(Reply::Submitted(reply, submitted)),
            Some(Err(refused)) => drop(reply.send(Err(refused))),
            None => {
                let (job, created_at) = (new_job.job, new_job.created_at);
                let groups_total = new_job.groups_total;
                let start_timeout = new_job.sandbox.as_ref().map(|sandbox| sandbox.start_timeout);
                let key = (job, new_job.request_hash.clone());
                pass.keys.insert(new_job.idempotency_key.clone(), key);
                pass.batch.new_jobs.push(new_job);
                if let Some(Fired { change, replaces }) = fired {
                    pass.batch.schedules.push(change);
                    if let Some((job, reason)) = replaces {
                        let code = FailureCode::Cancelled;
                        self.apply(pass, now, Event::JobCancelled { job, code, reason });
                    }
                }
                self.deadlines.add(job, plan.timeout, created_at, now);
                self.starts.add(job, start_timeout, created_at, now);
                self.apply(pass, now, Event::JobSubmitted { job, plan, groups_total, created_at });
                pass.replies.push(Reply::Submitted(reply, Submitted { job, resumed: false }));
            }
        }
    }

    async fn find(
        &self,
        keys: &BTreeMap<String, (JobId, String)>,
        new_jobs: &[NewJob],
        new_job: &NewJob,
        resume: bool,
    ) -> Result<Option<Result<Submitted, SubmitRefused>>, Error> {
        let owner = match keys.get(&new_job.idempotency_key) {
            Some(owner) => Some(owner.clone()),
            None => {
                let row = self.reads.job_by_key(&new_job.idempotency_key).await?;
                row.map(|row| (row.job, row.request_hash))
            }
        };
        if let Some((job, request_hash)) = owner {
            let same = request_hash == new_job.request_hash;
            let answer = Submitted { job, resumed: false };
            return Ok(Some(if same { Ok(answer) } else { Err(SubmitRefused::KeyInUse { job }) }));
        }
        if !resume {
            return Ok(None);
        }
        let same = |other: &&NewJob| {
            (&other.spec_hash, &other.table_root, &other.files)
                == (&new_job.spec_hash, &new_job.table_root, &new_job.files)
        };
        let pending = new_jobs.iter().find(same).map(|other| other.job);
        if let Some(job) = pending {
            return Ok(Some(Ok(Submitted { job, resumed: true })));
        }
        let Some(row) = self.reads.unfinished_job(&new_job.spec_hash, &new_job.table_root).await? else {
            return Ok(None);
        };
        let job = row.job;
        // A job runs to its end on the files it began with.
        let stored = self.reads.files(job).await?;
        let changed = new_job.files.iter().find(|file| {
            !stored.iter().any(|other| (&other.path, &other.sha256) == (&file.path, &file.sha256))
        });
        Ok(Some(match changed {
            Some(file) => Err(SubmitRefused::FileChanged { job, path: file.path.clone() }),
            None => Ok(Submitted { job, resumed: true }),
        }))
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Expand { job, first, count } => self.expand(job, first, count),
            Command::Reopen { group } => self.reopen(group),
            Command::Record { .. } => self.recorder.notify_one(),
            Command::Disconnect { node, incarnation, reason } => {
                self.links.close(&node, incarnation, reason);
            }
            Command::Identify { ref node, incarnation, .. } => {
                let node = node.clone();
                self.links.send(&node, incarnation, command);
            }
            Command::Start { ref to, .. }
            | Command::Kill { ref to, .. }
            | Command::Release { ref to, .. }
            | Command::AckEnded { ref to, .. } => {
                let (node, incarnation) = (to.node.clone(), to.incarnation);
                self.links.send(&node, incarnation, command);
            }
        }
    }

    /// Rows are read outside the loop; the answer is an event like any other.
    fn expand(&self, job: JobId, first: u32, count: u32) {
        let (jobs, inbox, stop) = (self.jobs.clone(), self.inbox.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let groups = tokio::select! {
                groups = jobs.expand(job, first, count) => groups,
                () = stop.cancelled() => return,
            };
            // A driver that has stopped asks again after its restart.
            let _ = inbox.send(Input::Event(Event::GroupsExpanded { job, first, groups })).await;
        });
    }

    /// Who is run again is decided by what is stored; what is stored since changes that again, so the
    /// core takes each rollout at most once, and only if it is still the one that counts.
    async fn retry(&mut self, pass: &mut Pass, now: Now, retry: Retry) {
        let reply = match self.try_retry(pass, now, &retry).await {
            Ok(reply) => reply,
            Err(refused) => return drop(retry.reply.send(Err(refused))),
        };
        pass.replies.push(Reply::Retried(retry.reply, Box::new(reply)));
    }

    async fn try_retry(
        &mut self,
        pass: &mut Pass,
        now: Now,
        retry: &Retry,
    ) -> Result<v1::RetryReply, RetryRefused> {
        let pending = pass.batch.retry_requests.iter().find(|(key, ..)| *key == retry.key);
        let known = match pending {
            Some((_, hash, reply)) => Some((hash.clone(), reply.clone())),
            None => self.reads.retry_request(&retry.key).await?,
        };
        if let Some((hash, reply)) = known {
            return if hash == retry.request_hash { Ok(reply) } else { Err(RetryRefused::KeyInUse) };
        }
        let job = retry.job;
        let state = match self.cluster.job_state(job) {
            // It is not stored yet that it has ended.
            Some(state) if state.is_final() => return Err(RetryRefused::Ending),
            Some(state) => state,
            None => self.reads.job_state(job).await?.ok_or(RetryRefused::NoJob)?,
        };
        if state == JobState::Cancelling || state == JobState::Cancelled && !retry.scope.cancelled {
            return Err(RetryRefused::Cancelled);
        }
        let found = self.reads.retry_candidates(job, retry.of).await?;
        if found.len() > CANDIDATES_MAX {
            return Err(RetryRefused::TooMany);
        }
        let choice = Choice::of(found, retry.scope);
        let reopened = match state.is_final() && !choice.rollouts.is_empty() {
            true => Some(Box::new(self.stored_job(job, now).await?)),
            false => None,
        };
        let lift = retry.scope.all_failed;
        if reopened.is_some() {
            pass.batch.retried_jobs.push(job);
        }
        let rollouts = choice.rollouts.clone();
        let records = self.cluster.apply(now, Event::RetryAsked { job, reopened, rollouts, lift });
        let asked = records.iter().filter(|record| matches!(record, Record::RetryAsked { .. })).count();
        let lifted = records.iter().any(|record| matches!(record, Record::JobState { .. }));
        pass.batch.records.extend(records);
        let reply = choice.reply(asked as u64);
        if asked == 0 && !lifted && !choice.is_asked() {
            return Err(RetryRefused::Nothing(Box::new(reply)));
        }
        pass.batch.retry_requests.push((retry.key.clone(), retry.request_hash.clone(), reply.clone()));
        Ok(reply)
    }

    /// A job that has ended, to run again. Its timeout counts from now.
    async fn stored_job(&mut self, job: JobId, now: Now) -> Result<JobSnapshot, RetryRefused> {
        let row = self.reads.job(job).await?.ok_or(RetryRefused::NoJob)?;
        let facts = self.jobs.of(&row).await?;
        self.deadlines.add(job, facts.plan.timeout, now.wall, now);
        let none = |index| {
            let problem = format!("group {index} of a job that has ended is not sealed");
            Err(Error::StoreDiverged { problem })
        };
        Ok(self.reads.job_snapshot(&row, facts.plan.clone(), none).await?)
    }

    /// A sealed group is read outside the loop, as rows are.
    fn reopen(&self, group: GroupId) {
        let (jobs, inbox, stop) = (self.jobs.clone(), self.inbox.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let stored = tokio::select! {
                stored = jobs.sealed_group(group) => stored.map(Box::new),
                () = stop.cancelled() => return,
            };
            // A driver that has stopped asks again after its restart.
            let _ = inbox.send(Input::Event(Event::GroupReopened { group, stored })).await;
        });
    }

    /// The books against themselves and against the lease rows.
    async fn reconcile(&mut self) -> Vec<Event> {
        if let Err(violations) = self.cluster.check() {
            tracing::error!(violations = violations.join("; "), "the state in memory contradicts itself");
        }
        let rows = match self.reads.nodes().await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = crate::health::chain(&error), "cannot read the lease rows");
                return Vec::new();
            }
        };
        let stored: BTreeMap<_, _> = rows.into_iter().map(|row| (row.node, row.incarnation)).collect();
        let active = self.links.active().into_iter();
        let missing = active.filter(|(node, incarnation)| stored.get(node) != Some(incarnation));
        missing
            .map(|(node, incarnation)| {
                tracing::warn!(%node, %incarnation, "the lease row is missing");
                Event::LeaseMissing { node, incarnation }
            })
            .collect()
    }
}

fn earliest(a: Option<BootTime>, b: Option<BootTime>) -> Option<BootTime> {
    a.into_iter().chain(b).min()
}

async fn sleep_until(wake_at: Option<BootTime>) {
    let now = clock::boot();
    let left = wake_at.map_or(SLEEP_MAX, |at| Duration::from_micros(at.0.saturating_sub(now.0)));
    tokio::time::sleep(left.min(SLEEP_MAX)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_the_deadlines_of_jobs_that_ended() {
        let mut deadlines = Deadlines::default();
        let now = Now { boot: BootTime(1), wall: Timestamp(1) };
        for bits in 0..1000 {
            let job = JobId::from_bits(bits);
            deadlines.add(job, Some(Millis(86_400_000)), Timestamp(1), now);
            deadlines.forget(&BTreeSet::from([job]));
        }
        assert!(deadlines.0.is_empty(), "{}", deadlines.0.len());
    }

    #[test]
    fn a_job_is_due_when_its_timeout_is_used_up_since_it_was_created() {
        let mut deadlines = Deadlines::default();
        let now = Now { boot: BootTime(50_000_000), wall: Timestamp(100_000_000) };
        let job = JobId::from_bits(1);
        deadlines.add(job, Some(Millis(30_000)), Timestamp(90_000_000), now);
        deadlines.add(JobId::from_bits(2), None, Timestamp(0), now);
        deadlines.add(JobId::from_bits(3), Some(Millis(1)), Timestamp(0), now);
        assert_eq!(deadlines.take_due(now.boot), [(JobId::from_bits(3), Millis(1))]);
        assert_eq!(deadlines.next(), Some(BootTime(70_000_000)));
        assert!(deadlines.take_due(BootTime(69_999_999)).is_empty());
        assert_eq!(deadlines.take_due(BootTime(70_000_000)), [(job, Millis(30_000))]);
        assert_eq!(deadlines.next(), None);
    }
}
