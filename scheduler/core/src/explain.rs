//! Why is it not running? Answered by the predicates that decide.

use std::collections::BTreeSet;

use serde::Serialize;

use rollout::state::{JobState, StepState};
use rollout::{JobId, Resources, RolloutId, StepIndex};

use crate::cluster::Cluster;
use crate::config::Now;
use crate::group::{Detail, Group};
use crate::job::Job;
use crate::keyed::{ImageHere, Role};
use crate::member::{At, Member};
use crate::node::{Node, Phase, within};
use crate::placement::{memory_asked, never_runs, not_heard};
use crate::record::Hold;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Job(JobId),
    Rollout(RolloutId),
    Step(RolloutId, StepIndex),
}

/// Sentences, the most important first. `facts` say the same to programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub lines: Vec<String>,
    pub facts: Vec<Fact>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// Stable: `no_executor`, `too_big_for_yard`, `no_backend`, `refused_by_every_node`, `no_room`, `max_running`, `running`, `backoff`,
    /// `needs`, `held`, `waits_for_result`, `waits_for_digest`, `cancelling`, `unsealed`, `final`, `unrecorded`, `waits_for_turn`, `waits_for_credit`, `node_detached`.
    pub code: &'static str,
    pub step: Option<String>,
    pub node: Option<String>,
    pub resource: Option<&'static str>,
    pub text: String,
}

impl Explanation {
    fn from_facts(facts: Vec<Fact>) -> Self {
        Self { lines: facts.iter().map(|f| f.text.clone()).collect(), facts }
    }
}

/// `1 step runs`, `2 steps run`: a count with the words that go with it.
fn counted(count: impl Into<u64>, one: &str, several: &str) -> String {
    let count = count.into();
    format!("{count} {}", if count == 1 { one } else { several })
}

/// How a step is called: a client knows of no step in its sandbox.
fn called(job: &Job, step: StepIndex) -> String {
    match job.plan.is_sandbox() {
        true => "the sandbox".to_owned(),
        false => format!("step `{}`", job.plan.step(step).name),
    }
}

fn fact(code: &'static str, text: String) -> Fact {
    Fact { code, step: None, node: None, resource: None, text }
}

impl Cluster {
    /// None if the target is not among the unfinished (the store knows the finished).
    pub fn explain(&self, now: Now, target: Target) -> Option<Explanation> {
        let facts = match target {
            Target::Job(id) => self.explain_job(now, self.jobs.get(&id)?),
            Target::Rollout(id) => {
                let job = self.jobs.get(&id.group.job)?;
                let group = job.groups.get(&id.group.index)?;
                self.explain_rollout(now, job, group, id)
            }
            Target::Step(id, step) => {
                let job = self.jobs.get(&id.group.job)?;
                let group = job.groups.get(&id.group.index)?;
                let member = Member::of(id);
                let is_there = usize::from(step.0) < job.plan.steps.len() && group.has(member);
                (is_there && (!member.is_shared() || member.runs(&job.plan, step))).then_some(())?;
                let at = At { group: id.group, slot: member.slot(&job.plan, step) };
                vec![self.explain_step(now, job, group, at)]
            }
        };
        Some(Explanation::from_facts(facts))
    }

