//! Rollouts that somebody wants run again: rounds of refills beyond `refill_limit`, in groups that are
//! open, closed, or long sealed.
//!
//! What is asked for waits in a list that is stored. A group that is in memory and open begins its
//! round when there is room; one that is closed waits until its rows are sealed; one that is sealed is
//! read back first and becomes open again. It closes under a new `seq`.

use std::collections::BTreeSet;

use rollout::failure::Status;
use rollout::{Domain, GroupId, JobId, RolloutId};

use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::{EXPAND_GROUPS_MAX, Now, RETRY_MEMBERS_MAX, UNSEALED_GROUPS_MAX};
use crate::group::Group;
use crate::job::Job;
use crate::member::Member;
use crate::record::{Hold, Record, RolloutEnd};
use crate::snapshot::{GroupSnapshot, JobSnapshot};
use crate::totals::is_success;
use rollout::state::JobState;

/// What to run again beside what infrastructure lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetryScope {
    /// What failed for the task or the grader, too.
    pub all_failed: bool,
    /// What was cancelled, too.
    pub cancelled: bool,
}

/// Why a rollout is not run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotRetried {
    /// It has a valid reward, or nothing of it failed.
    Fine,
    /// What an agent did is data.
    Agent,
    /// It failed for the task or the grader.
    Failed,
    Cancelled,
    /// It is on the list already.
    Asked,
}

impl NotRetried {
    pub const ALL: [Self; 5] = [Self::Fine, Self::Agent, Self::Failed, Self::Cancelled, Self::Asked];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Agent => "agent",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Asked => "asked",
        }
    }

    /// What people read of so many.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "did not fail",
            Self::Agent => "failed by what the agent did, which is data",
            Self::Failed => "failed for the task or the grader: --all-failed runs those again",
            Self::Cancelled => "were cancelled: --cancelled runs those again",
            Self::Asked => "are being run again already",
        }
    }
}

impl RetryScope {
    /// May a rollout that ended so be run again?
    ///
    /// # Errors
    /// Why not.
    pub fn takes(self, end: &RolloutEnd) -> Result<(), NotRetried> {
        let Some(failure) = end.failure.as_ref().filter(|_| end.reward.is_none()) else {
            return Err(NotRetried::Fine);
        };
        match failure.domain {
            _ if failure.code == rollout::FailureCode::Straggler => Err(NotRetried::Fine),
            _ if end.status == Status::Cancelled && !self.cancelled => Err(NotRetried::Cancelled),
            _ if end.status == Status::Cancelled => Ok(()),
            Domain::Agent => Err(NotRetried::Agent),
            domain if domain.infrastructure() || self.all_failed => Ok(()),
            _ => Err(NotRetried::Failed),
        }
    }
}

impl Job {
    fn retries_len(&self) -> usize {
        self.retries.values().map(BTreeSet::len).sum()
    }

    /// Whom a round may replace, of those that are asked for.
    fn wanted(&self, group: &Group, asked: &BTreeSet<Member>) -> Vec<Member> {
        let missing = self.plan.group.size.saturating_sub(group.valid) as usize;
        let ended = |member: &Member| group.end_of(*member).is_some_and(|end| end.reward.is_none());
        let wanted = asked.iter().copied().filter(|member| group.has(*member) && ended(member));
        if group.expanded.broken.is_some() { Vec::new() } else { wanted.take(missing).collect() }
    }
}

