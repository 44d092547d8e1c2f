//! The checked plan of a job: what a valid spec means. Made by `spec::check`, read by everyone.
//!
//! Every entry is already valid: names parse, indices point, the DAG has no cycle and `steps` is
//! in a topological order. Inner code takes these types and re-checks nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::BackendKind;
use crate::ids::{RolloutId, StepIndex};
use crate::name::Name;
use crate::quantity::{Bytes, Resources};
use crate::schedule::SchedulePlan;
use crate::time::Millis;

/// The most steps a job may have.
pub const STEPS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct JobPlan {
    pub name: Name,
    pub project: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub tasks: TasksPlan,
    pub group: GroupPlan,
    pub admission: AdmissionPlan,
    /// In a topological order of `needs`; 1..=[`STEPS_MAX`].
    pub steps: Vec<StepPlan>,
    pub output: OutputPlan,
    /// Of its first cell where it has several: a job has one.
    pub matrix: Option<MatrixPlan>,
    /// When it runs; none: once, now.
    pub schedule: Option<SchedulePlan>,
    pub timeout: Option<Millis>,
    /// `sha256:<hex>` over the canonical JSON of the document (defaults not merged in).
    pub spec_hash: String,
}

/// One combination of the values of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixPlan {
    pub values: BTreeMap<String, String>,
    /// Combinations of the whole document.
    pub cells: usize,
    /// Jobs at once; none: all.
    pub max_parallel: Option<usize>,
    /// The others end when one fails.
    pub fail_fast: bool,
}

impl JobPlan {
    /// A sandbox that a client created: one session that nobody has to claim. Nothing of it is recorded.
    pub fn is_sandbox(&self) -> bool {
        self.steps.iter().any(|step| step.work.session().is_some_and(|session| session.unclaimed))
    }

    /// How many jobs the document stands for.
    pub fn cells(&self) -> usize {
        self.matrix.as_ref().map_or(1, |matrix| matrix.cells)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TasksPlan {
    pub source: TaskSource,
    pub filter: Filter,
    pub on_unsupported: OnUnsupported,
    /// None: `row-<index>`.
    pub id: Option<Template>,
    pub split: Split,
    pub epochs: u32,
    /// Columns the spec looks up by `${row.…}` or names in `output.columns`: each row must have
    /// them.
    pub columns_used: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TaskSource {
    /// Rows as written, JSON objects.
    Inline(Vec<serde_json::Map<String, Value>>),
    /// A path relative to the spec file; the client uploads it.
    Jsonl { path: String },
    /// A path relative to the spec file; the client uploads it.
    Parquet {
        path: String,
        /// Those to read; none: all of them.
        columns: Option<Vec<String>>,
    },
    /// A directory of the client; it uploads the rows it made of it under this path.
    Harbor { path: String, generated: Option<Generated> },
}

/// Of a Harbor source without steps in its spec: the steps that were generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generated {
    /// The agent is the task's own solution.
    pub oracle: bool,
    pub mode: EnvironmentMode,
}

/// What a Harbor grader sees of the agent's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentMode {
    /// The files it left.
    Shared,
    /// The artifacts the task declares.
    Separate,
}

impl EnvironmentMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Separate => "separate",
        }
    }
}

impl TaskSource {
    /// What it is called in `tasks.from`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Inline(_) => "inline",
            Self::Jsonl { .. } => "jsonl",
            Self::Parquet { .. } => "parquet",
            Self::Harbor { .. } => "harbor",
        }
    }

    /// The client file that holds the rows, as written in the spec.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Inline(_) => None,
            Self::Jsonl { path } | Self::Parquet { path, .. } | Self::Harbor { path, .. } => Some(path),
        }
    }
}

/// Which rows run; see [`crate::selection`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only the tasks with these ids.
    pub ids: Option<Vec<String>>,
    /// Mixed with the epoch.
    pub shuffle_seed: Option<u64>,
    pub offset: u64,
    pub limit: Option<u64>,
}

