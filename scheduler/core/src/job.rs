//! A job in memory: a cursor over its rows and the window of live groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout::plan::JobPlan;
use rollout::state::JobState;
use rollout::{FailureCode, GroupId, JobId, Resources, StepIndex, Timestamp};

use crate::breaker::Breaker;
use crate::group::Group;
use crate::totals::Totals;

/// What the members that were started beyond `group.size` are cancelled with.
const ENOUGH: &str = "its group has all the valid members it asks for";

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
    /// Why the rows of the groups that are left cannot be written.
    pub unrecorded: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// No attached node can or will ever hold a step; lifted when one attaches.
    NoNode,
    Breaker,
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

    /// Members that start with a group.
    pub fn started(&self) -> u32 {
        self.plan.group.started()
    }

    /// Why the steps of a group are to stop, if they are.
    pub fn stop(&self, group: &Group) -> Option<(FailureCode, String)> {
        let enough = || (FailureCode::Straggler, ENOUGH.to_owned());
        self.cancel.clone().or_else(|| (group.valid >= self.plan.group.size).then(enough))
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
