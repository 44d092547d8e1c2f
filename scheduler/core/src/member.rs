//! Where a step is: in one rollout of a group, or among the steps that the group runs once.

use rollout::plan::{JobPlan, Per};
use rollout::{AttemptId, GroupId, RolloutId, StepIndex};

/// One rollout of a group, or what stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub sample: u32,
    /// The round that made it; 0 for those that start with the group.
    pub refill: u32,
}

/// A step of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub member: Member,
    pub step: StepIndex,
}

/// Where a step is, in the whole yard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub group: GroupId,
    pub slot: Slot,
}

impl Member {
    /// Runs the steps that are `per: group`.
    pub const SHARED: Self = Self { sample: RolloutId::SHARED, refill: 0 };

    pub const fn of(rollout: RolloutId) -> Self {
        Self { sample: rollout.sample, refill: rollout.refill }
    }

    pub const fn is_shared(self) -> bool {
        self.sample == RolloutId::SHARED
    }

    pub const fn in_group(self, group: GroupId) -> RolloutId {
        RolloutId { group, sample: self.sample, refill: self.refill }
    }

    /// Is this the member that runs `step`?
    pub fn runs(self, plan: &JobPlan, step: StepIndex) -> bool {
        (plan.step(step).per == Per::Group) == self.is_shared()
    }

    /// The steps it runs itself, in plan order.
    pub fn own_steps(self, plan: &JobPlan) -> impl Iterator<Item = StepIndex> + '_ {
        plan.step_indices().filter(move |&step| self.runs(plan, step))
    }

    /// `step` as this member meets it: its own, or the one that its group runs once.
    pub fn slot(self, plan: &JobPlan, step: StepIndex) -> Slot {
        let member = if plan.step(step).per == Per::Group { Self::SHARED } else { self };
        Slot { member, step }
    }
}

impl At {
    pub fn rollout(self) -> RolloutId {
        self.slot.member.in_group(self.group)
    }
    pub fn of(attempt: AttemptId) -> Self {
        let slot = Slot { member: Member::of(attempt.rollout), step: attempt.step };
        Self { group: attempt.rollout.group, slot }
    }
    pub fn attempt(self, attempt: u32) -> AttemptId {
        AttemptId { rollout: self.rollout(), step: self.slot.step, attempt }
    }
    /// Another step of the same member.
    pub fn with_step(self, step: StepIndex) -> Self {
        Self { slot: Slot { step, ..self.slot }, ..self }
    }
}