/// What becomes of tasks that cannot run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnsupported {
    #[default]
    Error,
    /// They are left out, and said to be.
    Skip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    Train,
    Eval,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlan {
    /// Members delivered, 1..=1024.
    pub size: u32,
    /// Fewest valid rewards for a usable group, 1..=size.
    pub min_valid: u32,
    pub on_incomplete: OnIncomplete,
    /// Refill rounds of one group, 0..=10.
    pub refill_limit: u32,
    /// Members started beyond `size`, 0..=size; when `size` are valid the rest is cancelled.
    pub over_sample: u32,
}

impl GroupPlan {
    /// Members that start with the group.
    pub fn started(&self) -> u32 {
        self.size + self.over_sample
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnIncomplete {
    /// Replace the members that infrastructure lost, then as `Drop`.
    Refill,
    /// Deliver what there is, marked short.
    Deliver,
    /// Below `min_valid` the group closes as dropped; its rows are not trainable.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionPlan {
    /// Rollouts alive at once.
    pub max_running: u32,
    /// 0..=100, larger first.
    pub priority: u8,
    /// Its rollouts are best-effort: they run on what nobody else wants.
    pub burst: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutputPlan {
    /// As written; the client makes a local path absolute before it submits.
    pub table: Option<Template>,
    pub shard: ShardPlan,
    /// Task columns copied into `task_row`.
    pub columns: Vec<String>,
    /// Whether rows of table `artifacts` are written.
    pub artifacts: bool,
    pub retain: RetainPlan,
}

/// How long what a job leaves beside its tables is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainPlan {
    /// Shards, after all consumers have committed them. Nothing is deleted by it while there are no
    /// consumers.
    pub committed: Millis,
    /// Checkpoints of rollouts that did not end well, after those ended.
    pub failed_workspaces: Millis,
    /// All other checkpoints, and the trees that task rows name, after the job ended.
    pub checkpoints: Millis,
}

impl Default for RetainPlan {
    fn default() -> Self {
        const DAY_MS: u64 = 86_400_000;
        Self {
            committed: Millis(7 * DAY_MS),
            failed_workspaces: Millis(DAY_MS),
            checkpoints: Millis(7 * DAY_MS),
        }
    }
}

/// Seal at the first one reached; a group is never split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlan {
    pub rows: u32,
    pub bytes: Bytes,
    pub flush: Millis,
}

impl Default for ShardPlan {
    fn default() -> Self {
        Self { rows: 256, bytes: Bytes(64 << 20), flush: Millis(30_000) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    pub name: Name,
    pub kind: StepKind,
    /// Direct needs, ascending.
    pub needs: Vec<StepIndex>,
    pub per: Per,
    pub origin: Origin,
    pub checkpoint: CheckpointPlan,
    pub work: WorkPlan,
    pub backend: BackendKind,
    pub image: Template,
    /// Read-only layers above the image, last on top: OCI references, or `layer:` texts (see
    /// [`crate::checkpoint::Layer`]) where a row names a tree in the blob store.
    pub layers: Vec<Template>,
    pub user: Template,
    pub workdir: Template,
    pub env: BTreeMap<String, Template>,
    /// One lookup of a column that holds further variables; those of `env` win.
    pub env_column: Option<Template>,
    pub files: Vec<FilePlan>,
    pub inputs: Vec<InputPlan>,
    pub outputs: Vec<OutputDecl<SourcePlan>>,
    pub resources: ResourcesPlan,
    pub timeout: Field<Millis>,
    pub start_timeout: Field<Millis>,
    pub grace: Field<Millis>,
    /// One lookup of a column that holds a [`HealthCheck`], or null.
    pub health_check: Option<Template>,
    pub retry: RetryPlan,
    /// What becomes of its sandbox while nothing runs in it; none: nothing.
    pub idle: Option<IdlePlan>,
    /// Of an agent: what it knows lies in its workspace, so that it may start again from a
    /// checkpoint taken while it ran.
    pub resume: bool,
    /// Iff `kind` is [`StepKind::Grader`].
    pub grader: Option<GraderPlan>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Run,
    Agent,
    Grader,
    /// A sandbox that a driver outside works in.
    Session,
}

impl StepKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Agent => "agent",
            Self::Grader => "grader",
            Self::Session => "session",
        }
    }
}

