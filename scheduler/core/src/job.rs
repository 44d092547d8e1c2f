//! A job in memory: a cursor over its rows and the window of live groups.
//!
//! Steps of a group live in one flat array of states (a byte each, member after member). Only a
//! step that was tried has a [`Detail`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollout::failure::Failure;
use rollout::outcome::Reward;
use rollout::plan::{JobPlan, OnAgentTimeout, StepKind};
use rollout::state::{GroupClosedAs, JobState, StepState};
use rollout::{
    AttemptId, BootTime, FailureCode, Generation, GroupId, IncarnationId, JobId, NodeId, Resources,
    RolloutId, StepIndex, Timestamp,
};

use crate::breaker::Breaker;
use crate::event::ExpandedGroup;
use crate::record::{Hold, Record, RolloutEnd};
use crate::totals::Totals;

#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub plan: Arc<JobPlan>,
    pub state: JobState,
    pub reason: String,
    pub hold: Option<Hold>,
    pub cancel: Option<(FailureCode, String)>,
    pub groups_total: u32,
    pub next_group: u32,
    pub next_seq: i64,
    pub created_at: Timestamp,
    /// Admitted and not sealed.
    pub groups: BTreeMap<u32, Group>,
    pub groups_sealed: u32,
    /// Rollouts of admitted groups that have not ended.
    pub alive: u32,
    /// An `Expand` is out and not answered.
    pub expanding: Option<u32>,
    pub breakers: BTreeMap<StepIndex, Breaker>,
    pub totals: Totals,
    pub unrecorded: Option<Unrecorded>,
}

/// What the recorder said of rows that it cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unrecorded {
    pub problem: String,
    /// Nothing else of the job is left to do.
    pub last: bool,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub expanded: ExpandedGroup,
    /// members x steps.
    pub states: Vec<StepState>,
    pub details: BTreeMap<Slot, Detail>,
    pub ends: Vec<Option<RolloutEnd>>,
    pub closed: Option<(i64, GroupClosedAs)>,
}

/// A step of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub member: u32,
    pub step: StepIndex,
}

/// Where a step is, in the whole yard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub group: GroupId,
    pub slot: Slot,
}

impl At {
    pub fn rollout(self) -> RolloutId {
        RolloutId { group: self.group, sample: self.slot.member, refill: 0 }
    }
    pub fn of(attempt: AttemptId) -> Self {
        let RolloutId { group, sample, .. } = attempt.rollout;
        Self { group, slot: Slot { member: sample, step: attempt.step } }
    }
    pub fn attempt(self, attempt: u32) -> AttemptId {
        AttemptId { rollout: self.rollout(), step: self.slot.step, attempt }
    }
}

/// What is known of a step that was tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct Detail {
    /// Attempts placed and not withdrawn.
    pub attempts: u32,
    pub generation: Generation,
    /// Ended attempts that failed in an infrastructure domain, and in the grader's.
    pub infra_failures: u32,
    pub grader_failures: u32,
    /// Chains that had to start again because of this step, without an attempt to show for it.
    pub chain_breaks: u32,
    pub refusals: u32,
    /// Refused as `NeverFits`: one entry a node, of its last life that did. Another life may offer
    /// more.
    pub excluded: Vec<Exclusion>,
    /// Refused last, for lack of room.
    pub avoid: Option<NodeId>,
    /// What the node said that refused it last; until it is placed again.
    pub refusal: Option<String>,
    pub not_before: BootTime,
    pub place: Option<Place>,
    /// Of the last ended attempt.
    pub failure: Option<Failure>,
    pub reward: Option<Reward>,
}

/// A life of a node that will never take a step, and what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exclusion {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub continue_from: Option<AttemptId>,
    pub started: bool,
    /// When it should have ended.
    pub due: BootTime,
    /// That was told to the node.
    pub told: bool,
}

impl Place {
    pub fn new(node: NodeId, incarnation: IncarnationId, continue_from: Option<AttemptId>) -> Self {
        Self { node, incarnation, continue_from, started: false, due: BootTime(0), told: false }
    }
}

/// What a settled step means for the steps that need it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    Wait,
    Run,
    /// Never runs; why.
    Skip,
}

impl Job {
    pub fn new(id: JobId, plan: Arc<JobPlan>, groups_total: u32, created_at: Timestamp) -> Self {
        Self {
            id,
            plan,
            state: JobState::Running,
            reason: String::new(),
            hold: None,
            cancel: None,
            groups_total,
            next_group: 0,
            next_seq: 0,
            created_at,
            groups: BTreeMap::new(),
            groups_sealed: 0,
            alive: 0,
            expanding: None,
            breakers: BTreeMap::new(),
            totals: Totals::default(),
            unrecorded: None,
        }
    }

    pub fn size(&self) -> u32 {
        self.plan.group.size
    }

    /// Its state as it is stored. What is tried again at the next start is no news of a final one.
    pub fn record(&self) -> Record {
        let told = self.unrecorded.as_ref().filter(|_| !self.state.is_final());
        Record::JobState {
            job: self.id,
            state: self.state,
            reason: self.reason.clone(),
            hold: self.hold,
            cancel_code: self.cancel.as_ref().map(|c| c.0),
            unrecorded: told.map(|told| told.problem.clone()),
        }
    }

