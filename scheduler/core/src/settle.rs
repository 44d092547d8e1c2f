//! From the end of a step to the end of its rollout and its group.

use rollout::failure::{Failure, Status};
use rollout::outcome::Reward;
use rollout::plan::{OnAgentTimeout, OnGraderTimeout, Origin, StepKind};
use rollout::state::{JobState, StepState};
use rollout::{FailureCode, GroupId};

use crate::breaker::Breaker;
use crate::cluster::Cluster;
use crate::config::Now;
use crate::group::{Group, Verdict};
use crate::job::Job;
use crate::keyed::Gate;
use crate::member::{At, Member, Slot};
use crate::record::{Hold, Record, RolloutEnd};

impl Cluster {
    /// A step's state changed: feed the breaker, then whoever waits for it.
    pub(crate) fn after_end(
        &mut self,
        now: Now,
        at: At,
        code: Option<FailureCode>,
        records: &mut Vec<Record>,
    ) {
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let settled = job.groups.get(&at.group.index).is_some_and(|g| g.state(at.slot).is_final());
        if settled {
            let breaker = job.breakers.entry(at.slot.step).or_default();
            let end = breaker.count(at.slot.step, code);
            records.push(Record::BreakerEnd { job: job.id, end });
        }
        if settled
            && let Some(tripped) = job.breakers.get(&at.slot.step).and_then(Breaker::tripped)
            && job.state == JobState::Running
        {
            let reason = format!(
                "more than half of the last {} ends of step `{}` failed with {tripped}; see one of them, then cancel the job, or let it go on with `rollyard retry {} --all-failed`",
                crate::config::BREAKER_WINDOW,
                job.plan.step(at.slot.step).name,
                job.id,
            );
            records.push(job.hold(Hold::Breaker, reason));
        }
        self.advance(now, at.group, at.slot.member, records);
    }

    /// Moves the waiting steps of a member as far as they may go; what is done once for a group moves
    /// all of its members.
    pub(crate) fn advance(&mut self, now: Now, id: GroupId, member: Member, records: &mut Vec<Record>) {
        self.sweep(now, id, member, records);
        if !member.is_shared() {
            return;
        }
        let Some(group) = self.group_mut(id) else { return };
        let members: Vec<Member> = group.members().collect();
        for member in members {
            self.sweep(now, id, member, records);
        }
    }

    /// Moves every waiting step of a member as far as its needs allow, and ends the rollout when
    /// nothing is left to do. `steps` is in topological order, so one sweep is enough.
    fn sweep(&mut self, now: Now, id: GroupId, member: Member, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&id.job) else { return };
        let Some(group) = job.groups.get(&id.index) else { return };
        if !group.has(member) || group.end_of(member).is_some() {
            return;
        }
        let (plan, stopping) = (job.plan.clone(), job.stop(group).is_some());
        let broken = group.expanded.broken.is_some();
        for step in member.own_steps(&plan) {
            let at = At { group: id, slot: Slot { member, step } };
            let Some(group) = self.group_mut(id) else { return };
            if group.state(at.slot) != StepState::Waiting {
                continue;
            }
            let verdict = if broken { Verdict::Skip } else { group.verdict(&plan, at.slot) };
            match verdict {
                Verdict::Wait => {}
                Verdict::Run if stopping => self.record_state(at, StepState::Cancelled, records),
                Verdict::Run => match self.gate(now, at) {
                    Gate::Run => {
                        self.note_lost_sandbox(now, at, records);
                        self.set_state(at, StepState::Ready);
                    }
                    Gate::Wait => {}
                    Gate::Done(name, checkpoint) => self.use_result(at, name, checkpoint, records),
                },
                Verdict::Skip => {
                    self.record_state(at, StepState::Skipped, records);
                }
            }
            // A chain that stops here needs its sandbox no more.
            let stops = verdict == Verdict::Skip || verdict == Verdict::Run && stopping;
            if let Some(key) = self.sandbox_key(at).filter(|_| stops) {
                self.free_kept(key);
            }
        }
        if !member.is_shared() {
            self.end_rollout_if_settled(now, id, member, records);
        }
    }

    /// It has not ended while a step it shares runs: whatever that leaves belongs to it.
    fn end_rollout_if_settled(&mut self, now: Now, id: GroupId, member: Member, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let success_at = job.success_at();
        let Some(group) = job.groups.get(&id.index) else { return };
        let mut slots = job.plan.step_indices().map(|step| member.slot(&job.plan, step));
        if !slots.all(|slot| group.state(slot).is_final()) {
            return;
        }
        let end = rollout_end(job, group, member);
        let rollout = member.in_group(id);
        job.totals.add_rollout(rollout, &end, success_at);
        job.alive -= 1;
        records.push(Record::RolloutEnded { rollout, end: end.clone() });
        let size = job.plan.group.size;
        let Some(group) = job.groups.get_mut(&id.index) else { return };
        let is_valid = end.reward.is_some();
        group.valid += u32::from(is_valid);
        group.ends[member.sample as usize] = Some(end);
        // The end that makes it whole, and no later one: those come out of the stop itself.
        let enough = is_valid && group.valid == size && group.ends.iter().any(Option::is_none);
        self.keep_place_for_refill(id);
        if enough {
            self.stop_group(now, id, FailureCode::Straggler, crate::job::ENOUGH, records);
        }
        self.close_group_if_done(now, id, records);
    }
}

