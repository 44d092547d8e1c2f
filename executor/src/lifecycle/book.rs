//! The books themselves: a map of attempts, the sums over it, and one function per event.

use std::collections::BTreeMap;

use rollout::checkpoint::Checkpoint;
use rollout::failure::FailureCode;
use rollout::outcome::Outcome;
use rollout::quantity::Request;
use rollout::{AttemptId, Bytes, Generation, MilliCpu};

use super::admission::Room;
use super::{Action, Adopted, At, Finish, HeldPhase, Kill, Order, Phase, Refusal, RefusalClass, Report};
use crate::capacity::{Capacity, Measured};
use crate::config::Reserves;

#[derive(Debug)]
struct Entry {
    generation: Generation,
    /// None: it has no sandbox (any more).
    charge: Option<Request>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A runner has it. `next` waits until this one is gone.
    Active {
        phase: Phase,
        is_killed: bool,
        next: Option<Box<Order>>,
        /// The last checkpoint taken while it runs.
        saved: Option<Box<Checkpoint>>,
    },
    /// Told, not acknowledged.
    Ended { outcome: Box<Outcome>, kept: bool, sandbox: Sandbox },
    /// Acknowledged; the sandbox waits.
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sandbox {
    Here,
    Gone,
}

/// The books.
#[derive(Debug)]
pub struct Book {
    capacity: Capacity,
    reserves: Reserves,
    measured: Measured,
    entries: BTreeMap<AttemptId, Entry>,
    /// Sum of the charges of all entries with a sandbox, and their count.
    charged: Request,
    sandboxes: u32,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serving,
    /// Takes nothing new; what ends is still told.
    Stopping,
    /// The lease is over: everything goes, nothing is told.
    Abandoning,
}

const NOTHING: Request = Request { cpu: MilliCpu(0), memory: Bytes(0), disk: Bytes(0) };

impl Book {
    pub fn new(capacity: Capacity, reserves: Reserves, measured: Measured) -> Self {
        let entries = BTreeMap::new();
        Self { capacity, reserves, measured, entries, charged: NOTHING, sandboxes: 0, mode: Mode::Serving }
    }

    pub fn observe(&mut self, measured: Measured) {
        self.measured = measured;
    }

