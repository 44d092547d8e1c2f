//! Re-derives every index and sum. Runs after each simulated event, and on a timer in the yard.

use std::collections::BTreeSet;

use rollout::quantity::Request;
use rollout::state::StepState;

use crate::cluster::Cluster;
use crate::config::RESULTS_MAX;
use crate::group::Verdict;
use crate::job::Job;
use crate::keyed::Role;
use crate::member::{At, Member, Slot};
use crate::node::{Phase, add, within};
use crate::ready::{Class, ReadyKey, ReadyQueue};

impl Cluster {
    /// Every violated invariant, as a sentence.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        self.check_ledger(&mut wrong);
        self.check_queues(&mut wrong);
        self.check_keys(&mut wrong);
        for job in self.jobs.values() {
            if job.asks() && !self.asking.contains(&job.id) {
                wrong.push(format!("job {} may begin more, and no pass would look at it", job.id));
            }
            self.check_job(job, &mut wrong);
        }
        for at in self.homeless() {
            wrong.push(format!("{} step {} runs where no sandbox is reserved", at.rollout(), at.slot.step.0));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn check_ledger(&self, wrong: &mut Vec<String>) {
        for node in self.nodes.values() {
            let sum = node.sandboxes.values().map(|r| r.charge).chain(node.given_up.values().copied());
            let sum = sum.fold(Request::default(), add);
            if sum != node.used {
                wrong.push(format!("node {}: used {:?} is not the sum {sum:?}", node.id, node.used));
            }
            // Capacity is unknown until the node attaches.
            if node.attached && !node.shrunk && !within(node.used, node.capacity.total) {
                wrong.push(format!("node {}: used {:?} is above its capacity", node.id, node.used));
            }
            let queued: BTreeSet<_> = node.pace.queued().collect();
            let starting = node.sandboxes.values().filter(|r| r.phase == Phase::Starting);
            let starting: BTreeSet<_> = starting.map(|r| r.attempt).collect();
            if starting.len() != node.starting {
                wrong.push(format!(
                    "node {}: {} start, {} are counted",
                    node.id,
                    starting.len(),
                    node.starting
                ));
            }
            if queued != *node.pace.attempts() || !queued.is_subset(&starting) {
                wrong.push(format!("node {}: {queued:?} wait for credit, {starting:?} start", node.id));
            }
            for (key, reservation) in &node.sandboxes {
                let at = At::of(reservation.attempt);
                let group = self.jobs.get(&at.group.job).and_then(|j| j.groups.get(&at.group.index));
                let Some(group) = group else {
                    wrong.push(format!("node {}: a sandbox of {} that is gone", node.id, key.rollout));
                    continue;
                };
                let detail = group.details.get(&at.slot);
                let runs = detail.is_some_and(|d| {
                    d.place.as_ref().is_some_and(|p| p.node == node.id && p.incarnation == node.incarnation)
                        && d.generation == reservation.generation
                });
                if (reservation.phase == Phase::Kept) == runs {
                    wrong.push(format!(
                        "node {}: the sandbox of {} is {:?}",
                        node.id, key.rollout, reservation.phase
                    ));
                }
                let has_left = matches!(group.state(at.slot), StepState::Succeeded | StepState::Failed);
                if reservation.phase == Phase::Kept && !has_left {
                    wrong.push(format!(
                        "node {}: a sandbox is kept after a step that is {:?}",
                        node.id,
                        group.state(at.slot)
                    ));
                }
            }
        }
    }

    fn check_queues(&self, wrong: &mut Vec<String>) {
        let (mut ready, mut backoff) = (ReadyQueue::default(), BTreeSet::new());
        let (mut overdue, mut parked) = (BTreeSet::new(), BTreeSet::new());
        for job in self.jobs.values() {
            for at in slots(job) {
                let group = &job.groups[&at.group.index];
                let place = group.details.get(&at.slot).and_then(|d| d.place.as_ref());
                overdue.extend(place.map(|place| (place.due, at)));
                match group.state(at.slot) {
                    StepState::Ready => ready.insert(Class::of(job, group, at), ReadyKey::of(job, group, at)),
                    StepState::Backoff => {
                        let due = group.details.get(&at.slot).map_or_else(Default::default, |d| d.not_before);
                        backoff.insert((due, at));
                    }
                    _ => {}
                }
                let state = group.state(at.slot);
                let detail = group.details.get(&at.slot);
                match detail.and_then(|d| Some((d, d.parked.as_ref()?))) {
                    Some((detail, was)) => {
                        parked.extend(was.looked_at(state).map(|look_at| (look_at, at)));
                        let gone = !was.has_files(detail.taken.back());
                        if gone && !state.is_final() && !place.is_some_and(|place| place.started) {
                            wrong.push(format!("{} is parked and its files are gone", at.rollout()));
                        }
                    }
                    None if state == StepState::Parked => {
                        wrong.push(format!("{} is parked nowhere", at.rollout()));
                    }
                    None => {}
                }
            }
        }
        if ready != self.ready {
            wrong.push(format!(
                "ready queue has {} entries, {} steps are ready, or their classes differ",
                self.ready.len(),
                ready.len()
            ));
        }
        if parked != self.parked {
            wrong.push(format!(
                "{} sessions are watched that are parked, {} are, or their times differ",
                self.parked.len(),
                parked.len()
            ));
        }
        if overdue != self.overdue {
            wrong.push(format!(
                "{} attempts are watched, {} are placed, or their times differ",
                self.overdue.len(),
                overdue.len()
            ));
        }
        if backoff != self.backoff {
            wrong.push(format!(
                "backoff queue has {} entries, {} steps back off",
                self.backoff.len(),
                backoff.len()
            ));
        }
    }

    /// Whoever has a key has a part in it: it runs, it waits for one that does, or for a digest.
    fn check_keys(&self, wrong: &mut Vec<String>) {
        let mut keyed = self.keyed.order.len();
        if keyed != self.keyed.results.len() || keyed > RESULTS_MAX {
            wrong.push(format!("{} results and {keyed} names of RESULTS_MAX", self.keyed.results.len()));
        }
        keyed = 0;
        for (at, job) in self.jobs.values().flat_map(|job| slots(job).map(move |at| (at, job))) {
            let group = &job.groups[&at.group.index];
            let Some(key) = group.key_of(at.slot) else { continue };
            let role = self.keyed.roles.get(&at);
            keyed += usize::from(role.is_some());
            let claim = self.keyed.claims.get(key);
            let state = group.state(at.slot);
            let fits = match (state, role) {
                (StepState::Ready | StepState::Running, Some(Role::Runs(own))) => {
                    own == key && claim.is_some_and(|claim| claim.runner == at)
                }
                (StepState::Backoff, role) => matches!(role, None | Some(Role::Runs(_))),
                (StepState::Waiting, Some(Role::Behind(own))) => {
                    own == key && claim.is_some_and(|claim| claim.waiting.contains(&at))
                }
                (StepState::Waiting, Some(Role::Digest(image))) => {
                    self.keyed.digest_waits.get(image).is_some_and(|waits| waits.contains(&at))
                }
                (StepState::Waiting, None) => {
                    group.end_of(at.slot.member).is_some()
                        || group.verdict(&job.plan, at.slot) != Verdict::Run
                }
                (_, role) => role.is_none() && (state.is_final() || state == StepState::Parked),
            };
            if !fits {
                wrong.push(format!("{} step {} is {state:?}: {role:?}", at.rollout(), at.slot.step.0));
            }
        }
        let parts = self.keyed.claims.values().map(|claim| 1 + claim.waiting.len()).sum::<usize>()
            + self.keyed.digest_waits.values().map(BTreeSet::len).sum::<usize>();
        if keyed != self.keyed.roles.len() || keyed != parts {
            wrong.push(format!("{keyed} steps have {} roles in {parts} places", self.keyed.roles.len()));
        }
    }

    fn check_job(&self, job: &Job, wrong: &mut Vec<String>) {
        let open: usize = job.groups.values().flat_map(|g| &g.ends).filter(|e| e.is_none()).count();
        if open != job.alive as usize {
            wrong.push(format!("job {}: alive is {}, {open} rollouts are open", job.id, job.alive));
        }
        let owed: u32 = job.groups.values().map(|group| group.owed).sum();
        if owed != job.owed {
            wrong.push(format!("job {}: {} places kept, {owed} by its groups", job.id, job.owed));
        }
        let max = job.plan.admission.max_running;
        if job.alive + job.owed > max {
            wrong.push(format!("job {}: {} alive and {} kept of {max}", job.id, job.alive, job.owed));
        }
        let admitted = job.groups.len() as u64 + u64::from(job.groups_sealed);
        if admitted != u64::from(job.next_group) {
            wrong.push(format!(
                "job {}: {admitted} groups live or sealed, {} admitted",
                job.id, job.next_group
            ));
        }
        if job.next_group > job.groups_total {
            wrong.push(format!("job {}: more groups admitted than it has", job.id));
        }
        for at in slots(job) {
            let group = &job.groups[&at.group.index];
            let place = group.details.get(&at.slot).and_then(|d| d.place.as_ref());
            let running = group.state(at.slot) == StepState::Running;
            if group.state(at.slot) == StepState::Ready && group.verdict(&job.plan, at.slot) != Verdict::Run {
                wrong.push(format!("{} step {} is ready too early", at.rollout(), at.slot.step.0));
            }
            if running != place.is_some() {
                let state = group.state(at.slot);
                wrong.push(format!(
                    "{} step {} is {state:?} with place {place:?}",
                    at.rollout(),
                    at.slot.step.0
                ));
            }
            let ended = group.end_of(at.slot.member).is_some();
            if ended && !group.state(at.slot).is_final() {
                wrong.push(format!("{} has ended, its step {} has not", at.rollout(), at.slot.step.0));
            }
        }
        for (index, group) in &job.groups {
            if group.owed != job.owed(group) {
                let owed = job.owed(group);
                wrong.push(format!("group {index} of {}: {} places kept, not {owed}", job.id, group.owed));
            }
            let valid = group.ends.iter().flatten().filter(|end| end.reward.is_some()).count();
            if valid != group.valid as usize {
                wrong.push(format!("group {index} of {}: valid is {}, not {valid}", job.id, group.valid));
            }
            if group.closed.is_some() != group.ends.iter().all(Option::is_some) {
                wrong.push(format!("group {index} of {}: closed {:?}", job.id, group.closed));
            }
        }
    }
}

fn slots(job: &Job) -> impl Iterator<Item = At> {
    job.groups.iter().flat_map(move |(&index, group)| {
        let members = group.members().chain([Member::SHARED]);
        members.flat_map(move |member| {
            let at = move |step| At { group: job.group_id(index), slot: Slot { member, step } };
            member.own_steps(&job.plan).map(at)
        })
    })
}
