//! Sessions without a sandbox: saved, ended on their node, and back at the next call.
//!
//! ```text
//! Running ──ended as parked──> Parked ──thaw──> Ready (before all new work) ──placed──> Running
//!                                │ ^                │
//!                                │ └──no room for it within THAW_WAIT_MAX
//!                                └──its idle timeout, its timeout (called or not)──> ended, without a node
//! ```
//! Invariant: what is parked is charged to no node.
//! Invariant: until the sandbox that goes on is ready, the session is as it was parked: a node that is lost
//! or refuses meanwhile costs a delay.

use rollout::checkpoint::CheckpointId;
use rollout::classify::{Counters, SessionEnd, SessionFacts, classify_session};
use rollout::failure::Failure;
use rollout::outcome::{Outcome, Parked, ParkedClaim, Times};
use rollout::state::StepState;
use rollout::{BootTime, Bytes, FailureCode, IncarnationId, Millis, NodeId, RolloutId, StepIndex, Timestamp};

use crate::cluster::Cluster;
use crate::config::{Now, THAW_WAIT_MAX};
use crate::group::{Detail, Place, Saved};
use crate::member::{At, Member, Slot};
use crate::record::Record;

/// Sandboxes to go on in that may fail before they are ready; with one more all it had is lost, and that
/// counts as one failure of the step.
pub(crate) const THAWS_FAILED_MAX: u32 = 3;

/// A session that has no sandbox, or whose next one is not ready yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParkedAt {
    pub parked: Parked,
    pub actions: Option<u64>,
    pub node: NodeId,
    pub incarnation: IncarnationId,
    /// The attempt that was parked.
    pub attempt: u32,
    pub at: Timestamp,
    /// Its files.
    pub checkpoint: CheckpointId,
    /// Then it ends, if no sandbox was found for it.
    pub due: BootTime,
    /// If it was called and has no place by then, it is called no more. Not stored: after a restart this
    /// time begins anew.
    pub called_until: BootTime,
}

impl ParkedAt {
    pub fn new(now: Now, place: (NodeId, IncarnationId), attempt: u32, outcome: &Outcome) -> Option<Self> {
        let parked = outcome.parked.as_deref()?.clone();
        let checkpoint = outcome.checkpoint.as_ref()?.id();
        let (left, at) = (parked.left(), outcome.times.ended_at);
        // The wall of the node may be another one: no longer than it has from now on.
        let wall = now.boot_at(Timestamp(
            at.0.saturating_add(i64::try_from(left.0.saturating_mul(1000)).unwrap_or(i64::MAX)),
        ));
        let due = wall.min(now.boot.after(left));
        let (node, incarnation) = place;
        let actions = outcome.actions;
        let called_until = now.boot.after(THAW_WAIT_MAX);
        Some(Self { parked, actions, node, incarnation, attempt, at, checkpoint, due, called_until })
    }

    /// `attempt` has ended and was to go on with it: is it as it was, and may have another sandbox?
    pub fn stays(&self, attempt: u32, started: bool, outcome: &Outcome) -> bool {
        let ran = started || outcome.times.started_at.is_some();
        // Of a session that never was ready nobody but its own timer says that its driver is lost.
        let costs_a_delay = |failure: &Failure| {
            let retried = failure.code.consequence().should_retry && failure.domain.infrastructure();
            retried && failure.code != FailureCode::DriverLost
        };
        let tries = attempt <= self.attempt + THAWS_FAILED_MAX;
        !ran && tries && outcome.failure.as_ref().is_some_and(costs_a_delay)
    }

    /// Are these its files? What it saved later is of a session that went on.
    pub fn has_files(&self, last: Option<&Saved>) -> bool {
        last.is_some_and(|saved| saved.attempt == self.attempt && saved.id == self.checkpoint)
    }

    /// Who holds it. A claim lapses as that of a session that runs, after a silence of its time to live.
    fn claim(&self, now: Now) -> Option<&ParkedClaim> {
        let lapses_at = |claim: &ParkedClaim| {
            let ttl_us = i64::try_from(claim.ttl.0.saturating_mul(1_000)).unwrap_or(i64::MAX);
            Timestamp(self.at.0.saturating_add(ttl_us))
        };
        self.parked.claim.as_ref().filter(|claim| now.wall < lapses_at(claim))
    }

    /// What is sent with its next sandbox: its claim if somebody holds it yet, and of its deadlines what is
    /// left now.
    pub fn to_send(&self, now: Now) -> Box<Parked> {
        let left = self.parked.left();
        let away = left.0.saturating_sub(self.due.since(now.boot).0);
        let less = |time: Millis| Millis(time.0.saturating_sub(away));
        let (time_left, idle_left) = (less(self.parked.time_left), less(self.parked.idle_left));
        Box::new(Parked { claim: self.claim(now).cloned(), time_left, idle_left, ..self.parked.clone() })
    }

    /// When it is looked at, in this state; none: while it has a place it is watched as what runs.
    pub fn looked_at(&self, state: StepState) -> Option<BootTime> {
        match state {
            StepState::Parked => Some(self.due),
            StepState::Waiting | StepState::Ready | StepState::Backoff => {
                Some(self.called_until.min(self.due))
            }
            _ => None,
        }
    }
}

/// A parked session, for those who look for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedSession {
    pub rollout: RolloutId,
    pub step: StepIndex,
    /// Who holds it; none too if the claim has lapsed.
    pub driver: Option<String>,
}

impl Cluster {
    /// The sandbox of a session is gone and its files are `checkpoint`, which is stored.
    pub(crate) fn park(&mut self, at: At, parked: ParkedAt, records: &mut Vec<Record>) {
        let Some(group) = self.group_mut(at.group) else { return };
        group.detail(at.slot).parked = Some(Box::new(parked));
        self.record_state(at, StepState::Parked, records);
    }

