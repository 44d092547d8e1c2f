//! Which node runs a step. The policy is the field order of [`Score`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rollout::failure::Failure;
use rollout::quantity::Request;
use rollout::state::StepState;
use rollout::{BackendKind, FailureCode, NodeId, Resources};

use crate::cluster::Cluster;
use crate::command::{Command, Target};
use crate::config::{Now, PLACEMENTS_PER_PASS_MAX};
use crate::group::{Detail, Place};
use crate::hold::HoldCode;
use crate::job::Job;
use crate::lease::lost_outcome;
use crate::member::At;
use crate::node::{Node, Phase, Reservation, SandboxKey};
use crate::ready::{Class, Walk};
use crate::record::{Hold, Record};

/// Smaller is better, first field first; the node's id last, so that ties are deterministic.
/// A node that does not fit has no score.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// It refused this step last.
    avoided: bool,
    /// It was parked there: its layers are.
    home: Reverse<bool>,
    /// Members of the group are there already: caches are warm.
    affinity: Reverse<bool>,
    /// Best fit: the fuller the tightest dimension would be, the better (in 1/1000).
    tightness: Reverse<u64>,
    /// Creations it has not confirmed yet.
    starting: usize,
    node: NodeId,
}

impl Score {
    pub fn of(node: &Node, at: At, resources: &Resources, detail: Option<&Detail>) -> Option<Self> {
        let excluded = detail.is_some_and(|d| node.refused_for_good(d).is_some());
        if !node.attached || excluded || !node.fits(resources) {
            return None;
        }
        let group = at.group;
        let first = SandboxKey {
            rollout: rollout::RolloutId { group, sample: 0, refill: 0 },
            head: rollout::StepIndex(0),
        };
        let neighbour =
            node.sandboxes.range(first..).next().is_some_and(|(key, _)| key.rollout.group == group);
        Some(Self {
            avoided: detail.is_some_and(|d| d.avoid.as_ref() == Some(&node.id)),
            home: Reverse(
                detail.and_then(|d| d.parked.as_ref()).is_some_and(|parked| parked.node == node.id),
            ),
            affinity: Reverse(neighbour),
            tightness: Reverse(tightest(node, resources.charge())),
            starting: node.starting,
            node: node.id.clone(),
        })
    }
}

/// Use of the fullest dimension with `charge` added, in 1/1000.
fn tightest(node: &Node, charge: Request) -> u64 {
    let share =
        |used: u64, add: u64, total: u64| (used + add).saturating_mul(1000).checked_div(total).unwrap_or(0);
    let (used, total) = (node.used, node.capacity.total);
    share(used.cpu.0, charge.cpu.0, total.cpu.0)
        .max(share(used.memory.0, charge.memory.0, total.memory.0))
        .max(share(used.disk.0, charge.disk.0, total.disk.0))
}

/// What a pass of placement came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Placed {
    /// There is more to do at once: the bound of a pass stopped it, or an end made steps ready.
    pub again: bool,
    /// Ready steps that were looked at.
    pub looked_at: usize,
}

/// What became of a step that goes on in its predecessor's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WentOn {
    There,
    /// The node that has the sandbox is not attached.
    Waits,
    /// The sandbox is gone: the chain starts again, or the step has failed.
    Lost,
}

