//! What steps start from: live sandboxes, and checkpoints when those are gone.
//!
//! A finished step does not run again while the checkpoint it left is good.

use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::failure::Failure;
use rollout::outcome::Outcome;
use rollout::plan::{Keep, Origin, StepKind};
use rollout::state::StepState;
use rollout::{AttemptId, FailureCode, Millis};

use crate::attempt::Standing;
use crate::cluster::Cluster;
use crate::config::Now;
use crate::event::Fence;
use crate::group::{Detail, Saved};
use crate::member::{At, Member, Slot};
use crate::node::Phase;
use crate::record::{CheckpointKind, Record};

pub(crate) const SUPERSEDED: &str = "superseded";

impl Cluster {
    /// A workspace was saved while its step runs on.
    pub(crate) fn checkpoint_taken(
        &mut self,
        now: Now,
        fence: &Fence,
        attempt: AttemptId,
        checkpoint: Checkpoint,
        records: &mut Vec<Record>,
    ) {
        self.renew(now, &fence.node, fence.incarnation);
        match self.standing(fence, attempt) {
            Standing::Current => {}
            Standing::Repeated => return,
            Standing::Stale => return self.fence(fence, attempt, records),
        }
        let at = At::of(attempt);
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let step = job.plan.step(at.slot.step);
        if step.checkpoint.every.is_none() && step.kind != StepKind::Session {
            // Nobody asked for it.
            return self.fence(fence, attempt, records);
        }
        let keep = step.checkpoint.keep;
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let detail = group.detail(at.slot);
        // An executor tells its last one again whenever it attaches.
        let is_known = |saved: &Saved| saved.attempt == attempt.attempt && *saved.checkpoint == checkpoint;
        if detail.taken.back().is_some_and(is_known) {
            return;
        }
        let saved = record_saved(detail, attempt, CheckpointKind::Every, checkpoint, records);
        detail.taken.push_back(saved);
        drop_old(detail, at, keep, 1, records);
        // A session that saves has gone on, whenever its node says so.
        if detail.parked.is_some() {
            self.note_started(fence, attempt, now.wall, records);
        }
    }

    /// Keeps the workspace that an accepted end left, if it can be worked from.
    pub(crate) fn keep_workspace(
        &mut self,
        attempt: AttemptId,
        outcome: &Outcome,
        records: &mut Vec<Record>,
    ) {
        let at = At::of(attempt);
        let usable = outcome.failure.as_ref().is_none_or(|f| f.code.consequence().should_grade);
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let plan = &job.plan.step(at.slot.step).checkpoint;
        let (after, keep) = (plan.after, plan.keep);
        let Some(checkpoint) = outcome.checkpoint.as_ref().filter(|_| usable && after) else { return };
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let detail = group.detail(at.slot);
        let saved = record_saved(detail, attempt, CheckpointKind::After, checkpoint.clone(), records);
        if let Some(old) = detail.checkpoint.replace(Box::new(saved)) {
            records.push(removed(at, &old, SUPERSEDED));
        }
        drop_old(detail, at, keep, 0, records);
    }

    /// Keeps the workspace that a session goes on from, unless it was told before.
    pub(crate) fn keep_parked(
        &mut self,
        attempt: AttemptId,
        checkpoint: &Checkpoint,
        records: &mut Vec<Record>,
    ) {
        let at = At::of(attempt);
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let keep = job.plan.step(at.slot.step).checkpoint.keep;
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let detail = group.detail(at.slot);
        let is_known = |saved: &Saved| saved.attempt == attempt.attempt && *saved.checkpoint == *checkpoint;
        if !detail.taken.back().is_some_and(is_known) {
            let saved = record_saved(detail, attempt, CheckpointKind::Every, checkpoint.clone(), records);
            detail.taken.push_back(saved);
            drop_old(detail, at, keep, 1, records);
        }
    }

    /// Will a step of the chain go on in the sandbox that `at` leaves?
    pub(crate) fn has_successor(&self, at: At) -> bool {
        let Some(job) = self.jobs.get(&at.group.job) else { return false };
        let next = job.plan.continuation(at.slot.step).map(|step| Slot { step, ..at.slot });
        let group = job.groups.get(&at.group.index);
        next.zip(group).is_some_and(|(next, group)| !group.state(next).is_final())
    }

    pub(crate) fn is_graded_there(&self, at: At) -> bool {
        let Some(job) = self.jobs.get(&at.group.job) else { return false };
        job.groups.get(&at.group.index).is_some_and(|group| group.is_graded_there(&job.plan, at.slot))
    }