    /// Somebody calls a session: if it is parked, it goes on.
    pub(crate) fn thaw(&mut self, now: Now, rollout: RolloutId, step: StepIndex, records: &mut Vec<Record>) {
        let at = At { group: rollout.group, slot: Slot { member: Member::of(rollout), step } };
        let Some(group) = self.group_mut(at.group) else { return };
        if !group.holds(at.slot) || group.state(at.slot) != StepState::Parked {
            return;
        }
        if let Some(parked) = group.detail(at.slot).parked.as_mut() {
            parked.called_until = now.boot.after(THAW_WAIT_MAX);
        }
        // The stored state stays: after a restart the next call asks again.
        self.set_state(at, StepState::Waiting);
        self.advance(now, at.group, at.slot.member, records);
    }

    /// Ends what was parked for as long as it may be, called or not. It takes an attempt for that, so that
    /// rows and a restart tell why. What was called and found no room for too long is parked again: no node
    /// is kept free for it any more.
    pub(crate) fn end_parked(&mut self, now: Now, records: &mut Vec<Record>) {
        while let Some(&(look_at, at)) = self.parked.first()
            && look_at <= now.boot
        {
            let group = self.jobs.get(&at.group.job).and_then(|job| job.groups.get(&at.group.index));
            let parked = group.and_then(|group| group.details.get(&at.slot)?.parked.as_ref());
            match parked {
                Some(parked) if parked.due > now.boot => self.record_state(at, StepState::Parked, records),
                _ => self.end_one(now, at, records),
            }
            // Whatever came of it, it is not looked at again for that.
            self.parked.remove(&(look_at, at));
        }
    }

    fn end_one(&mut self, now: Now, at: At, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let step = job.plan.step(at.slot.step);
        let Some(session) = step.work.session().copied() else { return };
        let limit = job.resources(group, at.slot.step).limit;
        let Some(detail) = group.details.get(&at.slot) else { return };
        let Some(was) = detail.parked.clone() else { return };
        // What is parked has its files: `check` asserts it.
        let Some(checkpoint) = detail.taken.back().map(|saved| (*saved.checkpoint).clone()) else { return };
        let Parked { ran, time_left, idle_left, .. } = was.parked;
        let ran = Millis(ran.0.saturating_add(was.parked.left().0));
        let is_late = time_left <= idle_left;
        let end =
            if is_late { SessionEnd::Deadline } else { SessionEnd::Silent { idle: session.idle_timeout } };
        let facts = SessionFacts {
            end,
            unclaimed: session.unclaimed,
            run: ran,
            timeout: ran,
            limit,
            counters: Counters::default(),
            outputs: &[],
        };
        let failure = classify_session(&facts);
        let found = Outcome::found(checkpoint, Times::at(now.wall));
        let outcome =
            Outcome { actions: was.actions, timed_out: is_late, silent: !is_late, failure, ..found };
        self.set_state(at, StepState::Running);
        let Some(group) = self.group_mut(at.group) else { return };
        let detail = group.detail(at.slot);
        detail.parked = None;
        let attempt = at.attempt(detail.attempts);
        detail.attempts += 1;
        detail.generation = detail.generation.next();
        let (generation, node, incarnation) = (detail.generation, was.node.clone(), was.incarnation);
        detail.place = Some(Place::new(node.clone(), incarnation, None));
        let (continue_from, base) = (None, None);
        records.push(Record::AttemptPlaced { attempt, generation, node, incarnation, continue_from, base });
        self.accept_end(now, attempt, Box::new(outcome), false, records);
    }

    /// What a start of this step takes along of the session it goes on with.
    pub(crate) fn parked_to_send(&self, now: Now, at: At) -> Option<Box<Parked>> {
        let group = self.jobs.get(&at.group.job)?.groups.get(&at.group.index)?;
        Some(group.details.get(&at.slot)?.parked.as_ref()?.to_send(now))
    }

    /// When a parked session ends without a call, or at its timeout; none if it is not parked.
    pub fn parked_until(&self, now: Now, rollout: RolloutId, step: StepIndex) -> Option<Timestamp> {
        let at = At { group: rollout.group, slot: Slot { member: Member::of(rollout), step } };
        let group = self.jobs.get(&at.group.job)?.groups.get(&at.group.index)?;
        let was = group.details.get(&at.slot)?.parked.as_ref()?;
        let left_us = i64::try_from(was.due.since(now.boot).0.saturating_mul(1_000)).unwrap_or(i64::MAX);
        Some(Timestamp(now.wall.0.saturating_add(left_us)))
    }

    /// The sessions of a job that have no sandbox.
    pub fn parked_sessions(&self, now: Now, job: rollout::JobId) -> Vec<ParkedSession> {
        let Some(job) = self.jobs.get(&job) else { return Vec::new() };
        let mut found = Vec::new();
        for (&index, group) in &job.groups {
            for (slot, detail) in &group.details {
                let Some(was) = detail.parked.as_ref() else { continue };
                if group.state(*slot) == StepState::Parked {
                    found.push(ParkedSession {
                        rollout: slot.member.in_group(job.group_id(index)),
                        step: slot.step,
                        driver: was.claim(now).map(|claim| claim.driver.clone()),
                    });
                }
            }
        }
        found
    }
}

/// Bytes a checkpoint takes in the blob store.
pub(crate) fn packed(detail: &Detail) -> Bytes {
    let layers = detail.taken.back().into_iter().flat_map(|saved| &saved.checkpoint.layers);
    Bytes(layers.map(|layer| layer.packed.0).sum())
}
