//! From a closed group to one record batch per table.
//!
//! Without a model proxy there are no turns, no messages and no token columns: those columns are
//! null, no row is trainable, and no text is tokenized to fill them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::sync::Arc;

use arrow::array::{Float64Builder, ListBuilder, StringBuilder, StructBuilder};
use arrow::datatypes::{DataType, Int16Type, Int32Type, Int64Type};
use arrow::record_batch::RecordBatch;
use rollout::failure::{FAILURE_MESSAGE_BYTES_MAX, Status};
use rollout::outcome::{Artifact, Captured};
use rollout::plan::{Split, StepKind};
use rollout::{Bytes, Millis};
use sha2::Digest as _;

use crate::Error;
use crate::frame::Frame;
use crate::record::{GroupRecord, MemberRecord, StepRecord};
use crate::rules;
use crate::schema::{Kind, Table};

/// The most rows of one group in one table.
pub const GROUP_ROWS_MAX: usize = rollout::spec::GROUP_ROWS_MAX;
/// The largest artifact stored in its row, in bytes.
pub const INLINE_BYTES_MAX: u64 = 64 << 10;
/// The most bytes of artifacts stored in the rows of one group; those beyond are named only.
pub const GROUP_INLINE_BYTES_MAX: u64 = 64 << 20;

/// Column `extra` of a rollout whose agent did nothing that shows.
const ZERO_ACTIVITY: &str = r#"{"zero_activity":true}"#;

/// Fetches a small blob: its sha256 in hex and the most bytes wanted. None leaves `inline` null,
/// as where artifacts are not to be inlined at all.
pub type Fetch<'a> = dyn Fn(&str, u64) -> Result<Option<Vec<u8>>, FetchError> + 'a;
pub type FetchError = Box<dyn StdError + Send + Sync>;

/// A [`Fetch`] that inlines nothing.
pub fn no_inline(_sha256: &str, _bytes_max: u64) -> Result<Option<Vec<u8>>, FetchError> {
    Ok(None)
}

/// The rows of one group. A table without a row for it has an empty batch.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupBatches {
    pub trajectories: RecordBatch,
    pub turns: RecordBatch,
    pub steps: RecordBatch,
    pub artifacts: RecordBatch,
}

impl GroupBatches {
    /// None for the tables this version does not write.
    pub fn of(&self, table: Table) -> Option<&RecordBatch> {
        match table {
            Table::Trajectories => Some(&self.trajectories),
            Table::Turns => Some(&self.turns),
            Table::Steps => Some(&self.steps),
            Table::Artifacts => Some(&self.artifacts),
            Table::Events | Table::Tensors => None,
        }
    }
}

/// Builds and checks the rows of `group`, without those of rollouts that a refill replaced. `fetch` is
/// called for artifacts of at most [`INLINE_BYTES_MAX`] bytes.
pub fn batches(group: &GroupRecord, fetch: &Fetch<'_>) -> Result<GroupBatches, Error> {
    if group.members.iter().all(|member| !member.superseded) {
        return made(group, fetch);
    }
    let members = group.members.iter().filter(|member| !member.superseded).cloned().collect();
    made(&GroupRecord { members, ..group.clone() }, fetch)
}

/// The rows of the rollouts of `group` that a refill replaced, if there are any.
pub fn superseded_batches(group: &GroupRecord, fetch: &Fetch<'_>) -> Result<Option<GroupBatches>, Error> {
    let members: Vec<_> = group.members.iter().filter(|member| member.superseded).cloned().collect();
    if members.is_empty() {
        return Ok(None);
    }
    made(&GroupRecord { members, shared: Vec::new(), ..group.clone() }, fetch).map(Some)
}

fn made(group: &GroupRecord, fetch: &Fetch<'_>) -> Result<GroupBatches, Error> {
    check(group)?;
    let made = GroupBatches {
        trajectories: trajectories(group)?,
        turns: RecordBatch::new_empty(Table::Turns.schema()),
        steps: steps(group)?,
        artifacts: artifacts(group, fetch)?,
    };
    for table in Table::WRITTEN {
        made.of(table).map_or(Ok(()), |batch| rules::check(table, batch))?;
    }
    Ok(made)
}

