//! A batch of records as statements' arguments: what one transaction writes.
//!
//! Records are in order; statements are one per kind. Folding per attempt (and per job, rollout,
//! step and node) keeps the meaning of the order: the last word on a row wins, and what came
//! before a new placement of the same attempt is forgotten with it.

use std::collections::BTreeMap;

use prost::Message;
use rollout::checkpoint::{Checkpoint, Layer};
use rollout::outcome::Usage;
use rollout::plan::RetainPlan;
use rollout::result_key::ResultName;
use rollout::state::{JobState, StepState};
use rollout::{AttemptId, FailureCode, GroupId, JobId, Millis, NodeId, RolloutId, StepIndex, Timestamp};
use rollout_wire::{to_wire, v1};
use scheduler_core::Record;
use scheduler_core::config::BREAKER_WINDOW;
use scheduler_core::record::{CheckpointKind, Hold, LeaseState, RolloutEnd};
use serde_json::{Value, json};

use super::memory::MemoryFold;
use super::sandboxes::JobKind;
use super::schedules::{ScheduleChange, ScheduleWrites};

/// A job as it is first stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    pub job: JobId,
    pub name: String,
    pub document: String,
    pub source_name: String,
    pub spec_hash: String,
    pub table_root: String,
    pub idempotency_key: String,
    /// sha256 over everything the request asks for, hex.
    pub request_hash: String,
    pub groups_total: u32,
    /// Members that start with a group.
    pub group_size: u32,
    pub created_at: Timestamp,
    pub retain: RetainPlan,
    /// Of a job that is the sandbox of a client.
    pub sandbox: Option<NewSandbox>,
    pub files: Vec<StoredFile>,
    /// Of its images, those whose references could come to mean something else.
    pub images: Vec<PinnedImage>,
}

/// What a sandbox of a client has beside its spec.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    pub image: String,
    pub labels: BTreeMap<String, String>,
    /// From its creation until it must be ready.
    pub start_timeout: Millis,
    /// From then until its end.
    pub timeout: Millis,
    /// Without a call until its end.
    pub idle_timeout: Millis,
    /// What it starts with; none: the image as it is.
    pub base: Option<Checkpoint>,
}

/// An image as the spec or a row names it, and by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedImage {
    pub reference: String,
    pub pinned: String,
}

/// A client file, stored by content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    pub path: String,
    pub sha256: String,
    pub size: u64,
}

/// A row of the shard catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRow {
    pub job: JobId,
    pub table_name: String,
    pub shard: String,
    pub rows: u64,
    pub seq_min: i64,
    pub seq_max: i64,
    pub sha256: String,
}

/// What one pass of the driver wants stored. A value: it can be tried again.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub new_jobs: Vec<NewJob>,
    pub records: Vec<Record>,
    pub sealed: Vec<GroupId>,
    pub shards: Vec<ShardRow>,
    /// Of the jobs that end in this batch.
    pub sums: Vec<(JobId, v1::Job)>,
    pub schedules: Vec<ScheduleChange>,
    /// Answered requests to run rollouts again: key, hash and answer.
    pub retry_requests: Vec<(String, String, v1::RetryReply)>,
    /// Jobs that had ended and run again.
    pub retried_jobs: Vec<JobId>,
    /// Executor versions of the nodes in this batch, where known.
    pub versions: BTreeMap<NodeId, String>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.new_jobs.is_empty()
            && self.sealed.is_empty()
            && self.shards.is_empty()
            && self.schedules.is_empty()
            && self.records.is_empty()
            && self.retry_requests.is_empty()
            && self.retried_jobs.is_empty()
    }
}

/// Rows of one bulk statement. An update that meets fewer rows than it names contradicts the
/// state in memory.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Sheet(Vec<Value>);