impl Cluster {
    /// Places ready steps in order, as many as fit and a pass may.
    pub(crate) fn place(
        &mut self,
        now: Now,
        records: &mut Vec<Record>,
        commands: &mut Vec<Command>,
    ) -> Placed {
        let mut pass = Placed::default();
        let mut placed = 0;
        // Nodes where parked sessions that are called wait for room: nothing new goes there.
        let mut waited_for: BTreeSet<NodeId> = BTreeSet::new();
        let mut walk = Walk::over(&self.ready);
        while let Some((key, class)) = walk.next() {
            if placed == PLACEMENTS_PER_PASS_MAX {
                pass.again = true;
                return pass;
            }
            pass.looked_at += 1;
            let at = key.at();
            let thaws = key.thaws.0;
            let may = |job: &&Job| job.places() || thaws && job.cancel.is_none();
            let Some(job) = self.jobs.get(&key.job).filter(may) else {
                walk.skip_job(&self.ready, class, key);
                continue;
            };
            if !job.groups.contains_key(&key.group) {
                walk.go_on(&self.ready, class, key);
                continue;
            }
            if class == Class::Continues {
                let went_on = self.continue_live(now, at, records, commands);
                placed += usize::from(went_on == WentOn::There);
                // What became ready by its end has its turn in the next pass.
                pass.again |= went_on == WentOn::Lost;
                walk.go_on(&self.ready, class, key);
                continue;
            }
            if self.lacks_base(now, at, records) {
                pass.again = true;
                walk.go_on(&self.ready, class, key);
                continue;
            }
            let Some(job) = self.jobs.get(&key.job) else { continue };
            let Some(group) = job.groups.get(&key.group) else { continue };
            let resources = job.resources(group, at.slot.step);
            let detail = group.details.get(&at.slot);
            let backend = job.plan.step(at.slot.step).backend;
            let offering = self.nodes.values().filter(|node| node.offers(backend));
            let offering = offering.filter(|node| thaws || !waited_for.contains(&node.id));
            let best = offering.filter_map(|n| Score::of(n, at, &resources, detail)).min();
            if let Some(score) = best {
                self.start(now, at, &score.node, (None, resources.charge()), records, commands);
                self.watch(now, at);
                placed += 1;
                walk.go_on(&self.ready, class, key);
                continue;
            }
            if thaws {
                let could = self.nodes.values().filter(|node| {
                    let refused = detail.is_some_and(|d| node.refused_for_good(d).is_some());
                    node.attached && node.offers(backend) && !refused && node.ever_fits(&resources)
                });
                let home = detail.and_then(|d| d.parked.as_ref()).map(|parked| parked.node.clone());
                let best = could.max_by_key(|node| (Some(&node.id) == home.as_ref(), node.free().memory.0));
                waited_for.extend(best.map(|node| node.id.clone()));
            }
            match self.give_up_if_never(now, at, backend, &resources, records) {
                GaveUp::No => {}
                GaveUp::Job => walk.skip_job(&self.ready, class, key),
                GaveUp::Step => {
                    placed += 1;
                    // What became ready by its end has its turn in the next pass.
                    pass.again = true;
                    walk.go_on(&self.ready, class, key);
                }
            }
            // Else the class is left: nothing of it fits any more, as ends do not happen in a pass.
        }
        pass
    }

    /// The step goes on where its predecessor left the sandbox.
    fn continue_live(
        &mut self,
        now: Now,
        at: At,
        records: &mut Vec<Record>,
        commands: &mut Vec<Command>,
    ) -> WentOn {
        let Some(key) = self.sandbox_key(at) else { return WentOn::Waits };
        let holder =
            self.nodes.values().find(|n| n.sandboxes.get(&key).is_some_and(|r| r.phase == Phase::Kept));
        let Some(node) = holder else {
            self.continue_elsewhere(now, at, records);
            return WentOn::Lost;
        };
        if !node.attached {
            return WentOn::Waits;
        }
        let reservation = &node.sandboxes[&key];
        let (id, from, charge) = (node.id.clone(), reservation.attempt, reservation.charge);
        self.start(now, at, &id, (Some(from), charge), records, commands);
        self.watch(now, at);
        WentOn::There
    }

