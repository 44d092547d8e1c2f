//! From the end of its last rollout to the end of a group: delivered, dropped, or refilled first.
//!
//! A refill replaces what infrastructure lost, member by member and in rounds. Each replaced rollout
//! keeps its place under `max_running` until its group has closed, so that a round never has to wait
//! for room, nor takes any that it does not have.

use rollout::GroupId;
use rollout::failure::Status;
use rollout::plan::OnIncomplete;
use rollout::state::{GroupClosedAs, StepState};
use rollout::{FailureCode, Millis};

use crate::attempt::backoff;
use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::Now;
use crate::group::{Group, Verdict};
use crate::job::Job;
use crate::member::{At, Member, Slot};
use crate::record::{Record, RolloutEnd};
use crate::totals::is_success;

impl RolloutEnd {
    /// Infrastructure lost it, and nobody called it off: another one may take its place.
    pub fn can_be_replaced(&self) -> bool {
        let lost = self.failure.as_ref().is_some_and(|failure| failure.domain.infrastructure());
        self.reward.is_none() && self.status != Status::Cancelled && lost
    }
}

impl Job {
    /// Could the next round of this group replace anything?
    fn may_refill(&self, group: &Group) -> bool {
        let plan = self.plan.group;
        plan.on_incomplete == OnIncomplete::Refill
            && group.round() < plan.refill_limit
            && group.valid < plan.size
            && group.closed.is_none()
            && self.cancel.is_none()
            && group.expanded.broken.is_none()
    }

    /// Members that ended and whose place is kept for the ones that may replace them.
    pub fn owed(&self, group: &Group) -> u32 {
        if !self.may_refill(group) {
            return 0;
        }
        let lost = group.ends.iter().flatten().filter(|end| end.can_be_replaced()).count();
        u32::try_from(lost).unwrap_or(u32::MAX)
    }

    /// Whom the next round replaces: of the missing members those that may be, the first first.
    fn refillable(&self, group: &Group) -> Vec<Member> {
        if !self.may_refill(group) {
            return Vec::new();
        }
        let missing = (self.plan.group.size - group.valid) as usize;
        let lost = |member: &Member| group.end_of(*member).is_some_and(RolloutEnd::can_be_replaced);
        group.members().filter(lost).take(missing).collect()
    }
}

impl Cluster {
    pub(crate) fn keep_place_for_refill(&mut self, id: GroupId) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let Some(owed) = job.groups.get(&id.index).map(|group| job.owed(group)) else { return };
        if let Some(group) = job.groups.get_mut(&id.index) {
            job.owed = job.owed - group.owed + owed;
            group.owed = owed;
        }
    }

    pub(crate) fn close_group_if_done(&mut self, now: Now, id: GroupId, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&id.job) else { return };
        let Some(group) = job.groups.get(&id.index) else { return };
        if group.closed.is_some() || group.ends.iter().any(Option::is_none) {
            return;
        }
        let members = job.refillable(group);
        if members.is_empty() {
            self.close_group(id, records)
        } else {
            self.refill(now, id, &members, false, records)
        }
    }

    /// Replaces these members, whose rollouts have ended: same sample, next round, forked from what
    /// the group's own steps left. Those do not run again, unless they are what was lost, or with `all`
    /// what failed.
    pub(crate) fn refill(
        &mut self,
        now: Now,
        id: GroupId,
        members: &[Member],
        all: bool,
        records: &mut Vec<Record>,
    ) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let plan = job.plan.clone();
        let Some(group) = job.groups.get_mut(&id.index) else { return };
        let mut fresh = Vec::new();
        for &member in members {
            let Some(end) = group.end_of(member) else { continue };
            job.totals.replace_rollout(end);
            let next = Member { refill: member.refill + 1, ..member };
            group.set_refill(next.sample, next.refill);
            records.push(Record::RolloutRefilled { rollout: next.in_group(id) });
            job.alive += 1;
            fresh.push(next);
        }
        self.keep_place_for_refill(id);
        self.revive_shared(now, id, all, records);
        for member in fresh {
            for step in member.own_steps(&plan) {
                let at = At { group: id, slot: Slot { member, step } };
                let Some(group) = self.group_mut(id) else { return };
                if group.verdict(&plan, at.slot) == Verdict::Run {
                    let wait = backoff(&plan.step(step).retry, member.refill, at);
                    self.back_off(now, at, wait, records);
                }
            }
        }
        self.advance(now, id, Member::SHARED, records);
    }

    /// Steps of the group itself that infrastructure lost get one more try a round.
    fn revive_shared(&mut self, now: Now, id: GroupId, all: bool, records: &mut Vec<Record>) {
        let Some(plan) = self.jobs.get(&id.job).map(|job| job.plan.clone()) else { return };
        for step in Member::SHARED.own_steps(&plan) {
            let at = At { group: id, slot: Slot { member: Member::SHARED, step } };
            let Some(group) = self.group_mut(id) else { return };
            let failure = group.details.get(&at.slot).and_then(|detail| detail.failure.as_ref());
            match group.state(at.slot) {
                StepState::Failed if all || failure.is_none_or(|f| f.domain.infrastructure()) => {
                    self.restart_chain(now, at, Millis(plan.step(step).retry.backoff.0), records);
                }
                StepState::Cancelled if !all => {}
                StepState::Skipped | StepState::Cancelled => {
                    self.record_state(at, StepState::Waiting, records);
                }
                _ => {}
            }
        }
    }

    fn close_group(&mut self, id: GroupId, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let (plan, success_at, seq) = (job.plan.group, job.success_at(), job.next_seq);
        // Where nothing gives a reward, none is missing.
        let drops = plan.on_incomplete != OnIncomplete::Deliver
            && job.plan.steps.iter().any(|step| step.grader.is_some());
        let Some(group) = job.groups.get_mut(&id.index) else { return };
        let ends = || group.ends.iter().flatten();
        let successes = ends().filter(|end| is_success(end, success_at)).count();
        let valid = group.valid;
        let closed_as = if ends().any(called_off) {
            GroupClosedAs::Cancelled
        } else if valid >= plan.size {
            GroupClosedAs::Full
        } else if drops && valid < plan.min_valid {
            GroupClosedAs::Dropped
        } else {
            GroupClosedAs::Short
        };
        group.closed = Some((seq, closed_as));
        job.owed -= std::mem::take(&mut group.owed);
        job.next_seq += 1;
        job.totals.add_group(valid, u32::try_from(successes).unwrap_or(u32::MAX));
        records.push(Record::GroupClosed { group: id, seq, closed_as, valid });
        self.outbox.push(Command::Record { group: id, seq });
    }
}

/// Cancelled, and not because its group had enough without it.
fn called_off(end: &RolloutEnd) -> bool {
    let straggler = end.failure.as_ref().is_some_and(|f| f.code == FailureCode::Straggler);
    end.status == Status::Cancelled && !straggler
}