fn check(group: &GroupRecord) -> Result<(), Error> {
    let name = || group.group.to_string();
    let contradiction = |what: String| Err(Error::Contradiction { group: name(), seq: group.seq, what });
    if group.seq < 0 {
        return contradiction("its seq is negative".to_owned());
    }
    if group.members.is_empty() {
        return contradiction("it has no members".to_owned());
    }
    let most = |what, found: usize| match found {
        0..=GROUP_ROWS_MAX => Ok(()),
        _ => Err(Error::TooMany { group: name(), what, found: found as u64, max: GROUP_ROWS_MAX as u64 }),
    };
    most("members", group.members.len())?;
    most("steps", group.members.iter().map(|m| m.steps.len()).sum::<usize>() + group.shared.len())?;
    let mut seen = BTreeSet::new();
    for member in &group.members {
        let rollout = member.rollout;
        if rollout.group != group.group {
            return contradiction(format!("rollout {rollout} is of another group"));
        }
        if !seen.insert(rollout) {
            return contradiction(format!("rollout {rollout} is there twice"));
        }
        if member.superseded && member.reward.is_some() {
            return contradiction(format!("rollout {rollout} has a reward and was replaced"));
        }
        let failure = member.failure.as_ref();
        if let (Some(failure), Some(_)) = (failure, &member.reward)
            && !failure.code.consequence().has_valid_reward
            && !is_labelled_zero(failure, member)
        {
            return contradiction(format!("rollout {rollout} has a reward and failed with {}", failure.code));
        }
        if let Some(reward) = &member.reward
            && !reward.value.is_finite()
        {
            return contradiction(format!("the reward of rollout {rollout} is {}", reward.value));
        }
        if matches!(member.status, Status::Failed | Status::Cancelled) && failure.is_none() {
            let status = member.status.as_str();
            return contradiction(format!("rollout {rollout} is {status} without a failure"));
        }
        let messages =
            failure.into_iter().chain(member.steps.iter().filter_map(|s| s.outcome.failure.as_ref()));
        if messages.into_iter().any(|failure| failure.message.len() > FAILURE_MESSAGE_BYTES_MAX) {
            return contradiction(format!("a failure message of rollout {rollout} is too long"));
        }
    }
    let valid = group.members.iter().filter(|m| m.reward.is_some()).count();
    let replaced = group.members.iter().all(|member| member.superseded);
    if !replaced && valid as u64 != u64::from(group.group_valid) {
        return contradiction(format!(
            "group_valid is {}, but {valid} members have a reward",
            group.group_valid
        ));
    }
    if let Some(row) = &group.task_row
        && let Err(error) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(row)
    {
        return contradiction(format!("its task row is not a JSON object: {error}"));
    }
    Ok(())
}

/// The attempt that produced the row: the last one of the last step that is no grader.
fn producer(member: &MemberRecord) -> Option<&StepRecord> {
    member.steps.iter().rev().find(|step| step.kind != StepKind::Grader).or(member.steps.last())
}

fn node(step: &StepRecord) -> &str {
    step.node.as_ref().map_or("", |node| node.0.as_str())
}

fn checkpoint_left(step: &StepRecord) -> Option<String> {
    Some(step.outcome.checkpoint.as_ref()?.id().to_string())
}

/// The last attempt of every step, in the order they ended.
fn last_attempts(member: &MemberRecord) -> Vec<&StepRecord> {
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, step) in member.steps.iter().enumerate() {
        last.insert(step.step_name.as_str(), index);
    }
    let mut indexes: Vec<usize> = last.into_values().collect();
    indexes.sort_unstable();
    indexes.into_iter().map(|index| &member.steps[index]).collect()
}

/// An agent ended at its deadline, and nothing shows that it did anything: no byte of output and no
/// declared output.
fn has_no_activity(member: &MemberRecord) -> bool {
    let silent = |stream: &Captured| stream.written == Bytes(0) && stream.sha256.is_none();
    last_attempts(member).into_iter().any(|step| {
        let outcome = &step.outcome;
        step.kind == StepKind::Agent
            && outcome.timed_out
            && outcome.times.started_at.is_some()
            && silent(&outcome.stdout)
            && silent(&outcome.stderr)
            && outcome.artifacts.is_empty()
    })
}