impl Sheet {
    pub(super) fn json(&self) -> String {
        Value::from(self.0.as_slice()).to_string()
    }
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Value> for Sheet {
    fn from_iter<I: IntoIterator<Item = Value>>(rows: I) -> Self {
        Self(rows.into_iter().collect())
    }
}

/// The arguments of every statement of one transaction, in the order they run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Writes {
    pub new_jobs: Sheet,
    pub sandboxes: Sheet,
    pub files: Sheet,
    pub images: Sheet,
    pub groups: Sheet,
    pub withdrawn: Sheet,
    pub generations: Sheet,
    pub placed: Sheet,
    pub started: Sheet,
    pub ended: Sheet,
    pub step_memory: Sheet,
    pub step_states: Sheet,
    pub step_books: Sheet,
    pub checkpoints: Sheet,
    pub checkpoints_removed: Sheet,
    pub results_dropped: Sheet,
    pub results: Sheet,
    pub results_unused: Sheet,
    pub results_used: Sheet,
    pub retries_asked: Sheet,
    pub retries_settled: Sheet,
    pub retry_requests: Sheet,
    pub retried_jobs: Sheet,
    pub reopened: Sheet,
    pub breaker_ends: Sheet,
    pub refills: Sheet,
    pub rollout_ends: Sheet,
    pub closed: Sheet,
    pub sealed: Sheet,
    pub shards: Sheet,
    pub leases: Sheet,
    pub cursors: Sheet,
    pub job_states: Sheet,
    pub job_sums: Sheet,
    pub fenced: Sheet,
    pub schedules: ScheduleWrites,
}

/// The `seq` of the first group a job closes.
pub(super) const SEQ_FIRST: i64 = 0;
/// Bits of `attempts.position` that count within one commit.
const POSITION_BITS: u32 = 24;

#[derive(Default)]
struct AttemptWrite {
    withdrawn: bool,
    placed: Option<Value>,
    started: Option<Value>,
    ended: Option<Value>,
    /// Of its end.
    usage: Usage,
}

fn rollout_key(id: RolloutId) -> Vec<Value> {
    vec![json!(id.group.job.to_string()), json!(id.group.index), json!(id.sample), json!(id.refill)]
}

fn attempt_key(id: AttemptId) -> Vec<Value> {
    let mut key = rollout_key(id.rollout);
    key.extend([json!(id.step.0), json!(id.attempt)]);
    key
}

fn with(mut key: Vec<Value>, more: impl IntoIterator<Item = Value>) -> Value {
    key.extend(more);
    Value::Array(key)
}

impl Writes {
    pub(super) fn fold(batch: &Batch, commit_seq: u64, now: Timestamp) -> Self {
        let mut folding = Folding::default();
        for (index, record) in batch.records.iter().enumerate() {
            let position = (commit_seq << POSITION_BITS) + index as u64;
            folding.record(record, position, now, &batch.versions);
        }
        let mut writes = folding.writes();
        writes.new_jobs = batch.new_jobs.iter().map(new_job).collect();
        writes.sandboxes = batch.new_jobs.iter().filter_map(sandbox).collect();
        writes.files = batch.new_jobs.iter().flat_map(files).collect();
        writes.images = batch.new_jobs.iter().flat_map(images).collect();
        writes.sealed = batch.sealed.iter().map(|g| json!([g.job.to_string(), g.index])).collect();
        writes.shards = batch.shards.iter().map(shard).collect();
        let sums =
            |(job, sums): &(JobId, v1::Job)| json!([job.to_string(), hex::encode(sums.encode_to_vec())]);
        writes.schedules = ScheduleWrites::of(&batch.schedules);
        let request = |(key, hash, reply): &(String, String, v1::RetryReply)| {
            json!([key, hash, hex::encode(reply.encode_to_vec())])
        };
        writes.retry_requests = batch.retry_requests.iter().map(request).collect();
        writes.retried_jobs = batch.retried_jobs.iter().map(|job| json!([job.to_string()])).collect();
        writes.job_sums = batch.sums.iter().map(sums).collect();
        writes
    }
}

fn new_job(job: &NewJob) -> Value {
    json!([
        job.job.to_string(),
        job.name,
        job.document,
        job.source_name,
        job.spec_hash,
        job.table_root,
        job.idempotency_key,
        job.request_hash,
        job.groups_total,
        job.group_size,
        SEQ_FIRST,
        job.created_at.0,
        micros(job.retain.checkpoints),
        micros(job.retain.failed_workspaces),
        if job.sandbox.is_some() { JobKind::Sandbox } else { JobKind::Rollouts }.as_str(),
    ])
}