    fn start(
        &mut self,
        now: Now,
        at: At,
        node_id: &NodeId,
        (continue_from, charge): (Option<rollout::AttemptId>, Request),
        records: &mut Vec<Record>,
        commands: &mut Vec<Command>,
    ) {
        let Some(key) = self.sandbox_key(at) else { return };
        self.set_state(at, StepState::Running);
        let Some(incarnation) = self.nodes.get(node_id).map(|n| n.incarnation) else { return };
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return };
        let keep = job.plan.continuation(at.slot.step).is_some();
        let Some(group) = job.groups.get_mut(&at.group.index) else { return };
        let base = group.base(&job.plan, at.slot).filter(|_| continue_from.is_none());
        let (base_id, base) = base.map(|saved| (saved.id, saved.checkpoint.clone())).unzip();
        let detail = group.detail(at.slot);
        let parked = detail.parked.as_ref().map(|was| was.to_send(now));
        let attempt = at.attempt(detail.attempts);
        detail.attempts += 1;
        detail.generation = detail.generation.next();
        detail.avoid = None;
        detail.refusal = None;
        let generation = detail.generation;
        detail.place =
            Some(Place { base: base_id, ..Place::new(node_id.clone(), incarnation, continue_from) });
        if let Some(node) = self.nodes.get_mut(node_id) {
            let phase = Phase::Starting;
            node.reserve(key, Reservation { charge, attempt, generation, phase });
        }
        records.push(Record::AttemptPlaced {
            attempt,
            generation,
            node: node_id.clone(),
            incarnation,
            continue_from,
            base: base_id,
        });
        let to = Target { node: node_id.clone(), incarnation, generation };
        let base = base.map(|checkpoint| Box::new((*checkpoint).clone()));
        let start = Command::Start { to, attempt, continue_from, keep, base, parked };
        self.send_start(node_id, start, commands);
    }

    /// If there are nodes but none could ever hold the step: the step fails where another row may
    /// name an image that some node has, else the job is held, as every rollout would end so.
    fn give_up_if_never(
        &mut self,
        now: Now,
        at: At,
        backend: BackendKind,
        resources: &Resources,
        records: &mut Vec<Record>,
    ) -> GaveUp {
        let group = self.jobs.get(&at.group.job).and_then(|j| j.groups.get(&at.group.index));
        let detail = group.and_then(|g| g.details.get(&at.slot));
        let Some(never) = never_runs(&self.nodes, backend, resources, detail) else { return GaveUp::No };
        let Some(job) = self.jobs.get_mut(&at.group.job) else { return GaveUp::No };
        // What is held for another reason stays so; a session of it that is called waits.
        if !job.places() {
            return GaveUp::Job;
        }
        let step = job.plan.step(at.slot.step);
        let said = format!("{}: step `{}` {}", never.code.as_str(), step.name, never.why);
        match never.refused_by {
            Some(node) if step.image.as_literal().is_none() => {
                self.fail_refused(now, at, &node, said, records);
                GaveUp::Step
            }
            _ => {
                records.push(job.hold(Hold::NoNode, said));
                GaveUp::Job
            }
        }
    }

    /// Ends the step as one whose row names what is on no node. It takes an attempt on the node that
    /// refused it, so that its rows and a restart tell why.
    fn fail_refused(&mut self, now: Now, at: At, node: &NodeId, message: String, records: &mut Vec<Record>) {
        let Some(incarnation) = self.nodes.get(node).map(|n| n.incarnation) else { return };
        self.set_state(at, StepState::Running);
        let Some(group) = self.group_mut(at.group) else { return };
        let detail = group.detail(at.slot);
        let attempt = at.attempt(detail.attempts);
        detail.attempts += 1;
        detail.generation = detail.generation.next();
        let generation = detail.generation;
        detail.place = Some(Place::new(node.clone(), incarnation, None));
        records.push(Record::AttemptPlaced {
            attempt,
            generation,
            node: node.clone(),
            incarnation,
            continue_from: None,
            base: None,
        });
        let failure = Failure::new(FailureCode::NotFound, message);
        self.accept_end(now, attempt, Box::new(lost_outcome(now, failure)), false, records);
    }
}

/// What became of a step that no node may ever hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GaveUp {
    /// Some node may hold it yet.
    No,
    /// Its job is held, for this or before.
    Job,
    /// It failed, and its job goes on.
    Step,
}

/// The memory a step is charged, in the words of its spec.
pub(crate) fn memory_asked(resources: &Resources) -> String {
    let (memory, disk) = (resources.request.memory.about(), resources.request.disk.about());
    if resources.limit.disk <= rollout::quantity::TMPFS_DISK_MAX {
        format!("memory {memory} and {disk} of disk that is kept in memory")
    } else {
        format!("memory {memory}")
    }
}

/// Refusals that one reason quotes.
const REFUSALS_SHOWN_MAX: usize = 3;

