//! Attempts that a node holds and never ends.
//!
//! Executors end an attempt at the deadlines of its step. A node that beats and does not is no lost
//! node, so the core has a deadline of its own: one margin behind all of the step's, the attempt is
//! told to stop once more; another margin later it has ended as `node_lost`. What the node still
//! holds of it stays on its ledger until the node's list has it no more, or its lease ends.

use rollout::failure::Failure;
use rollout::plan::{Field, StepPlan};
use rollout::state::StepState;
use rollout::{BootTime, FailureCode, Millis, StepIndex};

use crate::cluster::Cluster;
use crate::command::{Command, Target};
use crate::config::Now;
use crate::group::Group;
use crate::job::Job;
use crate::lease::lost_outcome;
use crate::member::{At, Slot};
use crate::record::Record;

/// The longest grace that a spec may ask for.
const GRACE_MAX: Millis = Millis(60_000);

/// Start, run and grace of a step, looked up in its row where it says so.
fn span(job: &Job, group: &Group, step: StepIndex) -> Millis {
    match &group.expanded.spans {
        Some(spans) => spans[usize::from(step.0)],
        None => fixed_span(job.plan.step(step)),
    }
}

/// A looked-up time always comes with the expansion.
fn fixed_span(step: &StepPlan) -> Millis {
    let fixed = |field: &Field<Millis>| match field {
        Field::Fixed(time) => time.0,
        Field::PerRow(_) => 0,
    };
    let times = [&step.start_timeout, &step.timeout, &step.grace];
    Millis(times.into_iter().map(fixed).fold(0, u64::saturating_add))
}

impl Cluster {
    /// Gives a placed attempt all its time from `now` on; one of a cancelled job only what an end
    /// takes.
    pub(crate) fn watch(&mut self, now: Now, at: At) {
        let margin = self.config.overdue_margin;
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let Some(group) = job.groups.get(&at.group.index) else { return };
        let due = now.boot.after(margin);
        let whole = due.after(span(job, group, at.slot.step));
        let due = if job.cancel.is_some() { due.after(grace(job, at.slot.step)).min(whole) } else { whole };
        self.set_due(at, due);
    }

    /// The attempt was told to stop: what it may still take is its grace.
    pub(crate) fn watch_end(&mut self, now: Now, at: At) {
        let margin = self.config.overdue_margin;
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let due = now.boot.after(margin).after(grace(job, at.slot.step));
        let place = job.groups.get(&at.group.index).and_then(|g| g.details.get(&at.slot)?.place.as_ref());
        if place.is_some_and(|place| due < place.due) {
            self.set_due(at, due);
        }
    }

    fn set_due(&mut self, at: At, due: BootTime) {
        let Some(group) = self.group_mut(at.group) else { return };
        let Some(place) = group.detail(at.slot).place.as_mut() else { return };
        let old = std::mem::replace(&mut place.due, due);
        self.overdue.remove(&(old, at));
        self.overdue.insert((due, at));
    }

    /// Tells attempts that should have ended to stop, and gives up those that were told.
    pub(crate) fn end_overdue(&mut self, now: Now, records: &mut Vec<Record>) {
        while let Some(&(due, at)) = self.overdue.first()
            && due <= now.boot
        {
            // Its time has not begun.
            if self.has_unsent(at) {
                self.watch(now, at);
                continue;
            }
            let Some(told) = self.group_mut(at.group).and_then(|g| {
                let place = g.detail(at.slot).place.as_mut()?;
                Some(std::mem::replace(&mut place.told, true))
            }) else {
                self.overdue.pop_first();
                continue;
            };
            if told {
                self.give_up(now, at, records);
            } else {
                self.stop_again(at);
                self.set_due(at, now.boot.after(self.config.overdue_margin));
            }
        }
    }

    /// Whether its start waits for the credit of the node it is placed on.
    fn has_unsent(&self, at: At) -> bool {
        let group = self.jobs.get(&at.group.job).and_then(|job| job.groups.get(&at.group.index));
        let detail = group.and_then(|group| group.details.get(&at.slot));
        detail.is_some_and(|detail| {
            let attempt = detail.attempts.checked_sub(1).map(|attempt| at.attempt(attempt));
            attempt
                .zip(detail.place.as_ref())
                .is_some_and(|(attempt, place)| self.is_unsent(&place.node, attempt))
        })
    }

    fn stop_again(&mut self, at: At) {
        let Some(job) = self.jobs.get(&at.group.job) else { return };
        let detail = job.groups.get(&at.group.index).and_then(|g| g.details.get(&at.slot));
        let Some((detail, place)) = detail.and_then(|d| Some((d, d.place.as_ref()?))) else { return };
        let (code, reason) = job.cancel.clone().unwrap_or_else(|| {
            (FailureCode::NodeLost, "it should have ended long ago by the times of its step".to_owned())
        });
        let to = Target {
            node: place.node.clone(),
            incarnation: place.incarnation,
            generation: detail.generation,
        };
        self.outbox.push(Command::Kill { to, attempt: at.attempt(detail.attempts - 1), code, reason });
    }

    fn give_up(&mut self, now: Now, at: At, records: &mut Vec<Record>) {
        let margin = self.config.overdue_margin;
        let Some(key) = self.sandbox_key(at) else { return };
        let Some(detail) = self.group_mut(at.group).map(|g| g.detail(at.slot)) else { return };
        let Some(place) = detail.place.clone() else { return };
        let attempt = at.attempt(detail.attempts - 1);
        if let Some(node) = self.node_of(&place.node, place.incarnation) {
            node.give_up(key);
        }
        let message = format!(
            "node {} reports itself but did not end the attempt in all the time its step has, nor within {margin} after it was told to stop again",
            place.node
        );
        let outcome = lost_outcome(now, Failure::new(FailureCode::NodeLost, message));
        self.accept_end(now, attempt, Box::new(outcome), false, records);
        // Tried again, it goes to another node if one has room.
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let plan = job.plan.clone();
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        for step in plan.chain(key.head) {
            let slot = Slot { step, ..at.slot };
            if group.state(slot) == StepState::Backoff {
                group.detail(slot).avoid = Some(place.node.clone());
            }
        }
    }
}

fn grace(job: &Job, step: StepIndex) -> Millis {
    match job.plan.step(step).grace {
        Field::Fixed(grace) => grace,
        Field::PerRow(_) => GRACE_MAX,
    }
}
