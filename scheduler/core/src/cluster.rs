//! The state of the yard and the one entry for events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollout::plan::JobPlan;
use rollout::state::{JobState, StepState};
use rollout::{AttemptId, BootTime, FailureCode, GroupId, IncarnationId, JobId, Millis, NodeId, Timestamp};

use crate::command::{Command, Target};
use crate::config::{Config, Now};
use crate::event::{Event, ExpandedGroup, Fence};
use crate::group::Group;
use crate::job::{Job, Unrecorded};
use crate::keyed::Keyed;
use crate::member::{At, Member, Slot};
use crate::node::{Node, Phase, SandboxKey};
use crate::ready::{Class, ReadyKey, ReadyQueue};
use crate::record::{Hold, Record, StepBooks};

/// Everything the scheduler knows of unfinished jobs and attached nodes.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) config: Config,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// All that may begin something more, and some that may not: a pass goes through these, not through every job.
    pub(crate) asking: BTreeSet<JobId>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) ready: ReadyQueue,
    /// Steps that wait for a time.
    pub(crate) backoff: BTreeSet<(BootTime, At)>,
    /// Sessions without a sandbox, by when they end or are called no more.
    pub(crate) parked: BTreeSet<(BootTime, At)>,
    /// Placed attempts, by when they should have ended.
    pub(crate) overdue: BTreeSet<(BootTime, At)>,
    /// Results that steps share by their key.
    pub(crate) keyed: Keyed,
    /// Made while applying; leave with the next plan, after the commit.
    pub(crate) outbox: Vec<Command>,
    pub(crate) fenced: u64,
    pub(crate) lost: u64,
}

