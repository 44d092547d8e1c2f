//! What commands print, as plain values: made from the wire, rendered by `output`. The field
//! names are the names in `--output json`. Times are microseconds since 1970 UTC, lengths
//! milliseconds, sizes bytes; what is unknown is null.

mod checkpoints;
mod sandboxes;

use rollout::plan::Per;
use rollout_wire::v1;
use serde::Serialize;

pub use checkpoints::{
    BlobSum, Change, Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Layer, User,
};
pub use sandboxes::{Copied, Killed, LeftOut, Lifecycle, Sandbox};
#[cfg(test)]
pub use sandboxes::{KillFailure, SandboxEnd};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    pub id: String,
    pub name: String,
    /// As the yard has it, or left it: see `yard_runs`.
    pub state: String,
    /// False where no yard serves the data directory: nothing of the job moves until one does.
    pub yard_runs: bool,
    /// Of `held` and `cancelling`.
    pub reason: Option<String>,
    pub spec_hash: String,
    pub table_root: String,
    pub created_at_us: i64,
    pub finished_at_us: Option<i64>,
    pub group_size: u32,
    pub groups: Groups,
    pub rollouts: RolloutCounts,
    pub steps_running: u64,
    pub steps_ready: u64,
    pub rewards: Rewards,
    pub failures: Vec<FailureCount>,
    pub failure_message: Option<String>,
    /// By step, those that were measured; null where a job is one of many.
    pub memory: Option<Vec<StepMemory>>,
}

/// What the attempts of a step held: anonymous memory and files in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepMemory {
    pub step: String,
    /// Ended and measured.
    pub attempts: u64,
    /// As the spec has it; null where the row does.
    pub request_bytes: Option<u64>,
    /// What a node keeps for its sandbox, files in memory too.
    pub kept_bytes: Option<u64>,
    pub held_most_bytes: u64,
    pub held_p95_bytes: u64,
    /// The largest peak the kernel counted, cached files too.
    pub kernel_peak_bytes: Option<u64>,
    /// The same for people.
    pub told: String,
    pub advice: Option<MemoryAdvice>,
}