    /// Sandboxes that exist or are being made.
    pub fn sandboxes(&self) -> u32 {
        self.sandboxes
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// No runner is at work.
    pub fn is_idle(&self) -> bool {
        !self.entries.values().any(|entry| matches!(entry.state, State::Active { .. }))
    }

    /// No runner is at work and the scheduler acknowledged every end.
    pub fn is_settled(&self) -> bool {
        self.entries.values().all(|entry| matches!(entry.state, State::Kept))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The generation in which this attempt is held.
    pub fn generation(&self, attempt: AttemptId) -> Option<Generation> {
        self.entries.get(&attempt).map(|entry| entry.generation)
    }

    /// At most [`HELD_ATTEMPTS_MAX`](rollout_wire::HELD_ATTEMPTS_MAX).
    pub fn attempts(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Everything, for the first report of a link and from time to time.
    pub fn held(&self) -> Vec<(At, HeldPhase)> {
        let held = |(&attempt, entry): (&AttemptId, &Entry)| {
            let phase = match entry.state {
                State::Active { .. } => HeldPhase::Running,
                State::Ended { .. } => HeldPhase::Ended,
                State::Kept => HeldPhase::Kept,
            };
            (At { attempt, generation: entry.generation }, phase)
        };
        self.entries.iter().map(held).collect()
    }

    /// What a scheduler that just attached may have missed.
    pub fn untold(&self) -> Vec<Report> {
        let report = |(&attempt, entry): (&AttemptId, &Entry)| {
            let at = At { attempt, generation: entry.generation };
            match &entry.state {
                State::Active { phase: Phase::Preparing, .. } | State::Kept => [None, None],
                State::Active {
                    phase: Phase::Running { started_at } | Phase::Collecting { started_at },
                    saved,
                    ..
                } => {
                    let saved = saved.clone().map(|checkpoint| Report::Checkpoint { at, checkpoint });
                    [Some(Report::Started { at, started_at: *started_at }), saved]
                }
                State::Ended { outcome, kept, .. } => {
                    [Some(Report::Ended { at, outcome: outcome.clone(), kept: *kept }), None]
                }
            }
        };
        self.entries.iter().flat_map(report).flatten().collect()
    }

    /// Takes in what an executor that was killed held, before anything else happens. It was admitted once.
    pub fn adopt(&mut self, order: &Order, held: Adopted) {
        let charge = order.step.resources.charge();
        let (has_sandbox, state) = match held {
            Adopted::Running { started_at } => {
                let phase = Phase::Running { started_at };
                (true, State::Active { phase, is_killed: false, next: None, saved: None })
            }
            Adopted::Ended { outcome, kept, has_sandbox } => {
                let sandbox = if has_sandbox { Sandbox::Here } else { Sandbox::Gone };
                (has_sandbox, State::Ended { outcome, kept, sandbox })
            }
            Adopted::Kept => (true, State::Kept),
        };
        if has_sandbox {
            self.charged = plus(self.charged, charge);
            self.sandboxes += 1;
        }
        let entry = Entry { generation: order.generation, charge: has_sandbox.then_some(charge), state };
        self.entries.insert(order.attempt, entry);
    }

    /// Whether this attempt is acknowledged, and its sandbox waits.
    pub fn is_waiting(&self, at: At) -> bool {
        self.entries
            .get(&at.attempt)
            .is_some_and(|entry| entry.generation == at.generation && matches!(entry.state, State::Kept))
    }

    pub fn start(&mut self, order: Order) -> Vec<Action> {
        let at = At { attempt: order.attempt, generation: order.generation };
        let Some(held) = self.entries.get_mut(&at.attempt) else { return self.admit(order) };
        if at.generation < held.generation {
            return Vec::new();
        }
        if at.generation == held.generation {
            return match &held.state {
                State::Ended { outcome, kept, .. } => {
                    vec![Action::Report(Report::Ended { at, outcome: outcome.clone(), kept: *kept })]
                }
                State::Active { .. } | State::Kept => Vec::new(),
            };
        }
        let old = At { attempt: at.attempt, generation: held.generation };
        match &mut held.state {
            State::Active { is_killed, next, .. } => {
                if next.as_ref().is_none_or(|waiting| waiting.generation < at.generation) {
                    *next = Some(Box::new(order));
                }
                let reason = format!("generation {} of this attempt takes over", at.generation);
                let kill = Kill { code: FailureCode::LeaseLost, reason, should_store: false };
                if std::mem::replace(is_killed, true) { Vec::new() } else { vec![interrupt(old, kill)] }
            }
            State::Ended { .. } | State::Kept => {
                let mut actions = self.remove(old.attempt);
                actions.extend(self.admit(order));
                actions
            }
        }
    }

    /// The runner of `at` came further.
    pub fn advance(&mut self, at: At, phase: Phase) -> Vec<Action> {
        let Some(entry) = self.current(at) else { return Vec::new() };
        let State::Active { phase: old, .. } = &mut entry.state else { return Vec::new() };
        *old = phase;
        match phase {
            Phase::Running { started_at } if self.mode != Mode::Abandoning => {
                vec![Action::Report(Report::Started { at, started_at })]
            }
            _ => Vec::new(),
        }
    }

    /// The runner of `at` saved the workspace while its step runs.
    pub fn saved(&mut self, at: At, checkpoint: Box<Checkpoint>) -> Vec<Action> {
        let mode = self.mode;
        let Some(entry) = self.current(at) else { return Vec::new() };
        let State::Active { saved, .. } = &mut entry.state else { return Vec::new() };
        *saved = Some(checkpoint.clone());
        if mode == Mode::Abandoning {
            return Vec::new();
        }
        vec![Action::Report(Report::Checkpoint { at, checkpoint })]
    }

    /// The runner of `at` is done: its sandbox is destroyed, or with the agent.
    pub fn finish(&mut self, at: At, finish: Finish) -> Vec<Action> {
        let mode = self.mode;
        let Some(entry) = self.current(at) else { return Vec::new() };
        let State::Active { next, .. } = &mut entry.state else { return Vec::new() };
        let next = next.take();
        let has_sandbox = matches!(finish, Finish::Ended { kept: true, .. });
        if next.is_some() || mode == Mode::Abandoning {
            entry.state = State::Kept;
            let mut actions =
                if has_sandbox { vec![Action::Destroy { attempt: at.attempt }] } else { vec![] };
            actions.extend(self.forget(at.attempt));
            if let Some(order) = next {
                actions.extend(self.admit(*order));
            }
            return actions;
        }
        if let Some(message) = interrupted(mode, &finish) {
            let mut actions =
                if has_sandbox { vec![Action::Destroy { attempt: at.attempt }] } else { vec![] };
            actions.extend(self.forget(at.attempt));
            let refusal = Refusal { class: RefusalClass::Unhealthy, message };
            actions.push(Action::Report(Report::Refused { at, refusal }));
            return actions;
        }
        match finish {
            Finish::Refused(refusal) => {
                let mut actions = self.forget(at.attempt);
                actions.push(Action::Report(Report::Refused { at, refusal }));
                actions
            }
            Finish::Ended { outcome, .. } => {
                let kept = has_sandbox && mode == Mode::Serving;
                let report = Report::Ended { at, outcome: outcome.clone(), kept };
                let sandbox = if kept { Sandbox::Here } else { Sandbox::Gone };
                entry.state = State::Ended { outcome, kept, sandbox };
                if !kept {
                    self.discharge(at.attempt);
                }
                let mut actions = vec![Action::Report(report)];
                if has_sandbox && !kept {
                    actions.push(Action::Destroy { attempt: at.attempt });
                }
                actions
            }
        }
    }

    /// A kill of a newer generation reaches an older one too; one of an older is late.
    pub fn kill(&mut self, at: At, kill: Kill) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&at.attempt) else { return Vec::new() };
        let held = At { attempt: at.attempt, generation: entry.generation };
        if at.generation < held.generation {
            return Vec::new();
        }
        match &mut entry.state {
            State::Active { is_killed, next, .. } => {
                let mut actions = Vec::new();
                if let Some(order) = next.take_if(|order| order.generation <= at.generation) {
                    let at = At { attempt: order.attempt, generation: order.generation };
                    let message = format!("killed before it began: {}", kill.reason);
                    let refusal = Refusal { class: RefusalClass::Busy, message };
                    actions.push(Action::Report(Report::Refused { at, refusal }));
                }
                if !std::mem::replace(is_killed, true) {
                    actions.push(interrupt(held, kill));
                }
                actions
            }
            State::Ended { .. } => self.lose_sandbox(at.attempt),
            State::Kept => self.remove(at.attempt),
        }
    }

    /// Nothing goes on in the sandbox this attempt left.
    pub fn release(&mut self, at: At) -> Vec<Action> {
        let Some(entry) = self.current(at) else { return Vec::new() };
        match entry.state {
            State::Active { .. } => Vec::new(),
            State::Ended { .. } => self.lose_sandbox(at.attempt),
            State::Kept => self.remove(at.attempt),
        }
    }

    /// The scheduler stored the end of `at`.
    pub fn acknowledge(&mut self, at: At) -> Vec<Action> {
        let Some(entry) = self.current(at) else { return Vec::new() };
        match entry.state {
            State::Ended { sandbox: Sandbox::Here, .. } => {
                entry.state = State::Kept;
                vec![Action::Discard { at }]
            }
            State::Ended { sandbox: Sandbox::Gone, .. } => self.remove(at.attempt),
            State::Active { .. } | State::Kept => Vec::new(),
        }
    }

    /// The executor ends: everything is killed and told so, kept sandboxes go.
    pub fn stop(&mut self, kill: &Kill) -> Vec<Action> {
        self.mode = Mode::Stopping;
        self.kill_all(kill)
    }

    /// The lease is over: everything is killed and nothing is told.
    pub fn abandon(&mut self, kill: &Kill) -> Vec<Action> {
        self.mode = Mode::Abandoning;
        let mut actions = self.kill_all(kill);
        let ended = |(&attempt, entry): (&AttemptId, &Entry)| {
            matches!(entry.state, State::Ended { .. }).then_some(attempt)
        };
        for attempt in self.entries.iter().filter_map(ended).collect::<Vec<_>>() {
            actions.extend(self.remove(attempt));
        }
        actions
    }

    /// A new incarnation serves. Call it only when nothing of the old one is left.
    pub fn renew(&mut self) {
        debug_assert!(self.entries.is_empty());
        self.mode = Mode::Serving;
    }

    fn kill_all(&mut self, kill: &Kill) -> Vec<Action> {
        let all: Vec<At> = self.held().into_iter().map(|(at, _)| at).collect();
        let newest = Generation(u64::MAX);
        let kill_one = |at: At| self.kill(At { generation: newest, ..at }, kill.clone());
        all.into_iter().flat_map(kill_one).collect()
    }

    fn admit(&mut self, order: Order) -> Vec<Action> {
        let at = At { attempt: order.attempt, generation: order.generation };
        let charge = order.step.resources.charge();
        let from = order.continue_from;
        if let Err(refusal) = self.check_admission(&order, charge) {
            return vec![Action::Report(Report::Refused { at, refusal })];
        }
        let mut actions = Vec::new();
        if let Some(from) = from {
            self.discharge(from);
            match self.entries.get_mut(&from).map(|entry| &mut entry.state) {
                Some(State::Ended { sandbox, .. }) => *sandbox = Sandbox::Gone,
                _ => actions.extend(self.forget(from)),
            }
        }
        self.charged = plus(self.charged, charge);
        self.sandboxes += 1;
        let state = State::Active { phase: Phase::Preparing, is_killed: false, next: None, saved: None };
        self.entries.insert(at.attempt, Entry { generation: at.generation, charge: Some(charge), state });
        actions.push(Action::Launch { order: Box::new(order), sandbox_of: from });
        actions
    }

    fn check_admission(&self, order: &Order, charge: Request) -> Result<(), Refusal> {
        if self.mode != Mode::Serving {
            let message = "this executor is ending".to_owned();
            return Err(Refusal { class: RefusalClass::Unhealthy, message });
        }
        let continued = match order.continue_from {
            None => None,
            Some(from) => Some(self.kept_charge(from).ok_or_else(|| Refusal {
                class: RefusalClass::SandboxGone,
                message: format!("the sandbox of attempt {from} is not held here"),
            })?),
        };
        let room = Room {
            capacity: self.capacity,
            reserves: self.reserves,
            measured: self.measured,
            charged: minus(self.charged, continued.unwrap_or(NOTHING)),
            sandboxes: self.sandboxes,
            attempts: self.entries.len()
                - usize::from(order.continue_from.is_some_and(|from| self.is_kept(from))),
        };
        room.check(charge, order.step.resources.limit.disk, continued.is_some())
    }

    /// The charge of a sandbox that waits to be continued in.
    fn kept_charge(&self, attempt: AttemptId) -> Option<Request> {
        let entry = self.entries.get(&attempt)?;
        let waits = matches!(entry.state, State::Kept | State::Ended { sandbox: Sandbox::Here, .. });
        entry.charge.filter(|_| waits)
    }

    fn is_kept(&self, attempt: AttemptId) -> bool {
        self.entries.get(&attempt).is_some_and(|entry| matches!(entry.state, State::Kept))
    }

    fn current(&mut self, at: At) -> Option<&mut Entry> {
        self.entries.get_mut(&at.attempt).filter(|entry| entry.generation == at.generation)
    }

    /// Removes an ended or kept entry, its sandbox included.
    fn remove(&mut self, attempt: AttemptId) -> Vec<Action> {
        let mut actions = self.lose_sandbox(attempt);
        actions.extend(self.forget(attempt));
        actions
    }

    /// The sandbox of an ended or kept entry goes, if it is still here.
    fn lose_sandbox(&mut self, attempt: AttemptId) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&attempt) else { return Vec::new() };
        let is_here = match &mut entry.state {
            State::Ended { sandbox, kept, .. } if *sandbox == Sandbox::Here => {
                (*sandbox, *kept) = (Sandbox::Gone, false);
                true
            }
            State::Ended { .. } => false,
            State::Kept => true,
            State::Active { .. } => false,
        };
        if !is_here {
            return Vec::new();
        }
        self.discharge(attempt);
        vec![Action::Destroy { attempt }]
    }