/// How long an executor may take, once the work is over, to collect its outputs.
pub const COLLECT_MAX: Millis = Millis(600_000);
/// How long a workspace may wait for its turn to be saved.
pub const SAVE_TURN_MAX: Millis = Millis(600_000);
/// How long packing and storing a workspace may take.
pub const SAVE_MAX: Millis = Millis(600_000);
/// From the end of the work to the report of it.
pub const AFTER_WORK_MAX: Millis = Millis(COLLECT_MAX.0 + SAVE_TURN_MAX.0 + SAVE_MAX.0);

/// How often a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    Rollout,
    /// Once for all members of a group, before they fork.
    Group,
}

impl Per {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Group => "group",
        }
    }
}

/// Where the step's workspace comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A new sandbox from the image.
    Image,
    /// Goes on in the live sandbox of this (directly needed) step; if that is gone, in a new one
    /// over its checkpoint. At most one step continues another, and both run equally often.
    Live(StepIndex),
    /// A new sandbox over the checkpoint of this ancestor.
    Checkpoint(StepIndex),
}

impl Origin {
    /// The step whose workspace it is.
    pub const fn step(self) -> Option<StepIndex> {
        match self {
            Self::Image => None,
            Self::Live(step) | Self::Checkpoint(step) => Some(step),
        }
    }
}

/// When a step's workspace is saved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckpointPlan {
    /// When the step has ended well, or in a way that is still graded.
    pub after: bool,
    /// While it runs, so often. Each replaces the one before on the same base.
    pub every: Option<Millis>,
    pub keep: Keep,
    /// Steps with the same key share one result.
    pub key: Option<Template>,
}

/// Which checkpoints taken while a step ran are kept, beside the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    #[default]
    Last,
    All,
    /// The newest so many, 1..=1000.
    Newest(u32),
}

/// What a step does in its sandbox.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkPlan {
    Command(CommandPlan),
    /// Iff the step is a [`StepKind::Session`].
    Session(SessionPlan),
}

impl WorkPlan {
    /// Of a session: none.
    pub const fn command(&self) -> Option<&CommandPlan> {
        match self {
            Self::Command(command) => Some(command),
            Self::Session(_) => None,
        }
    }

    pub const fn session(&self) -> Option<&SessionPlan> {
        match self {
            Self::Command(_) => None,
            Self::Session(session) => Some(session),
        }
    }
}

/// A sandbox that runs no command of its own and serves the calls of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// Without a call for so long it ends.
    pub idle_timeout: Millis,
    /// Recorded actions; none: as many as there is time for.
    pub max_actions: Option<u64>,
    /// Its driver may give the reward: the job has no grader.
    pub takes_reward: bool,
    /// A client created it, and nobody has to claim it.
    pub unclaimed: bool,
}

/// How long a session waits for a call, where its spec does not say.
pub const SESSION_IDLE_TIMEOUT: Millis = Millis(300_000);

/// What becomes of a sandbox in which nothing runs. Its deadlines go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdlePlan {
    /// Time without a running command, or with nothing going on but a model call.
    pub park_after: Millis,
    pub mode: IdleMode,
}

impl Default for IdlePlan {
    fn default() -> Self {
        Self { park_after: Millis(30_000), mode: IdleMode::Freeze }
    }
}

/// How far an idle sandbox goes down the idle ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleMode {
    /// Its processes stop, and give back what memory can be reclaimed.
    Freeze,
    /// Then its files are saved and it ends, to be restored by the next call.
    Checkpoint,
}