fn sandbox(job: &NewJob) -> Option<Value> {
    let NewSandbox { image, labels, start_timeout, timeout, idle_timeout, base } = job.sandbox.as_ref()?;
    let base = base.as_ref().map(|base| hex::encode(to_wire::checkpoint(base).encode_to_vec()));
    let labels = json!(labels).to_string();
    let times = [*start_timeout, *timeout, *idle_timeout].map(micros);
    Some(json!([job.job.to_string(), image, labels, times[0], times[1], times[2], base]))
}

fn micros(time: Millis) -> i64 {
    i64::try_from(time.0.saturating_mul(1_000)).unwrap_or(i64::MAX)
}

fn files(job: &NewJob) -> impl Iterator<Item = Value> {
    job.files.iter().map(|file| json!([job.job.to_string(), file.path, file.sha256, file.size]))
}

fn images(job: &NewJob) -> impl Iterator<Item = Value> {
    job.images.iter().map(|image| json!([job.job.to_string(), image.reference, image.pinned]))
}

fn shard(row: &ShardRow) -> Value {
    json!([row.job.to_string(), row.table_name, row.shard, row.rows, row.seq_min, row.seq_max, row.sha256])
}

/// What a batch says of a rollout to run again, and the last word.
#[derive(Default)]
struct Asked {
    asked: bool,
    settled: bool,
}

#[derive(Default)]
struct Folding {
    attempts: BTreeMap<AttemptId, AttemptWrite>,
    step_states: BTreeMap<(RolloutId, StepIndex), StepState>,
    step_books: BTreeMap<(RolloutId, StepIndex), Value>,
    checkpoints: Vec<Value>,
    checkpoints_removed: Vec<Value>,
    /// None: dropped.
    results: BTreeMap<ResultName, Option<Value>>,
    results_used: BTreeMap<(RolloutId, StepIndex), Option<Value>>,
    retries: BTreeMap<RolloutId, Asked>,
    reopened: Vec<Value>,
    /// By job, step and place in the ring.
    breaker_ends: BTreeMap<(JobId, StepIndex, u64), Value>,
    refills: Vec<Value>,
    rollout_ends: BTreeMap<RolloutId, Value>,
    groups: Vec<Value>,
    closed: BTreeMap<GroupId, Value>,
    leases: BTreeMap<NodeId, Value>,
    cursors: BTreeMap<JobId, (u32, i64)>,
    job_states: BTreeMap<JobId, Value>,
    cancel_codes: BTreeMap<JobId, FailureCode>,
    generations: BTreeMap<(RolloutId, StepIndex), u64>,
    fenced: BTreeMap<NodeId, u64>,
}

