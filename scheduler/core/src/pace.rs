//! When a placed attempt is sent to its node: creation credit.
//!
//! Placement and the ledger know nothing of it. A node reports how many sandboxes it can make at once
//! out of what it made ahead, and how many a second it makes for as long as anybody likes; both are
//! measured. Starts of new sandboxes beyond that wait here, job after job in turn, so that a burst of
//! one job does not stand before the single sandbox of another. A node that reports no rate is not
//! paced, and what makes no sandbox waits for nothing.
//!
//! ```text
//! placed ──> waits (in the ledger, recorded) ──credit──> sent
//!                 └─ killed, lost with its node, its checkpoint gone ──> withdrawn or ended, never sent
//! ```
//!
//! Invariant: what waits here is reserved on its node as `Starting`; a kill never overtakes a start.
//!
//! Debt: the starts of one group go together as soon as the first has credit, which may take the
//! credit below zero: the node is given nothing more until the rate has paid for it, or a heartbeat says
//! that more is ready than is in flight. A node with few creations in flight is given more whatever it
//! measured, at no charge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollout::{AttemptId, BackendKind, BootTime, GroupId, JobId, NodeId};

use crate::attempt::NotBegun;
use crate::cluster::Cluster;
use crate::command::{Command, Target};
use crate::config::Now;
use crate::event::{CreationCredit, Fence};
use crate::member::At;
use crate::node::{Grant, Reservation};
use crate::record::Record;

/// In flight at least, as time at the measured rate: what a report and the next start take, amply.
const IN_FLIGHT_MIN_MS: u64 = 50;
/// One creation.
const ONE: i64 = 1_000_000;

/// The bucket of one node and what waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    reported: CreationCredit,
    /// In millionths of a creation. Below zero: debt.
    credit: i64,
    as_of: BootTime,
    /// By job, each in the order of placement.
    waiting: BTreeMap<JobId, VecDeque<Command>>,
    /// The job whose turn was last.
    last: Option<JobId>,
    unsent: BTreeSet<AttemptId>,
}

impl Pace {
    /// What the node reports now, with so many creations in flight.
    pub fn report(&mut self, now: BootTime, reported: CreationCredit, in_flight: usize) {
        self.refill(now);
        self.reported = reported;
        let in_flight = i64::try_from(in_flight).unwrap_or(i64::MAX / ONE / 2);
        let ready = (i64::from(reported.burst) - in_flight).saturating_mul(ONE);
        // Lifted, not lowered: what has been in flight for long may wait for its image, and make nothing.
        self.credit = self.credit.max(ready).min(self.most());
    }

    pub fn is_on(&self) -> bool {
        self.reported.per_s_milli > 0
    }

    /// Creations in 1,000 seconds.
    pub fn per_s_milli(&self) -> u64 {
        self.reported.per_s_milli
    }

    pub fn len(&self) -> usize {
        self.unsent.len()
    }

    pub fn has(&self, attempt: AttemptId) -> bool {
        self.unsent.contains(&attempt)
    }

    pub fn attempts(&self) -> &BTreeSet<AttemptId> {
        &self.unsent
    }

    /// Attempts in the queues; equals [`attempts`](Self::attempts), which `check` asserts.
    pub fn queued(&self) -> impl Iterator<Item = AttemptId> {
        self.waiting.values().flatten().filter_map(attempt_of)
    }

    fn push(&mut self, start: Command) {
        let Some(attempt) = attempt_of(&start) else { return };
        self.unsent.insert(attempt);
        self.waiting.entry(attempt.rollout.group.job).or_default().push_back(start);
    }

    /// It will not be sent.
    pub fn forget(&mut self, attempt: AttemptId) {
        if !self.unsent.remove(&attempt) {
            return;
        }
        let job = attempt.rollout.group.job;
        if let Some(queue) = self.waiting.get_mut(&job) {
            queue.retain(|start| attempt_of(start) != Some(attempt));
            if queue.is_empty() {
                self.waiting.remove(&job);
            }
        }
    }

    /// No more is saved up than is made ahead.
    fn most(&self) -> i64 {
        i64::from(self.reported.burst.max(1)) * ONE
    }