impl IdleMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Checkpoint => "checkpoint",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum CommandPlan {
    /// `/bin/sh -e` text, never expanded.
    Shell(String),
    Argv(Vec<Template>),
}

/// Text with `${…}` lookups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template(pub Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    Literal(String),
    /// The path of a lookup, such as `["row", "n"]`.
    Lookup(Vec<String>),
}

impl Template {
    pub fn literal(text: impl Into<String>) -> Self {
        Self(vec![Piece::Literal(text.into())])
    }
    /// The text, if nothing needs to be looked up.
    pub fn as_literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }
}

/// A quantity that is fixed, or looked up per row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field<T> {
    Fixed(T),
    PerRow(Template),
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Self {
        Self::Fixed(value)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourcesPlan {
    Fixed(Resources),
    /// Entries in the order request cpu, memory, disk, limit cpu, memory, disk, pids.
    PerRow(Box<[Field<u64>; 7]>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct FilePlan {
    pub path: Template,
    pub content: FileContent,
    /// Permission bits, as in 0o644.
    pub mode: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum FileContent {
    Text(Template),
    /// A client file, relative to the spec file; uploaded as a blob.
    Client {
        path: String,
    },
}

/// A file placed before start: output `output` of step `step`. Absent if that output is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputPlan {
    pub step: StepIndex,
    pub output: Name,
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputDecl<S = OutputSource> {
    pub name: Name,
    pub source: S,
    pub media_type: String,
    pub max_bytes: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSource {
    /// A file; relative to the step's workdir.
    Path(String),
    /// Standard output of this shell text, run in the same sandbox after the work.
    Command(String),
    /// Files and directories, packed as one artifact of [`TREE_MEDIA_TYPE`]; at most
    /// [`OUTPUT_PATHS_MAX`].
    Paths(Vec<String>),
}

/// Of an artifact that holds several paths.
pub const TREE_MEDIA_TYPE: &str = "application/vnd.rollyard.tree.v1";

/// The most paths of one output.
pub const OUTPUT_PATHS_MAX: usize = 256;

/// Where an output comes from, before lookups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePlan {
    Fixed(OutputSource),
    Paths(Vec<Template>),
    /// One lookup of a column that holds a list of paths.
    PathsOf(Template),
}

impl SourcePlan {
    /// Whether the artifact holds several paths.
    pub const fn is_tree(&self) -> bool {
        match self {
            Self::Fixed(source) => matches!(source, OutputSource::Paths(_)),
            Self::Paths(_) | Self::PathsOf(_) => true,
        }
    }
}

/// `limit` does not count the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPlan {
    pub limit: u32,
    pub backoff: Millis,
    pub max_backoff: Millis,
}

impl Default for RetryPlan {
    fn default() -> Self {
        Self { limit: 3, backoff: Millis(5_000), max_backoff: Millis(300_000) }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraderPlan {
    pub source: RewardSource,
    pub range: Option<(f64, f64)>,
    pub regrades: u32,
    pub on_agent_timeout: OnAgentTimeout,
    pub on_timeout: OnGraderTimeout,
}

impl GraderPlan {
    /// Rewards at or above this count as a success for pass@k.
    pub fn success_at(&self) -> f64 {
        self.range.map_or(1.0, |(_, top)| top)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardSource {
    /// The first of `paths` that exists; `.json` files are an object or a number, others a single
    /// number. `key` none: `reward`, or the only key.
    File { paths: Vec<String>, key: Option<String> },
    /// Exit code -> reward.
    Exit(BTreeMap<i32, f64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAgentTimeout {
    Grade,
    Zero,
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnGraderTimeout {
    Invalid,
    Zero,
}

impl JobPlan {
    pub fn step(&self, index: StepIndex) -> &StepPlan {
        &self.steps[usize::from(index.0)]
    }

    pub fn step_indices(&self) -> impl DoubleEndedIterator<Item = StepIndex> + use<> {
        (0..u8::try_from(self.steps.len()).unwrap_or(u8::MAX)).map(StepIndex)
    }

    /// Whose attempts of `step` are those that `rollout` meets: its own, or those that its group makes
    /// once for all.
    pub fn runner(&self, rollout: RolloutId, step: StepIndex) -> RolloutId {
        match self.step(step).per {
            Per::Rollout => rollout,
            Per::Group => RolloutId::shared(rollout.group),
        }
    }

    /// Steps that start from the workspace of `index`, in its sandbox or from its checkpoint.
    pub fn starting_from(&self, index: StepIndex) -> impl Iterator<Item = StepIndex> + '_ {
        self.step_indices().filter(move |&i| self.step(i).origin.step() == Some(index))
    }

    /// The step that goes on in the live sandbox of `index`, if any.
    pub fn continuation(&self, index: StepIndex) -> Option<StepIndex> {
        self.step_indices().find(|&i| self.step(i).origin == Origin::Live(index))
    }

    /// The first step of the chain of live sandboxes that `index` belongs to.
    pub fn chain_head(&self, mut index: StepIndex) -> StepIndex {
        while let Origin::Live(previous) = self.step(index).origin {
            index = previous;
        }
        index
    }

    /// The chain from its head on: steps that use one sandbox in turn.
    pub fn chain(&self, head: StepIndex) -> Vec<StepIndex> {
        std::iter::successors(Some(head), |&i| self.continuation(i)).collect()
    }
}

/// A step with every lookup done: what the scheduler sends to an executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResolvedStep {
    pub name: Name,
    pub kind: StepKind,
    pub per: Per,
    pub checkpoint: ResolvedCheckpoint,
    pub work: ResolvedWork,
    #[serde(default)]
    pub backend: BackendKind,
    pub image: String,
    pub layers: Vec<String>,
    pub user: String,
    pub workdir: String,
    pub env: BTreeMap<String, String>,
    pub files: Vec<ResolvedFile>,
    pub outputs: Vec<OutputDecl>,
    /// Of the sandbox: the maximum over the steps of its chain.
    pub resources: Resources,
    pub timeout: Millis,
    pub start_timeout: Millis,
    pub grace: Millis,
    pub health_check: Option<HealthCheck>,
    pub idle: Option<IdlePlan>,
    /// Its processes run when nobody else wants the processor, and its sandbox goes down the idle ladder
    /// first.
    #[serde(default)]
    pub best_effort: bool,
    pub grader: Option<GraderPlan>,
}

/// What a step does in its sandbox, with every lookup done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedWork {
    Command(ResolvedCommand),
    /// Iff the step is a [`StepKind::Session`].
    Session(SessionPlan),
}

impl ResolvedWork {
    /// Of a session: none.
    pub const fn command(&self) -> Option<&ResolvedCommand> {
        match self {
            Self::Command(command) => Some(command),
            Self::Session(_) => None,
        }
    }

    pub const fn session(&self) -> Option<&SessionPlan> {
        match self {
            Self::Command(_) => None,
            Self::Session(session) => Some(session),
        }
    }
}

/// A command that has to succeed in a new sandbox before the step's own starts. Its time is part of
/// the start timeout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Shell text.
    pub command: String,
    /// Between a failed try and the next.
    #[serde(rename = "interval_ms")]
    pub interval: Millis,
    /// Of one try.
    #[serde(rename = "timeout_ms")]
    pub timeout: Millis,
    /// So long at the start, failed tries do not count.
    #[serde(rename = "start_period_ms")]
    pub start_period: Millis,
    /// As `interval`, while they do not count.
    #[serde(rename = "start_interval_ms")]
    pub start_interval: Millis,
    /// Failed tries in a row that end it; at least 1.
    pub retries: u32,
}

/// When an executor saves the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResolvedCheckpoint {
    pub after: bool,
    pub every: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedCommand {
    Shell(String),
    Argv(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedFile {
    pub path: String,
    pub content: ResolvedContent,
    pub mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedContent {
    Text(String),
    /// sha256 hex of a blob.
    Blob(String),
}