    /// Stops admission and placement; what runs goes on.
    pub fn hold(&mut self, hold: Hold, reason: String) -> Record {
        self.state = JobState::Held;
        self.hold = Some(hold);
        self.reason = reason;
        self.record()
    }

    /// May new attempts be placed and new groups be admitted?
    pub fn places(&self) -> bool {
        self.state == JobState::Running
    }

    pub fn group_id(&self, index: u32) -> GroupId {
        GroupId { job: self.id, index }
    }

    /// Of the sandbox that serves `step`: the maximum over its chain.
    pub fn resources(&self, group: &Group, step: StepIndex) -> Resources {
        let of = |index: StepIndex| match &group.expanded.resources {
            Some(per_step) => per_step[usize::from(index.0)],
            None => match self.plan.step(index).resources {
                rollout::plan::ResourcesPlan::Fixed(resources) => resources,
                // A row-dependent quantity always comes with the expansion.
                rollout::plan::ResourcesPlan::PerRow(_) => Resources::default(),
            },
        };
        let chain = self.plan.chain(self.plan.chain_head(step));
        chain.into_iter().map(of).reduce(|a, b| a.max(&b)).unwrap_or_else(|| of(step))
    }

    /// The success mark of the last grader, for pass@k.
    pub fn success_at(&self) -> f64 {
        let graders = self.plan.steps.iter().rev().find_map(|s| s.grader.as_ref());
        graders.map_or(1.0, rollout::plan::GraderPlan::success_at)
    }
}

impl Group {
    pub fn new(expanded: ExpandedGroup, members: u32, steps: usize) -> Self {
        Self {
            expanded,
            states: vec![StepState::Waiting; members as usize * steps],
            details: BTreeMap::new(),
            ends: vec![None; members as usize],
            closed: None,
        }
    }

    fn index(&self, slot: Slot) -> usize {
        let steps = self.states.len() / self.ends.len();
        slot.member as usize * steps + usize::from(slot.step.0)
    }

    pub fn holds(&self, slot: Slot) -> bool {
        (slot.member as usize) < self.ends.len() && self.index(slot) < self.states.len()
    }

    pub fn state(&self, slot: Slot) -> StepState {
        self.states[self.index(slot)]
    }

    pub fn set_state(&mut self, slot: Slot, state: StepState) {
        let index = self.index(slot);
        self.states[index] = state;
    }

    pub fn detail(&mut self, slot: Slot) -> &mut Detail {
        self.details.entry(slot).or_default()
    }

    /// The failure that kept `slot` from succeeding: its own, or the one it was skipped for.
    pub fn cause(&self, plan: &JobPlan, slot: Slot) -> Option<&Failure> {
        self.cause_beyond(plan, slot, &mut BTreeSet::new())
    }

    /// Every step is looked at once: a graph has many more ways through it than steps.
    fn cause_beyond(&self, plan: &JobPlan, slot: Slot, seen: &mut BTreeSet<StepIndex>) -> Option<&Failure> {
        match self.state(slot) {
            StepState::Failed => self.details.get(&slot)?.failure.as_ref(),
            StepState::Skipped if seen.insert(slot.step) => {
                let needs = &plan.step(slot.step).needs;
                needs.iter().find_map(|&need| self.cause_beyond(plan, Slot { step: need, ..slot }, seen))
            }
            _ => None,
        }
    }

    /// May this waiting step run now?
    pub fn verdict(&self, plan: &JobPlan, slot: Slot) -> Verdict {
        let step = plan.step(slot.step);
        let needs = step.needs.iter().map(|&need| Slot { step: need, ..slot });
        if needs.clone().any(|need| !self.state(need).is_final()) {
            return Verdict::Wait;
        }
        for need in needs {
            match self.state(need) {
                StepState::Succeeded => continue,
                StepState::Cancelled => return Verdict::Skip,
                _ => {}
            }
            // Only graders run after a failure, and only one that may be graded.
            let gradable = self.cause(plan, need).is_some_and(|f| f.code.consequence().should_grade);
            if step.kind != StepKind::Grader || !gradable {
                return Verdict::Skip;
            }
        }
        if self.after_agent_timeout(plan, slot).is_some() { Verdict::Skip } else { Verdict::Run }
    }

    /// What the grader at `slot` was told to do instead of grading, if its agent timed out.
    pub fn after_agent_timeout(&self, plan: &JobPlan, slot: Slot) -> Option<OnAgentTimeout> {
        let step = plan.step(slot.step);
        let rule = step.grader.as_ref()?.on_agent_timeout;
        let timed_out = step.needs.iter().any(|&need| {
            let cause = self.cause(plan, Slot { step: need, ..slot });
            cause.is_some_and(|f| f.code == FailureCode::AgentTimeout)
        });
        (rule != OnAgentTimeout::Grade && timed_out).then_some(rule)
    }
}