    fn refill(&mut self, now: BootTime) {
        let (ms, rate) = (now.since(self.as_of).0, self.reported.per_s_milli);
        // Thousandths a second times milliseconds are millionths.
        let grown = self.credit.saturating_add(i64::try_from(ms.saturating_mul(rate)).unwrap_or(i64::MAX));
        self.credit = self.credit.max(grown.min(self.most()));
        self.as_of = now;
    }

    /// The starts that go next: those of one group, of the job whose turn it is.
    fn next(&mut self, in_flight: usize, least: usize) -> Vec<Command> {
        if self.is_on() && self.credit < ONE && in_flight >= least {
            return Vec::new();
        }
        let after = self.last.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let later = self.waiting.range((after, std::ops::Bound::Unbounded)).next();
        let Some((&job, _)) = later.or_else(|| self.waiting.first_key_value()) else { return Vec::new() };
        let Some(queue) = self.waiting.get_mut(&job) else { return Vec::new() };
        let group = queue.front().and_then(group_of);
        let mut starts = Vec::new();
        while queue.front().and_then(group_of) == group
            && let Some(start) = queue.pop_front()
        {
            starts.push(start);
        }
        if queue.is_empty() {
            self.waiting.remove(&job);
        }
        self.last = Some(job);
        // Its debt is that of a group with credit; what goes without any makes none.
        if self.credit >= ONE {
            let price = i64::try_from(starts.len()).unwrap_or(i64::MAX).saturating_mul(ONE);
            self.credit = self.credit.saturating_sub(price);
        }
        for attempt in starts.iter().filter_map(attempt_of) {
            self.unsent.remove(&attempt);
        }
        starts
    }

    /// When there is credit for one more.
    fn next_at(&self) -> Option<BootTime> {
        let rate = self.reported.per_s_milli;
        if self.waiting.is_empty() || rate == 0 {
            return None;
        }
        let short = u64::try_from(ONE.saturating_sub(self.credit)).unwrap_or(0);
        Some(self.as_of.after(rollout::Millis(short.div_ceil(rate).max(1))))
    }
}

fn attempt_of(start: &Command) -> Option<AttemptId> {
    if let Command::Start { attempt, .. } = start { Some(*attempt) } else { None }
}

fn group_of(start: &Command) -> Option<GroupId> {
    attempt_of(start).map(|attempt| attempt.rollout.group)
}

impl Cluster {
    /// Sends the start, or lets it wait for credit if it makes a sandbox on a node that is paced.
    pub(crate) fn send_start(&mut self, node: &NodeId, start: Command, commands: &mut Vec<Command>) {
        let makes_one = matches!(&start, Command::Start { continue_from: None, attempt, .. }
        if self.jobs.get(&attempt.rollout.group.job).is_some_and(|job| {
            // What was made before it was asked for is handed out.
            job.plan.step(attempt.step).backend != BackendKind::Fncall
        }));
        match self.nodes.get_mut(node) {
            Some(node) if makes_one && node.pace.is_on() => node.pace.push(start),
            _ => commands.push(start),
        }
    }

    /// What there is credit for; and when there is for more. What can no longer start as it was placed
    /// is placed anew.
    pub(crate) fn dispatch(
        &mut self,
        now: Now,
        records: &mut Vec<Record>,
        commands: &mut Vec<Command>,
    ) -> Option<BootTime> {
        let (mut sent, mut wake_at) = (Vec::new(), None);
        for node in self.nodes.values_mut().filter(|node| node.attached && node.pace.len() > 0) {
            let at_rate = node.pace.per_s_milli().saturating_mul(IN_FLIGHT_MIN_MS) / 1_000_000;
            let least = usize::try_from(at_rate).unwrap_or(usize::MAX).max(self.config.in_flight_min);
            let mut in_flight = node.starting.saturating_sub(node.pace.len());
            node.pace.refill(now.boot);
            loop {
                let starts = node.pace.next(in_flight, least);
                if starts.is_empty() {
                    break;
                }
                in_flight += starts.len();
                sent.extend(starts);
            }
            wake_at = wake_at.into_iter().chain(node.pace.next_at()).min();
        }
        for mut start in sent {
            let Command::Start { to, attempt, base, parked, .. } = &mut start else { continue };
            if base.is_some() && self.base_is_gone(*attempt) {
                self.take_one_back(now, to, *attempt, "what it was to start from is gone", records);
                continue;
            }
            // Its time begins now, that of a session went on.
            *parked = self.parked_to_send(now, At::of(*attempt));
            self.watch(now, At::of(*attempt));
            commands.push(start);
        }
        wake_at
    }

