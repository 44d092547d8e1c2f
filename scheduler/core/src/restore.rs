//! Restart: the same cluster from what was stored.

use rollout::failure::Failure;
use rollout::plan::{JobPlan, Keep};
use rollout::state::{JobState, StepState};
use rollout::{BootTime, FailureCode, JobId, NodeId, StepIndex};

use crate::attempt::note_end;
use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::{Config, Now, REFUSAL_BACKOFF_MAX};
use crate::event::{Capacity, Measured};
use crate::group::{Detail, Group, Place, Saved};
use crate::job::Job;
use crate::lease::lost_outcome;
use crate::member::{At, Member, Slot};
use crate::node::{Node, Phase, Reservation, SandboxKey};
use crate::parking::ParkedAt;
use crate::record::{CheckpointKind, Hold, LeaseState, Record};
use crate::snapshot::{
    AttemptSnapshot, CheckpointSnapshot, GroupSnapshot, JobSnapshot, ResultSnapshot, RolloutSnapshot,
    Snapshot,
};

impl Cluster {
    /// The cluster that stored `snapshot`. Known incarnations get a full lease before they can
    /// expire; ready steps are found anew; closed groups are recorded again under their seq. The
    /// records bring the store up to date where the snapshot shows work that became possible.
    pub fn restore(config: Config, now: Now, snapshot: Snapshot) -> (Self, Vec<Record>) {
        let mut cluster = Self::new(config);
        let deadline = cluster.lease_deadline(now);
        for node in snapshot.nodes.into_iter().filter(|n| n.lease == LeaseState::Alive) {
            cluster.nodes.insert(node.node.clone(), unattached(node.node, node.incarnation, deadline));
        }
        for ResultSnapshot { name, checkpoint } in snapshot.results {
            cluster.keyed.insert(name, checkpoint);
        }
        let mut records = Vec::new();
        let jobs: Vec<JobId> = snapshot.jobs.iter().map(|job| job.job).collect();
        for job in snapshot.jobs {
            cluster.restore_job(now, job, &mut records);
        }
        // What runs has its key before anybody else asks for it.
        for job in jobs {
            cluster.go_on(now, job, &mut records);
        }
        // Attempts that run on an incarnation without a lease row (somebody deleted it): the loss
        // path, as for any lost node.
        for at in cluster.homeless() {
            let Some(group) = cluster.group_mut(at.group) else { continue };
            let attempt = at.attempt(group.detail(at.slot).attempts - 1);
            let failure = Failure::new(FailureCode::NodeLost, "its node has no lease in the store");
            cluster.accept_end(now, attempt, Box::new(lost_outcome(now, failure)), false, &mut records);
        }
        cluster.settle_keyed(now, &mut records);
        (cluster, records)
    }

    pub(crate) fn restore_job(&mut self, now: Now, stored: JobSnapshot, records: &mut Vec<Record>) {
        let mut job = Job::new(stored.job, stored.plan, stored.groups_total, stored.created_at);
        job.state = stored.state;
        job.next_group = stored.next_group;
        job.next_seq = stored.next_seq;
        job.groups_sealed = stored.groups_sealed;
        job.totals = stored.totals;
        for end in stored.breaker_ends {
            job.breakers.entry(end.step).or_default().push(end);
        }
        for rollout in stored.retries {
            job.retries.entry(rollout.group.index).or_default().insert(Member::of(rollout));
        }
        job.hold = stored.hold;
        if matches!(stored.state, JobState::Cancelling | JobState::Cancelled) {
            job.cancel = Some((stored.cancel_code, stored.reason.clone()));
        }
        job.reason = stored.reason;
        // Rows that could not be written are tried again.
        if job.hold == Some(Hold::Unrecorded) {
            job.hold = None;
            job.state = JobState::Running;
        }
        if stored.unrecorded {
            records.push(job.record());
        }
        let id = job.id;
        self.jobs.insert(id, job);
        self.asking.insert(id);
        for group in stored.groups {
            self.restore_group(now, id, group);
        }
    }

    /// Moves what waits in a job that is restored as far as it may go.
    fn go_on(&mut self, now: Now, id: JobId, records: &mut Vec<Record>) {
        let indexes = self.jobs.get(&id).map(|job| job.groups.keys().copied().collect::<Vec<u32>>());
        for index in indexes.unwrap_or_default() {
            let Some(job) = self.jobs.get(&id) else { return };
            let group = job.group_id(index);
            let Some(members) = job.groups.get(&index).map(|g| g.members().collect::<Vec<_>>()) else {
                return;
            };
            for member in members.into_iter().chain([Member::SHARED]) {
                self.requeue(now, group, member);
            }
            self.advance(now, group, Member::SHARED, records);
        }
        self.finish_if_done(id, records);
    }