/// Recorded actions of the sessions.
fn actions(member: &MemberRecord) -> i32 {
    let of = |step: &StepRecord| step.outcome.actions.unwrap_or_default();
    let all = last_attempts(member).into_iter().map(of).fold(0, u64::saturating_add);
    i32::try_from(all).unwrap_or(i32::MAX)
}

/// None if nothing was measured.
fn total(
    member: &MemberRecord,
    wanted: impl Fn(StepKind) -> bool,
    time: impl Fn(&StepRecord) -> Option<Millis>,
) -> Option<u64> {
    let steps = last_attempts(member).into_iter().filter(|step| wanted(step.kind));
    steps.filter_map(time).map(|ms| ms.0).reduce(u64::saturating_add)
}

fn trajectories(group: &GroupRecord) -> Result<RecordBatch, Error> {
    let (group_id, job_id) = (group.group.to_string(), group.group.job.to_string());
    let from = &group.provenance;
    let grader = |kind| kind == StepKind::Grader;
    let mut f = Frame::new(Table::Trajectories, &group.members, group.seq)?;
    f.text("trajectory_id", |m| Some(m.rollout.to_string()))?;
    f.text("job_id", |_| Some(&job_id))?;
    f.text("task_id", |_| Some(&group.task_id))?;
    f.text("group_id", |_| Some(&group_id))?;
    f.int::<Int32Type, _>("sample_index", |m| Some(m.rollout.sample))?;
    f.int::<Int32Type, _>("group_size", |_| Some(group.group_size))?;
    f.int::<Int32Type, _>("attempt", |m| Some(producer(m).map_or(0, |step| step.attempt)))?;
    f.int::<Int32Type, _>("group_valid", |_| Some(group.group_valid))?;
    f.int::<Int32Type, _>("group_epoch", |_| Some(group.epoch))?;
    f.int::<Int32Type, _>("refill_round", |m| Some(m.rollout.refill))?;
    f.text("group_closed_as", |_| Some(group.closed_as.as_str()))?;
    f.flag("superseded", |m| m.superseded);
    f.int::<Int16Type, _>("branch_index", |_| Some(0i16))?;
    f.int::<Int16Type, _>("branch_count", |_| Some(1i16))?;
    f.text("split", |_| Some(split(group)))?;
    f.text("status", |m| Some(m.status.as_str()))?;
    f.text("stop_reason", |m| m.stop_reason.as_deref())?;
    f.text("failure_domain", |m| Some(m.failure.as_ref()?.domain.as_str()))?;
    f.text("failure_code", |m| Some(m.failure.as_ref()?.code.as_str()))?;
    f.text("failure_message", |m| Some(&*m.failure.as_ref()?.message))?;
    f.flag("reward_valid", |m| m.reward.is_some());
    f.flag("trainable", |_| false);
    f.float32("reward", |m| m.reward.as_ref().map(|reward| reward.value));
    f.int::<Int32Type, _>("n_turns", |_| Some(0i32))?;
    f.int::<Int32Type, _>("n_tool_calls", |m| Some(actions(m)))?;
    f.int::<Int32Type, _>("n_tool_errors", |_| Some(0i32))?;
    f.text("image_digest", |m| Some(producer(m).map_or("", |step| &*step.outcome.image_digest)))?;
    f.text("spec_hash", |_| Some(&from.spec_hash))?;
    f.text("task_hash", |_| Some(&from.task_hash))?;
    f.text("rules_hash", |_| Some(&from.rules_hash))?;
    f.text("ckpt_start", |m| producer(m)?.base.map(|id| id.to_string()))?;
    f.text("ckpt_end", |m| checkpoint_left(producer(m)?))?;
    f.text("node_id", |m| Some(producer(m).map_or("", node)))?;
    f.text("yard_id", |_| Some(&from.yard_id))?;
    f.text("executor_version", |_| Some(&from.executor_version))?;
    f.time("created_at", |m| m.created_at);
    f.time("started_at", |m| m.started_at);
    f.time("finished_at", |m| m.finished_at);
    f.int::<Int64Type, _>("dur_queue_ms", |m| total(m, |_| true, |step| step.queue))?;
    f.int::<Int64Type, _>("dur_boot_ms", |m| total(m, |_| true, |step| step.outcome.times.boot))?;
    f.int::<Int64Type, _>("dur_env_ms", |m| total(m, |kind| !grader(kind), |step| step.outcome.times.run))?;
    f.int::<Int64Type, _>("dur_grade_ms", |m| total(m, grader, |step| step.outcome.times.run))?;
    f.array("reward_components", Arc::new(reward_components(&group.members)));
    f.text("extra", |m| has_no_activity(m).then_some(ZERO_ACTIVITY))?;
    f.text("task_row", |_| group.task_row.as_deref())?;
    f.finish(&Table::Trajectories.schema())
}

