//! The list of steps: kinds, workspaces, and the plan's order.

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::fncall;
use super::graph::{self, Graph, GraphStep};
use super::step;
use super::tables::{DEFAULTS, STEP};
use super::tree::{Node, Span, item_path};
use super::view::{Layered, View};
use crate::ids::StepIndex;
use crate::plan::{Origin, Per, STEPS_MAX, StepKind, StepPlan};

/// A step of the document.
#[derive(Debug)]
pub(crate) struct StepDoc<'t> {
    pub name: String,
    pub name_span: Span,
    pub kind: StepKind,
    pub own: View<'t>,
    /// The step over `defaults`.
    pub all: Layered<'t>,
}

/// Where a workspace comes from, in document indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Image,
    Live(usize),
    Checkpoint(usize),
}

impl Start {
    /// The step whose workspace it is.
    fn step(self) -> Option<usize> {
        match self {
            Self::Image => None,
            Self::Live(step) | Self::Checkpoint(step) => Some(step),
        }
    }
}

/// The word of `from` that is no step.
const IMAGE: &str = "image";

pub(crate) struct Steps<'t> {
    pub docs: Vec<StepDoc<'t>>,
    pub graph: Option<Graph>,
    /// In plan order; none if any step has an error that keeps it from being planned.
    pub plan: Option<Vec<StepPlan>>,
}

pub(crate) fn read<'t>(root: &View<'t>, sink: &mut Sink) -> Steps<'t> {
    let list: &'t [Node] = root.find("steps").map_or(&[], |found| found.node.items());
    // A list over its limit has been refused as a whole.
    let list = if list.len() > STEPS_MAX { &[] } else { list };
    let defaults = root.find("defaults").map(|found| View::new(found.node, &DEFAULTS, found.path));
    let docs: Vec<StepDoc<'t>> =
        list.iter().enumerate().map(|(index, node)| read_doc(node, index, defaults.clone(), sink)).collect();
    let graph_steps: Vec<GraphStep> = docs.iter().map(graph_step).collect();
    let Some(graph) = graph::check(&graph_steps, sink) else {
        return Steps { docs, graph: None, plan: None };
    };
    let starts = starts(&docs, &graph, sink);
    let plan = plan(&docs, &graph, &starts, sink);
    Steps { docs, graph: Some(graph), plan }
}

fn read_doc<'t>(node: &'t Node, index: usize, defaults: Option<View<'t>>, sink: &mut Sink) -> StepDoc<'t> {
    let own = View::new(node, &STEP, item_path("steps", index));
    let name = own.find("name");
    let name_span = name.as_ref().map_or(node.span, |found| found.node.span);
    let text = name.as_ref().and_then(|found| found.node.text()).unwrap_or_default().to_owned();
    if text == IMAGE {
        let fault = Diagnostic::error(
            Code::BadValue,
            name_span,
            &format!("{}.name", own.path),
            "a step cannot be called `image`: `from: image` means the image",
        );
        sink.push(fault.expected("another name"));
    }
    let kind = if own.has("grader") {
        StepKind::Grader
    } else if own.has("session") {
        StepKind::Session
    } else if own.has("agent") {
        StepKind::Agent
    } else {
        StepKind::Run
    };
    check_work(&own, kind, sink);
    StepDoc { name: text, name_span, kind, all: Layered::new(Some(own.clone()), defaults), own }
}

/// Exactly one of `run`, `agent`, `session` gives the work; a grader uses `run`.
fn check_work(own: &View<'_>, kind: StepKind, sink: &mut Sink) {
    let given: Vec<_> =
        ["run", "agent", "session"].into_iter().filter_map(|key| Some((key, own.find(key)?))).collect();
    match given.as_slice() {
        [] => {
            let path = format!("{}.run", own.path);
            let expected = match kind {
                StepKind::Grader => "`run`, as this is a grader",
                _ => "`run`, `agent` or `session`",
            };
            let message = format!("{} has nothing to do", quoted(&own.path));
            sink.push(
                Diagnostic::error(Code::MissingField, own.node.span, &path, message).expected(expected),
            );
        }
        [(key, found)] if kind == StepKind::Grader && *key != "run" => {
            let message = format!("a grader cannot have `{key}`");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected("`run` beside `grader`"));
        }
        [_] => {}
        [(first, _), (second, found), ..] => {
            let message = format!("`{second}` beside `{first}`: a step does one of them");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected("exactly one of `run`, `agent`, `session`"));
        }
    }
}