    /// A step that may run finds its predecessor's sandbox gone, and a checkpoint instead.
    pub(crate) fn note_lost_sandbox(&mut self, now: Now, at: At, records: &mut Vec<Record>) {
        let Some(key) = self.sandbox_key(at) else { return };
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let kept =
            || self.nodes.values().any(|n| n.sandboxes.get(&key).is_some_and(|r| r.phase == Phase::Kept));
        if group.continues(&job.plan, at.slot) && !kept() && group.base(&job.plan, at.slot).is_some() {
            self.set_anew(now, at, true, records);
        }
    }

    /// Not of a step that is queued: its class follows from it.
    fn set_anew(&mut self, now: Now, at: At, anew: bool, records: &mut Vec<Record>) {
        let Some(group) = self.group_mut(at.group) else { return };
        let known = group.details.get(&at.slot).is_some_and(|detail| detail.anew);
        if known != anew {
            group.detail(at.slot).anew = anew;
            self.record_books(now, at, records);
        }
    }

    /// A step is tried again. If it went on in another's sandbox, that sandbox is gone: the chain
    /// starts again at the last step that has a checkpoint to start with, or at its head.
    pub(crate) fn restart_chain(&mut self, now: Now, at: At, wait: Millis, records: &mut Vec<Record>) {
        let Some(key) = self.sandbox_key(at) else { return };
        self.free_kept(key);
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let plan = job.plan.clone();
        let mut chain = plan.chain(key.head);
        chain.retain(|&step| step <= at.slot.step);
        let can_start = |slot: Slot| slot.step == key.head || group.base(&plan, slot).is_some();
        let from = chain.iter().rev().find(|&&step| can_start(Slot { step, ..at.slot }));
        let from = from.copied().unwrap_or(key.head);
        for &step in chain.iter().filter(|&&step| step > from) {
            let later = at.with_step(step);
            self.record_state(later, StepState::Waiting, records);
            self.set_anew(now, later, false, records);
        }
        let first = at.with_step(from);
        self.set_state(first, StepState::Waiting);
        if let Some(group) = self.group_mut(at.group) {
            group.detail(first.slot).anew = from != key.head;
        }
        self.back_off(now, first, wait, records);
        for step in chain.into_iter().filter(|&step| step >= from) {
            self.hold_back_dependents(at.with_step(step));
        }
    }

    /// What is queued and needs `at` waits for it again.
    fn hold_back_dependents(&mut self, at: At) {
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let plan = job.plan.clone();
        let members: Vec<Member> = match at.slot.member.is_shared() {
            true => group.members().chain([Member::SHARED]).collect(),
            false => vec![at.slot.member],
        };
        let depends = |step| {
            let step = plan.step(step);
            step.needs.contains(&at.slot.step) || step.origin.step() == Some(at.slot.step)
        };
        let slots = members.iter().flat_map(|member| {
            member.own_steps(&plan).filter(|&step| depends(step)).map(|step| Slot { member: *member, step })
        });
        let queued: Vec<Slot> = slots.filter(|&slot| group.state(slot) == StepState::Ready).collect();
        for slot in queued {
            self.set_state(At { slot, ..at }, StepState::Waiting);
        }
    }

    /// A sandbox that waited for the next step is gone. If a step was going to use it, the chain
    /// starts again.
    pub(crate) fn kept_lost(
        &mut self,
        now: Now,
        head: rollout::StepIndex,
        left_by: AttemptId,
        records: &mut Vec<Record>,
    ) {
        let at = At::of(left_by);
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let next = job.plan.chain(head).into_iter().find(|&s| s > at.slot.step);
        let Some(next) = next.map(|step| at.with_step(step)) else { return };
        let Some(group) = self.group_mut(at.group) else { return };
        if !group.state(next.slot).is_final() {
            self.continue_elsewhere(now, next, records);
        }
    }

    /// `at` cannot go on in the sandbox it was to use. If that costs a finished step, it counts
    /// against `at`.
    pub(crate) fn continue_elsewhere(&mut self, now: Now, at: At, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let limit = job.plan.step(at.slot.step).retry.limit;
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        if group.base(&job.plan, at.slot).is_some() {
            return self.restart_chain(now, at, Millis(0), records);
        }
        let detail = group.detail(at.slot);
        detail.chain_breaks += 1;
        let spent = detail.infra_failures + detail.chain_breaks > limit;
        if spent {
            let message = "the sandbox to go on in was lost more often than `retry.limit` allows";
            detail.failure = Some(Failure::new(FailureCode::NodeLost, message));
        }
        self.record_books(now, at, records);
        if !spent {
            self.restart_chain(now, at, Millis(0), records);
            return;
        }
        self.record_state(at, StepState::Failed, records);
        self.after_end(now, at, Some(FailureCode::NodeLost), records);
    }