const fn split(group: &GroupRecord) -> &'static str {
    match group.split {
        Split::Train => "train",
        Split::Eval => "eval",
    }
}

/// Null without a valid reward, else the other keys of the reward file; weights are not known.
fn reward_components(members: &[MemberRecord]) -> arrow::array::ListArray {
    let fields = match Kind::RewardComponents.data_type() {
        DataType::List(item) => match item.data_type() {
            DataType::Struct(fields) => fields.clone(),
            _ => Default::default(),
        },
        _ => Default::default(),
    };
    let mut list = ListBuilder::new(StructBuilder::from_fields(fields, members.len()));
    for member in members {
        for (name, value) in member.reward.iter().flat_map(|reward| &reward.components) {
            let row = list.values();
            if let Some(names) = row.field_builder::<StringBuilder>(0) {
                names.append_value(name);
            }
            if let Some(values) = row.field_builder::<Float64Builder>(1) {
                values.append_value(*value);
            }
            if let Some(weights) = row.field_builder::<Float64Builder>(2) {
                weights.append_null();
            }
            row.append(true);
        }
        list.append(member.reward.is_some());
    }
    list.finish()
}

struct StepRow<'g> {
    /// None for a step of the whole group.
    trajectory_id: Option<String>,
    step: &'g StepRecord,
    stdout: Option<String>,
    stderr: Option<String>,
}

fn steps(group: &GroupRecord) -> Result<RecordBatch, Error> {
    let group_id = group.group.to_string();
    let mut rows = Vec::new();
    let of_members = group.members.iter().flat_map(|m| m.steps.iter().map(move |step| (Some(m), step)));
    for (member, step) in group.shared.iter().map(|step| (None, step)).chain(of_members) {
        let captured = |stream: &Captured| stream.sha256.as_deref().map(|hex| uri(group, hex)).transpose();
        let (stdout, stderr) = (captured(&step.outcome.stdout)?, captured(&step.outcome.stderr)?);
        let trajectory_id = member.map(|member| member.rollout.to_string());
        rows.push(StepRow { trajectory_id, step, stdout, stderr });
    }
    let bytes = |size: Option<Bytes>| size.map(|size| size.0);
    let ms = |time: Option<Millis>| time.map(|time| time.0);
    let mut f = Frame::new(Table::Steps, &rows, group.seq)?;
    f.text("group_id", |_| Some(&group_id))?;
    f.text("trajectory_id", |r| r.trajectory_id.as_deref())?;
    f.text("step_name", |r| Some(&r.step.step_name))?;
    f.int::<Int32Type, _>("attempt", |r| Some(r.step.attempt))?;
    f.text("kind", |r| Some(r.step.kind.as_str()))?;
    f.text("node_id", |r| Some(node(r.step)))?;
    f.int::<Int32Type, _>("exit_code", |r| r.step.outcome.exit_code)?;
    f.int::<Int16Type, _>("signal", |r| r.step.outcome.signal)?;
    f.flag("oom", |r| r.step.outcome.oom);
    f.flag("timed_out", |r| r.step.outcome.timed_out);
    f.flag("capture_truncated", |r| r.step.outcome.stdout.truncated || r.step.outcome.stderr.truncated);
    f.text("failure_domain", |r| Some(r.step.outcome.failure.as_ref()?.domain.as_str()))?;
    f.text("failure_code", |r| Some(r.step.outcome.failure.as_ref()?.code.as_str()))?;
    f.int::<Int64Type, _>("queue_ms", |r| ms(r.step.queue))?;
    f.int::<Int64Type, _>("boot_ms", |r| ms(r.step.outcome.times.boot))?;
    f.int::<Int64Type, _>("run_ms", |r| ms(r.step.outcome.times.run))?;
    f.int::<Int64Type, _>("ckpt_ms", |r| ms(r.step.outcome.times.checkpoint))?;
    f.int::<Int64Type, _>("cpu_ms", |r| ms(r.step.outcome.usage.cpu))?;
    f.int::<Int64Type, _>("rss_peak_bytes", |r| bytes(r.step.outcome.usage.memory_peak))?;
    f.int::<Int64Type, _>("disk_peak_bytes", |r| bytes(r.step.outcome.usage.disk_peak))?;
    f.text("ckpt_in", |r| r.step.base.map(|id| id.to_string()))?;
    f.text("ckpt_out", |r| checkpoint_left(r.step))?;
    f.text("stdout_artifact", |r| r.stdout.as_deref())?;
    f.text("stderr_artifact", |r| r.stderr.as_deref())?;
    f.int::<Int64Type, _>("memory_held_peak_bytes", |r| bytes(r.step.outcome.usage.memory_held_peak))?;
    f.finish(&Table::Steps.schema())
}