fn graph_step(doc: &StepDoc<'_>) -> GraphStep {
    let needs = doc.own.find("needs").map(|found| found.node.items()).unwrap_or_default();
    // A list over its limit has been refused as a whole.
    let needs = if needs.len() > STEPS_MAX { &[] } else { needs };
    let needs = needs.iter().filter_map(|need| Some((need.text()?.to_owned(), need.span))).collect();
    GraphStep { name: doc.name.clone(), name_span: doc.name_span, path: doc.own.path.clone(), needs }
}

/// In topological order, so that what a step starts from is known before its needers ask.
fn starts(docs: &[StepDoc<'_>], graph: &Graph, sink: &mut Sink) -> Vec<Option<Start>> {
    let mut starts: Vec<Option<Start>> = vec![None; docs.len()];
    let mut continued = vec![false; docs.len()];
    for &index in &graph.order {
        check_per(docs, graph, index, sink);
        let mut start = start(docs, graph, index, &starts, sink);
        if let Some(Start::Live(before)) = start {
            // A sandbox goes on once, and only among steps that run equally often.
            let restored = continued[before] || per_group(&docs[before]) != per_group(&docs[index]);
            continued[before] |= !restored;
            if restored {
                start = Some(Start::Checkpoint(before));
            }
        }
        starts[index] = start;
    }
    starts
}

pub(crate) fn per_group(doc: &StepDoc<'_>) -> bool {
    doc.all.text("per") == Some("group")
}

/// The place to complain about a step's workspace: `from` if written, else the name.
fn from_place(doc: &StepDoc<'_>) -> (Span, String) {
    match doc.own.find("from") {
        Some(found) => (found.node.span, found.path),
        None => (doc.name_span, format!("{}.from", doc.own.path)),
    }
}

fn check_per(docs: &[StepDoc<'_>], graph: &Graph, index: usize, sink: &mut Sink) {
    let doc = &docs[index];
    if !per_group(doc) {
        return;
    }
    let Some(found) = doc.all.find("per") else { return };
    if doc.kind != StepKind::Run {
        let message = format!("{} runs once a group and is not a run step", quoted(&doc.name));
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected("`per: group` on run steps only"));
    }
    for &need in graph.needs[index].iter().filter(|&&need| !per_group(&docs[need])) {
        let message = format!(
            "{} runs once a group and needs {}, which runs once a rollout",
            quoted(&doc.name),
            quoted(&docs[need].name)
        );
        let fault = Diagnostic::error(Code::GroupNeedsRollout, found.node.span, &found.path, message);
        sink.push(fault.expected("needs that run once a group too"));
    }
}

fn start(
    docs: &[StepDoc<'_>],
    graph: &Graph,
    index: usize,
    starts: &[Option<Start>],
    sink: &mut Sink,
) -> Option<Start> {
    let doc = &docs[index];
    let grader = doc.kind == StepKind::Grader;
    let isolate = doc.all.find("isolate");
    let fresh = match isolate.as_ref().and_then(|found| found.node.text()) {
        Some("fresh") => true,
        Some(_) => false,
        None => grader,
    };
    let (span, path) = from_place(doc);
    let needs = &graph.needs[index];
    let names = |steps: &[usize]| listed(steps.iter().map(|&step| docs[step].name.as_str()));
    let (start, fault) = match doc.own.text("from") {
        Some(IMAGE) => (Some(Start::Image), None),
        Some(from) => match docs.iter().position(|other| other.name == from) {
            None => {
                let known = || docs.iter().map(|other| other.name.as_str()).filter(|name| !name.is_empty());
                let message = format!("there is no step {}", quoted(from));
                let fault = Diagnostic::error(Code::UnknownStep, span, &path, message);
                let expected = format!("`image`, or one of {}", listed(known()));
                (None, Some(fault.expected(expected).nearest(from, known().chain([IMAGE]))))
            }
            Some(before) if !graph.is_ancestor(before, index) => {
                let message = format!("{} need not have run before {}", quoted(from), quoted(&doc.name));
                let fault = Diagnostic::error(Code::NotAncestor, span, &path, message);
                (
                    None,
                    Some(fault.expected(format!("{} in the `needs` of {}", quoted(from), quoted(&doc.name)))),
                )
            }
            Some(before) if fresh || !needs.contains(&before) => (Some(Start::Checkpoint(before)), None),
            Some(before) => (Some(Start::Live(before)), None),
        },
        None => match needs.as_slice() {
            [] => (Some(Start::Image), None),
            [_, _, ..] => {
                let message = format!(
                    "{} needs several steps and does not say where it starts from",
                    quoted(&doc.name)
                );
                let fault = Diagnostic::error(Code::FromAmbiguous, span, &path, message);
                (None, Some(fault.expected(format!("`from` with one of {}, `image`", names(needs)))))
            }
            // It sees what the work started from, and of the work only its inputs.
            &[need] if grader => {
                let start = starts[need].map(|start| start.step().map_or(Start::Image, Start::Checkpoint));
                (start, None)
            }
            &[need] if fresh => (Some(Start::Checkpoint(need)), None),
            &[need] => (Some(Start::Live(need)), None),
        },
    };
    sink_all(fault, sink);
    if grader {
        check_grader_view(docs, doc, start, fresh, sink);
    }
    start
}

fn sink_all(fault: Option<Diagnostic>, sink: &mut Sink) {
    if let Some(fault) = fault {
        sink.push(fault);
    }
}

/// Whether the workspace of a step holds what an agent did: it is one, or goes on from one.
fn sees_work(docs: &[StepDoc<'_>], step: usize) -> bool {
    docs[step].kind == StepKind::Agent || !per_group(&docs[step])
}

/// What a grader can see.
fn check_grader_view(
    docs: &[StepDoc<'_>],
    doc: &StepDoc<'_>,
    start: Option<Start>,
    fresh: bool,
    sink: &mut Sink,
) {
    let inputs = doc.own.find("inputs").is_some_and(|found| !found.node.items().is_empty());
    if !inputs && !doc.own.has("from") {
        let path = format!("{}.inputs", doc.own.path);
        let message = format!(
            "the grader {} has neither `inputs` nor `from`: it sees nothing of the work",
            quoted(&doc.name)
        );
        let fault = Diagnostic::error(Code::GraderSeesNothing, doc.name_span, &path, message);
        sink.push(
            fault.expected("`inputs: [{artifact: step.output, path: /in/file}]` with an output of the work"),
        );
    }
    let own = doc.own.find("from").and_then(|found| found.node.text());
    match start {
        Some(Start::Live(before) | Start::Checkpoint(before)) if own.is_some() && sees_work(docs, before) => {
            let (span, path) = from_place(doc);
            let (what, instead) = match start {
                Some(Start::Live(_)) => {
                    ("works in the sandbox it grades", "no `from`, with the files to grade as `inputs`")
                }
                _ => ("sees all files the work left", "no `from`, with the files to grade as `inputs`"),
            };
            let message = format!(
                "the grader {} {what}: what the work left there can change the reward",
                quoted(&doc.name)
            );
            let fault = Diagnostic::warning(Code::GraderSeesAgentWorkspace, span, &path, message);
            sink.push(fault.expected(instead));
        }
        Some(Start::Image) if !fresh => {
            if let Some(isolate) = doc.own.find("isolate") {
                let message = "`isolate: reuse` has nothing to reuse: the grader starts from the image";
                let fault = Diagnostic::error(Code::BadRelation, isolate.node.span, &isolate.path, message);
                sink.push(fault.expected("`from` with the step whose sandbox is reused, or no `isolate`"));
            }
        }
        _ => {}
    }
}

/// A shared result follows from what its key can name: from run steps alone, all the way down.
fn check_key(docs: &[StepDoc<'_>], starts: &[Option<Start>], index: usize, sink: &mut Sink) {
    let doc = &docs[index];
    let Some(found) = doc.all.object("checkpoint").find("key") else { return };
    let mut refuse = |message: String, expected: &str| {
        let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
        sink.push(fault.expected(expected));
    };
    let mut below = Some(index);
    while let Some(at) = below {
        let (step, is_own) = (&docs[at], at == index);
        if step.kind != StepKind::Run && !is_own {
            let (own, other) = (quoted(&doc.name), quoted(&step.name));
            refuse(
                format!("{own} works from {other}, whose work is never the same twice"),
                "`key` on steps that work from the image or from run steps",
            );
        }
        if step.own.find("inputs").is_some_and(|inputs| !inputs.node.items().is_empty()) {
            let whose = if is_own { "it" } else { "the step it works from" };
            refuse(
                format!("{} has a `key`, and {whose} has `inputs`, which no key names", quoted(&doc.name)),
                "no `inputs`; what the step needs as `files`, or in its image",
            );
        }
        below = starts[at].and_then(Start::step).filter(|&before| before != at);
    }
}

/// Who starts from the workspace of `index`.
fn users(starts: &[Option<Start>], index: usize) -> step::Users {
    let uses = |test: fn(Start) -> bool| {
        starts.iter().flatten().any(|start| start.step() == Some(index) && test(*start))
    };
    step::Users {
        live: uses(|start| matches!(start, Start::Live(_))),
        restored: uses(|start| matches!(start, Start::Checkpoint(_))),
    }
}

fn plan(
    docs: &[StepDoc<'_>],
    graph: &Graph,
    starts: &[Option<Start>],
    sink: &mut Sink,
) -> Option<Vec<StepPlan>> {
    let mut places = vec![StepIndex(0); docs.len()];
    for (place, &index) in (0u8..).zip(&graph.order) {
        places[index] = StepIndex(place);
    }
    let mut steps: Vec<Option<StepPlan>> = Vec::new();
    let mut images = vec![None; docs.len()];
    let takes_reward = docs.iter().all(|doc| doc.kind != StepKind::Grader);
    for &index in &graph.order {
        let doc = &docs[index];
        let before = starts[index].and_then(Start::step);
        let image = step::image(doc, before.and_then(|before: usize| images[before].clone()), sink);
        images[index].clone_from(&image);
        let inputs = step::inputs(docs, graph, index, &places, sink);
        let mut needs: Vec<StepIndex> = graph.needs[index].iter().map(|&need| places[need]).collect();
        needs.sort_unstable();
        let origin = starts[index].map(|start| match start {
            Start::Image => Origin::Image,
            Start::Live(before) => Origin::Live(places[before]),
            Start::Checkpoint(before) => Origin::Checkpoint(places[before]),
        });
        let users = users(starts, index);
        step::check_layers(doc, matches!(origin, Some(Origin::Live(_))), users, sink);
        let rest = step::read(doc, takes_reward, sink);
        fncall::check(doc, origin, users, rest.as_ref().map(|rest| &rest.resources), sink);
        let checkpoint = step::checkpoint(doc, users, sink);
        check_key(docs, starts, index, sink);
        let step = (|| {
            let (origin, image, inputs) = (origin?, image?, inputs?);
            let per = if per_group(doc) { Per::Group } else { Per::Rollout };
            Some(StepPlan { needs, per, origin, checkpoint: checkpoint?, image, inputs, ..rest? })
        })();
        steps.push(step);
    }
    steps.into_iter().collect()
}
