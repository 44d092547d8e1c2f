//! A node and its ledger. Availability is derived (total - used), never stored.

use std::collections::{BTreeMap, BTreeSet};

use rollout::quantity::Request;
use rollout::{
    AttemptId, BackendKind, BootTime, Bytes, Generation, IncarnationId, MilliCpu, NodeId, Resources,
    RolloutId, StepIndex,
};

use crate::event::{Capacity, Held, Measured};
use crate::group::{Detail, Exclusion};
use crate::keyed::ImageHere;
use crate::pace::Pace;

#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    pub incarnation: IncarnationId,
    pub capacity: Capacity,
    pub measured: Measured,
    /// It attached with less than it had promised before; what runs there runs on.
    pub shrunk: bool,
    /// A stream is open. The lease may live without one.
    pub attached: bool,
    pub deadline: BootTime,
    /// One per sandbox that exists, or was asked for.
    pub sandboxes: BTreeMap<SandboxKey, Reservation>,
    /// Of them, those that start; counted again by `check`.
    pub starting: usize,
    /// Sum over `sandboxes` and `given_up`; re-derived by `check`.
    pub used: Request,
    /// Reserved here and not in its last list: with one more such list it is lost. At most one per
    /// sandbox.
    pub absent: BTreeSet<Grant>,
    /// Attempts that were ended for this node because it did not, and their charge: it may hold them
    /// until its list has them no more.
    pub given_up: BTreeMap<Grant, Request>,
    /// What it said of images, by their names in specs.
    pub images: BTreeMap<String, ImageHere>,
    /// Starts that wait for creation credit.
    pub pace: Pace,
}

/// An attempt at the generation it was granted.
pub(crate) type Grant = (AttemptId, Generation);

/// A sandbox serves one chain of steps of one rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SandboxKey {
    pub rollout: RolloutId,
    pub head: StepIndex,
}

#[derive(Debug, Clone)]
pub(crate) struct Reservation {
    pub charge: Request,
    /// The attempt that runs in it, or left it.
    pub attempt: AttemptId,
    pub generation: Generation,
    pub phase: Phase,
}

impl Reservation {
    pub fn grant(&self) -> Grant {
        (self.attempt, self.generation)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Asked for; the node has not said that the command runs.
    Starting,
    Running,
    /// Waits for the next step of the chain.
    Kept,
}

pub(crate) fn add(a: Request, b: Request) -> Request {
    Request {
        cpu: MilliCpu(a.cpu.0 + b.cpu.0),
        memory: Bytes(a.memory.0 + b.memory.0),
        disk: Bytes(a.disk.0 + b.disk.0),
    }
}

pub(crate) fn subtract(a: Request, b: Request) -> Request {
    Request {
        cpu: MilliCpu(a.cpu.0.saturating_sub(b.cpu.0)),
        memory: Bytes(a.memory.0.saturating_sub(b.memory.0)),
        disk: Bytes(a.disk.0.saturating_sub(b.disk.0)),
    }
}

pub(crate) fn within(a: Request, limit: Request) -> bool {
    a.cpu <= limit.cpu && a.memory <= limit.memory && a.disk <= limit.disk
}

impl Node {
    pub fn offers(&self, backend: BackendKind) -> bool {
        self.capacity.backends.contains(&backend)
    }

    pub fn free(&self) -> Request {
        subtract(self.capacity.total, self.used)
    }

    /// Could this node hold it if it were empty?
    pub fn ever_fits(&self, resources: &Resources) -> bool {
        within(resources.charge(), self.capacity.total)
            && self.capacity.sandboxes > 0
            && resources.limit.disk <= self.capacity.disk_limit_max
    }

    /// Does it fit beside what is there?
    pub fn fits(&self, resources: &Resources) -> bool {
        self.ever_fits(resources)
            && within(resources.charge(), self.free())
            && (self.places_taken() as u64) < u64::from(self.capacity.sandboxes)
    }

    /// Why this life of the node refused the step as one it can never hold, if it did.
    pub fn refused_for_good<'a>(&self, detail: &'a Detail) -> Option<&'a str> {
        let ours = |known: &&Exclusion| known.node == self.id && known.incarnation == self.incarnation;
        detail.excluded.iter().find(ours).map(|known| known.why.as_str())
    }

    /// What is reserved here, was sent, and is not in `held`.
    pub fn absent_from(&self, held: &[Held]) -> BTreeSet<Grant> {
        let holds: BTreeSet<Grant> = held.iter().map(|h| (h.attempt, h.generation)).collect();
        let sent = self.sandboxes.values().filter(|reserved| !self.pace.has(reserved.attempt));
        sent.map(Reservation::grant).filter(|grant| !holds.contains(grant)).collect()
    }

    /// Sandboxes that exist, or may.
    pub fn places_taken(&self) -> usize {
        self.sandboxes.len() + self.given_up.len()
    }

    /// The sandbox serves nobody any more and stays charged.
    pub fn give_up(&mut self, key: SandboxKey) {
        if let Some(reservation) = self.sandboxes.remove(&key) {
            self.forget(&reservation);
            self.given_up.insert(reservation.grant(), reservation.charge);
        }
    }

    /// Frees what was given up and is not in `held`.
    pub fn let_go(&mut self, held: &[Held]) {
        let holds: BTreeSet<Grant> = held.iter().map(|h| (h.attempt, h.generation)).collect();
        for (_, charge) in self.given_up.extract_if(.., |grant, _| !holds.contains(grant)) {
            self.used = subtract(self.used, charge);
        }
    }

    pub fn reserve(&mut self, key: SandboxKey, reservation: Reservation) {
        self.used = add(self.used, reservation.charge);
        self.starting += usize::from(reservation.phase == Phase::Starting);
        if let Some(old) = self.sandboxes.insert(key, reservation) {
            self.used = subtract(self.used, old.charge);
            self.forget(&old);
        }
    }

    pub fn release(&mut self, key: SandboxKey) -> Option<Reservation> {
        let reservation = self.sandboxes.remove(&key)?;
        self.forget(&reservation);
        self.used = subtract(self.used, reservation.charge);
        Some(reservation)
    }

    /// If there is such a sandbox.
    pub fn set_phase(&mut self, key: SandboxKey, phase: Phase) {
        let Some(reservation) = self.sandboxes.get_mut(&key) else { return };
        let before = std::mem::replace(&mut reservation.phase, phase);
        self.starting += usize::from(phase == Phase::Starting);
        self.starting -= usize::from(before == Phase::Starting);
    }

    /// It is in the list no more.
    fn forget(&mut self, reservation: &Reservation) {
        self.starting -= usize::from(reservation.phase == Phase::Starting);
        self.pace.forget(reservation.attempt);
    }
}