/// What to change in the spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryAdvice {
    pub code: String,
    pub field: String,
    pub suggested_bytes: u64,
    pub told: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Groups {
    pub total: u64,
    pub closed: u64,
    /// In the tables.
    pub sealed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolloutCounts {
    pub total: u64,
    pub admitted: u64,
    pub ended: u64,
    /// With a valid reward.
    pub valid: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rewards {
    pub count: u64,
    pub mean: Option<f64>,
    pub successes: u64,
    pub pass_at_k: Vec<PassAtK>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassAtK {
    pub k: u32,
    pub value: f64,
    /// Groups with at least k valid members.
    pub groups: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureCount {
    pub domain: String,
    pub code: String,
    pub rollouts: u64,
    pub example: String,
    pub example_rollout: String,
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rollout {
    pub id: String,
    pub task_id: String,
    pub status: String,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    /// Null unless valid.
    pub reward: Option<f32>,
    pub created_at_us: Option<i64>,
    pub finished_at_us: Option<i64>,
    /// Another one took its place.
    pub superseded: bool,
}

/// What a request to run rollouts again came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Retried {
    pub target: String,
    /// Rollouts that are run again.
    pub retried: u64,
    pub not_retried: Vec<NotRetried>,
    pub job: Option<Job>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotRetried {
    pub code: String,
    pub why: String,
    pub rollouts: u64,
}

impl Retried {
    pub fn new(target: &str, reply: v1::RetryReply) -> Self {
        let reason = |r: v1::NotRetried| NotRetried { code: r.code, why: r.why, rollouts: r.rollouts };
        Self {
            target: target.to_owned(),
            retried: reply.retried,
            not_retried: reply.not_retried.into_iter().map(reason).collect(),
            job: reply.job.map(Job::from),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub code: String,
    pub domain: String,
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// One attempt of a step, or a step that has none yet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    pub step: String,
    pub kind: String,
    /// `group`: run once for all members of the group.
    pub per: String,
    pub state: String,
    pub attempt: Option<u32>,
    pub node: Option<String>,
    pub placed_at_us: Option<i64>,
    pub started_at_us: Option<i64>,
    pub ended_at_us: Option<i64>,
    pub outcome: Option<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub failure: Option<Failure>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub oom: bool,
    pub timed_out: bool,
    pub reward: Option<f32>,
    pub run_ms: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub memory_held_peak_bytes: Option<u64>,
    pub disk_peak_bytes: Option<u64>,
    pub stdout: Captured,
    pub stderr: Captured,
    pub artifacts: Vec<Artifact>,
    pub image_digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Captured {
    pub sha256: Option<String>,
    pub stored_bytes: u64,
    pub written_bytes: u64,
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Artifact {
    pub name: String,
    pub media_type: String,
    pub size_bytes: u64,
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    pub name: String,
    pub state: String,
    pub incarnation: String,
    pub version: String,
    /// Null unless the node is attached: only then it says what it has.
    pub cpu_milli: Option<u64>,
    pub cpu_used_milli: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub disk_used_bytes: Option<u64>,
    pub sandboxes: Option<u32>,
    pub sandboxes_max: Option<u32>,
    /// Attempts the executor said it holds, with its last heartbeat.
    pub held: Option<u32>,
    pub load_milli: Option<u64>,
    pub backends: Vec<String>,
}

/// An image of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageRow {
    pub name: String,
    pub digest: String,
    /// None are counted of an image that is not whole.
    pub layers: usize,
    /// Of its layers as they are stored; layers of several images count for each.
    pub bytes: u64,
    /// What a spec writes to use it.
    pub reference: String,
}

/// What the images of this machine take on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageUsage {
    pub path: String,
    pub images: usize,
    pub blobs: u64,
    pub bytes: u64,
}

/// The answer to `explain`.
/// One table that was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exported {
    pub table: String,
    pub path: String,
    pub rows: u64,
    pub bytes: u64,
}

impl From<datasets::export::Exported> for Exported {
    fn from(copy: datasets::export::Exported) -> Self {
        let (table, path) = (copy.table.to_string(), copy.path.to_string_lossy().into_owned());
        Self { table, path, rows: copy.rows, bytes: copy.bytes }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    pub target: String,
    /// Sentences, the most important first.
    pub lines: Vec<String>,
    /// The same as data.
    pub detail: serde_json::Value,
}

/// A job was accepted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Submitted {
    pub job: Job,
    /// It was there before and goes on.
    pub resumed: bool,
    pub warnings: Vec<serde_json::Value>,
}

/// A spec with a schedule, kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scheduled {
    pub schedule: Schedule,
    /// It took the place of the one of its name.
    pub replaced: bool,
    pub warnings: Vec<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Schedule {
    pub id: String,
    pub name: String,
    pub project: Option<String>,
    pub cron: String,
    pub timezone: String,
    pub enabled: bool,
    pub overlap: String,
    pub catch_up: bool,
    pub spec_hash: String,
    pub created_at_us: i64,
    /// Whether it is enabled or not.
    pub next_at_us: Vec<i64>,
    /// The same, as the clocks of the zone show them.
    pub next: Vec<String>,
    pub last_fire_at_us: Option<i64>,
    pub last_job: Option<String>,
    /// Of the fire that waits for the end of the last job.
    pub waiting_at_us: Option<i64>,
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
    pub failed: u64,
    /// Of the last fire that started no job; empty: none.
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FiredSchedule {
    /// `started`, `waits` or `skipped`.
    pub result: String,
    pub job: Option<String>,
    pub schedule: Schedule,
}

impl From<v1::Schedule> for Schedule {
    fn from(row: v1::Schedule) -> Self {
        Self {
            id: row.id,
            name: row.name,
            project: Some(row.project).filter(|project| !project.is_empty()),
            cron: row.cron,
            timezone: row.timezone,
            enabled: row.enabled,
            overlap: row.overlap,
            catch_up: row.catch_up,
            spec_hash: row.spec_hash,
            created_at_us: row.created_at_us,
            next_at_us: row.next_at_us,
            next: row.next,
            last_fire_at_us: row.last_fire_at_us,
            last_job: row.last_job,
            waiting_at_us: row.waiting_at_us,
            fired: row.fired,
            skipped: row.skipped,
            missed: row.missed,
            failed: row.failed,
            problem: row.problem,
        }
    }
}

/// What `show` shows of a rollout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RolloutSteps {
    pub rollout: String,
    pub task_id: String,
    /// `waiting`, `running`, or a status of the trajectories table.
    pub status: String,
    pub stop_reason: Option<String>,
    pub failure: Option<Failure>,
    /// Null unless valid.
    pub reward: Option<f32>,
    pub created_at_us: Option<i64>,
    pub finished_at_us: Option<i64>,
    /// Another one took its place.
    pub superseded: bool,
    /// All of them, or those of the step that was asked for.
    pub steps: Vec<Step>,
}

impl RolloutSteps {
    pub fn new(rollout: Rollout, steps: Vec<Step>) -> Self {
        Self {
            rollout: rollout.id,
            task_id: rollout.task_id,
            status: rollout.status,
            stop_reason: rollout.stop_reason,
            failure: rollout.failure,
            reward: rollout.reward,
            created_at_us: rollout.created_at_us,
            finished_at_us: rollout.finished_at_us,
            superseded: rollout.superseded,
            steps,
        }
    }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        let counts = job.counts.unwrap_or_default();
        let rewards = job.rewards.unwrap_or_default();
        Self {
            id: job.id,
            name: job.name,
            state: job.state,
            yard_runs: true,
            reason: text(job.reason),
            spec_hash: job.spec_hash,
            table_root: job.table_root,
            created_at_us: job.created_at_us,
            finished_at_us: job.finished_at_us,
            group_size: job.group_size,
            groups: Groups {
                total: counts.groups_total,
                closed: counts.groups_closed,
                sealed: counts.groups_sealed,
            },
            rollouts: RolloutCounts {
                total: counts.rollouts_total,
                admitted: counts.rollouts_admitted,
                ended: counts.rollouts_ended,
                valid: counts.rollouts_valid,
            },
            steps_running: counts.steps_running,
            steps_ready: counts.steps_ready,
            rewards: rewards.into(),
            failures: job.failures.into_iter().map(FailureCount::from).collect(),
            failure_message: job.failure_message,
            memory: job.memory.map(|memory| memory.steps.into_iter().map(StepMemory::from).collect()),
        }
    }
}

impl From<v1::StepMemory> for StepMemory {
    fn from(memory: v1::StepMemory) -> Self {
        let advice = |advice: v1::MemoryAdvice| MemoryAdvice {
            code: advice.code,
            field: advice.field,
            suggested_bytes: advice.suggested_bytes,
            told: advice.told,
        };
        Self {
            step: memory.step,
            attempts: memory.attempts,
            request_bytes: memory.request_bytes,
            kept_bytes: memory.kept_bytes,
            held_most_bytes: memory.held_most_bytes,
            held_p95_bytes: memory.held_p95_bytes,
            kernel_peak_bytes: memory.kernel_peak_bytes,
            told: memory.told,
            advice: memory.advice.map(advice),
        }
    }
}

impl Job {
    /// As the client's yard tells it, which may have ended.
    pub fn told(job: v1::Job, yard_runs: bool) -> Self {
        Self { yard_runs, ..job.into() }
    }

    /// The state as it is now, in words.
    pub fn state_now(&self) -> String {
        if self.yard_runs || self.is_final() {
            return self.state.clone();
        }
        format!("{} (yard is down)", self.state)
    }

    /// Nothing more will happen to it.
    pub fn is_final(&self) -> bool {
        matches!(self.state.as_str(), "finished" | "cancelled")
    }

    pub fn is_held(&self) -> bool {
        self.state == "held"
    }

    /// Rollouts that ended with a failure, whoever is to blame.
    pub fn failed_rollouts(&self) -> u64 {
        self.failures.iter().map(|failure| failure.rollouts).sum()
    }

    /// It ran to its end and at least one rollout gave a valid reward or ended well.
    pub fn went_well(&self) -> bool {
        let some_ended_well = self.rollouts.valid > 0 || self.failed_rollouts() < self.rollouts.ended;
        self.state == "finished" && (some_ended_well || self.rollouts.ended == 0)
    }
}

impl From<v1::Rewards> for Rewards {
    fn from(rewards: v1::Rewards) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a mean of more than 2^53 rewards is not exact")]
        let mean = (rewards.count > 0).then(|| rewards.sum / rewards.count as f64);
        let pass = |p: v1::PassAtK| PassAtK { k: p.k, value: p.value, groups: p.groups };
        Self {
            count: rewards.count,
            mean,
            successes: rewards.successes,
            pass_at_k: rewards.pass_at_k.into_iter().map(pass).collect(),
        }
    }
}

impl From<v1::FailureCount> for FailureCount {
    fn from(failure: v1::FailureCount) -> Self {
        let v1::FailureCount { domain, code, rollouts, example, example_rollout, hint } = failure;
        Self { domain, code, rollouts, example, example_rollout, hint: told(hint) }
    }
}

impl Failure {
    /// What happened, and what to do about it.
    pub fn words(&self) -> String {
        words(&self.message, self.hint.as_deref())
    }
}

impl FailureCount {
    /// Of one of them: the first line of what happened, and what to do about it.
    pub fn words(&self) -> String {
        words(self.example.lines().next().unwrap_or_default(), self.hint.as_deref())
    }
}

fn words(message: &str, hint: Option<&str>) -> String {
    hint.map_or_else(|| message.to_owned(), |hint| format!("{message}; {hint}"))
}

impl From<v1::Failure> for Failure {
    fn from(failure: v1::Failure) -> Self {
        let v1::Failure { code, domain, message, hint } = failure;
        Self { code, domain, message, hint: told(hint) }
    }
}

fn told(hint: String) -> Option<String> {
    Some(hint).filter(|hint| !hint.is_empty())
}

impl From<v1::Rollout> for Rollout {
    fn from(rollout: v1::Rollout) -> Self {
        Self {
            id: rollout.id,
            task_id: rollout.task_id,
            status: rollout.status,
            stop_reason: rollout.stop_reason,
            failure: rollout.failure.map(Failure::from),
            reward: rollout.reward,
            created_at_us: rollout.created_at_us,
            finished_at_us: rollout.finished_at_us,
            superseded: rollout.superseded,
        }
    }
}

impl Step {
    /// Run once for all members of the group.
    pub fn of_group(&self) -> bool {
        self.per == Per::Group.as_str()
    }
}

impl From<v1::StepRow> for Step {
    fn from(row: v1::StepRow) -> Self {
        Self {
            step: row.step,
            kind: row.kind,
            per: row.per,
            state: row.state,
            attempt: row.attempt,
            node: text(row.node),
            placed_at_us: row.placed_at_us,
            started_at_us: row.started_at_us,
            ended_at_us: row.ended_at_us,
            outcome: row.outcome.map(Outcome::from),
        }
    }
}

impl From<v1::Outcome> for Outcome {
    fn from(outcome: v1::Outcome) -> Self {
        let times = outcome.times.unwrap_or_default();
        let usage = outcome.usage.unwrap_or_default();
        Self {
            failure: outcome.failure.map(Failure::from),
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            oom: outcome.oom,
            timed_out: outcome.timed_out,
            reward: outcome.reward.map(|reward| reward.value),
            run_ms: times.run_ms,
            cpu_ms: usage.cpu_ms,
            memory_peak_bytes: usage.memory_peak_bytes,
            memory_held_peak_bytes: usage.memory_held_peak_bytes,
            disk_peak_bytes: usage.disk_peak_bytes,
            stdout: outcome.stdout.map(Captured::from).unwrap_or_default(),
            stderr: outcome.stderr.map(Captured::from).unwrap_or_default(),
            artifacts: outcome.artifacts.into_iter().map(Artifact::from).collect(),
            image_digest: outcome.image_digest,
        }
    }
}

impl From<v1::Captured> for Captured {
    fn from(captured: v1::Captured) -> Self {
        let v1::Captured { sha256, stored_bytes, written_bytes, truncated } = captured;
        Self { sha256, stored_bytes, written_bytes, truncated }
    }
}

impl From<v1::Artifact> for Artifact {
    fn from(artifact: v1::Artifact) -> Self {
        let v1::Artifact { name, media_type, size, sha256 } = artifact;
        Self { name, media_type, size_bytes: size, sha256 }
    }
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Self {
        let capacity = node.capacity.unwrap_or_default();
        let attached = node.state == "attached";
        let long = |value: u64| attached.then_some(value);
        let short = |value: u32| attached.then_some(value);
        Self {
            name: node.name,
            state: node.state,
            incarnation: node.incarnation,
            version: node.version,
            cpu_milli: long(capacity.cpu_milli),
            cpu_used_milli: long(node.used_cpu_milli),
            memory_bytes: long(capacity.memory_bytes),
            memory_used_bytes: long(node.used_memory_bytes),
            memory_available_bytes: long(node.memory_available_bytes),
            disk_bytes: long(capacity.disk_bytes),
            disk_used_bytes: long(node.used_disk_bytes),
            sandboxes: short(node.sandboxes),
            sandboxes_max: short(capacity.sandboxes),
            held: short(node.held),
            load_milli: long(node.load_milli),
            backends: capacity.backends,
        }
    }
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