impl Folding {
    fn record(
        &mut self,
        record: &Record,
        position: u64,
        now: Timestamp,
        versions: &BTreeMap<NodeId, String>,
    ) {
        match record {
            Record::JobState { job, state, reason, hold, cancel_code, unrecorded } => {
                let finished_at = state.is_final().then_some(now.0);
                let code = cancel_code.or(self.cancel_codes.get(job).copied());
                self.cancel_codes.extend(code.map(|code| (*job, code)));
                let code = code.map(|code| code.as_str());
                let hold = hold.map(Hold::as_str);
                let state = JobState::as_str(*state);
                let row = json!([job.to_string(), state, reason, finished_at, code, hold, unrecorded]);
                self.job_states.insert(*job, row);
            }
            Record::GroupsAdmitted { job, first, count } => {
                let behind = first.saturating_add(*count);
                self.groups.extend((*first..behind).map(|index| json!([job.to_string(), index])));
                let cursor = self.cursors.entry(*job).or_insert((0, SEQ_FIRST));
                cursor.0 = cursor.0.max(behind);
            }
            Record::AttemptPlaced { attempt, generation, node, incarnation, continue_from, base } => {
                let row = with(
                    attempt_key(*attempt),
                    [
                        json!(generation.0),
                        json!(node.0.as_str()),
                        json!(incarnation.to_string()),
                        json!(continue_from.map(|a| a.step.0)),
                        json!(continue_from.map(|a| a.attempt)),
                        json!(position),
                        json!(base.map(|base| base.to_string())),
                    ],
                );
                let write = AttemptWrite { placed: Some(row), ..AttemptWrite::default() };
                self.attempts.insert(*attempt, write);
            }
            Record::AttemptStarted { attempt, generation, started_at } => {
                let row = with(attempt_key(*attempt), [json!(generation.0), json!(started_at.0)]);
                self.attempts.entry(*attempt).or_default().started = Some(row);
            }
            Record::AttemptEnded { attempt, generation, outcome, kept } => {
                let bytes = to_wire::outcome(outcome).encode_to_vec();
                let row = with(
                    attempt_key(*attempt),
                    [json!(generation.0), json!(hex::encode(bytes)), json!(i32::from(*kept))],
                );
                let write = self.attempts.entry(*attempt).or_default();
                (write.ended, write.usage) = (Some(row), outcome.usage);
            }
            Record::AttemptWithdrawn { attempt, generation } => {
                self.generations.insert((attempt.rollout, attempt.step), generation.0);
                let write = AttemptWrite { withdrawn: true, ..AttemptWrite::default() };
                self.attempts.insert(*attempt, write);
            }
            Record::CheckpointTaken { attempt, ordinal, kind, checkpoint } => {
                self.checkpoints.push(taken(*attempt, *ordinal, *kind, checkpoint));
            }
            Record::CheckpointRemoved { attempt, ordinal, why } => {
                self.checkpoints_removed.push(with(attempt_key(*attempt), [json!(ordinal), json!(why)]));
            }
            Record::ResultStored { name, attempt, checkpoint } => {
                let row = stored_result(name, position, *attempt, checkpoint);
                self.results.insert(name.clone(), Some(row));
            }
            Record::ResultDropped { name, .. } => {
                self.results.insert(name.clone(), None);
            }
            Record::ResultUsed { rollout, step, name, checkpoint } => {
                let row = with(
                    rollout_key(*rollout),
                    [
                        json!(step.0),
                        json!(name.key),
                        json!(checkpoint.id().to_string()),
                        json!(hex::encode(to_wire::checkpoint(checkpoint).encode_to_vec())),
                    ],
                );
                self.results_used.insert((*rollout, *step), Some(row));
            }
            Record::ResultUnused { rollout, step } => {
                self.results_used.insert((*rollout, *step), None);
            }
            Record::StepState { rollout, step, state } => {
                self.step_states.insert((*rollout, *step), *state);
            }
            Record::StepBooks { rollout, step, books } => {
                let not_before = books.not_before.map(|at| at.0);
                let row = with(
                    rollout_key(*rollout),
                    [
                        json!(step.0),
                        json!(books.chain_breaks),
                        json!(books.refusals),
                        json!(not_before),
                        json!(i32::from(books.anew)),
                    ],
                );
                self.step_books.insert((*rollout, *step), row);
            }
            Record::BreakerEnd { job, end } => {
                let slot = end.number % BREAKER_WINDOW as u64;
                let code = end.code.map(|code| code.as_str());
                let row = json!([job.to_string(), end.step.0, slot, end.number, code]);
                self.breaker_ends.insert((*job, end.step, slot), row);
            }
            Record::RolloutRefilled { rollout } => {
                self.refills.push(Value::Array(rollout_key(*rollout)));
            }
            Record::RetryAsked { rollout } => {
                self.retries.insert(*rollout, Asked { asked: true, settled: false });
            }
            Record::RetrySettled { rollout } => {
                self.retries.entry(*rollout).or_default().settled = true;
            }
            Record::GroupReopened { group } => {
                self.reopened.push(json!([group.job.to_string(), group.index]));
            }
            Record::RolloutEnded { rollout, end } => {
                self.rollout_ends.insert(*rollout, rollout_end(*rollout, end));
            }
            Record::GroupClosed { group, seq, closed_as, valid } => {
                let row = json!([group.job.to_string(), group.index, seq, closed_as.as_str(), valid]);
                self.closed.insert(*group, row);
                let cursor = self.cursors.entry(group.job).or_insert((0, SEQ_FIRST));
                cursor.1 = cursor.1.max(seq.saturating_add(1));
            }
            Record::Lease { node, incarnation, state } => {
                let version = versions.get(node).map_or("", String::as_str);
                let row = json!([node.0.as_str(), incarnation.to_string(), lease_word(*state), version]);
                self.leases.insert(node.clone(), row);
            }
            // A fenced report changed nothing: how many there were is all there is to keep.
            Record::Fenced { node, .. } => *self.fenced.entry(node.clone()).or_default() += 1,
        }
    }