/// Why no node can or will ever hold a step.
#[derive(Debug)]
pub(crate) struct Never {
    pub code: HoldCode,
    /// Words after the step's name.
    pub why: String,
    /// One of the nodes that refused it, if that is why.
    pub refused_by: Option<NodeId>,
}

/// Why no attached node can or will ever hold a step. None if some may, if none is attached, or if
/// all that are refused it and one that is away was not heard.
pub(crate) fn never_runs(
    nodes: &BTreeMap<NodeId, Node>,
    backend: BackendKind,
    resources: &Resources,
    detail: Option<&Detail>,
) -> Option<Never> {
    let attached: Vec<&Node> = nodes.values().filter(|node| node.attached).collect();
    if attached.is_empty() {
        return None;
    }
    let offering: Vec<&Node> = attached.iter().copied().filter(|node| node.offers(backend)).collect();
    if offering.is_empty() {
        // One that is away may have it.
        if not_heard(nodes, detail).is_some() {
            return None;
        }
        let why = format!("asks backend {backend}, which no node offers");
        return Some(Never { code: HoldCode::NoBackend, why, refused_by: None });
    }
    let fitting: Vec<&&Node> = offering.iter().filter(|node| node.ever_fits(resources)).collect();
    if fitting.is_empty() {
        let why = never_fits(&offering, resources);
        return Some(Never { code: HoldCode::TooBigForYard, why, refused_by: None });
    }
    let refusal = |node: &&&Node| {
        let why = detail.and_then(|detail| node.refused_for_good(detail))?;
        Some(format!("node {} refused it: {why}", node.id))
    };
    let refusals: Vec<String> = fitting.iter().map_while(refusal).collect();
    if refusals.len() < fitting.len() || not_heard(nodes, detail).is_some() {
        return None;
    }
    let shown = refusals.len().min(REFUSALS_SHOWN_MAX);
    let more = match refusals.len() - shown {
        0 => String::new(),
        more => format!("; and {more} more nodes"),
    };
    let why = format!("can run nowhere: {}{more}", refusals[..shown].join("; "));
    let last = fitting.last().map(|node| node.id.clone());
    Some(Never { code: HoldCode::RefusedByEveryNode, why, refused_by: last })
}

/// A node with a lease and no connection that did not refuse the step: it may have what the others
/// have not. It comes back, or its lease ends.
pub(crate) fn not_heard<'a>(nodes: &'a BTreeMap<NodeId, Node>, detail: Option<&Detail>) -> Option<&'a Node> {
    let refused = |node: &Node| detail.is_some_and(|detail| node.refused_for_good(detail).is_some());
    nodes.values().find(|node| !node.attached && !refused(node))
}

/// What is asked and what the largest node has, for the dimension that fails.
fn never_fits(nodes: &[&Node], resources: &Resources) -> String {
    let charge = resources.charge();
    let largest = |of: &dyn Fn(&Node) -> u64| {
        let node = nodes.iter().max_by_key(|n| of(n));
        node.map_or((0, String::new()), |n| (of(n), n.id.to_string()))
    };
    let (cpu, cpu_node) = largest(&|n| n.capacity.total.cpu.0);
    if charge.cpu.0 > cpu {
        return format!(
            "asks cpu {}; the largest node {cpu_node} has {}",
            charge.cpu,
            rollout::MilliCpu(cpu)
        );
    }
    let (memory, node) = largest(&|n| n.capacity.total.memory.0);
    if charge.memory.0 > memory {
        let has = rollout::Bytes(memory).about();
        return format!("asks {}; the largest node {node} has {has}", memory_asked(resources));
    }
    let bytes = [
        ("disk", charge.disk.0, largest(&|n| n.capacity.total.disk.0)),
        ("a disk limit of", resources.limit.disk.0, largest(&|n| n.capacity.disk_limit_max.0)),
    ];
    for (what, asked, (has, node)) in bytes {
        if asked > has {
            let (asked, has) = (rollout::Bytes(asked).about(), rollout::Bytes(has).about());
            return format!("asks {what} {asked}; the largest node {node} has {has}");
        }
    }
    "fits each limit of some node but no node as a whole".to_owned()
}
