//! A naive store: applies records one by one and gives back a snapshot. The simulator and the
//! store's own tests compare against it; nothing in the product uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::plan::JobPlan;
use rollout::result_key::ResultName;
use rollout::state::{GroupClosedAs, JobState, StepState};
use rollout::{
    AttemptId, BootTime, FailureCode, Generation, GroupId, JobId, NodeId, RolloutId, StepIndex, Timestamp,
};

use crate::breaker::Breaker;
use crate::cluster::Cluster;
use crate::config::{BREAKER_WINDOW, Now};
use crate::event::{ExpandedGroup, StepKeys};
use crate::member::At;
use crate::record::{BreakerEnd, Hold, Record, RolloutEnd, StepBooks};
use crate::snapshot::{
    AttemptSnapshot, CheckpointSnapshot, GroupSnapshot, JobSnapshot, NodeSnapshot, ResultSnapshot,
    RolloutSnapshot, Snapshot,
};
use crate::totals::{Totals, is_success};

#[derive(Debug, Default)]
pub struct Stored {
    jobs: BTreeMap<JobId, StoredJob>,
    groups: BTreeMap<GroupId, Option<(i64, GroupClosedAs)>>,
    sealed: BTreeMap<JobId, u32>,
    /// Of the groups of a job, which are all alike here.
    pub keys: BTreeMap<JobId, Vec<StepKeys>>,
    /// What was given with a job to start from.
    pub bases: BTreeMap<JobId, Arc<Checkpoint>>,
    pub attempts: BTreeMap<AttemptId, AttemptSnapshot>,
    pub checkpoints: BTreeMap<(AttemptId, u32), CheckpointSnapshot>,
    /// By name, with their order.
    pub results: BTreeMap<ResultName, (u64, Arc<Checkpoint>)>,
    results_stored: u64,
    /// What steps found under their keys.
    pub found: BTreeMap<(RolloutId, StepIndex), Arc<Checkpoint>>,
    withdrawn: BTreeMap<(RolloutId, StepIndex), Generation>,
    books: BTreeMap<(RolloutId, StepIndex), StepBooks>,
    breaker_ends: BTreeMap<(JobId, StepIndex), Vec<BreakerEnd>>,
    steps: BTreeMap<(RolloutId, StepIndex), StepState>,
    /// Every end ever recorded: more than one entry for a rollout is a bug.
    pub ends: BTreeMap<RolloutId, Vec<RolloutEnd>>,
    pub refilled: BTreeSet<RolloutId>,
    pub retries: BTreeSet<RolloutId>,
    nodes: BTreeMap<NodeId, NodeSnapshot>,
    pub fenced: u64,
}

#[derive(Debug)]
struct StoredJob {
    plan: Arc<JobPlan>,
    groups_total: u32,
    created_at: Timestamp,
    state: JobState,
    reason: String,
    hold: Option<Hold>,
    unrecorded: bool,
    cancel_code: FailureCode,
    next_group: u32,
    next_seq: i64,
}

impl Stored {
    /// What the shell writes with the submission.
    pub fn submit(&mut self, job: JobId, plan: Arc<JobPlan>, groups_total: u32, created_at: Timestamp) {
        let stored = StoredJob {
            plan,
            groups_total,
            created_at,
            state: JobState::Running,
            reason: String::new(),
            hold: None,
            unrecorded: false,
            cancel_code: FailureCode::Cancelled,
            next_group: 0,
            next_seq: 0,
        };
        self.jobs.insert(job, stored);
    }

    /// What the shell writes when the recorder sealed a group.
    pub fn seal(&mut self, group: GroupId) {
        if self.groups.remove(&group).is_some() {
            *self.sealed.entry(group.job).or_default() += 1;
        }
    }

    pub fn job_state(&self, job: JobId) -> Option<JobState> {
        self.jobs.get(&job).map(|j| j.state)
    }