    /// A checkpoint may be found bad, or replaced, while a start waits.
    fn base_is_gone(&self, attempt: AttemptId) -> bool {
        let at = At::of(attempt);
        let job = self.jobs.get(&at.group.job);
        let found = job.and_then(|job| {
            let group = job.groups.get(&at.group.index)?;
            let base = group.details.get(&at.slot)?.place.as_ref()?.base?;
            group.base_placed(&job.plan, at.slot, base)
        });
        found.is_none()
    }

    fn take_one_back(
        &mut self,
        now: Now,
        to: &Target,
        attempt: AttemptId,
        why: &str,
        records: &mut Vec<Record>,
    ) {
        let at = Fence { node: to.node.clone(), incarnation: to.incarnation, generation: to.generation };
        self.withdraw(now, &at, attempt, NotBegun::NeverSent(why), records);
    }

    /// Withdraws all that waits for the credit of a node that is lost.
    pub(crate) fn take_all_back(&mut self, now: Now, id: &NodeId, records: &mut Vec<Record>) {
        let Some(node) = self.nodes.get(id) else { return };
        let unsent = |reserved: &&Reservation| node.pace.has(reserved.attempt);
        let grants: Vec<Grant> = node.sandboxes.values().filter(unsent).map(Reservation::grant).collect();
        let incarnation = node.incarnation;
        for (attempt, generation) in grants {
            let to = Target { node: id.clone(), incarnation, generation };
            // The end of another may have taken it back.
            if self.is_unsent(id, attempt) {
                let why = format!("node {id} was lost before this was sent to it");
                self.take_one_back(now, &to, attempt, &why, records);
            }
        }
    }

