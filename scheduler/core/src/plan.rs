//! The pass: what to do now, once per drained batch.

use rollout::BootTime;
use rollout::state::StepState;

use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::{EXPAND_GROUPS_MAX, Now, UNSEALED_GROUPS_MAX};
use crate::job::Job;
use crate::record::Record;

/// Records to commit, commands to send after that, and when to look again without an event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub records: Vec<Record>,
    pub commands: Vec<Command>,
    pub wake_at: Option<BootTime>,
    /// Ready steps that placement looked at: what the pass cost.
    pub looked_at: usize,
}

impl Cluster {
    pub fn plan(&mut self, now: Now) -> Plan {
        let mut plan = Plan::default();
        self.expire(now, &mut plan.records);
        self.end_overdue(now, &mut plan.records);
        self.end_parked(now, &mut plan.records);
        self.wake_backoffs(now, &mut plan.records);
        self.give_up_asking(now);
        self.hand_over_keys(now, &mut plan.records);
        self.settle_keyed(now, &mut plan.records);
        let mut placed = self.place(now, &mut plan.records, &mut plan.commands);
        // What became ready by an end in this pass has its turn in the next.
        placed.again |= self.settle_keyed(now, &mut plan.records);
        placed.again |= self.take_back(now, &mut plan.records);
        plan.looked_at = placed.looked_at;
        let credit_at = self.dispatch(now, &mut plan.records, &mut plan.commands);
        self.begin_retries(now, &mut plan.records, &mut plan.commands);
        self.expand(&mut plan.commands);
        let queued = std::mem::take(&mut self.outbox);
        plan.commands.splice(0..0, queued);
        let timers = [
            self.backoff.first().map(|(due, _)| *due),
            self.overdue.first().map(|(due, _)| *due),
            self.parked.first().map(|(due, _)| *due),
            self.nodes.values().map(|n| n.deadline).min(),
            self.keyed.asked.first().map(|(until, ..)| *until),
            credit_at,
        ];
        plan.wake_at = if placed.again { Some(now.boot) } else { timers.into_iter().flatten().min() };
        plan
    }

    fn wake_backoffs(&mut self, now: Now, records: &mut Vec<Record>) {
        while let Some(&(due, at)) = self.backoff.first() {
            if due > now.boot {
                break;
            }
            // What it starts from may have to be made again meanwhile.
            self.set_state(at, StepState::Waiting);
            self.advance(now, at.group, at.slot.member, records);
        }
    }

    /// Asks for the next rows of jobs that have room under `max_running`.
    fn expand(&mut self, commands: &mut Vec<Command>) {
        let jobs = &self.jobs;
        self.asking.retain(|id| jobs.get(id).is_some_and(Job::asks));
        for id in &self.asking {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let unsealed = job.groups.len();
            if !job.places() || job.expanding.is_some() || unsealed >= UNSEALED_GROUPS_MAX {
                continue;
            }
            let started = job.started();
            let reserved = u32::try_from(job.reopening.len()).unwrap_or(u32::MAX).saturating_mul(started);
            let taken = (job.alive + job.owed).saturating_add(reserved);
            let room = job.plan.admission.max_running.saturating_sub(taken) / started;
            let left = job.groups_total - job.next_group;
            let count = room.min(left).min(EXPAND_GROUPS_MAX);
            if count > 0 {
                job.expanding = Some(count);
                commands.push(Command::Expand { job: job.id, first: job.next_group, count });
            }
        }
    }
}
