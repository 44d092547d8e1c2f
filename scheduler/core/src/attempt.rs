//! What nodes report of attempts, and what follows.

use rollout::failure::{Failure, Status};
use rollout::outcome::Outcome;
use rollout::plan::{Origin, StepKind};
use rollout::state::StepState;
use rollout::{AttemptId, FailureCode, Millis, Timestamp};

use crate::cluster::Cluster;
use crate::command::{Command, Target};
use crate::config::{Now, REFUSAL_BACKOFF, REFUSAL_BACKOFF_MAX, THAW_WAIT_MAX};
use crate::event::{Fence, RefusalClass};
use crate::group::{Detail, Exclusion};
use crate::member::{At, Member};
use crate::node::Phase;
use crate::parking::ParkedAt;
use crate::record::Record;

/// Why an attempt was not begun.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NotBegun<'a> {
    /// By its node, with these words.
    Refused(RefusalClass, &'a str),
    /// Its start never left the scheduler.
    NeverSent(&'a str),
}

/// How a report stands to what the core knows.
pub(crate) enum Standing {
    /// Of the attempt that runs now, from where it runs.
    Current,
    /// Its end was accepted already.
    Repeated,
    Stale,
}

impl Cluster {
    pub(crate) fn standing(&self, fence: &Fence, attempt: AttemptId) -> Standing {
        let at = At::of(attempt);
        let node = self.nodes.get(&fence.node).filter(|n| n.incarnation == fence.incarnation);
        if node.is_none_or(|node| node.given_up.contains_key(&(attempt, fence.generation))) {
            return Standing::Stale;
        }
        let group = self.jobs.get(&at.group.job).and_then(|j| j.groups.get(&at.group.index));
        let Some(group) = group.filter(|g| g.holds(at.slot)) else { return Standing::Stale };
        let Some(detail) = group.details.get(&at.slot) else { return Standing::Stale };
        // The whole id: a refill that does not exist is not its member.
        let current = detail.attempts.checked_sub(1).map(|n| at.attempt(n));
        if detail.generation != fence.generation || current != Some(attempt) {
            return Standing::Stale;
        }
        match &detail.place {
            Some(place) if place.node == fence.node && place.incarnation == fence.incarnation => {
                Standing::Current
            }
            Some(_) => Standing::Stale,
            None => Standing::Repeated,
        }
    }

    pub(crate) fn started(
        &mut self,
        now: Now,
        fence: &Fence,
        attempt: AttemptId,
        started_at: Timestamp,
        records: &mut Vec<Record>,
    ) {
        self.renew(now, &fence.node, fence.incarnation);
        match self.standing(fence, attempt) {
            Standing::Current => {}
            Standing::Repeated => return,
            Standing::Stale => return self.fence(fence, attempt, records),
        }
        self.note_started(fence, attempt, started_at, records);
    }

    /// Of the current attempt; recorded once.
    pub(crate) fn note_started(
        &mut self,
        fence: &Fence,
        attempt: AttemptId,
        started_at: Timestamp,
        records: &mut Vec<Record>,
    ) {
        let at = At::of(attempt);
        let Some(group) = self.group_mut(at.group) else { return };
        let Some(place) = group.detail(at.slot).place.as_mut() else { return };
        if !std::mem::replace(&mut place.started, true) {
            records.push(Record::AttemptStarted { attempt, generation: fence.generation, started_at });
        }
        // One that was lost there and waits to be sent again is not made yet, whatever comes late.
        if let Some(key) = self.sandbox_key(at)
            && let Some(node) = self.node_of(&fence.node, fence.incarnation)
            && !node.pace.has(attempt)
        {
            node.set_phase(key, Phase::Running);
        }
    }

    pub(crate) fn ended(
        &mut self,
        now: Now,
        fence: &Fence,
        attempt: AttemptId,
        outcome: Box<Outcome>,
        kept: bool,
        records: &mut Vec<Record>,
    ) {
        self.renew(now, &fence.node, fence.incarnation);
        let to =
            Target { node: fence.node.clone(), incarnation: fence.incarnation, generation: fence.generation };
        self.outbox.push(Command::AckEnded { to: to.clone(), attempt });
        match self.standing(fence, attempt) {
            Standing::Current => match self.contradiction(attempt, &outcome) {
                None => self.accept_end(now, attempt, outcome, kept, records),
                // It has ended, and nothing else that is said of it counts.
                Some((code, problem)) => {
                    if kept {
                        self.outbox.push(Command::Release { to, attempt });
                    }
                    let message = format!("node {} reported an end that cannot be: {problem}", fence.node);
                    let failure = Failure::new(code, message);
                    let unknown = Box::new(crate::lease::lost_outcome(now, failure));
                    self.accept_end(now, attempt, unknown, false, records);
                }
            },
            Standing::Repeated => {}
            Standing::Stale => {
                if kept {
                    self.outbox.push(Command::Release { to, attempt });
                }
                self.fence(fence, attempt, records);
            }
        }
    }

    fn contradiction(&self, attempt: AttemptId, outcome: &Outcome) -> Option<(FailureCode, String)> {
        let job = self.jobs.get(&attempt.rollout.group.job)?;
        crate::contradiction::contradiction(job.plan.step(attempt.step), outcome)
    }

    /// The end of the current attempt, from its node or for a node that was lost.
    pub(crate) fn accept_end(
        &mut self,
        now: Now,
        attempt: AttemptId,
        outcome: Box<Outcome>,
        kept: bool,
        records: &mut Vec<Record>,
    ) {
        let at = At::of(attempt);
        let Some(key) = self.sandbox_key(at) else { return };
        let Some(group) = self.group_mut(at.group) else { return };
        let detail = group.detail(at.slot);
        let Some(place) = detail.place.take() else { return };
        self.overdue.remove(&(place.due, at));
        let Some(detail) = self.group_mut(at.group).map(|g| g.detail(at.slot)) else { return };
        let generation = detail.generation;
        let stays = |was: &ParkedAt| was.stays(attempt.attempt, place.started, &outcome);
        let stays_parked = detail.parked.as_deref().is_some_and(stays);
        note_end(detail, &outcome, stays_parked);
        if let Some(was) = detail.parked.as_mut() {
            was.called_until = now.boot.after(THAW_WAIT_MAX);
        }
        let failure = outcome.failure.clone();
        let parked = ParkedAt::new(now, (place.node.clone(), place.incarnation), attempt.attempt, &outcome);
        match (&parked, &outcome.checkpoint) {
            (Some(_), Some(checkpoint)) => self.keep_parked(attempt, checkpoint, records),
            _ => self.keep_workspace(attempt, &outcome, records),
        }
        records.push(Record::AttemptEnded { attempt, generation, outcome, kept });

        if let Some(node) = self.node_of(&place.node, place.incarnation) {
            if kept {
                node.set_phase(key, Phase::Kept);
            } else {
                node.release(key);
            }
        }
        match failure {
            None if parked.is_some() => {
                let stops = self.jobs.get(&at.group.job).is_some_and(|job| {
                    job.groups.get(&at.group.index).is_some_and(|group| job.stop(group).is_some())
                });
                match parked.filter(|_| !stops) {
                    Some(parked) => self.park(at, parked, records),
                    None => self.record_state(at, StepState::Cancelled, records),
                }
            }
            None => {
                self.share_result(now, at, &place, records);
                self.record_state(at, StepState::Succeeded, records);
                if !self.has_successor(at) {
                    self.free_kept(key);
                }
            }
            Some(failure) => {
                if !self.is_graded_there(at) || !self.has_successor(at) {
                    self.free_kept(key);
                }
                self.settle_failure(now, at, &failure, records);
            }
        }
        let code = self.group_mut(at.group).and_then(|g| g.cause_code(at));
        self.after_end(now, at, code, records);
    }

    /// Retry, grade again, or final.
    fn settle_failure(&mut self, now: Now, at: At, failure: &Failure, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let stopping = job.stop(group).is_some();
        let step = job.plan.step(at.slot.step);
        let (retry, regrades) = (step.retry, step.grader.as_ref().map_or(0, |g| g.regrades));
        // Graded again without the agent, and never from what the first grader left.
        let can_regrade = step.kind == StepKind::Grader
            && (!matches!(step.origin, Origin::Live(_)) || group.base(&job.plan, at.slot).is_some());
        let Some(detail) = group.details.get(&at.slot) else { return };
        let consequence = failure.code.consequence();
        let infrastructure = consequence.should_retry && failure.domain.infrastructure();
        if !stopping && detail.parked.is_some() {
            let wait = backoff(&retry, 1, at);
            return self.back_off(now, at, wait, records);
        }
        if let Some(group) = self.group_mut(at.group) {
            group.detail(at.slot).parked = None;
        }
        let Some(detail) = self.group_mut(at.group).map(|group| group.detail(at.slot).clone()) else {
            return;
        };
        if consequence.status == Status::Cancelled || stopping && infrastructure {
            self.record_state(at, StepState::Cancelled, records);
        } else if infrastructure && detail.infra_failures + detail.chain_breaks <= retry.limit {
            let wait = backoff(&retry, detail.infra_failures + detail.chain_breaks, at);
            self.restart_chain(now, at, wait, records);
        } else if can_regrade
            && failure.domain == rollout::Domain::Grader
            && detail.grader_failures <= regrades
            && !stopping
        {
            self.record_state(at, StepState::Waiting, records);
        } else {
            self.record_state(at, StepState::Failed, records);
        }
    }

    pub(crate) fn refused(
        &mut self,
        now: Now,
        fence: &Fence,
        attempt: AttemptId,
        class: RefusalClass,
        message: &str,
        records: &mut Vec<Record>,
    ) {
        self.renew(now, &fence.node, fence.incarnation);
        self.withdraw(now, fence, attempt, NotBegun::Refused(class, message), records);
    }

    /// The attempt was not begun by its node.
    pub(crate) fn withdraw(
        &mut self,
        now: Now,
        fence: &Fence,
        attempt: AttemptId,
        why: NotBegun<'_>,
        records: &mut Vec<Record>,
    ) {
        if !matches!(self.standing(fence, attempt), Standing::Current) {
            return self.fence(fence, attempt, records);
        }
        let (class, message, refusal) = match why {
            NotBegun::Refused(class, message) => {
                (class, message, format!("node {} refused it: {message}", fence.node))
            }
            NotBegun::NeverSent(why) => (RefusalClass::Busy, why, why.to_owned()),
        };
        // An executor says so as it ends: what is placed there now would be lost with it.
        if class == RefusalClass::Unhealthy
            && let Some(node) = self.node_of(&fence.node, fence.incarnation)
        {
            node.attached = false;
            self.keyed.rouse_digest_waits();
        }
        let at = At::of(attempt);
        let Some(key) = self.sandbox_key(at) else { return };
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let retry = job.plan.step(at.slot.step).retry;
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let place = group.detail(at.slot).place.take();
        if let Some(place) = &place {
            self.overdue.remove(&(place.due, at));
        }
        let (predecessor, base) = place.map_or((None, None), |p| (p.continue_from, p.base));
        let gone = class == RefusalClass::SandboxGone;
        let bad = class == RefusalClass::CheckpointBad && base.is_some();
        // A sandbox that is gone costs nothing where a checkpoint takes its place.
        let replaced = gone && predecessor.is_some() && group.base(&job.plan, at.slot).is_some();
        let detail = group.detail(at.slot);
        detail.attempts -= 1;
        detail.refusals += 1;
        detail.refusal = Some(refusal);
        detail.avoid = Some(fence.node.clone());
        if class == RefusalClass::NeverFits {
            detail.excluded.retain(|known| known.node != fence.node);
            let (node, why) = (fence.node.clone(), message.to_owned());
            detail.excluded.push(Exclusion { node, incarnation: fence.incarnation, why });
        }
        // Its files are gone, and with them all there was of it; or it went on, whatever its node says.
        let Detail { parked, taken, .. } = detail;
        let was_parked = parked.take_if(|was| bad || !was.has_files(taken.back())).is_some();
        let went_on = was_parked && !bad;
        detail.chain_breaks += u32::from(bad || went_on || gone && !replaced);
        let spent = (gone || bad || went_on) && detail.infra_failures + detail.chain_breaks > retry.limit;
        let wait = Millis((REFUSAL_BACKOFF.0 << detail.refusals.min(6)).min(REFUSAL_BACKOFF_MAX.0));
        if spent {
            let (code, what) = match gone {
                true => (FailureCode::StartFailed, "the sandbox to go on in is gone"),
                false if went_on => {
                    (FailureCode::StorageFailed, "the checkpoint to start from is superseded")
                }
                false => (FailureCode::StorageFailed, "the checkpoint to start from is bad"),
            };
            detail.failure = Some(Failure::new(code, format!("{what}: {message}")));
        }
        let stopping = job.groups.get(&at.group.index).is_some_and(|group| job.stop(group).is_some());
        records.push(Record::AttemptWithdrawn { attempt, generation: fence.generation });
        self.record_books(now, at, records);
        // A refused continuation leaves the sandbox of its predecessor as it was, unless it is gone.
        let left_by = predecessor.filter(|_| !gone).and_then(|p| {
            let group = self.group_mut(at.group)?;
            Some((p, group.details.get(&At::of(p).slot)?.generation))
        });
        if let Some(node) = self.node_of(&fence.node, fence.incarnation) {
            match (left_by, node.sandboxes.get_mut(&key)) {
                (Some((attempt, generation)), Some(reservation)) => {
                    (reservation.attempt, reservation.generation) = (attempt, generation);
                    node.set_phase(key, Phase::Kept);
                }
                _ => {
                    node.release(key);
                }
            }
        }
        if stopping {
            self.free_kept(key);
            self.record_state(at, StepState::Cancelled, records);
        } else if spent {
            self.record_state(at, StepState::Failed, records);
        } else if bad {
            if let Some(base) = base {
                let why = format!("node {} refused it: {message}", fence.node);
                self.drop_base(at, base, &why, records);
            }
            self.restart_with_maker(now, at, wait, records);
        } else if gone || went_on {
            self.restart_chain(now, at, wait, records);
        } else {
            self.back_off(now, at, wait, records);
        }
        let code = self.group_mut(at.group).and_then(|g| g.cause_code(at));
        self.after_end(now, at, code, records);
    }
}

impl crate::group::Group {
    /// The code of a step that is settled as failed; none for any other state.
    fn cause_code(&self, at: At) -> Option<FailureCode> {
        (self.state(at.slot) == StepState::Failed)
            .then(|| self.details.get(&at.slot)?.failure.as_ref().map(|f| f.code))?
    }
}

/// Counts an end in the books of the step. One that leaves it parked costs a delay and counts for
/// nothing. Also used when they are read back from the store.
pub(crate) fn note_end(detail: &mut Detail, outcome: &Outcome, stays_parked: bool) {
    detail.failure.clone_from(&outcome.failure);
    detail.reward.clone_from(&outcome.reward);
    if stays_parked {
        return;
    }
    detail.parked = None;
    if let Some(failure) = &outcome.failure {
        if failure.domain == rollout::Domain::Grader {
            detail.grader_failures += 1;
        } else if failure.domain.infrastructure() {
            detail.infra_failures += 1;
        }
    }
}

/// Doubles from `backoff` to `max_backoff`, then less up to a quarter, drawn from the step's id:
/// the same step waits the same time in every replay, neighbours do not wake together.
pub(crate) fn backoff(retry: &rollout::plan::RetryPlan, failures: u32, at: At) -> Millis {
    let doubled = retry.backoff.0.saturating_mul(1 << failures.saturating_sub(1).min(20));
    let wait = doubled.min(retry.max_backoff.0);
    let Member { sample, refill } = at.slot.member;
    let mut mixed = at.group.job.bits() ^ u64::from(at.group.index) << 32 ^ u64::from(sample) << 8;
    mixed ^= u64::from(refill) << 40;
    mixed = (mixed ^ u64::from(at.slot.step.0) ^ u64::from(failures)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Millis(wait - (wait / 4) * (mixed >> 56) / 256)
}