    fn explain_job(&self, now: Now, job: &Job) -> Vec<Fact> {
        let it = if job.plan.is_sandbox() { "the sandbox" } else { "the job" };
        let mut facts = Vec::new();
        if let Some(told) = &job.unrecorded {
            facts.push(fact("unrecorded", missing_rows(&told.problem)));
        }
        match job.state {
            // Said.
            JobState::Held if job.hold == Some(Hold::Unrecorded) => {}
            JobState::Held => facts.push(fact("held", format!("{it} is held: {}", job.reason))),
            JobState::Cancelling => {
                facts.push(fact("cancelling", format!("{it} is being cancelled: {}", job.reason)));
            }
            JobState::Finished | JobState::Cancelled => {
                facts.push(fact("final", format!("{it} is {}", job.state.as_str())));
            }
            JobState::Running => {}
        }
        if self.nodes.values().all(|n| !n.attached) && !job.state.is_final() {
            facts.push(no_executor());
        }
        if job.plan.is_sandbox() {
            facts.extend(self.explain_sandbox(now, job, &facts));
            return facts;
        }
        let count = |state| job.groups.values().map(|g| g.count(state)).sum::<usize>() as u64;
        let (running, ready) = (count(StepState::Running), count(StepState::Ready));
        let parked = match count(StepState::Parked) {
            0 => String::new(),
            parked => format!(", {} parked", counted(parked, "is", "are")),
        };
        let left = job.groups_total - job.next_group;
        facts.push(fact(
            "progress",
            format!(
                "{}, {} for a node, {} for a retry{parked}; {left} of {} not admitted yet",
                counted(running, "step runs", "steps run"),
                counted(ready, "waits", "wait"),
                counted(count(StepState::Backoff), "waits", "wait"),
                counted(job.groups_total, "group is", "groups are")
            ),
        ));
        let max = job.plan.admission.max_running;
        if left > 0 && max.saturating_sub(job.alive + job.owed) < job.started() {
            facts.push(fact(
                "max_running",
                format!(
                    "{} alive{}; the next group of {} waits for max_running {max}",
                    counted(job.alive, "rollout is", "rollouts are"),
                    if job.owed > 0 {
                        format!(" and {} kept for refills", counted(job.owed, "place is", "places are"))
                    } else {
                        String::new()
                    },
                    job.started()
                ),
            ));
        }
        let closed = job.groups.values().filter(|g| g.closed.is_some()).count() as u64;
        if closed > 0 {
            let groups = counted(closed, "closed group waits for its", "closed groups wait for their");
            facts.push(fact("unsealed", format!("{groups} rows to be sealed")));
        }
        let ready = self.ready.first_of(job);
        let first =
            ready.or_else(|| self.backoff.iter().find(|(_, at)| at.group.job == job.id).map(|(_, at)| *at));
        if let Some((at, group)) = first.and_then(|at| Some((at, job.groups.get(&at.group.index)?))) {
            let step = self.explain_step(now, job, group, at);
            // What holds the whole job was said above.
            if facts.iter().all(|f| f.code != step.code) {
                facts.push(step);
            }
        }
        facts
    }

    /// Of its one step, unless it was `said` already.
    fn explain_sandbox(&self, now: Now, job: &Job, said: &[Fact]) -> Option<Fact> {
        let Some((&index, group)) = job.groups.first_key_value() else {
            let text = "the sandbox is looked at in the next pass".to_owned();
            return (job.next_group < job.groups_total).then(|| fact("waits_for_turn", text));
        };
        let member = group.members().next()?;
        let at = At { group: job.group_id(index), slot: member.slot(&job.plan, StepIndex(0)) };
        let found = self.explain_step(now, job, group, at);
        said.iter().all(|fact| fact.code != found.code).then_some(found)
    }

    fn explain_rollout(&self, now: Now, job: &Job, group: &Group, id: RolloutId) -> Vec<Fact> {
        if let Some(end) = group.end_of(Member::of(id)) {
            let failure =
                end.failure.as_ref().map_or(String::new(), |f| format!(": {} ({})", f.code, f.message));
            let text = format!(
                "the rollout ended as {}{failure}; its group waits to close or to be sealed",
                end.status.as_str()
            );
            return vec![fact("final", text)];
        }
        let member = Member::of(id);
        if !group.has(member) {
            return vec![fact("final", "the rollout was replaced by a refill".to_owned())];
        }
        let steps =
            job.plan.step_indices().filter(|&step| !member.is_shared() || member.runs(&job.plan, step));
        let slots = steps.map(|step| member.slot(&job.plan, step));
        let open = slots.filter(|&slot| !group.state(slot).is_final());
        open.map(|slot| self.explain_step(now, job, group, At { group: id.group, slot })).collect()
    }