impl Cluster {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            jobs: BTreeMap::new(),
            asking: BTreeSet::new(),
            nodes: BTreeMap::new(),
            ready: ReadyQueue::default(),
            backoff: BTreeSet::new(),
            parked: BTreeSet::new(),
            overdue: BTreeSet::new(),
            keyed: Keyed::default(),
            outbox: Vec::new(),
            fenced: 0,
            lost: 0,
        }
    }

    /// Updates the books. Decisions wait for [`plan`](Self::plan); commands made here leave with
    /// it.
    pub fn apply(&mut self, now: Now, event: Event) -> Vec<Record> {
        let mut records = Vec::new();
        match event {
            Event::JobSubmitted { job, plan, groups_total, created_at } => {
                self.submit(job, plan, groups_total, created_at, &mut records);
            }
            Event::JobCancelled { job, code, reason } => self.cancel(now, job, code, &reason, &mut records),
            Event::GroupsExpanded { job, first, groups } => self.admit(now, job, first, groups, &mut records),
            Event::NodeAttached { node, incarnation, capacity, held } => {
                self.attach(now, &node, incarnation, capacity, &held, &mut records);
            }
            Event::NodeDetached { node, incarnation } => {
                if let Some(node) = self.node_of(&node, incarnation) {
                    node.attached = false;
                    self.keyed.rouse_digest_waits();
                }
            }
            Event::Held { node, incarnation, held } => {
                self.held(now, &node, incarnation, &held, &mut records);
            }
            Event::Heartbeat { node, incarnation, measured } => {
                self.renew(now, &node, incarnation);
                if let Some(node) = self.node_of(&node, incarnation) {
                    node.measured = measured;
                    let in_flight = node.starting.saturating_sub(node.pace.len());
                    node.pace.report(now.boot, measured.credit, in_flight);
                }
            }
            Event::LeaseMissing { node, incarnation } => {
                if self.node_of(&node, incarnation).is_some() {
                    self.lose(now, &node, "its lease is not in the store", &mut records);
                }
            }
            Event::AttemptStarted { at, attempt, started_at } => {
                self.started(now, &at, attempt, started_at, &mut records);
            }
            Event::AttemptEnded { at, attempt, outcome, kept } => {
                self.ended(now, &at, attempt, outcome, kept, &mut records);
            }
            Event::AttemptRefused { at, attempt, class, message } => {
                self.refused(now, &at, attempt, class, &message, &mut records);
            }
            Event::CheckpointTaken { at, attempt, checkpoint } => {
                self.checkpoint_taken(now, &at, attempt, *checkpoint, &mut records);
            }
            Event::Thaw { rollout, step } => self.thaw(now, rollout, step, &mut records),
            Event::ImageIdentified { node, incarnation, image, digest } => {
                self.identified(now, &node, incarnation, &image, digest);
            }
            Event::RetryAsked { job, reopened, rollouts, lift } => {
                self.retry(now, job, reopened.map(|job| *job), &rollouts, lift, &mut records);
            }
            Event::GroupReopened { group, stored } => {
                self.reopened(now, group, stored.map(|group| *group), &mut records);
            }
            Event::GroupsSealed { groups } => self.sealed(&groups, &mut records),
            Event::GroupsUnrecorded { job, problem, last } => {
                self.unrecorded(job, Unrecorded { problem, last }, &mut records);
            }
        }
        self.settle_keyed(now, &mut records);
        records
    }

    /// Late or foreign reports that changed nothing, since this cluster was made.
    pub fn fenced_count(&self) -> u64 {
        self.fenced
    }

    /// Attempts and kept sandboxes that attached nodes turned out not to hold, since this cluster was
    /// made.
    pub fn lost_count(&self) -> u64 {
        self.lost
    }

    /// Whether the group is open: its checkpoints are in these books.
    pub fn holds(&self, group: GroupId) -> bool {
        self.jobs.get(&group.job).is_some_and(|job| job.groups.contains_key(&group.index))
    }

    pub fn job_state(&self, job: JobId) -> Option<JobState> {
        self.jobs.get(&job).map(|j| j.state)
    }

    pub(crate) fn node_of(&mut self, node: &NodeId, incarnation: IncarnationId) -> Option<&mut Node> {
        self.nodes.get_mut(node).filter(|n| n.incarnation == incarnation)
    }

    pub(crate) fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.jobs.get_mut(&id.job)?.groups.get_mut(&id.index)
    }

    pub(crate) fn submit(
        &mut self,
        id: JobId,
        plan: Arc<JobPlan>,
        groups_total: u32,
        created_at: Timestamp,
        records: &mut Vec<Record>,
    ) {
        self.jobs.entry(id).or_insert_with(|| Job::new(id, plan, groups_total, created_at));
        self.asking.insert(id);
        self.finish_if_done(id, records);
    }

    fn admit(
        &mut self,
        now: Now,
        id: JobId,
        first: u32,
        groups: Vec<ExpandedGroup>,
        records: &mut Vec<Record>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.expanding.take().is_none() || job.next_group != first || job.state.is_final() {
            return;
        }
        if job.cancel.is_some() {
            self.finish_if_done(id, records);
            return;
        }
        let count = u32::try_from(groups.len()).unwrap_or(u32::MAX).min(job.groups_total - first);
        records.push(Record::GroupsAdmitted { job: id, first, count });
        let (started, steps) = (job.started(), job.plan.steps.len());
        job.next_group += count;
        job.alive += count * started;
        let mut fresh = Vec::new();
        for (index, expanded) in (first..first + count).zip(groups) {
            job.groups.insert(index, Group::new(expanded, started, steps));
            fresh.push(job.group_id(index));
        }
        for group in fresh {
            self.advance(now, group, Member::SHARED, records);
        }
    }

    /// Sets a step's state and keeps the ready and backoff queues in step with it.
    pub(crate) fn set_state(&mut self, at: At, state: StepState) {
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let key = ReadyKey::of(job, group, at);
        let detail = group.details.get(&at.slot);
        let due = detail.map_or(BootTime(0), |d| d.not_before);
        let parked = detail.and_then(|d| d.parked.as_deref());
        if let Some(look_at) = parked.and_then(|parked| parked.looked_at(group.state(at.slot))) {
            self.parked.remove(&(look_at, at));
        }
        if let Some(look_at) = parked.and_then(|parked| parked.looked_at(state)) {
            self.parked.insert((look_at, at));
        }
        match group.state(at.slot) {
            StepState::Ready => self.ready.remove(&Class::of(job, group, at), &key),
            StepState::Backoff => {
                self.backoff.remove(&(due, at));
            }
            _ => {}
        }
        match state {
            StepState::Ready => self.ready.insert(Class::of(job, group, at), key),
            StepState::Backoff => {
                self.backoff.insert((due, at));
            }
            _ => {}
        }
        if let Some(group) = job.groups.get_mut(&at.group.index) {
            group.set_state(at.slot, state);
        }
        self.keyed.touch(at);
    }

    /// As [`set_state`](Self::set_state), stored.
    pub(crate) fn record_state(&mut self, at: At, state: StepState, records: &mut Vec<Record>) {
        self.set_state(at, state);
        records.push(Record::StepState { rollout: at.rollout(), step: at.slot.step, state });
    }

    /// Sends `at` to wait for `wait`.
    pub(crate) fn back_off(&mut self, now: Now, at: At, wait: Millis, records: &mut Vec<Record>) {
        self.set_state(at, StepState::Waiting);
        if let Some(group) = self.group_mut(at.group) {
            group.detail(at.slot).not_before = now.boot.after(wait);
        }
        self.record_state(at, StepState::Backoff, records);
        self.record_books(now, at, records);
    }

    /// Stores what is known of a step beside its attempts.
    pub(crate) fn record_books(&mut self, now: Now, at: At, records: &mut Vec<Record>) {
        let Some(group) = self.group_mut(at.group) else { return };
        let waits = group.state(at.slot) == StepState::Backoff;
        let detail = group.detail(at.slot);
        let books = StepBooks {
            chain_breaks: detail.chain_breaks,
            refusals: detail.refusals,
            not_before: waits.then(|| now.wall_at(detail.not_before)),
            anew: detail.anew,
        };
        records.push(Record::StepBooks { rollout: at.rollout(), step: at.slot.step, books });
    }

    pub(crate) fn sandbox_key(&self, at: At) -> Option<SandboxKey> {
        let plan = &self.jobs.get(&at.group.job)?.plan;
        Some(SandboxKey { rollout: at.rollout(), head: plan.chain_head(at.slot.step) })
    }

    /// Gives the sandbox back to the ledger; a kept one is also released on its node.
    pub(crate) fn free_sandbox(&mut self, node: &NodeId, incarnation: IncarnationId, key: SandboxKey) {
        let Some(n) = self.node_of(node, incarnation) else { return };
        let Some(reservation) = n.release(key) else { return };
        if reservation.phase == Phase::Kept {
            let to = Target { node: node.clone(), incarnation, generation: reservation.generation };
            self.outbox.push(Command::Release { to, attempt: reservation.attempt });
        }
    }

    /// Frees the kept sandbox of this chain, wherever it is.
    pub(crate) fn free_kept(&mut self, key: SandboxKey) {
        let holder =
            self.nodes.values().find(|n| n.sandboxes.get(&key).is_some_and(|r| r.phase == Phase::Kept));
        if let Some((id, incarnation)) = holder.map(|n| (n.id.clone(), n.incarnation)) {
            self.free_sandbox(&id, incarnation, key);
        }
    }

    pub(crate) fn fence(&mut self, at: &Fence, attempt: AttemptId, records: &mut Vec<Record>) {
        self.fenced += 1;
        records.push(Record::Fenced {
            node: at.node.clone(),
            incarnation: at.incarnation,
            generation: at.generation,
            attempt,
        });
    }

    /// Stops the job: nothing more is admitted or placed, running steps are killed.
    fn cancel(&mut self, now: Now, id: JobId, code: FailureCode, reason: &str, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_final() || job.cancel.is_some() {
            return;
        }
        job.cancel = Some((code, reason.to_owned()));
        job.hold = None;
        job.state = JobState::Cancelling;
        reason.clone_into(&mut job.reason);
        records.push(job.record());
        job.owed = 0;
        job.groups.values_mut().for_each(|group| group.owed = 0);
        self.settle_all_retries(id, records);
        let Some(job) = self.jobs.get(&id) else { return };
        let groups: Vec<GroupId> = job.groups.keys().map(|&index| GroupId { job: id, index }).collect();
        for group in groups {
            self.stop_group(now, group, code, reason, records);
        }
        self.finish_if_done(id, records);
    }

    /// Kills and cancels what is left of the open rollouts of a group.
    pub(crate) fn stop_group(
        &mut self,
        now: Now,
        id: GroupId,
        code: FailureCode,
        reason: &str,
        records: &mut Vec<Record>,
    ) {
        let Some(job) = self.jobs.get(&id.job) else { return };
        let Some(group) = job.groups.get(&id.index) else { return };
        let plan = job.plan.clone();
        let open: Vec<Member> = group.members().filter(|&member| group.end_of(member).is_none()).collect();
        for member in [Member::SHARED].into_iter().chain(open) {
            for step in member.own_steps(&plan) {
                self.cancel_step(now, At { group: id, slot: Slot { member, step } }, code, reason, records);
            }
        }
        self.advance(now, id, Member::SHARED, records);
    }

    fn cancel_step(&mut self, now: Now, at: At, code: FailureCode, reason: &str, records: &mut Vec<Record>) {
        let Some(group) = self.group_mut(at.group) else { return };
        match group.state(at.slot) {
            StepState::Waiting | StepState::Ready | StepState::Backoff | StepState::Parked => {
                self.record_state(at, StepState::Cancelled, records);
                if let Some(key) = self.sandbox_key(at) {
                    self.free_kept(key);
                }
            }
            StepState::Running => {
                let detail = group.detail(at.slot);
                if let Some(place) = detail.place.clone() {
                    let to = Target {
                        node: place.node,
                        incarnation: place.incarnation,
                        generation: detail.generation,
                    };
                    let attempt = at.attempt(detail.attempts - 1);
                    self.outbox.push(Command::Kill { to, attempt, code, reason: reason.to_owned() });
                    self.watch_end(now, at);
                }
            }
            _ => {}
        }
    }

    fn sealed(&mut self, groups: &[GroupId], records: &mut Vec<Record>) {
        for id in groups {
            let Some(job) = self.jobs.get_mut(&id.job) else { continue };
            let closed = job.groups.get(&id.index).is_some_and(|g| g.closed.is_some());
            if closed {
                job.groups.remove(&id.index);
                job.groups_sealed += 1;
            }
            self.finish_if_done(id.job, records);
        }
    }

    /// Rows that cannot be written are told; a job that has nothing else left is held for them.
    fn unrecorded(&mut self, id: JobId, told: Unrecorded, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_final()) else { return };
        let holds = told.last && job.state == JobState::Running;
        job.unrecorded = Some(told);
        records.push(if holds { job.hold(Hold::Unrecorded, String::new()) } else { job.record() });
        self.finish_if_done(id, records);
    }

    /// The job is over when nothing is left to admit and every admitted group is sealed. One that
    /// is cancelled does not wait for rows that cannot be written.
    pub(crate) fn finish_if_done(&mut self, id: JobId, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let all_admitted = job.next_group == job.groups_total || job.cancel.is_some();
        let asked = !job.retries.is_empty() || !job.reopening.is_empty();
        if job.state.is_final() || !all_admitted || job.expanding.is_some() || asked {
            return;
        }
        if !job.groups.is_empty() {
            let closed = job.groups.values().all(|group| group.closed.is_some());
            let told = job.unrecorded.as_ref().filter(|told| told.last && closed && job.cancel.is_some());
            let Some(told) = told else { return };
            job.reason = format!("{}; without all of its rows: {}", job.reason, told.problem);
        }
        job.state = if job.cancel.is_some() { JobState::Cancelled } else { JobState::Finished };
        job.hold = None;
        records.push(job.record());
    }
}
