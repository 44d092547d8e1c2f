//! What the driver does for sandboxes of clients beside what it does for jobs: nothing of them is
//! recorded, and one that is not ready in time is given up.

use rollout::{FailureCode, GroupId, JobId, Millis, StepIndex};
use scheduler_core::sessions::Whereabouts;
use scheduler_core::{Event, ExplainTarget, Now, Record};

use super::{Driver, Pass};
use crate::store::only_rollout;

impl Driver {
    /// Their groups have no rows: they are sealed as they close.
    pub(super) fn seal_sandboxes(&mut self, pass: &mut Pass, now: Now) {
        let closed = pass.batch.records.iter().filter_map(|record| match record {
            Record::GroupClosed { group, .. } if self.cluster.is_sandbox(group.job) => Some(*group),
            _ => None,
        });
        let groups: Vec<GroupId> = closed.collect();
        if !groups.is_empty() {
            pass.batch.sealed.extend(&groups);
            self.apply(pass, now, Event::GroupsSealed { groups });
        }
    }

    pub(super) fn give_up_unstarted(&mut self, pass: &mut Pass, now: Now, job: JobId, timeout: Millis) {
        let whereabouts = self.cluster.whereabouts(only_rollout(job), StepIndex(0));
        if !matches!(whereabouts, Whereabouts::Waits | Whereabouts::Starts(_)) {
            return;
        }
        let why = self.cluster.explain(now, ExplainTarget::Job(job));
        let why = why.map(|why| why.lines.join(" ")).filter(|why| !why.is_empty());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let reason = format!("it was not ready {timeout} after it was asked for{why}");
        self.apply(pass, now, Event::JobCancelled { job, code: FailureCode::QueueDeadline, reason });
    }
}
