//! Sessions that run, for those who look for one: who holds which is known to the nodes alone.

use rollout::plan::StepKind;
use rollout::state::StepState;
use rollout::{GroupId, JobId, NodeId, RolloutId, StepIndex};

use crate::cluster::Cluster;
use crate::group::{Group, Place};
use crate::job::Job;
use crate::member::{At, Slot};

/// A session whose sandbox is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSession {
    pub rollout: RolloutId,
    pub step: StepIndex,
    pub attempt: u32,
    pub node: NodeId,
}

/// Where a step of a rollout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// It waits for its needs, for room, or for its next try.
    Waits,
    /// Its sandbox is being made there.
    Starts(NodeId),
    Runs(NodeId),
    /// It has no sandbox, until somebody calls.
    Parked,
    /// Somebody called: its sandbox comes back.
    Thaws,
    /// It has ended, or there is no such step.
    Over,
}

impl Cluster {
    /// The sessions of a job that run, in the order of its groups. Of sandboxes that clients created:
    /// none, as nobody looks for those.
    pub fn live_sessions(&self, job: JobId) -> Vec<LiveSession> {
        let Some(job) = self.jobs.get(&job).filter(|job| !job.plan.is_sandbox()) else { return Vec::new() };
        let groups = job.groups.iter();
        groups.flat_map(|(&index, group)| live_in(job, job.group_id(index), group)).collect()
    }

    /// Whether the job is the sandbox of a client.
    pub fn is_sandbox(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.plan.is_sandbox())
    }

    /// Whether a session of the job runs or may yet begin.
    pub fn has_sessions_left(&self, job: JobId) -> bool {
        let Some(job) = self.jobs.get(&job).filter(|job| job.cancel.is_none()) else { return false };
        let sessions =
            || job.plan.step_indices().filter(|&step| job.plan.step(step).kind == StepKind::Session);
        if sessions().next().is_none() {
            return false;
        }
        let mut groups = job.groups.values();
        job.next_group < job.groups_total
            || !job.retries.is_empty()
            || groups.any(|group| {
                let mut slots =
                    group.members().flat_map(|member| sessions().map(move |step| Slot { member, step }));
                group.owed > 0 || slots.any(|slot| !group.state(slot).is_final())
            })
    }

    /// Where a step runs that runs once a rollout.
    pub fn whereabouts(&self, rollout: RolloutId, step: StepIndex) -> Whereabouts {
        let at = At::of(rollout::AttemptId { rollout, step, attempt: 0 });
        let job = self.jobs.get(&at.group.job);
        let Some(job) = job else { return Whereabouts::Over };
        let Some(group) = job.groups.get(&at.group.index) else {
            // Its group is not admitted yet.
            let waits = at.group.index >= job.next_group && at.group.index < job.groups_total;
            return if waits { Whereabouts::Waits } else { Whereabouts::Over };
        };
        if !group.holds(at.slot) || group.state(at.slot).is_final() {
            return Whereabouts::Over;
        }
        if group.state(at.slot) == StepState::Parked {
            return Whereabouts::Parked;
        }
        let thaws = group.details.get(&at.slot).is_some_and(|detail| detail.parked.is_some());
        match place(group, at.slot) {
            Some(Place { started: false, .. }) | None if thaws => Whereabouts::Thaws,
            None => Whereabouts::Waits,
            Some(Place { node, started: false, .. }) => Whereabouts::Starts(node.clone()),
            Some(Place { node, .. }) => Whereabouts::Runs(node.clone()),
        }
    }
}

/// One attempt of a step, as far as it tells which session it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried<'a> {
    pub node: &'a NodeId,
    pub how: How,
}

/// How far an attempt came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It ended and was never ready.
    NeverReady,
    /// It has not ended.
    Open,
    Parked,
    /// It was ready, and ended in any other way.
    Over,
}

/// Whether the session that was parked on `node` last is the one that the last of these attempts, which are
/// all of one step in their order, goes on with.
pub fn goes_on_from(tried: &[Tried<'_>], node: &NodeId) -> bool {
    let was_here = |one: &Tried<'_>| one.node == node && one.how == How::Parked;
    let Some(parked) = tried.iter().rposition(was_here) else { return false };
    // After one that was ready and was not parked, whatever runs is another session. One that was never
    // ready, or has not ended, began nothing anew.
    tried.iter().skip(parked).all(|one| one.how != How::Over)
}

/// Whether the session that was on `node` last has ended, and none of these attempts goes on with it.
pub fn has_ended(tried: &[Tried<'_>], node: &NodeId) -> bool {
    let last = tried.iter().rev().find(|one| one.node == node);
    last.is_some_and(|one| one.how != How::Open) && !goes_on_from(tried, node)
}

fn place(group: &Group, slot: Slot) -> Option<&Place> {
    group.details.get(&slot)?.place.as_ref()
}

fn live_in<'a>(job: &'a Job, id: GroupId, group: &'a Group) -> impl Iterator<Item = LiveSession> + 'a {
    group.details.iter().filter_map(move |(&slot, detail)| {
        let is_session = job.plan.step(slot.step).kind == StepKind::Session;
        let place = detail.place.as_ref().filter(|place| is_session && place.started)?;
        let attempt = detail.attempts.checked_sub(1)?;
        Some(LiveSession {
            rollout: slot.member.in_group(id),
            step: slot.step,
            attempt,
            node: place.node.clone(),
        })
    })
}