    fn writes(self) -> Writes {
        let mut writes = Writes::default();
        let mut memory = MemoryFold::default();
        for (id, write) in self.attempts {
            memory.ended(id.rollout.group.job, id.step, &write.usage);
            if write.withdrawn {
                writes.withdrawn.0.push(Value::Array(attempt_key(id)));
            }
            writes.placed.0.extend(write.placed);
            writes.started.0.extend(write.started);
            writes.ended.0.extend(write.ended);
        }
        writes.step_memory = memory.rows();
        writes.groups = self.groups.into_iter().collect();
        writes.step_states = self
            .step_states
            .into_iter()
            .map(|((rollout, step), state)| {
                with(rollout_key(rollout), [json!(step.0), json!(state.as_str())])
            })
            .collect();
        writes.step_books = self.step_books.into_values().collect();
        writes.checkpoints = self.checkpoints.into_iter().collect();
        writes.checkpoints_removed = self.checkpoints_removed.into_iter().collect();
        for (name, row) in self.results {
            match row {
                Some(row) => writes.results.0.push(row),
                None => writes.results_dropped.0.push(json!([name.project, name.key])),
            }
        }
        for ((rollout, step), row) in self.results_used {
            match row {
                Some(row) => writes.results_used.0.push(row),
                None => writes.results_unused.0.push(with(rollout_key(rollout), [json!(step.0)])),
            }
        }
        for (rollout, word) in self.retries {
            let key = || Value::Array(rollout_key(rollout));
            writes.retries_asked.0.extend(word.asked.then(key));
            writes.retries_settled.0.extend(word.settled.then(key));
        }
        writes.reopened = self.reopened.into_iter().collect();
        writes.breaker_ends = self.breaker_ends.into_values().collect();
        writes.generations = self
            .generations
            .into_iter()
            .map(|((rollout, step), generation)| {
                with(rollout_key(rollout), [json!(step.0), json!(generation)])
            })
            .collect();
        writes.refills = self.refills.into_iter().collect();
        writes.rollout_ends = self.rollout_ends.into_values().collect();
        writes.closed = self.closed.into_values().collect();
        writes.leases = self.leases.into_values().collect();
        writes.cursors = self
            .cursors
            .into_iter()
            .map(|(job, (group, seq))| json!([job.to_string(), group, seq]))
            .collect();
        writes.job_states = self.job_states.into_values().collect();
        writes.fenced =
            self.fenced.into_iter().map(|(node, reports)| json!([node.0.as_str(), reports])).collect();
        writes
    }
}

fn taken(attempt: AttemptId, ordinal: u32, kind: CheckpointKind, checkpoint: &Checkpoint) -> Value {
    let sum = |of: fn(&Layer) -> u64| checkpoint.layers.iter().map(of).fold(0, u64::saturating_add);
    with(
        attempt_key(attempt),
        [
            json!(ordinal),
            json!(checkpoint.id().to_string()),
            json!(checkpoint.image),
            json!(hex::encode(to_wire::checkpoint(checkpoint).encode_to_vec())),
            json!(sum(|layer| layer.packed.0)),
            json!(sum(|layer| layer.content.0)),
            json!(kind.as_str()),
        ],
    )
}

fn stored_result(name: &ResultName, position: u64, made_by: AttemptId, checkpoint: &Checkpoint) -> Value {
    let sum = |of: fn(&Layer) -> u64| checkpoint.layers.iter().map(of).fold(0, u64::saturating_add);
    json!([
        name.project,
        name.key,
        position,
        made_by.to_string(),
        checkpoint.id().to_string(),
        checkpoint.image,
        hex::encode(to_wire::checkpoint(checkpoint).encode_to_vec()),
        sum(|layer| layer.packed.0),
        sum(|layer| layer.content.0),
    ])
}