    /// The checkpoint `base` is not what it was, by the word of a node: nobody starts from it again.
    /// One that was replaced meanwhile is gone already.
    pub(crate) fn drop_base(&mut self, at: At, base: CheckpointId, why: &str, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let own = group.detail(at.slot);
        if let Some(index) = own.taken.iter().position(|saved| saved.id == base) {
            records.extend(own.taken.remove(index).map(|saved| removed(at, &saved, why)));
        }
        let Some(from) = job.plan.step(at.slot.step).origin.step() else { return };
        let maker = At { slot: at.slot.member.slot(&job.plan, from), ..at };
        let left = &mut group.detail(maker.slot).checkpoint;
        if let Some(saved) = left.take_if(|saved| saved.id == base) {
            records.push(removed(maker, &saved, why));
            self.drop_result(maker, &saved, why, records);
        }
    }

    /// `at` is tried again after `wait`; if the step whose checkpoint it works from has none any more,
    /// that step runs again first.
    pub(crate) fn restart_with_maker(&mut self, now: Now, at: At, wait: Millis, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        if let Origin::Checkpoint(from) = job.plan.step(at.slot.step).origin {
            let maker = at.slot.member.slot(&job.plan, from);
            let none = group.details.get(&maker).is_none_or(|detail| detail.checkpoint.is_none());
            if none && group.state(maker).is_final() {
                self.restart_chain(now, At { slot: maker, ..at }, wait, records);
            }
        }
        self.restart_chain(now, at, wait, records);
    }

    /// A step that works from a checkpoint has none to start with, though its maker succeeded. True if
    /// so: it is tried again when that is made anew, as often as its retries allow.
    pub(crate) fn lacks_base(&mut self, now: Now, at: At, records: &mut Vec<Record>) -> bool {
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return false };
        let step = job.plan.step(at.slot.step);
        let Some(group) = job.groups.get_mut(&at.group.index) else { return false };
        if !matches!(step.origin, Origin::Checkpoint(_)) || group.base(&job.plan, at.slot).is_some() {
            return false;
        }
        let limit = step.retry.limit;
        let detail = group.detail(at.slot);
        detail.chain_breaks += 1;
        if detail.infra_failures + detail.chain_breaks <= limit {
            self.record_books(now, at, records);
            self.restart_with_maker(now, at, Millis(0), records);
            return true;
        }
        let message = "the checkpoint to start from was gone more often than `retry.limit` allows";
        detail.failure = Some(Failure::new(FailureCode::StorageFailed, message));
        self.record_books(now, at, records);
        self.record_state(at, StepState::Failed, records);
        self.after_end(now, at, Some(FailureCode::StorageFailed), records);
        true
    }
}

fn record_saved(
    detail: &Detail,
    attempt: AttemptId,
    kind: CheckpointKind,
    checkpoint: Checkpoint,
    records: &mut Vec<Record>,
) -> Saved {
    let ordinal = detail.next_ordinal(attempt.attempt);
    let checkpoint = Arc::new(checkpoint);
    records.push(Record::CheckpointTaken { attempt, ordinal, kind, checkpoint: checkpoint.clone() });
    Saved { id: checkpoint.id(), attempt: attempt.attempt, ordinal, shared: false, checkpoint }
}

/// Of what was saved while a step ran, `keep` says what stays beside the last; `last` is how many of
/// these are that last one.
fn drop_old(detail: &mut Detail, at: At, keep: Keep, last: usize, records: &mut Vec<Record>) {
    let room = match keep {
        Keep::Last => last,
        Keep::Newest(count) => (count as usize).max(last),
        Keep::All => {
            // All stay stored; one is enough to start from.
            while detail.taken.len() > 1 {
                detail.taken.pop_front();
            }
            return;
        }
    };
    while detail.taken.len() > room {
        records.extend(detail.taken.pop_front().map(|old| removed(at, &old, SUPERSEDED)));
    }
}

/// The record of a step that `saved` does not belong to any more.
pub(crate) fn removed(at: At, saved: &Saved, why: &str) -> Record {
    if saved.shared {
        return Record::ResultUnused { rollout: at.rollout(), step: at.slot.step };
    }
    Record::CheckpointRemoved {
        attempt: at.attempt(saved.attempt),
        ordinal: saved.ordinal,
        why: why.to_owned(),
    }
}