    pub fn apply(&mut self, record: &Record) {
        match record.clone() {
            Record::JobState { job, state, reason, hold, cancel_code, unrecorded } => {
                if let Some(stored) = self.jobs.get_mut(&job) {
                    (stored.state, stored.reason, stored.hold) = (state, reason, hold);
                    stored.unrecorded = unrecorded.is_some();
                    stored.cancel_code = cancel_code.unwrap_or(stored.cancel_code);
                }
            }
            Record::GroupsAdmitted { job, first, count } => {
                self.groups.extend((first..first + count).map(|index| (GroupId { job, index }, None)));
                if let Some(stored) = self.jobs.get_mut(&job) {
                    stored.next_group = first + count;
                }
            }
            Record::AttemptPlaced { attempt, generation, node, incarnation, continue_from, base } => {
                let stored = AttemptSnapshot {
                    attempt,
                    generation,
                    node,
                    incarnation,
                    continue_from,
                    base,
                    started: false,
                    outcome: None,
                    kept: false,
                };
                self.attempts.insert(attempt, stored);
            }
            Record::CheckpointTaken { attempt, ordinal, kind, checkpoint } => {
                let stored = CheckpointSnapshot { attempt, ordinal, kind, checkpoint };
                let old = self.checkpoints.insert((attempt, ordinal), stored);
                assert!(old.is_none(), "{attempt} took checkpoint {ordinal} twice");
            }
            Record::CheckpointRemoved { attempt, ordinal, .. } => {
                let old = self.checkpoints.remove(&(attempt, ordinal));
                assert!(old.is_some(), "checkpoint {ordinal} of {attempt} is not there");
            }
            Record::ResultStored { name, checkpoint, .. } => {
                self.results_stored += 1;
                let old = self.results.insert(name.clone(), (self.results_stored, checkpoint));
                assert!(old.is_none(), "{name} is stored twice");
            }
            Record::ResultDropped { name, .. } => {
                assert!(self.results.remove(&name).is_some(), "{name} is not there");
            }
            Record::ResultUsed { rollout, step, name, checkpoint } => {
                let known = self.results.get(&name).map(|(_, known)| known);
                assert_eq!(known, Some(&checkpoint), "{name} is found and not stored");
                self.found.insert((rollout, step), checkpoint);
            }
            Record::ResultUnused { rollout, step } => {
                let old = self.found.remove(&(rollout, step));
                assert!(old.is_some(), "step {} of {rollout} found nothing", step.0);
            }
            Record::AttemptStarted { attempt, .. } => {
                if let Some(stored) = self.attempts.get_mut(&attempt) {
                    stored.started = true;
                }
            }
            Record::AttemptEnded { attempt, outcome, kept, .. } => {
                if let Some(stored) = self.attempts.get_mut(&attempt) {
                    (stored.outcome, stored.kept) = (Some(outcome), kept);
                }
            }
            Record::AttemptWithdrawn { attempt, generation } => {
                self.attempts.remove(&attempt);
                self.withdrawn.insert((attempt.rollout, attempt.step), generation);
            }
            Record::StepState { rollout, step, state } => {
                self.steps.insert((rollout, step), state);
            }
            Record::StepBooks { rollout, step, books } => {
                self.books.insert((rollout, step), books);
            }
            Record::BreakerEnd { job, end } => {
                self.breaker_ends.entry((job, end.step)).or_default().push(end);
            }
            Record::RolloutRefilled { rollout } => {
                let before = RolloutId { refill: rollout.refill - 1, ..rollout };
                assert!(self.ends.contains_key(&before), "{before} is replaced and has not ended");
                assert!(self.refilled.insert(rollout), "{rollout} begins twice");
            }
            Record::RetryAsked { rollout } => {
                assert!(self.retries.insert(rollout), "{rollout} is asked for twice");
            }
            Record::RetrySettled { rollout } => {
                assert!(self.retries.remove(&rollout), "{rollout} is not asked for");
            }
            Record::GroupReopened { group } => {
                let old = self.groups.insert(group, None);
                assert!(old.is_none(), "group {group} is not sealed");
                if let Some(sealed) = self.sealed.get_mut(&group.job) {
                    *sealed -= 1;
                }
            }
            Record::RolloutEnded { rollout, end } => self.ends.entry(rollout).or_default().push(end),
            Record::GroupClosed { group, seq, closed_as, .. } => {
                self.groups.insert(group, Some((seq, closed_as)));
                if let Some(stored) = self.jobs.get_mut(&group.job) {
                    stored.next_seq = seq + 1;
                }
            }
            Record::Lease { node, incarnation, state } => {
                self.nodes.insert(node.clone(), NodeSnapshot { node, incarnation, lease: state });
            }
            Record::Fenced { .. } => self.fenced += 1,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let jobs = self.jobs.iter().filter(|(_, job)| !job.state.is_final());
        let jobs = jobs.filter_map(|(&id, _)| self.job_snapshot(id));
        let jobs: Vec<_> = jobs.collect();
        let mut results: Vec<_> = self.results.iter().map(|(name, stored)| (stored, name)).collect();
        results.sort_by_key(|((order, _), _)| *order);
        let results = results.into_iter().map(|((_, checkpoint), name)| ResultSnapshot {
            name: name.clone(),
            checkpoint: checkpoint.clone(),
        });
        let nodes = self.nodes.values().cloned().collect();
        Snapshot { results: results.collect(), jobs, nodes }
    }

    /// One job, ended or not.
    pub fn job_snapshot(&self, id: JobId) -> Option<JobSnapshot> {
        let job = self.jobs.get(&id)?;
        let range = RolloutId { group: GroupId { job: id, index: 0 }, sample: 0, refill: 0 };
        let asked = self.retries.range(range..).take_while(|rollout| rollout.group.job == id);
        Some(JobSnapshot {
            job: id,
            retries: asked.copied().collect(),
            plan: job.plan.clone(),
            state: job.state,
            reason: job.reason.clone(),
            hold: job.hold,
            unrecorded: job.unrecorded,
            cancel_code: job.cancel_code,
            groups_total: job.groups_total,
            next_group: job.next_group,
            next_seq: job.next_seq,
            created_at: job.created_at,
            groups: self.groups_of(id, job),
            groups_sealed: self.sealed.get(&id).copied().unwrap_or(0),
            breaker_ends: self.breaker_ends_of(id),
            totals: self.totals_of(id, job),
        })
    }

    fn groups_of(&self, id: JobId, job: &StoredJob) -> Vec<GroupSnapshot> {
        let range = GroupId { job: id, index: 0 }..=GroupId { job: id, index: u32::MAX };
        self.groups.range(range).map(|(group, closed)| self.snapshot_of(*group, job, *closed)).collect()
    }

    /// One that is sealed, as it was when it closed.
    pub fn sealed_group(&self, group: GroupId) -> Option<GroupSnapshot> {
        let job = self.jobs.get(&group.job).filter(|_| !self.groups.contains_key(&group))?;
        Some(self.snapshot_of(group, job, None))
    }

    /// What the row of a group asks for.
    pub fn expanded(&self, job: JobId) -> ExpandedGroup {
        let keys = self.keys.get(&job).cloned().unwrap_or_default();
        ExpandedGroup { keys, base: self.bases.get(&job).cloned(), ..Default::default() }
    }

    fn snapshot_of(
        &self,
        group: GroupId,
        job: &StoredJob,
        closed: Option<(i64, GroupClosedAs)>,
    ) -> GroupSnapshot {
        GroupSnapshot {
            index: group.index,
            expanded: self.expanded(group.job),
            closed,
            rollouts: self
                .rollouts_of(group, job)
                .chain([RolloutId::shared(group)])
                .map(|rollout| self.rollout_of(rollout))
                .collect(),
        }
    }

    /// Every rollout of a group there was, in order.
    fn rollouts_of(&self, group: GroupId, job: &StoredJob) -> impl Iterator<Item = RolloutId> {
        let samples = 0..job.plan.group.started();
        samples.flat_map(move |sample| {
            let first = RolloutId { group, sample, refill: 0 };
            let refills = self.refilled.range(first..=RolloutId { refill: u32::MAX, ..first });
            [first].into_iter().chain(refills.copied())
        })
    }

    /// Replaced by a refill.
    fn superseded(&self, rollout: RolloutId) -> bool {
        self.refilled.contains(&RolloutId { refill: rollout.refill + 1, ..rollout })
    }

    fn rollout_of(&self, rollout: RolloutId) -> RolloutSnapshot {
        let all = (rollout, StepIndex(0))..=(rollout, StepIndex(u8::MAX));
        let first = AttemptId { rollout, step: StepIndex(0), attempt: 0 };
        let last = AttemptId { rollout, step: StepIndex(u8::MAX), attempt: u32::MAX };
        RolloutSnapshot {
            rollout,
            end: self.ends.get(&rollout).and_then(|ends| ends.last()).cloned(),
            steps: self.steps.range(all.clone()).map(|((_, step), state)| (*step, *state)).collect(),
            attempts: self.attempts.range(first..=last).map(|(_, a)| a.clone()).collect(),
            generations: self.withdrawn.range(all.clone()).map(|((_, step), g)| (*step, *g)).collect(),
            results: self.found.range(all.clone()).map(|((_, step), found)| (*step, found.clone())).collect(),
            books: self.books.range(all).map(|((_, step), books)| (*step, *books)).collect(),
            checkpoints: self
                .checkpoints
                .range((first, 0)..=(last, u32::MAX))
                .map(|(_, checkpoint)| checkpoint.clone())
                .collect(),
        }
    }

    fn breaker_ends_of(&self, job: JobId) -> Vec<BreakerEnd> {
        let steps = (job, StepIndex(0))..=(job, StepIndex(u8::MAX));
        let last = |ends: &Vec<BreakerEnd>| ends[ends.len().saturating_sub(BREAKER_WINDOW)..].to_vec();
        self.breaker_ends.range(steps).flat_map(|(_, ends)| last(ends)).collect()
    }

    fn totals_of(&self, id: JobId, job: &StoredJob) -> Totals {
        let grader = job.plan.steps.iter().rev().find_map(|s| s.grader.as_ref());
        let success_at = grader.map_or(1.0, rollout::plan::GraderPlan::success_at);
        let mut totals = Totals::default();
        for index in 0..job.next_group {
            let group = GroupId { job: id, index };
            let mut members = Vec::new();
            for rollout in self.rollouts_of(group, job) {
                if self.superseded(rollout) {
                    totals.rollouts_superseded += 1;
                } else if let Some(end) = self.ends.get(&rollout).and_then(|ends| ends.last()) {
                    totals.add_rollout(rollout, end, success_at);
                    members.push(end);
                }
            }
            let closed = self.groups.get(&group).is_none_or(Option::is_some);
            if closed {
                let count = |test: &dyn Fn(&RolloutEnd) -> bool| members.iter().filter(|e| test(e)).count();
                let valid = u32::try_from(count(&|e| e.reward.is_some())).unwrap_or(0);
                let successes = u32::try_from(count(&|e| is_success(e, success_at))).unwrap_or(0);
                totals.add_group(valid, successes);
            }
        }
        totals
    }
}

/// What decides when and how often steps are tried again: the same before and after a restart.
#[derive(Debug, PartialEq, Eq)]
pub struct Patience {
    breakers: BTreeMap<(JobId, StepIndex), Breaker>,
    /// Steps that have to wait longer, and until when.
    backoff: BTreeMap<(RolloutId, StepIndex), BootTime>,
    /// Attempts, infrastructure failures, grader failures, chain breaks and refusals of every open
    /// step that has any.
    tries: BTreeMap<(RolloutId, StepIndex), [u32; 5]>,
    /// What each step left and saved on its way, and whether it takes a new sandbox.
    workspaces: BTreeMap<(RolloutId, StepIndex), (Vec<CheckpointId>, bool)>,
    /// Sessions without a sandbox: the attempt that was parked, its files and when it ends.
    parked: BTreeMap<(RolloutId, StepIndex), (u32, CheckpointId, BootTime)>,
}

impl Patience {
    /// Of the unfinished jobs at `now`.
    pub fn of(cluster: &Cluster, now: Now) -> Self {
        let mut found = Self {
            breakers: BTreeMap::new(),
            backoff: BTreeMap::new(),
            tries: BTreeMap::new(),
            workspaces: BTreeMap::new(),
            parked: BTreeMap::new(),
        };
        for job in cluster.jobs.values().filter(|job| !job.state.is_final()) {
            found.breakers.extend(job.breakers.iter().map(|(&step, b)| ((job.id, step), b.clone())));
            for (&index, group) in &job.groups {
                for (&slot, d) in &group.details {
                    let key = (At { group: job.group_id(index), slot }.rollout(), slot.step);
                    let tries = [d.attempts, d.infra_failures, d.grader_failures, d.chain_breaks, d.refusals];
                    if tries != [0; 5] {
                        found.tries.insert(key, tries);
                    }
                    let saved = d.checkpoint.as_deref().into_iter().chain(&d.taken);
                    let saved: Vec<CheckpointId> = saved.map(|saved| saved.id).collect();
                    if d.anew || !saved.is_empty() {
                        found.workspaces.insert(key, (saved, d.anew));
                    }
                    let runs = d.place.as_ref().is_some_and(|place| place.started);
                    if let Some(was) = d.parked.as_ref().filter(|_| !runs && !group.state(slot).is_final()) {
                        let due = was.due.max(now.boot);
                        found.parked.insert(key, (was.attempt, was.checkpoint, due));
                    }
                    if group.state(slot) == StepState::Backoff && d.not_before > now.boot {
                        found.backoff.insert(key, d.not_before);
                    }
                }
            }
        }
        found
    }
}