    fn forget(&mut self, attempt: AttemptId) -> Vec<Action> {
        self.discharge(attempt);
        let removed = self.entries.remove(&attempt);
        let discard = |entry: Entry| Action::Discard { at: At { attempt, generation: entry.generation } };
        removed.map(discard).into_iter().collect()
    }

    /// Takes the charge of an entry off the sums, once.
    fn discharge(&mut self, attempt: AttemptId) {
        let Some(entry) = self.entries.get_mut(&attempt) else { return };
        if let Some(charge) = entry.charge.take() {
            self.charged = minus(self.charged, charge);
            self.sandboxes -= 1;
        }
    }

    /// Derives the sums again. For tests, after every event.
    pub fn check(&self) -> Result<(), String> {
        let with: Vec<Request> = self.entries.values().filter_map(|entry| entry.charge).collect();
        let sum = with.iter().fold(NOTHING, |sum, charge| plus(sum, *charge));
        let holds = |entry: &Entry| match entry.state {
            State::Active { .. } | State::Kept => true,
            State::Ended { sandbox, .. } => sandbox == Sandbox::Here,
        };
        let total = self.capacity.total;
        let within = sum.cpu <= total.cpu && sum.memory <= total.memory && sum.disk <= total.disk;
        if sum != self.charged || with.len() != usize::try_from(self.sandboxes).unwrap_or(usize::MAX) {
            return Err(format!("charged {:?} for {}, derived {sum:?}", self.charged, self.sandboxes));
        }
        if self.entries.values().any(|entry| holds(entry) != entry.charge.is_some()) {
            return Err("an entry is charged without a sandbox, or has one without a charge".to_owned());
        }
        if !within || self.sandboxes > self.capacity.sandboxes {
            return Err(format!("over capacity: {sum:?} of {total:?}, {} sandboxes", self.sandboxes));
        }
        Ok(())
    }
}