    pub(crate) fn restore_group(&mut self, now: Now, id: JobId, stored: GroupSnapshot) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let group_id = job.group_id(stored.index);
        let mut group = Group::new(stored.expanded, job.started(), job.plan.steps.len());
        group.closed = stored.closed;
        if let Some((seq, _)) = stored.closed {
            self.outbox.push(Command::Record { group: group_id, seq });
        }
        for rollout in stored.rollouts.iter().map(|stored| stored.rollout) {
            let current = group.members().nth(rollout.sample as usize);
            if current.is_some_and(|current| current.refill < rollout.refill) {
                group.set_refill(rollout.sample, rollout.refill);
            }
        }
        let mut sandboxes = Vec::new();
        for rollout in stored.rollouts {
            let member = Member::of(rollout.rollout);
            if group.has(member) {
                restore_rollout(now, &mut group, &job.plan, &rollout);
                restore_results(&mut group, &rollout);
                if rollout.end.is_none() {
                    sandboxes.extend(live_sandboxes(job, &group, &rollout));
                }
                if !member.is_shared() {
                    let valid = rollout.end.as_ref().is_some_and(|end| end.reward.is_some());
                    group.valid += u32::from(valid);
                    group.ends[member.sample as usize] = rollout.end;
                }
            }
        }
        let open = group.ends.iter().filter(|end| end.is_none()).count();
        job.alive += u32::try_from(open).unwrap_or(0);
        group.owed = job.owed(&group);
        job.owed += group.owed;
        let charges: Vec<_> =
            sandboxes.iter().map(|(at, ..)| job.resources(&group, at.slot.step).charge()).collect();
        let slots = group.details.iter().filter(|(_, detail)| detail.place.is_some());
        let running: Vec<At> = slots.map(|(&slot, _)| At { group: group_id, slot }).collect();
        job.groups.insert(stored.index, group);
        for at in running {
            let group = self.group_mut(at.group);
            if let Some(key) = group.and_then(|group| group.key_of(at.slot).cloned()) {
                self.keyed.claim(key, at);
            }
            self.watch(now, at);
        }
        for ((at, attempt, phase), charge) in sandboxes.into_iter().zip(charges) {
            let Some(key) = self.sandbox_key(at) else { continue };
            if let Some(node) = self.node_of(&attempt.node, attempt.incarnation) {
                let generation = attempt.generation;
                node.reserve(key, Reservation { charge, attempt: attempt.attempt, generation, phase });
            }
        }
    }

    /// Steps that were on their way to run go on from `Waiting`, those that still have to wait in
    /// `Backoff`.
    fn requeue(&mut self, now: Now, group: rollout::GroupId, member: Member) {
        let Some(job) = self.jobs.get(&group.job) else { return };
        let plan = job.plan.clone();
        for step in member.own_steps(&plan) {
            let at = At { group, slot: Slot { member, step } };
            let Some(g) = self.group_mut(group) else { return };
            let state = g.state(at.slot);
            let detail = g.details.get(&at.slot);
            let is_parked = detail.is_some_and(|detail| detail.parked.is_some());
            let goes_on = matches!(state, StepState::Ready | StepState::Backoff | StepState::Parked);
            let is_called = is_parked && state == StepState::Waiting;
            if !(goes_on || is_called) {
                continue;
            }
            let backs_off = detail.is_some_and(|detail| detail.not_before > now.boot);
            // Not in any queue yet: the books were only read.
            g.set_state(at.slot, StepState::Waiting);
            match state {
                StepState::Backoff if backs_off => self.set_state(at, state),
                StepState::Parked if is_parked => self.set_state(at, state),
                _ if is_parked => self.set_state(at, StepState::Waiting),
                _ => {}
            }
        }
    }

    /// Steps that run where no sandbox is reserved: none, but in a store whose lease rows were
    /// deleted by hand.
    pub(crate) fn homeless(&self) -> Vec<At> {
        let mut found = Vec::new();
        for job in self.jobs.values() {
            for (&index, group) in &job.groups {
                for (&slot, detail) in &group.details {
                    let at = At { group: job.group_id(index), slot };
                    let Some(place) = &detail.place else { continue };
                    let key = SandboxKey { rollout: at.rollout(), head: job.plan.chain_head(slot.step) };
                    let node = self.nodes.get(&place.node).filter(|n| n.incarnation == place.incarnation);
                    if node.and_then(|n| n.sandboxes.get(&key)).is_none() {
                        found.push(at);
                    }
                }
            }
        }
        found
    }
}

fn unattached(id: NodeId, incarnation: rollout::IncarnationId, deadline: BootTime) -> Node {
    let total = rollout::quantity::Request::default();
    Node {
        id,
        incarnation,
        capacity: Capacity {
            total,
            sandboxes: 0,
            disk_limit_max: rollout::Bytes(0),
            backends: std::collections::BTreeSet::new(),
        },
        measured: Measured::default(),
        shrunk: false,
        attached: false,
        deadline,
        sandboxes: std::collections::BTreeMap::new(),
        starting: 0,
        used: total,
        absent: std::collections::BTreeSet::new(),
        given_up: std::collections::BTreeMap::new(),
        images: std::collections::BTreeMap::new(),
        pace: crate::pace::Pace::default(),
    }
}

