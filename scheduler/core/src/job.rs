//! A job in memory: a cursor over its rows and the window of live groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollout::plan::JobPlan;
use rollout::state::JobState;
use rollout::{FailureCode, GroupId, JobId, Resources, StepIndex, Timestamp};

use crate::breaker::Breaker;
use crate::group::Group;
use crate::member::Member;
use crate::record::{Hold, Record};
use crate::totals::Totals;

/// What the members that were started beyond `group.size` are cancelled with.
pub(crate) const ENOUGH: &str = "its group has all the valid members it asks for";

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
    /// Places of ended rollouts that are kept for refills; the sum over its groups.
    pub owed: u32,
    /// An `Expand` is out and not answered.
    pub expanding: Option<u32>,
    pub breakers: BTreeMap<StepIndex, Breaker>,
    pub totals: Totals,
    pub unrecorded: Option<Unrecorded>,
    /// Rollouts to run again that wait for room, by group.
    pub retries: BTreeMap<u32, BTreeSet<Member>>,
    /// Sealed groups that are being read back for that.
    pub reopening: BTreeSet<u32>,
}

/// What the recorder said of rows that it cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unrecorded {
    pub problem: String,
    /// Nothing else of the job is left to do.
    pub last: bool,
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
            owed: 0,
            expanding: None,
            breakers: BTreeMap::new(),
            totals: Totals::default(),
            unrecorded: None,
            retries: BTreeMap::new(),
            reopening: BTreeSet::new(),
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

    /// Are there groups to admit, or rollouts to run again? It may have to wait for either.
    pub fn asks(&self) -> bool {
        !self.state.is_final() && (self.next_group < self.groups_total || !self.retries.is_empty())
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