fn interrupt(at: At, kill: Kill) -> Action {
    Action::Interrupt { at, kill }
}

fn plus(a: Request, b: Request) -> Request {
    Request {
        cpu: MilliCpu(a.cpu.0 + b.cpu.0),
        memory: Bytes(a.memory.0 + b.memory.0),
        disk: Bytes(a.disk.0 + b.disk.0),
    }
}

fn minus(a: Request, b: Request) -> Request {
    Request {
        cpu: MilliCpu(a.cpu.0 - b.cpu.0),
        memory: Bytes(a.memory.0 - b.memory.0),
        disk: Bytes(a.disk.0 - b.disk.0),
    }
}

/// An orderly stop of the executor is nobody's failure: an attempt it interrupts is handed back, as
/// if it had not been placed here, and costs no retry. One that ended by itself just before is
/// told as it ended. So is a session that was driven: handed back, it would be there again under the
/// same name with nothing of what its driver did.
fn interrupted(mode: Mode, finish: &Finish) -> Option<String> {
    let Finish::Ended { outcome, .. } = finish else { return None };
    if outcome.actions.is_some() {
        return None;
    }
    let failure = outcome.failure.as_ref().filter(|f| f.code == FailureCode::NodeLost)?;
    (mode == Mode::Stopping).then(|| failure.message.clone())
}