impl Cluster {
    /// `reopened` is the job as it is stored, if it had ended.
    pub(crate) fn retry(
        &mut self,
        now: Now,
        id: JobId,
        reopened: Option<JobSnapshot>,
        rollouts: &[RolloutId],
        lift: bool,
        records: &mut Vec<Record>,
    ) {
        if let Some(mut stored) = reopened.filter(|_| self.jobs.get(&id).is_none_or(|j| j.state.is_final())) {
            (stored.state, stored.hold, stored.unrecorded) = (JobState::Running, None, false);
            stored.reason.clear();
            self.restore_job(now, stored, records);
            records.extend(self.jobs.get(&id).map(Job::record));
        }
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.cancel.is_none()) else { return };
        if lift && job.hold == Some(Hold::Breaker) {
            job.hold = None;
            job.state = JobState::Running;
            job.reason.clear();
            records.push(job.record());
        }
        for &rollout in rollouts {
            let index = rollout.group.index;
            let known = rollout.group.job == id && index < job.next_group && !rollout.is_shared();
            if known
                && job.retries_len() < RETRY_MEMBERS_MAX
                && job.retries.entry(index).or_default().insert(Member::of(rollout))
            {
                records.push(Record::RetryAsked { rollout });
            }
        }
        job.retries.retain(|_, members| !members.is_empty());
        self.asking.insert(id);
        self.finish_if_done(id, records);
    }

    /// Begins what is asked for and has room, group by group.
    pub(crate) fn begin_retries(&mut self, now: Now, records: &mut Vec<Record>, commands: &mut Vec<Command>) {
        let asking = self.asking.iter().filter_map(|id| self.jobs.get(id));
        let asked = asking.filter(|job| job.places() && !job.retries.is_empty());
        for id in asked.map(|job| job.id).collect::<Vec<_>>() {
            let Some(job) = self.jobs.get(&id) else { continue };
            for index in job.retries.keys().copied().take(EXPAND_GROUPS_MAX as usize).collect::<Vec<_>>() {
                self.begin_retry(now, GroupId { job: id, index }, records, commands);
            }
            self.finish_if_done(id, records);
        }
    }

    fn begin_retry(&mut self, now: Now, id: GroupId, records: &mut Vec<Record>, commands: &mut Vec<Command>) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let (started, max) = (job.started(), job.plan.admission.max_running);
        let reserved = u32::try_from(job.reopening.len()).unwrap_or(u32::MAX).saturating_mul(started);
        let taken = job.alive.saturating_add(job.owed).saturating_add(reserved);
        let Some(asked) = job.retries.get(&id.index) else { return };
        match job.groups.get(&id.index) {
            Some(group) if group.closed.is_some() => {}
            Some(group) => {
                let members = job.wanted(group, asked);
                let more = u32::try_from(members.len()).unwrap_or(u32::MAX).saturating_sub(group.owed);
                if taken.saturating_add(more) <= max {
                    self.settle_retries(id, records);
                    self.refill(now, id, &members, true, records);
                }
            }
            None if job.reopening.contains(&id.index) => {}
            None => {
                let groups = job.groups.len() + job.reopening.len();
                if taken.saturating_add(started) <= max && groups < UNSEALED_GROUPS_MAX {
                    job.reopening.insert(id.index);
                    commands.push(Command::Reopen { group: id });
                }
            }
        }
    }

    /// Nothing of this group is asked for any more.
    fn settle_retries(&mut self, id: GroupId, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        for member in job.retries.remove(&id.index).unwrap_or_default() {
            records.push(Record::RetrySettled { rollout: member.in_group(id) });
        }
    }

    /// Nothing of this job is asked for any more.
    pub(crate) fn settle_all_retries(&mut self, id: JobId, records: &mut Vec<Record>) {
        let Some(job) = self.jobs.get(&id) else { return };
        for index in job.retries.keys().copied().collect::<Vec<_>>() {
            self.settle_retries(GroupId { job: id, index }, records);
        }
    }

    /// A sealed group as it is stored; none if it cannot be read.
    pub(crate) fn reopened(
        &mut self,
        now: Now,
        id: GroupId,
        stored: Option<GroupSnapshot>,
        records: &mut Vec<Record>,
    ) {
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        if !job.reopening.remove(&id.index) || job.groups.contains_key(&id.index) {
            return;
        }
        let asked = job.retries.get(&id.index).cloned().unwrap_or_default();
        self.settle_retries(id, records);
        if let Some(stored) = stored {
            self.restore_group(now, id.job, GroupSnapshot { closed: None, ..stored });
        }
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let members = job.groups.get(&id.index).map_or(Vec::new(), |group| job.wanted(group, &asked));
        if members.is_empty() || job.cancel.is_some() {
            if let Some(group) = job.groups.remove(&id.index) {
                job.owed -= group.owed;
            }
            return self.finish_if_done(id.job, records);
        }
        let success_at = job.success_at();
        let Some(group) = job.groups.get(&id.index) else { return };
        let successes = group.ends.iter().flatten().filter(|end| is_success(end, success_at)).count();
        job.totals.remove_group(group.valid, u32::try_from(successes).unwrap_or(u32::MAX));
        job.groups_sealed -= 1;
        records.push(Record::GroupReopened { group: id });
        self.refill(now, id, &members, true, records);
    }
}