    fn explain_step(&self, now: Now, job: &Job, group: &Group, at: At) -> Fact {
        let step = job.plan.step(at.slot.step);
        let name = called(job, at.slot.step);
        let detail = group.details.get(&at.slot);
        let mut found = match group.state(at.slot) {
            StepState::Waiting if self.keyed.roles.contains_key(&at) => self.explain_keyed(at, &name),
            StepState::Waiting => {
                let awaited = step.needs.iter().copied().chain(step.origin.step());
                let open = awaited.filter(|&n| !group.state(at.slot.member.slot(&job.plan, n)).is_final());
                let open: BTreeSet<StepIndex> = open.collect();
                let names: Vec<String> =
                    open.into_iter().map(|n| format!("`{}`", job.plan.step(n).name)).collect();
                fact("needs", format!("{name} waits for {}", names.join(", ")))
            }
            StepState::Backoff => {
                let wait = detail.map_or(rollout::Millis(0), |d| d.not_before.since(now.boot));
                let refusal = detail.and_then(|d| d.refusal.as_ref());
                let last = detail.and_then(|d| d.failure.as_ref());
                let why = match (refusal, last) {
                    (Some(refusal), _) => format!("; {refusal}"),
                    (None, Some(f)) => format!(" after {}: {}", f.code, f.message),
                    (None, None) => String::new(),
                };
                fact("backoff", format!("{name} is tried again in {wait}{why}"))
            }
            StepState::Running => {
                let place = detail.and_then(|d| d.place.as_ref());
                let node = place.map_or(String::new(), |p| p.node.to_string());
                let phase = if place.is_some_and(|p| p.started) { "runs" } else { "starts" };
                let overdue = place.filter(|p| p.told).map_or(String::new(), |p| {
                    let left = p.due.since(now.boot);
                    format!("; it should have ended, was told to stop again, and is given up in {left}")
                });
                let attempt = detail.and_then(|d| Some(at.attempt(d.attempts.checked_sub(1)?)));
                let here = place.and_then(|p| self.nodes.get(&p.node));
                let unsent = attempt.and_then(|a| here.filter(|here| here.pace.has(a)));
                let mut f = match unsent {
                    Some(here) => fact("waits_for_credit", no_credit(&name, here)),
                    None => fact("running", format!("{name} {phase} on node {node}{overdue}")),
                };
                f.node = Some(node);
                f
            }
            StepState::Parked => explain_parked(now, &name, detail),
            StepState::Ready if !job.places() && detail.is_none_or(|d| d.parked.is_none()) => fact(
                "held",
                format!("{name} is ready, but the job is {}: {}", job.state.as_str(), job.reason),
            ),
            StepState::Ready => self.explain_ready(job, group, at),
            _ if job.plan.is_sandbox() => fact("final", "the sandbox has ended".to_owned()),
            state => fact("final", format!("{name} is {}", state.as_str())),
        };
        found.step = Some(step.name.to_string());
        found
    }

    /// A step that waits for what its key names.
    fn explain_keyed(&self, at: At, name: &str) -> Fact {
        match self.keyed.roles.get(&at) {
            Some(Role::Behind(key)) => {
                let runner = self.keyed.claims.get(key).map(|claim| claim.runner);
                let runner = runner.map_or(String::new(), |runner| {
                    let job = self.jobs.get(&runner.group.job);
                    let step = job.map_or("", |job| job.plan.step(runner.slot.step).name.as_str());
                    format!(", run by {}/{step}", runner.rollout())
                });
                fact("waits_for_result", format!("{name} waits for {key}{runner}"))
            }
            Some(Role::Digest(_)) if self.nodes.values().all(|n| !n.attached) => no_executor(),
            Some(Role::Digest(image)) => {
                let asked = |n: &&Node| matches!(n.images.get(image), Some(ImageHere::Asked { .. }));
                let node = self.nodes.values().find(asked).map(|n| n.id.to_string());
                let whose = node.as_ref().map_or(String::new(), |node| format!(" on node {node}"));
                let text = format!("{name} waits for the digest of image `{image}`{whose}");
                Fact { node, ..fact("waits_for_digest", text) }
            }
            Some(Role::Runs(_)) | None => {
                fact("waits_for_turn", format!("{name} is looked at in the next pass"))
            }
        }
    }

