//! A group in memory: where each of its steps is.
//!
//! States live in one flat array (a byte each): a row for every sample, of its current rollout, and
//! a last one for the steps that the group runs once. Only a step that was tried has a [`Detail`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::failure::Failure;
use rollout::outcome::Reward;
use rollout::plan::{JobPlan, OnAgentTimeout, Origin, StepKind};
use rollout::result_key::ResultKey;
use rollout::state::{GroupClosedAs, StepState};
use rollout::{AttemptId, BootTime, Domain, FailureCode, Generation, IncarnationId, NodeId, StepIndex};

use crate::event::ExpandedGroup;
use crate::member::{Member, Slot};
use crate::parking::ParkedAt;
use crate::record::RolloutEnd;

#[derive(Debug)]
pub(crate) struct Group {
    pub expanded: ExpandedGroup,
    states: Vec<StepState>,
    steps: usize,
    pub details: BTreeMap<Slot, Detail>,
    /// Of the current rollout of each sample.
    pub ends: Vec<Option<RolloutEnd>>,
    /// The round that made the current rollout of each sample.
    refills: Vec<u32>,
    /// Current rollouts that ended with a valid reward.
    pub valid: u32,
    /// Places kept for refills.
    pub owed: u32,
    pub closed: Option<(i64, GroupClosedAs)>,
    /// What its steps that work from their image start with; none: the image as it is.
    start: Option<Box<Saved>>,
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
    /// Workspaces to go on from that this step found gone or bad, without an attempt to show for it.
    pub chain_breaks: u32,
    pub refusals: u32,
    /// The live sandbox it was to go on in is gone: it takes a new one over what its predecessor left.
    pub anew: bool,
    /// Refused as `NeverFits`: one entry a node, of its last life that did. Another life may offer
    /// more.
    pub excluded: Vec<Exclusion>,
    /// Refused last, for lack of room.
    pub avoid: Option<NodeId>,
    /// What the node said that refused it last; until it is placed again.
    pub refusal: Option<String>,
    pub not_before: BootTime,
    pub place: Option<Place>,
    /// It has no sandbox, or the one it is to go on in is not ready.
    pub parked: Option<Box<ParkedAt>>,
    /// Of the last ended attempt.
    pub failure: Option<Failure>,
    pub reward: Option<Reward>,
    /// The workspace as the step left it.
    pub checkpoint: Option<Box<Saved>>,
    /// Workspaces saved while it ran, oldest first: those that `checkpoint.keep` counts, and the last.
    pub taken: VecDeque<Saved>,
}

/// A stored checkpoint, and the attempt that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    pub id: CheckpointId,
    pub attempt: u32,
    /// Counts the checkpoints of that attempt from 0.
    pub ordinal: u32,
    /// Found under its key, or given with the job: no attempt of this step made it, and the two numbers
    /// mean nothing.
    pub shared: bool,
    pub checkpoint: Arc<Checkpoint>,
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
    /// What its new sandbox started with.
    pub base: Option<CheckpointId>,
    pub started: bool,
    /// When it should have ended.
    pub due: BootTime,
    /// That was told to the node.
    pub told: bool,
}