    /// Whether the start of this attempt, which is placed there, waits.
    pub(crate) fn is_unsent(&self, node: &NodeId, attempt: AttemptId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.pace.has(attempt))
    }

    /// Withdraws what was told to stop before it was sent; whether there was any.
    pub(crate) fn take_back(&mut self, now: Now, records: &mut Vec<Record>) -> bool {
        let mut any = false;
        // Ends may stop others: those of their group.
        while self.nodes.values().any(|node| node.pace.len() > 0) {
            let nodes = &self.nodes;
            let stopped: Vec<Command> = self
                .outbox
                .extract_if(.., |command| match command {
                    Command::Kill { to, attempt, .. } => {
                        nodes.get(&to.node).is_some_and(|node| node.pace.has(*attempt))
                    }
                    _ => false,
                })
                .collect();
            if stopped.is_empty() {
                break;
            }
            any = true;
            for command in stopped {
                let Command::Kill { to, attempt, reason, .. } = command else { continue };
                if self.is_unsent(&to.node, attempt) {
                    self.take_one_back(now, &to, attempt, &reason, records);
                }
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use rollout::{Generation, IncarnationId, Millis, RolloutId, StepIndex};

    use super::*;

    fn start(job: u64, group: u32, sample: u32) -> Command {
        let group = GroupId { job: JobId::from_bits(job), index: group };
        let rollout = RolloutId { group, sample, refill: 0 };
        Command::Start {
            to: Target {
                node: NodeId("n".parse().unwrap()),
                incarnation: IncarnationId::from_bits(1),
                generation: Generation(1),
            },
            attempt: AttemptId { rollout, step: StepIndex(0), attempt: 0 },
            continue_from: None,
            keep: false,
            base: None,
            parked: None,
        }
    }

    fn pace(burst: u32, per_s_milli: u64, starts: impl IntoIterator<Item = Command>) -> Pace {
        let mut pace = Pace::default();
        pace.report(BootTime(0), CreationCredit { burst, per_s_milli }, 0);
        starts.into_iter().for_each(|start| pace.push(start));
        pace
    }

    /// (job, group) of what goes at `ms` with plenty in flight.
    fn sent(pace: &mut Pace, ms: u64) -> Vec<(u64, u32)> {
        pace.refill(BootTime(0).after(Millis(ms)));
        let mut all = Vec::new();
        loop {
            let starts = pace.next(100, 0);
            if starts.is_empty() {
                return all;
            }
            let of = |group: GroupId| (group.job.bits(), group.index);
            all.extend(starts.iter().filter_map(group_of).map(of));
        }
    }

    #[test]
    fn what_is_ready_goes_at_once_and_the_rest_at_the_rate() {
        let mut pace = pace(3, 10_000, (0..10).map(|n| start(1, n, 0)));
        assert_eq!(sent(&mut pace, 0).len(), 3);
        assert_eq!(pace.next_at(), Some(BootTime(0).after(Millis(100))));
        assert_eq!(sent(&mut pace, 99).len(), 0);
        assert_eq!(sent(&mut pace, 100).len(), 1);
        assert_eq!(sent(&mut pace, 300).len(), 2);
        // Never more saved up than is made ahead.
        assert_eq!(sent(&mut pace, 60_000).len(), 3);
        assert_eq!((sent(&mut pace, 60_100).len(), pace.len(), pace.next_at()), (1, 0, None));
    }

    #[test]
    fn a_report_lifts_the_credit_to_what_is_ready_beyond_what_is_in_flight() {
        let mut pace = pace(3, 1_000, (0..20).map(|n| start(1, n, 0)));
        let report = |pace: &mut Pace, burst, in_flight| {
            pace.report(BootTime(0), CreationCredit { burst, per_s_milli: 1_000 }, in_flight);
        };
        assert_eq!(sent(&mut pace, 0).len(), 3);
        for (burst, in_flight, goes) in [(3, 3, 0), (3, 9, 0), (3, 1, 2), (5, 0, 5), (0, 0, 0)] {
            report(&mut pace, burst, in_flight);
            assert_eq!(sent(&mut pace, 0).len(), goes, "{burst} ready, {in_flight} in flight");
        }
        // What was in flight for long takes nothing of what the rate gives.
        for ms in 1..=5_u64 {
            pace.refill(BootTime(0).after(Millis(ms * 1_000)));
            let credit = CreationCredit { burst: 1, per_s_milli: 1_000 };
            pace.report(BootTime(0).after(Millis(ms * 1_000)), credit, 50);
            assert_eq!(sent(&mut pace, ms * 1_000).len(), 1);
        }
    }

    #[test]
    fn a_group_goes_together_and_leaves_a_debt() {
        let members = (0..4).map(|sample| start(1, 0, sample));
        let mut pace = pace(1, 1_000, members.chain([start(1, 1, 0)]));
        assert_eq!(sent(&mut pace, 0), [(1, 0); 4]);
        assert_eq!(sent(&mut pace, 3_999), []);
        assert_eq!(sent(&mut pace, 4_000), [(1, 1)]);
    }

    #[test]
    fn jobs_take_turns() {
        let mut pace =
            pace(5, 1_000, (0..100).map(|n| start(1, n, 0)).chain([start(2, 0, 0), start(3, 0, 0)]));
        assert_eq!(sent(&mut pace, 0), [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_node_with_little_in_flight_is_given_more() {
        let mut pace = pace(0, 1, (0..9).map(|n| start(1, n, 0)));
        assert!(pace.next(8, 8).is_empty());
        assert_eq!(pace.next(7, 8).len(), 1);
        assert_eq!(pace.credit, 0, "at no charge");
    }

    #[test]
    fn a_node_that_reports_no_rate_waits_for_nothing() {
        let mut pace = pace(0, 0, (0..9).map(|n| start(1, n, 0)));
        assert!(!pace.is_on());
        assert_eq!(sent(&mut pace, 0).len(), 9);
    }
}
