//! What a client sees of a job's progress.

use rollout::JobId;
use rollout::state::{JobState, StepState};

use crate::cluster::Cluster;
use crate::totals::Totals;

#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    pub state: JobState,
    pub reason: String,
    pub groups_total: u64,
    pub groups_sealed: u64,
    pub rollouts_total: u64,
    pub rollouts_admitted: u64,
    pub steps_running: u64,
    pub steps_ready: u64,
    pub totals: Totals,
}

/// A node as the ledger sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUse {
    pub node: rollout::NodeId,
    pub incarnation: rollout::IncarnationId,
    pub attached: bool,
    pub capacity: crate::event::Capacity,
    pub used: rollout::quantity::Request,
    pub sandboxes: u32,
    pub measured: crate::event::Measured,
}

impl Cluster {
    /// None if the job is not in memory (finished before the last restart, or unknown).
    pub fn counts(&self, job: JobId) -> Option<Counts> {
        let job = self.jobs.get(&job)?;
        let started = u64::from(job.started());
        let count = |state| job.groups.values().map(|g| g.count(state) as u64).sum();
        Some(Counts {
            state: job.state,
            reason: job.reason.clone(),
            groups_total: u64::from(job.groups_total),
            groups_sealed: u64::from(job.groups_sealed),
            rollouts_total: u64::from(job.groups_total) * started,
            rollouts_admitted: u64::from(job.next_group) * started,
            steps_running: count(StepState::Running),
            steps_ready: count(StepState::Ready),
            totals: job.totals.clone(),
        })
    }

    pub fn nodes(&self) -> Vec<NodeUse> {
        let of = |n: &crate::node::Node| NodeUse {
            node: n.id.clone(),
            incarnation: n.incarnation,
            attached: n.attached,
            capacity: n.capacity.clone(),
            used: n.used,
            sandboxes: u32::try_from(n.sandboxes.len()).unwrap_or(u32::MAX),
            measured: n.measured,
        };
        self.nodes.values().map(of).collect()
    }

    /// Finished jobs stay in memory until the shell forgets them.
    pub fn forget(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|j| j.state.is_final()) {
            self.jobs.remove(&id);
        }
    }

    pub fn unfinished_jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.values().filter(|j| !j.state.is_final()).map(|j| j.id)
    }
}