struct ArtifactRow<'g> {
    trajectory_id: String,
    step: &'g StepRecord,
    artifact: &'g Artifact,
    uri: String,
    inline: Option<Vec<u8>>,
}

fn artifacts(group: &GroupRecord, fetch: &Fetch<'_>) -> Result<RecordBatch, Error> {
    let (mut rows, mut inlined) = (Vec::new(), 0);
    for member in &group.members {
        for step in last_attempts(member) {
            for artifact in &step.outcome.artifacts {
                let size = artifact.size.0;
                let uri = uri(group, &artifact.sha256)?;
                let inline = if size <= INLINE_BYTES_MAX.min(GROUP_INLINE_BYTES_MAX - inlined) {
                    fetch_checked(artifact, fetch)?
                } else {
                    None
                };
                inlined += inline.as_ref().map_or(0, |_| size);
                let trajectory_id = member.rollout.to_string();
                rows.push(ArtifactRow { trajectory_id, step, artifact, uri, inline });
            }
        }
    }
    if rows.len() > GROUP_ROWS_MAX {
        let (found, max) = (rows.len() as u64, GROUP_ROWS_MAX as u64);
        return Err(Error::TooMany { group: group.group.to_string(), what: "artifacts", found, max });
    }
    let mut f = Frame::new(Table::Artifacts, &rows, group.seq)?;
    f.text("trajectory_id", |r| Some(&r.trajectory_id))?;
    f.text("step_name", |r| Some(&r.step.step_name))?;
    f.text("name", |r| Some(&r.artifact.name))?;
    f.text("media_type", |r| Some(&r.artifact.media_type))?;
    f.text("sha256", |r| Some(&r.artifact.sha256))?;
    f.text("uri", |r| Some(&r.uri))?;
    f.int::<Int64Type, _>("size", |r| Some(r.artifact.size.0))?;
    f.binary("inline", |r| r.inline.as_deref());
    f.finish(&Table::Artifacts.schema())
}

fn fetch_checked(artifact: &Artifact, fetch: &Fetch<'_>) -> Result<Option<Vec<u8>>, Error> {
    let sha256 = || artifact.sha256.clone();
    let fetched = fetch(&artifact.sha256, artifact.size.0)
        .map_err(|source| Error::Fetch { sha256: sha256(), source })?;
    if let Some(bytes) = &fetched
        && (bytes.len() as u64 != artifact.size.0
            || hex::encode(sha2::Sha256::digest(bytes)) != artifact.sha256)
    {
        return Err(Error::FetchedOther { sha256: sha256() });
    }
    Ok(fetched)
}

fn uri(group: &GroupRecord, sha256: &str) -> Result<String, Error> {
    let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if sha256.len() == 64 && sha256.bytes().all(lower_hex) {
        return Ok(format!("sha256:{sha256}"));
    }
    let what = format!("`{}` is not a sha256", rollout::text::shown(sha256, 80));
    Err(Error::Contradiction { group: group.group.to_string(), seq: group.seq, what })
}

/// `on_timeout: zero`: the grader ran out of time and the spec says that this is worth 0. The only
/// failure beside which a reward may stand that its table row does not give.
fn is_labelled_zero(failure: &rollout::failure::Failure, member: &MemberRecord) -> bool {
    failure.code == rollout::FailureCode::GraderTimeout
        && member.reward.as_ref().is_some_and(|r| r.value == 0.0)
}