impl Place {
    pub fn new(node: NodeId, incarnation: IncarnationId, continue_from: Option<AttemptId>) -> Self {
        Self { node, incarnation, continue_from, base: None, started: false, due: BootTime(0), told: false }
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

impl Detail {
    /// What the next checkpoint of `attempt` is numbered.
    pub fn next_ordinal(&self, attempt: u32) -> u32 {
        self.taken.back().filter(|last| last.attempt == attempt).map_or(0, |last| last.ordinal + 1)
    }
}

impl Group {
    pub fn new(expanded: ExpandedGroup, samples: u32, steps: usize) -> Self {
        let samples = samples as usize;
        let start = expanded.base.clone().map(|checkpoint| {
            let id = checkpoint.id();
            Box::new(Saved { id, attempt: 0, ordinal: 0, shared: true, checkpoint })
        });
        Self {
            expanded,
            states: vec![StepState::Waiting; (samples + 1) * steps],
            steps,
            details: BTreeMap::new(),
            ends: vec![None; samples],
            refills: vec![0; samples],
            valid: 0,
            owed: 0,
            closed: None,
            start,
        }
    }

    /// The current rollout of every sample.
    pub fn members(&self) -> impl Iterator<Item = Member> + '_ {
        (0..).zip(&self.refills).map(|(sample, &refill)| Member { sample, refill })
    }

    /// Is it a current rollout of this group, or what stands for all?
    pub fn has(&self, member: Member) -> bool {
        member.is_shared() && member.refill == 0
            || self.refills.get(member.sample as usize) == Some(&member.refill)
    }

    pub fn end_of(&self, member: Member) -> Option<&RolloutEnd> {
        self.ends.get(member.sample as usize)?.as_ref().filter(|_| self.has(member))
    }

    /// The rollout of `sample` is the one that round `refill` made, and nothing has run of it.
    pub fn set_refill(&mut self, sample: u32, refill: u32) {
        let index = sample as usize;
        let old = Member { sample, refill: self.refills[index] };
        self.details.retain(|slot, _| slot.member != old);
        self.states[index * self.steps..(index + 1) * self.steps].fill(StepState::Waiting);
        (self.refills[index], self.ends[index]) = (refill, None);
    }

    /// The last round there was.
    pub fn round(&self) -> u32 {
        self.refills.iter().copied().max().unwrap_or(0)
    }

    fn index(&self, slot: Slot) -> usize {
        let row = if slot.member.is_shared() { self.ends.len() } else { slot.member.sample as usize };
        row * self.steps + usize::from(slot.step.0)
    }

    pub fn holds(&self, slot: Slot) -> bool {
        self.has(slot.member) && usize::from(slot.step.0) < self.steps
    }

    pub fn state(&self, slot: Slot) -> StepState {
        self.states[self.index(slot)]
    }

    pub fn set_state(&mut self, slot: Slot, state: StepState) {
        let index = self.index(slot);
        self.states[index] = state;
    }

    /// The key of this step's result, if it has one.
    pub fn key_of(&self, slot: Slot) -> Option<&Arc<ResultKey>> {
        let keys = &self.expanded.keys.iter().find(|keys| keys.step == slot.step)?.keys;
        let own = if slot.member.is_shared() { None } else { keys.get(slot.member.sample as usize) };
        own.or(keys.first())
    }

    /// Steps in `state`, of current rollouts and of the group itself.
    pub fn count(&self, state: StepState) -> usize {
        self.states.iter().filter(|s| **s == state).count()
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
                needs.iter().find_map(|&need| self.cause_beyond(plan, slot.member.slot(plan, need), seen))
            }
            _ => None,
        }
    }

    /// May this waiting step run now?
    pub fn verdict(&self, plan: &JobPlan, slot: Slot) -> Verdict {
        let step = plan.step(slot.step);
        let state = |step| self.state(slot.member.slot(plan, step));
        // The origin is an ancestor, but may have to run again after a step between the two ended.
        let mut awaited = step.needs.iter().copied().chain(step.origin.step());
        if awaited.any(|step| !state(step).is_final()) {
            return Verdict::Wait;
        }
        for &need in &step.needs {
            match state(need) {
                StepState::Succeeded => continue,
                StepState::Cancelled => return Verdict::Skip,
                _ => {}
            }
            // Only graders run after a failure, and only one that may be graded.
            let cause = self.cause(plan, slot.member.slot(plan, need));
            let gradable = cause.is_some_and(|f| f.code.consequence().should_grade);
            if step.kind != StepKind::Grader || !gradable {
                return Verdict::Skip;
            }
        }
        if self.after_agent_timeout(plan, slot).is_some() || !self.has_workspace(plan, slot) {
            Verdict::Skip
        } else {
            Verdict::Run
        }
    }

    /// Is there anything to work from? A step that failed has left its sandbox; what it did not save
    /// is gone, and it does not run again for that.
    fn has_workspace(&self, plan: &JobPlan, slot: Slot) -> bool {
        let Some(from) = plan.step(slot.step).origin.step() else { return true };
        let from = slot.member.slot(plan, from);
        self.state(from) == StepState::Succeeded
            || self.details.get(&from).is_some_and(|detail| detail.checkpoint.is_some())
    }

    /// What a new sandbox of `slot` starts with: the last workspace an agent that resumes, or a session
    /// that was parked, saved itself, else what the step it works from left, or what was given with the job. None if that is the
    /// image as it is, or if the other step left nothing but its live sandbox.
    pub fn base(&self, plan: &JobPlan, slot: Slot) -> Option<&Saved> {
        let step = plan.step(slot.step);
        let detail = self.details.get(&slot);
        let own = detail.and_then(|detail| detail.taken.back());
        let goes_on = step.resume || detail.is_some_and(|detail| detail.parked.is_some());
        own.filter(|_| goes_on).or_else(|| match step.origin.step() {
            None => self.start.as_deref(),
            Some(from) => self.details.get(&slot.member.slot(plan, from))?.checkpoint.as_deref(),
        })
    }

    /// The checkpoint that `slot` was placed with, if it is still one to start from.
    pub fn base_placed(&self, plan: &JobPlan, slot: Slot, id: CheckpointId) -> Option<&Saved> {
        let from = plan.step(slot.step).origin.step().map(|from| slot.member.slot(plan, from));
        let left = from.and_then(|from| self.details.get(&from)?.checkpoint.as_deref());
        let own = self.details.get(&slot).into_iter().flat_map(|detail| &detail.taken);
        own.chain(left).chain(self.start.as_deref()).find(|saved| saved.id == id)
    }

    /// Does it go on in the sandbox that its predecessor leaves?
    pub fn continues(&self, plan: &JobPlan, slot: Slot) -> bool {
        matches!(plan.step(slot.step).origin, Origin::Live(_))
            && self.details.get(&slot).is_none_or(|detail| !detail.anew)
    }

    /// Does a grader go on in the sandbox that `slot` left with its failure? Only over a workspace
    /// that was saved too: for a sandbox that is lost, a step that failed does not run again.
    pub fn is_graded_there(&self, plan: &JobPlan, slot: Slot) -> bool {
        let failure = self.details.get(&slot).and_then(|detail| detail.failure.as_ref());
        let should = |f: &Failure| f.domain == Domain::Agent && f.code.consequence().should_grade;
        let next = plan.continuation(slot.step).filter(|&next| plan.step(next).kind == StepKind::Grader);
        failure.is_some_and(should)
            && next.is_some_and(|step| self.base(plan, Slot { step, ..slot }).is_some())
    }

    /// Has `slot` ended so that another step may go on in its sandbox?
    pub fn leaves_sandbox(&self, plan: &JobPlan, slot: Slot) -> bool {
        match self.state(slot) {
            StepState::Succeeded => true,
            StepState::Failed => self.is_graded_there(plan, slot),
            _ => false,
        }
    }

    /// What the grader at `slot` was told to do instead of grading, if its agent timed out.
    pub fn after_agent_timeout(&self, plan: &JobPlan, slot: Slot) -> Option<OnAgentTimeout> {
        let step = plan.step(slot.step);
        let rule = step.grader.as_ref()?.on_agent_timeout;
        let timed_out = step.needs.iter().any(|&need| {
            let cause = self.cause(plan, slot.member.slot(plan, need));
            cause.is_some_and(|f| f.code == FailureCode::AgentTimeout)
        });
        (rule != OnAgentTimeout::Grade && timed_out).then_some(rule)
    }
}