fn rollout_end(rollout: RolloutId, end: &RolloutEnd) -> Value {
    let failure = end.failure.as_ref();
    let reward = end.reward.as_ref();
    with(
        rollout_key(rollout),
        [
            json!(end.status.as_str()),
            json!(end.stop_reason),
            json!(failure.map(|f| f.domain.as_str())),
            json!(failure.map(|f| f.code.as_str())),
            json!(failure.map(|f| f.message.as_str())),
            json!(reward.map(|r| f64::from(r.value))),
            json!(reward.map(|r| hex::encode(to_wire::reward(r).encode_to_vec()))),
        ],
    )
}

pub(super) const fn lease_word(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Alive => "alive",
        LeaseState::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use rollout::{Generation, IncarnationId};

    use super::*;

    fn attempt() -> AttemptId {
        let group = GroupId { job: JobId::from_bits(1), index: 2 };
        AttemptId { rollout: RolloutId { group, sample: 3, refill: 0 }, step: StepIndex(4), attempt: 5 }
    }

    fn placed(generation: u64) -> Record {
        Record::AttemptPlaced {
            attempt: attempt(),
            generation: Generation(generation),
            node: NodeId("n1".parse().unwrap()),
            incarnation: IncarnationId::from_bits(9),
            continue_from: None,
            base: None,
        }
    }

    fn fold(records: Vec<Record>) -> Writes {
        Writes::fold(&Batch { records, ..Batch::default() }, 1, Timestamp(7))
    }

    #[tokio::test]
    async fn fenced_reports_are_counted_by_node_over_commits() {
        use sqlx::Row;
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _reads, _) = crate::store::open(dir.path(), None).await.unwrap();
        let fenced = |node: &str| Record::Fenced {
            node: NodeId(node.parse().unwrap()),
            incarnation: IncarnationId::from_bits(9),
            generation: Generation(1),
            attempt: attempt(),
        };
        for (records, at) in [(vec![fenced("n1"), fenced("n2"), fenced("n1")], 5), (vec![fenced("n1")], 6)] {
            let batch = Batch { records, ..Batch::default() };
            assert!(!batch.is_empty());
            writer.commit(&batch, Timestamp(at)).await.unwrap();
        }
        let rows = sqlx::query("SELECT node, reports, last_at FROM fenced ORDER BY node")
            .fetch_all(writer.connection().await.unwrap())
            .await
            .unwrap();
        let rows: Vec<(String, i64, i64)> = rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
        assert_eq!(rows, [("n1".to_owned(), 3, 6), ("n2".to_owned(), 1, 5)]);
    }

    #[test]
    fn a_placement_after_a_withdrawal_in_one_batch_stays() {
        let withdrawn = Record::AttemptWithdrawn { attempt: attempt(), generation: Generation(1) };
        let writes = fold(vec![withdrawn.clone(), placed(2)]);
        assert_eq!((writes.withdrawn.len(), writes.placed.len()), (0, 1));
        let writes = fold(vec![placed(1), withdrawn]);
        assert_eq!((writes.withdrawn.len(), writes.placed.len()), (1, 0));
    }

    #[test]
    fn a_new_placement_forgets_the_start_of_the_old_one() {
        let started = Record::AttemptStarted {
            attempt: attempt(),
            generation: Generation(1),
            started_at: Timestamp(1),
        };
        let writes = fold(vec![started, placed(2)]);
        assert_eq!((writes.started.len(), writes.placed.len()), (0, 1));
    }

    #[test]
    fn the_last_word_on_a_job_wins() {
        let job = JobId::from_bits(1);
        let state = |state| Record::JobState {
            job,
            state,
            reason: String::new(),
            hold: None,
            cancel_code: None,
            unrecorded: None,
        };
        let writes = fold(vec![state(JobState::Cancelling), state(JobState::Cancelled)]);
        assert_eq!(writes.job_states.json(), format!("[[\"{job}\",\"cancelled\",\"\",7,null,null,null]]"));
    }
}