fn restore_rollout(now: Now, group: &mut Group, plan: &JobPlan, stored: &RolloutSnapshot) {
    let member = Member::of(stored.rollout);
    for &(step, state) in &stored.steps {
        let slot = Slot { member, step };
        if group.holds(slot) {
            group.set_state(slot, state);
        }
    }
    for attempt in &stored.attempts {
        let slot = Slot { member, step: attempt.attempt.step };
        if !group.holds(slot) {
            continue;
        }
        let detail = group.detail(slot);
        detail.attempts = detail.attempts.max(attempt.attempt.attempt + 1);
        detail.generation = detail.generation.max(attempt.generation);
        match &attempt.outcome {
            Some(outcome) => {
                let number = attempt.attempt.attempt;
                let stays = |was: &ParkedAt| was.stays(number, attempt.started, outcome);
                let stays_parked = detail.parked.as_deref().is_some_and(stays);
                note_end(detail, outcome, stays_parked);
                let place = (attempt.node.clone(), attempt.incarnation);
                let again = ParkedAt::new(now, place, number, outcome).map(Box::new);
                detail.parked = again.or_else(|| detail.parked.take());
            }
            None => {
                let (node, from) = (attempt.node.clone(), attempt.continue_from);
                let place = Place::new(node, attempt.incarnation, from);
                detail.place = Some(Place { base: attempt.base, started: attempt.started, ..place });
                group.set_state(slot, StepState::Running);
            }
        }
    }
    for &(step, floor) in &stored.generations {
        let slot = Slot { member, step };
        if group.holds(slot) {
            let detail = group.detail(slot);
            detail.generation = detail.generation.max(floor);
        }
    }
    for &(step, books) in &stored.books {
        let slot = Slot { member, step };
        if group.holds(slot) {
            let detail = group.detail(slot);
            (detail.chain_breaks, detail.refusals) = (books.chain_breaks, books.refusals);
            detail.anew = books.anew;
            // The wall may have been set back since: no step waits longer than its longest wait.
            let longest = plan.step(step).retry.max_backoff.max(REFUSAL_BACKOFF_MAX);
            let due = books.not_before.map(|at| now.boot_at(at).min(now.boot.after(longest)));
            detail.not_before = due.unwrap_or(BootTime(0));
        }
    }
    for CheckpointSnapshot { attempt, ordinal, kind, checkpoint } in &stored.checkpoints {
        let slot = Slot { member, step: attempt.step };
        if !group.holds(slot) {
            continue;
        }
        let (attempt, ordinal) = (attempt.attempt, *ordinal);
        let checkpoint = checkpoint.clone();
        let saved = Saved { id: checkpoint.id(), attempt, ordinal, shared: false, checkpoint };
        let detail = group.detail(slot);
        match kind {
            CheckpointKind::After => detail.checkpoint = Some(Box::new(saved)),
            CheckpointKind::Every => {
                // All stay stored; one is enough to start from.
                if plan.step(slot.step).checkpoint.keep == Keep::All {
                    detail.taken.clear();
                }
                detail.taken.push_back(saved);
            }
        }
    }
    // A node found its files bad: that attempt was withdrawn, and nothing else tells.
    for (_, detail) in group.details.iter_mut().filter(|(slot, _)| slot.member == member) {
        let runs = detail.place.as_ref().is_some_and(|place| place.started);
        let Detail { parked, taken, .. } = detail;
        parked.take_if(|was| !runs && !was.has_files(taken.back()));
    }
}

fn restore_results(group: &mut Group, stored: &RolloutSnapshot) {
    let member = Member::of(stored.rollout);
    for (step, checkpoint) in &stored.results {
        let slot = Slot { member, step: *step };
        if group.holds(slot) {
            let (id, checkpoint) = (checkpoint.id(), checkpoint.clone());
            let saved = Saved { id, attempt: 0, ordinal: 0, shared: true, checkpoint };
            group.detail(slot).checkpoint = Some(Box::new(saved));
        }
    }
}

/// Sandboxes that must still exist: of running attempts, and those kept for a step to come.
fn live_sandboxes(job: &Job, group: &Group, stored: &RolloutSnapshot) -> Vec<(At, AttemptSnapshot, Phase)> {
    let member = Member::of(stored.rollout);
    let latest = |step: StepIndex| stored.attempts.iter().rfind(|a| a.attempt.step == step);
    let mut found = Vec::new();
    for step in job.plan.step_indices() {
        let at = At { group: stored.rollout.group, slot: Slot { member, step } };
        let Some(attempt) = latest(step) else { continue };
        if attempt.outcome.is_none() {
            let phase = if attempt.started { Phase::Running } else { Phase::Starting };
            found.push((at, attempt.clone(), phase));
        } else if attempt.kept && group.leaves_sandbox(&job.plan, at.slot) {
            let next = job.plan.continuation(step).map(|step| Slot { member, step });
            let waits = next.is_some_and(|n| {
                let open = !group.state(n).is_final() && group.state(n) != StepState::Running;
                open && group.continues(&job.plan, n)
            });
            if waits {
                found.push((at, attempt.clone(), Phase::Kept));
            }
        }
    }
    found
}