/// The end of a rollout whose steps are all final.
fn rollout_end(job: &Job, group: &Group, member: Member) -> RolloutEnd {
    let plan = &job.plan;
    if let Some(failure) = &group.expanded.broken {
        return failed(failure.clone(), None);
    }
    let slots = || plan.step_indices().map(|step| member.slot(plan, step));
    if slots().any(|slot| group.state(slot) == StepState::Cancelled) {
        let (code, reason) = job.stop(group).unwrap_or((FailureCode::Cancelled, String::new()));
        return failed(Failure::new(code, reason), None);
    }
    // A failure that leaves no valid reward is the one to name; else the first in plan order.
    // After a restart some have no attempt to tell it: what to start from was lost too often.
    let lost = Failure::new(
        FailureCode::NodeLost,
        "the sandbox to go on in was lost more often than `retry.limit` allows",
    );
    let gone = Failure::new(
        FailureCode::StorageFailed,
        "the checkpoint to start from was gone or bad more often than `retry.limit` allows",
    );
    let untold = |slot: Slot| match plan.step(slot.step).origin {
        Origin::Checkpoint(_) => &gone,
        Origin::Live(_) | Origin::Image => &lost,
    };
    let failures: Vec<(Slot, &Failure)> = slots()
        .filter(|&slot| group.state(slot) == StepState::Failed)
        .map(|slot| {
            let told = group.details.get(&slot).and_then(|detail| detail.failure.as_ref());
            (slot, told.unwrap_or_else(|| untold(slot)))
        })
        .collect();
    let zeroed = |slot: Slot, failure: &Failure| {
        let grader = plan.step(slot.step).grader.as_ref();
        failure.code == FailureCode::GraderTimeout
            && grader.is_some_and(|g| g.on_timeout == OnGraderTimeout::Zero)
    };
    let invalid =
        failures.iter().find(|(slot, f)| !f.code.consequence().has_valid_reward && !zeroed(*slot, f));
    let named = invalid.or(failures.first()).map(|(_, f)| (*f).clone());
    let zeroed: Vec<Slot> =
        failures.iter().filter(|(slot, f)| zeroed(*slot, f)).map(|(slot, _)| *slot).collect();
    let reward = if invalid.is_some() { None } else { reward(job, group, member, &zeroed) };
    match named {
        Some(failure) => failed(failure, reward),
        None => RolloutEnd {
            status: Status::Completed,
            stop_reason: Some("stop".to_owned()),
            failure: None,
            reward,
        },
    }
}

fn failed(failure: Failure, reward: Option<Reward>) -> RolloutEnd {
    let consequence = failure.code.consequence();
    RolloutEnd {
        status: consequence.status,
        stop_reason: consequence.stop_reason.map(str::to_owned),
        failure: Some(failure),
        reward,
    }
}

/// Of a job without a grader: what drivers gave, as [`reward`] has it of graders. A driver need not give
/// one.
fn given(job: &Job, group: &Group, member: Member) -> Option<Reward> {
    let plan = &job.plan;
    let of = |step| Some((step, group.details.get(&member.slot(plan, step))?.reward.clone()?));
    let sessions = plan.step_indices().filter(|&step| plan.step(step).kind == StepKind::Session);
    let rewards: Vec<_> = sessions.filter_map(of).collect();
    let ((_, last), earlier) = rewards.split_last()?;
    let mut reward = last.clone();
    let component =
        |(step, reward): &(_, Reward)| (plan.step(*step).name.to_string(), f64::from(reward.value));
    reward.components.extend(earlier.iter().map(component));
    Some(reward)
}

/// The last grader's reward; those of earlier graders become components named by their step.
fn reward(job: &Job, group: &Group, member: Member, zeroed: &[Slot]) -> Option<Reward> {
    let plan = &job.plan;
    let zero = || Some(Reward { value: 0.0, components: Vec::new() });
    let of = |slot: Slot| match group.state(slot) {
        StepState::Succeeded => group.details.get(&slot)?.reward.clone(),
        // `on_timeout: zero` of the grader itself.
        StepState::Failed => zeroed.contains(&slot).then(zero)?,
        _ => match group.after_agent_timeout(plan, slot)? {
            OnAgentTimeout::Zero => zero(),
            OnAgentTimeout::Grade | OnAgentTimeout::Invalid => None,
        },
    };
    let graders: Vec<Slot> = plan
        .step_indices()
        .filter(|&step| plan.step(step).kind == StepKind::Grader)
        .map(|step| member.slot(plan, step))
        .collect();
    let Some((last, earlier)) = graders.split_last() else { return given(job, group, member) };
    let mut reward = of(*last)?;
    for slot in earlier {
        let value = of(*slot)?.value;
        reward.components.push((plan.step(slot.step).name.to_string(), f64::from(value)));
    }
    Some(reward)
}
