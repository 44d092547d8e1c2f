//! A closed group as the tables take it.

use std::collections::BTreeMap;

use datasets::record::{GroupRecord, MemberRecord, Provenance, StepRecord};
use rollout::plan::JobPlan;
use rollout::{AttemptId, Millis, NodeId, StepIndex, Timestamp};

use super::EMPTY_RULES_HASH;
use crate::jobs::JobFacts;
use crate::rows::RowsError;
use crate::store::{ClosedGroup, EndedAttempt, GroupRows, MemberRow, NodeRow};

/// Blocks on the disk: it reads the task row.
pub(super) fn record(
    facts: &JobFacts,
    closed: &ClosedGroup,
    rows: GroupRows,
    nodes: &[NodeRow],
    yard_id: String,
) -> Result<GroupRecord, RowsError> {
    let plan = &facts.plan;
    let index = closed.group.index;
    let row = facts.row(index)?;
    let columns = &plan.output.columns;
    let task_row = (!columns.is_empty()).then(|| {
        let pick = |column: &String| Some((column.clone(), row.get(column)?.clone()));
        serde_json::Value::Object(columns.iter().filter_map(pick).collect()).to_string()
    });
    let attempts = rows.members.iter().flat_map(|member| &member.attempts).chain(&rows.shared);
    let last_node = attempts.filter_map(|attempt| attempt.node.clone()).next_back();
    let mut shared_ended = BTreeMap::new();
    let shared = steps(plan, closed.admitted_at, rows.shared, &mut shared_ended);
    Ok(GroupRecord {
        group: closed.group,
        seq: closed.seq,
        replaces: closed.replaces,
        task_id: facts.task_id_of(&row, index),
        split: plan.tasks.split,
        epoch: facts.epoch(index),
        group_size: plan.group.size,
        group_valid: closed.valid,
        closed_as: closed.closed_as,
        provenance: Provenance {
            spec_hash: plan.spec_hash.clone(),
            task_hash: facts.task_hash(&row),
            rules_hash: EMPTY_RULES_HASH.to_owned(),
            yard_id,
            executor_version: version(nodes, last_node.as_ref()),
        },
        task_row,
        members: rows
            .members
            .into_iter()
            .map(|row| member(plan, closed.admitted_at, row, shared_ended.clone()))
            .collect(),
        shared,
    })
}

fn version(nodes: &[NodeRow], node: Option<&NodeId>) -> String {
    let known = nodes.iter().find(|row| Some(&row.node) == node).map(|row| row.version.clone());
    known.filter(|version| !version.is_empty()).unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
}

/// `ended` has the ends of the steps that its group ran once.
fn member(
    plan: &JobPlan,
    admitted_at: Timestamp,
    row: MemberRow,
    mut ended: BTreeMap<StepIndex, Timestamp>,
) -> MemberRecord {
    let started = row.attempts.iter().filter_map(|attempt| attempt.outcome.times.started_at).min();
    // Clocks of nodes differ from ours: the order of the three holds all the same.
    let (started_at, finished_at) = match started {
        Some(started) => {
            let started = started.max(row.created_at);
            (started, row.ended_at.max(started))
        }
        None => (row.created_at, row.created_at),
    };
    MemberRecord {
        rollout: row.rollout,
        superseded: row.superseded,
        status: row.status,
        stop_reason: row.stop_reason,
        failure: row.failure,
        reward: row.reward,
        created_at: row.created_at,
        started_at,
        finished_at,
        steps: steps(plan, admitted_at, row.attempts, &mut ended),
    }
}

fn steps(
    plan: &JobPlan,
    admitted_at: Timestamp,
    attempts: Vec<EndedAttempt>,
    ended: &mut BTreeMap<StepIndex, Timestamp>,
) -> Vec<StepRecord> {
    let mut steps = Vec::with_capacity(attempts.len());
    for EndedAttempt { attempt, node, base, outcome } in attempts {
        let step = plan.step(attempt.step);
        let queue = queued(plan, attempt, admitted_at, ended, outcome.times.taken_at);
        let latest = ended.entry(attempt.step).or_insert(outcome.times.ended_at);
        *latest = outcome.times.ended_at.max(*latest);
        let (step_name, kind) = (step.name.clone(), step.kind);
        steps.push(StepRecord {
            step_name,
            kind,
            attempt: attempt.attempt,
            node,
            queue,
            base,
            outcome: *outcome,
        });
    }
    steps
}

/// From ready to taken, for the first attempt of a step: it was ready when the last step it needs
/// had ended. A retry waits for its back-off too, which is no queueing: not measured.
fn queued(
    plan: &JobPlan,
    attempt: AttemptId,
    admitted_at: Timestamp,
    ended: &BTreeMap<StepIndex, Timestamp>,
    taken_at: Timestamp,
) -> Option<Millis> {
    let needs = plan.step(attempt.step).needs.iter().filter_map(|need| ended.get(need));
    let ready_at = needs.copied().max().unwrap_or(admitted_at);
    (attempt.attempt == 0).then(|| taken_at.since(ready_at))
}