    /// The same questions, in the same order, that placement asks.
    fn explain_ready(&self, job: &Job, group: &Group, at: At) -> Fact {
        let name = called(job, at.slot.step);
        let resources = job.resources(group, at.slot.step);
        if let Some(key) = self.sandbox_key(at).filter(|_| group.continues(&job.plan, at.slot)) {
            let kept = |n: &&Node| n.sandboxes.get(&key).is_some_and(|r| r.phase == Phase::Kept);
            return match self.nodes.values().find(kept) {
                Some(node) if !node.attached => {
                    let text =
                        format!("{name} goes on in a sandbox on node {}, whose connection is down", node.id);
                    Fact { node: Some(node.id.to_string()), ..fact("node_detached", text) }
                }
                _ => fact("waits_for_turn", format!("{name} is placed in the next pass")),
            };
        }
        let mut attached: Vec<&Node> = self.nodes.values().filter(|n| n.attached).collect();
        if attached.is_empty() {
            return no_executor();
        }
        let backend = job.plan.step(at.slot.step).backend;
        let detail = group.details.get(&at.slot);
        if let Some(never) = never_runs(&self.nodes, backend, &resources, detail) {
            let code = never.code.as_str();
            return fact(code, format!("{code}: {name} {}", never.why));
        }
        attached.retain(|node| node.offers(backend));
        let mut fitting = attached.iter().filter(|n| n.ever_fits(&resources));
        let refused = |n: &&Node| detail.is_some_and(|d| n.refused_for_good(d).is_some());
        if fitting.all(refused)
            && let Some(node) = not_heard(&self.nodes, detail)
        {
            let text = format!(
                "{name} waits for node {}, whose connection is down: every other node refused it",
                node.id
            );
            return Fact { node: Some(node.id.to_string()), ..fact("node_detached", text) };
        }
        match attached.iter().filter(|n| n.ever_fits(&resources)).max_by_key(|n| n.free().cpu.0) {
            Some(node) if !node.fits(&resources) => no_room(&name, node, &resources, attached.len()),
            _ => fact("waits_for_turn", format!("{name} fits and is placed in the next pass")),
        }
    }
}

fn explain_parked(now: Now, name: &str, detail: Option<&Detail>) -> Fact {
    let Some((detail, was)) = detail.and_then(|d| Some((d, d.parked.as_ref()?))) else {
        return fact("parked", format!("{name} is parked"));
    };
    let (since, bytes) = (now.wall.since(was.at), crate::parking::packed(detail).about());
    let left = was.due.since(now.boot);
    let text = format!(
        "{name} has been parked for {since}, with {bytes}B of files saved; it resumes on the next call, and ends in {left} without one"
    );
    Fact { node: Some(was.node.to_string()), ..fact("parked", text) }
}

/// What people read of rows that cannot be written.
pub fn missing_rows(problem: &str) -> String {
    format!("rows are missing: {problem}; it is tried again at the next start")
}

/// It has its place, and its turn comes.
fn no_credit(step: &str, node: &Node) -> String {
    let rate = node.pace.per_s_milli();
    let (ahead, down) = (node.pace.len() - 1, if node.attached { "" } else { ", whose connection is down" });
    format!(
        "{step} waits for creation credit of node {}{down}: {}.{}/s, as it measured; {}",
        node.id,
        rate / 1000,
        rate % 1000 / 100,
        counted(ahead as u64, "other waits with it", "others wait with it")
    )
}

fn no_executor() -> Fact {
    fact(
        "no_executor",
        "no executor is attached; start one with `rollyard executor --scheduler URL`".to_owned(),
    )
}

fn no_room(step: &str, node: &Node, resources: &Resources, nodes: usize) -> Fact {
    let (charge, free, total) = (resources.charge(), node.free(), node.capacity.total);
    let (resource, text) = if charge.cpu > free.cpu {
        ("cpu", format!("cpu {}, node {} has {} free of {}", charge.cpu, node.id, free.cpu, total.cpu))
    } else if charge.memory > free.memory {
        let (free, total) = (free.memory.about(), total.memory.about());
        ("memory", format!("{}, node {} has {free} free of {total}", memory_asked(resources), node.id))
    } else if charge.disk > free.disk {
        let (free, total) = (free.disk.about(), total.disk.about());
        ("disk", format!("disk {}, node {} has {free} free of {total}", charge.disk.about(), node.id))
    } else {
        debug_assert!(within(charge, free));
        (
            "sandboxes",
            format!(
                "a sandbox, node {} holds {} of {}",
                node.id,
                node.sandboxes.len(),
                node.capacity.sandboxes
            ),
        )
    };
    let text = format!("{step} waits for room: it asks {text} (the best of {nodes} attached)");
    Fact { node: Some(node.id.to_string()), resource: Some(resource), ..fact("no_room", text) }
}
