//! One step of the document -> its plan.

use std::collections::BTreeMap;

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::fields::{Grammar, file_mode};
use super::grammar;
use super::graph::Graph;
use super::resources;
use super::steps::{StepDoc, per_group};
use super::tables::{ARTIFACTS_MAX, FILES_BYTES_MAX, FILES_MAX};
use super::tree::{Span, child_path, item_path};
use super::view::{Found, Layered, View};
use crate::backend::BackendKind;
use crate::expression;
use crate::ids::StepIndex;
use crate::plan::{
    CheckpointPlan, CommandPlan, Field, FileContent, FilePlan, GraderPlan, IdleMode, IdlePlan, InputPlan,
    Keep, OnAgentTimeout, OnGraderTimeout, Origin, OutputDecl, OutputSource, Per, Piece, RetryPlan,
    RewardSource, SESSION_IDLE_TIMEOUT, SessionPlan, SourcePlan, StepKind, StepPlan, TREE_MEDIA_TYPE,
    Template, WorkPlan,
};
use crate::quantity::Bytes;
use crate::time::Millis;

pub(crate) const WORKDIR: &str = "/workspace";
const USER: &str = "rollout";
const TIMEOUT: Millis = Millis(600_000);
const START_TIMEOUT: Millis = Millis(300_000);
const GRACE: Millis = Millis(5_000);
const FILE_MODE: u32 = 0o644;
const OUTPUT_BYTES: Bytes = Bytes(16 << 20);
const REGRADES: u32 = 1;
const REWARD_FILES: [&str; 2] = ["/logs/verifier/reward.json", "/logs/verifier/reward.txt"];

/// The image of a step; `before` = of the step whose workspace it starts from.
pub(crate) fn image(doc: &StepDoc<'_>, before: Option<Template>, sink: &mut Sink) -> Option<Template> {
    let own = doc.own.find("image");
    if let Some(before) = before {
        let template = own.as_ref().and_then(|found| expression::parse(found.node.text()?).ok());
        if let (Some(found), Some(template)) = (own, template)
            && template != before
        {
            let message = format!(
                "{} starts from a workspace over another image, {}",
                quoted(&doc.name),
                quoted(&before.to_string())
            );
            let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
            sink.push(fault.expected("no `image` here, or `from: image`"));
        }
        return Some(before);
    }
    let Some(found) = doc.all.find("image") else {
        let path = format!("{}.image", doc.own.path);
        let message = format!("{} has no image", quoted(&doc.name));
        let fault = Diagnostic::error(Code::MissingField, doc.own.node.span, &path, message);
        sink.push(fault.expected("`image: host` here or in `defaults`"));
        return None;
    };
    expression::parse(found.node.text()?).ok()
}

/// Everything of a step but its needs, its origin, its image and its inputs, which stay empty.
/// `takes_reward`: nothing else of the job gives one.
pub(crate) fn read(doc: &StepDoc<'_>, takes_reward: bool, sink: &mut Sink) -> Option<StepPlan> {
    let all = &doc.all;
    check_env_timeout(all, sink);
    check_parking(doc, sink);
    let files = files(doc, sink);
    let outputs = outputs(&doc.own, sink);
    let resources = resources::read(&all.object("resources"), sink);
    let retry = retry(&all.object("retry"), sink);
    let grader = match doc.own.object("grader") {
        None => None,
        Some(view) => Some(grader(&view, sink)?),
    };
    let work = work(&doc.own, takes_reward)?;
    let idle = idle(doc)?;
    Some(StepPlan {
        name: doc.own.parse("name")?,
        kind: doc.kind,
        needs: Vec::new(),
        per: Per::Rollout,
        origin: Origin::Image,
        checkpoint: CheckpointPlan::default(),
        work,
        backend: all.text("backend").map_or(Ok(BackendKind::default()), str::parse).ok()?,
        image: Template::literal(""),
        layers: layers(all)?,
        user: expression::parse(all.text("user").unwrap_or(USER)).ok()?,
        workdir: expression::parse(all.text("workdir").unwrap_or(WORKDIR)).ok()?,
        env: env(all)?,
        env_column: env_column(all, sink),
        files: files?,
        inputs: Vec::new(),
        outputs: outputs?,
        resources: resources?,
        timeout: time(all, "timeout", TIMEOUT)?,
        start_timeout: time(all, "start_timeout", START_TIMEOUT)?,
        grace: time(all, "grace", GRACE)?,
        health_check: health_check(all, sink),
        retry: retry?,
        idle,
        resume: doc.own.object("agent").is_some_and(|agent| agent.text("resume") == Some("true")),
        grader,
    })
}

fn work(own: &View<'_>, takes_reward: bool) -> Option<WorkPlan> {
    if let Some(session) = own.object("session") {
        let default = SESSION_IDLE_TIMEOUT;
        return Some(WorkPlan::Session(SessionPlan {
            idle_timeout: session.text("idle_timeout").map_or(Some(default), |text| text.parse().ok())?,
            max_actions: session
                .text("max_actions")
                .map_or(Some(None), |text| text.parse().ok().map(Some))?,
            takes_reward,
            unclaimed: false,
        }));
    }
    let command = match own.object("agent") {
        Some(agent) => {
            let items = agent.find("command")?.node.items().iter();
            CommandPlan::Argv(items.map(|item| expression::parse(item.text()?).ok()).collect::<Option<_>>()?)
        }
        None => CommandPlan::Shell(own.text("run")?.to_owned()),
    };
    Some(WorkPlan::Command(command))
}

/// As written; else of what waits for somebody outside, and of nothing else.
fn idle(doc: &StepDoc<'_>) -> Option<Option<IdlePlan>> {
    let default = IdlePlan::default();
    let waits = matches!(doc.kind, StepKind::Agent | StepKind::Session);
    let view = doc.all.object("idle");
    if doc.all.find("idle").is_none() {
        return Some(waits.then_some(default));
    }
    let park_after = view.text("park_after").map_or(Some(default.park_after), |text| text.parse().ok())?;
    let mode = match view.text("mode") {
        None | Some("freeze") => IdleMode::Freeze,
        Some("checkpoint") => IdleMode::Checkpoint,
        Some(_) => return None,
    };
    Some(Some(IdlePlan { park_after, mode }))
}

fn time(all: &Layered<'_>, name: &str, default: Millis) -> Option<Field<Millis>> {
    let Some(text) = all.text(name) else { return Some(Field::Fixed(default)) };
    let template = expression::parse(text).ok()?;
    match template.as_literal() {
        Some(fixed) => Some(Field::Fixed(fixed.parse().ok()?)),
        None => Some(Field::PerRow(template)),
    }
}

/// Key by key: the step's own variables over those of `defaults`.
fn env(all: &Layered<'_>) -> Option<BTreeMap<String, Template>> {
    let mut env = BTreeMap::new();
    for layer in all.layers().iter().rev() {
        let entries = layer.find("env").map(|found| found.node.entries()).unwrap_or_default();
        for entry in entries {
            env.insert(entry.key.clone(), expression::parse(entry.value.text()?).ok()?);
        }
    }
    Some(env)
}

/// The step's own lookup of variables, or that of `defaults`.
fn env_column(all: &Layered<'_>, sink: &mut Sink) -> Option<Template> {
    let mut own = all.layers().iter().filter_map(|layer| layer.find("env"));
    let found = own.find(|found| found.node.text().is_some())?;
    column(&found, "an object, such as \"${row.env}\"", sink)
}

fn health_check(all: &Layered<'_>, sink: &mut Sink) -> Option<Template> {
    column(&all.find("health_check")?, "a health check, such as \"${row.health_check}\"", sink)
}

/// The one lookup of a column that a field holds; none if it is no lookup at all, which has been
/// refused.
fn column(found: &Found<'_>, holding: &str, sink: &mut Sink) -> Option<Template> {
    let text = found.node.text().filter(|text| expression::has_expression(text))?;
    let template = expression::parse(text).ok()?;
    let of_row = |path: &[String]| path.first().is_some_and(|root| root == "row");
    if !matches!(template.0.as_slice(), [Piece::Lookup(path)] if of_row(path)) {
        let message = format!("{} is no lookup of a column", quoted(text));
        let fault = Diagnostic::error(Code::BadValue, found.node.span, &found.path, message);
        sink.push(fault.expected(format!("one lookup of a column that holds {holding}")));
    }
    Some(template)
}

fn layers(all: &Layered<'_>) -> Option<Vec<Template>> {
    let items = all.find("layers").map(|found| found.node.items()).unwrap_or_default();
    items.iter().map(|item| expression::parse(item.text()?).ok()).collect()
}

/// What goes on in a live sandbox has the layers of that sandbox. A grader's own are copied into it,
/// as long as they become no part of another workspace.
pub(crate) fn check_layers(doc: &StepDoc<'_>, is_live: bool, users: Users, sink: &mut Sink) {
    let Some(found) = doc.own.find("layers").filter(|found| is_live && !found.node.items().is_empty()) else {
        return;
    };
    let name = quoted(&doc.name);
    let (message, expected) = match doc.kind {
        StepKind::Grader if !users.live && !users.restored => return,
        StepKind::Grader => (
            format!("a step works from {name}, whose layers are copied into the sandbox it grades"),
            "`isolate: fresh`, or no step that works from it",
        ),
        StepKind::Run | StepKind::Agent | StepKind::Session => (
            format!("{name} goes on in the sandbox of another step, whose layers cannot change"),
            "`isolate: fresh`, or the layers on the first step of the sandbox",
        ),
    };
    let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
    sink.push(fault.expected(expected));
}

fn one_of(view: &View<'_>, first: &str, second: &str, sink: &mut Sink) {
    match (view.find(first), view.find(second)) {
        (Some(_), Some(found)) => {
            let message = format!("`{second}` beside `{first}`");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected(format!("one of `{first}`, `{second}`")));
        }
        (None, None) => {
            let message = format!("{} has neither `{first}` nor `{second}`", quoted(&view.path));
            let path = child_path(&view.path, first);
            let fault = Diagnostic::error(Code::MissingField, view.node.span, &path, message);
            sink.push(fault.expected(format!("one of `{first}`, `{second}`")));
        }
        _ => {}
    }
}

/// An output comes from one of `path`, `paths` and `from`.
fn one_source(view: &View<'_>, sink: &mut Sink) {
    let expected = "one of `path`, `paths`, `from`";
    let given: Vec<_> =
        ["path", "paths", "from"].into_iter().filter_map(|key| Some((key, view.find(key)?))).collect();
    match given.as_slice() {
        [] => {
            let message = format!("{} has none of `path`, `paths` and `from`", quoted(&view.path));
            let path = child_path(&view.path, "path");
            sink.push(
                Diagnostic::error(Code::MissingField, view.node.span, &path, message).expected(expected),
            );
        }
        [_] => {}
        [(first, _), (second, found), ..] => {
            let message = format!("`{second}` beside `{first}`");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected(expected));
        }
    }
}

fn files(doc: &StepDoc<'_>, sink: &mut Sink) -> Option<Vec<FilePlan>> {
    let views = doc.all.objects("files");
    if views.len() > FILES_MAX {
        return None;
    }
    let mut bytes = 0;
    let mut paths: Vec<(&str, Span)> = Vec::new();
    let inputs = doc.own.objects("inputs");
    for view in views.iter().chain(&inputs) {
        let Some(found) = view.find("path") else { continue };
        let Some(path) = found.node.text() else { continue };
        if let Some((_, first)) = paths.iter().find(|(known, _)| *known == path) {
            let message =
                format!("the path {} is written twice; the first is on line {}", quoted(path), first.line);
            let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
            sink.push(fault.expected("another path"));
        }
        paths.push((path, found.node.span));
    }
    let mut files = Some(Vec::new());
    for view in &views {
        one_of(view, "content", "from", sink);
        bytes += view.text("content").map_or(0, str::len);
        let file = (|| {
            let content = match view.text("content") {
                Some(text) => FileContent::Text(expression::parse(text).ok()?),
                None => FileContent::Client { path: view.text("from")?.to_owned() },
            };
            let mode = view.text("mode").map_or(Some(FILE_MODE), file_mode)?;
            Some(FilePlan { path: expression::parse(view.text("path")?).ok()?, content, mode })
        })();
        files = files.zip(file).map(|(mut files, file)| {
            files.push(file);
            files
        });
    }
    if bytes > FILES_BYTES_MAX
        && let Some(found) = doc.all.find("files")
    {
        let message =
            format!("the files of {} hold {bytes} bytes; the limit is {FILES_BYTES_MAX}", quoted(&doc.name));
        sink.push(Diagnostic::error(Code::TooLarge, found.key_span, &found.path, message));
    }
    files
}

fn paths(found: &Found<'_>, sink: &mut Sink) -> Option<SourcePlan> {
    if found.node.text().is_some() {
        return column(found, "a list of absolute paths", sink).map(SourcePlan::PathsOf);
    }
    let items = found.node.items().iter().map(|item| expression::parse(item.text()?).ok());
    items.collect::<Option<_>>().map(SourcePlan::Paths)
}

fn outputs(own: &View<'_>, sink: &mut Sink) -> Option<Vec<OutputDecl<SourcePlan>>> {
    let views = own.objects("outputs");
    if views.len() > ARTIFACTS_MAX {
        return None;
    }
    let mut outputs = Vec::new();
    for (index, view) in views.iter().enumerate() {
        one_source(view, sink);
        let Some(name) = view.find("name") else { continue };
        let text = name.node.text();
        let first = views[..index]
            .iter()
            .filter_map(|other| other.find("name"))
            .find(|other| other.node.text() == text);
        if let (Some(first), Some(text)) = (first, text) {
            let message = format!(
                "a second output is called {}; the first is on line {}",
                quoted(text),
                first.node.span.line
            );
            let fault = Diagnostic::error(Code::DuplicateOutput, name.node.span, &name.path, message);
            sink.push(fault.expected("another name"));
        }
        let given = view.find("media_type");
        let tree = view.find("paths");
        if let Some(found) = &given
            && (tree.is_some() || found.node.text() == Some(TREE_MEDIA_TYPE))
        {
            let message =
                format!("several paths are one artifact of the type `{TREE_MEDIA_TYPE}`, and only they");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected("no `media_type` beside `paths`"));
        }
        let paths = tree.and_then(|found| paths(&found, sink));
        outputs.push((|| {
            let (source, media_type) = match (view.text("from"), view.text("path")) {
                (Some(command), _) => {
                    (SourcePlan::Fixed(OutputSource::Command(command.to_owned())), "text/plain")
                }
                (None, Some(path)) => {
                    (SourcePlan::Fixed(OutputSource::Path(path.to_owned())), "application/octet-stream")
                }
                (None, None) => (paths?, TREE_MEDIA_TYPE),
            };
            Some(OutputDecl {
                name: text?.parse().ok()?,
                source,
                media_type: view.text("media_type").unwrap_or(media_type).to_owned(),
                max_bytes: view.text("max_bytes").map_or(Some(OUTPUT_BYTES), |text| text.parse().ok())?,
            })
        })());
    }
    if outputs.len() < views.len() { None } else { outputs.into_iter().collect() }
}

/// Each input must come from a declared output of an ancestor.
pub(crate) fn inputs(
    docs: &[StepDoc<'_>],
    graph: &Graph,
    index: usize,
    places: &[StepIndex],
    sink: &mut Sink,
) -> Option<Vec<InputPlan>> {
    let doc = &docs[index];
    let views = doc.own.objects("inputs");
    if views.len() > ARTIFACTS_MAX {
        return None;
    }
    let mut inputs = Vec::new();
    for view in &views {
        let Some(found) = view.find("artifact") else { continue };
        let Some((step, output)) = found.node.text().and_then(|text| grammar::artifact(text).ok()) else {
            continue;
        };
        let fault = |code, message: String| Diagnostic::error(code, found.node.span, &found.path, message);
        let Some(producer) = docs.iter().position(|other| other.name == step) else {
            let known = || docs.iter().map(|other| other.name.as_str()).filter(|name| !name.is_empty());
            let fault = fault(Code::UnknownStep, format!("there is no step {}", quoted(step)));
            sink.push(
                fault.expected(format!("an output of one of {}", listed(known()))).nearest(step, known()),
            );
            continue;
        };
        if !graph.is_ancestor(producer, index) {
            let message = format!("{} need not have run before {}", quoted(step), quoted(&doc.name));
            let expected = format!("{} in the `needs` of {}", quoted(step), quoted(&doc.name));
            sink.push(fault(Code::NotAncestor, message).expected(expected));
        }
        let declared = docs[producer].own.objects("outputs");
        let known = || declared.iter().filter_map(|view| view.text("name"));
        if !known().any(|name| name == output) {
            let message = format!("{} has no output {}", quoted(step), quoted(output));
            let fault = fault(Code::UnknownOutput, message);
            let expected = format!("one of its outputs: {}", listed(known()));
            sink.push(fault.expected(expected).nearest(output, known()));
        }
        inputs.push((|| {
            let path = view.text("path")?.to_owned();
            Some(InputPlan { step: places[producer], output: output.parse().ok()?, path })
        })());
    }
    if inputs.len() < views.len() { None } else { inputs.into_iter().collect() }
}

fn retry(layers: &Layered<'_>, sink: &mut Sink) -> Option<RetryPlan> {
    let default = RetryPlan::default();
    let read =
        |name: &str, default: Millis| layers.text(name).map_or(Some(default), |text| text.parse().ok());
    let retry = RetryPlan {
        limit: layers.text("limit").map_or(Some(default.limit), |text| text.parse().ok())?,
        backoff: read("backoff", default.backoff)?,
        max_backoff: read("max_backoff", default.max_backoff)?,
    };
    if retry.backoff > retry.max_backoff
        && let Some(found) = layers.find("backoff").or_else(|| layers.find("max_backoff"))
    {
        let message = format!("`backoff` {} is more than `max_backoff` {}", retry.backoff, retry.max_backoff);
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected("`backoff` of at most `max_backoff`"));
    }
    Some(retry)
}

fn number(text: &str) -> Option<f64> {
    grammar::json_number(text)?.as_f64()
}

fn grader(view: &View<'_>, sink: &mut Sink) -> Option<GraderPlan> {
    let exit = view.find("exit");
    for beside in ["reward_file", "reward"] {
        if let (Some(exit), Some(other)) = (&exit, view.find(beside)) {
            let (later, earlier, key) = if exit.key_span.start < other.key_span.start {
                (&other, "exit", beside)
            } else {
                (exit, beside, "exit")
            };
            let message =
                format!("`{key}` beside `{earlier}`: the reward comes from a file or from the exit code");
            let fault = Diagnostic::error(Code::BadRelation, later.key_span, &later.path, message);
            sink.push(fault.expected("one of them"));
        }
    }
    let source = match &exit {
        Some(found) => {
            let entries = found.node.entries().iter();
            if found.node.entries().is_empty() {
                let fault = Diagnostic::error(
                    Code::BadValue,
                    found.key_span,
                    &found.path,
                    "`exit` maps no exit code",
                );
                sink.push(fault.expected("at least one, as in {0: 1, 1: 0}"));
            }
            let rewards = entries.map(|entry| Some((entry.key.parse().ok()?, number(entry.value.text()?)?)));
            RewardSource::Exit(rewards.collect::<Option<_>>()?)
        }
        None => RewardSource::File {
            paths: view
                .text("reward_file")
                .map_or_else(|| REWARD_FILES.map(str::to_owned).to_vec(), |path| vec![path.to_owned()]),
            key: view.text("reward").map(str::to_owned),
        },
    };
    let range = match view.find("range") {
        None => None,
        Some(found) => {
            let [low, high] = found.node.items() else { return None };
            let range = (number(low.text()?)?, number(high.text()?)?);
            if range.0 >= range.1 {
                let message = format!("the range starts at {} and ends at {}", range.0, range.1);
                let fault =
                    Diagnostic::error(Code::BadRelation, low.span, &item_path(&found.path, 0), message);
                sink.push(fault.expected("the lower end first, as in [0, 1]"));
            } else if let Some(exit) = &exit {
                check_exit_range(&source, range, exit, sink);
            }
            Some(range)
        }
    };
    Some(GraderPlan {
        source,
        range,
        regrades: view.text("regrades").map_or(Some(REGRADES), |text| text.parse().ok())?,
        on_agent_timeout: match view.text("on_agent_timeout") {
            None | Some("grade") => OnAgentTimeout::Grade,
            Some("zero") => OnAgentTimeout::Zero,
            Some("invalid") => OnAgentTimeout::Invalid,
            Some(_) => return None,
        },
        on_timeout: match view.text("on_timeout") {
            None | Some("invalid") => OnGraderTimeout::Invalid,
            Some("zero") => OnGraderTimeout::Zero,
            Some(_) => return None,
        },
    })
}

fn check_exit_range(source: &RewardSource, range: (f64, f64), exit: &Found<'_>, sink: &mut Sink) {
    let RewardSource::Exit(rewards) = source else { return };
    for (code, reward) in rewards.iter().filter(|(_, reward)| !(range.0..=range.1).contains(*reward)) {
        let message = format!(
            "exit code {code} gives the reward {reward}, outside the range {} to {}",
            range.0, range.1
        );
        let fault = Diagnostic::error(Code::BadRelation, exit.key_span, &exit.path, message);
        sink.push(fault.expected("rewards inside `range`"));
    }
}

/// The process of any other step is the step: saved and ended, nothing of it would be left.
fn check_parking(doc: &StepDoc<'_>, sink: &mut Sink) {
    let mode = doc.all.object("idle").find("mode");
    let Some(found) = mode.filter(|found| found.node.text() == Some("checkpoint")) else { return };
    if doc.kind != StepKind::Session {
        let name = quoted(&doc.name);
        let message = format!("{name} is no session: its command would end when its sandbox is parked");
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected("`mode: freeze`, or a session step"));
    }
}

fn check_env_timeout(all: &Layered<'_>, sink: &mut Sink) {
    let Some(found) = all.find("env_timeout") else { return };
    let timeout = all.parse::<Millis>("timeout").unwrap_or(TIMEOUT);
    let env_timeout = found.node.text().and_then(|text| text.parse::<Millis>().ok());
    if let Some(env_timeout) = env_timeout.filter(|time| *time > timeout) {
        let message = format!("`env_timeout` {env_timeout} is more than `timeout` {timeout}");
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected("`env_timeout` of at most `timeout`"));
    }
}

/// How the workspace of a step is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Users {
    pub live: bool,
    pub restored: bool,
}

/// When the workspace is saved. `after` follows from its users, unless it is written.
pub(crate) fn checkpoint(doc: &StepDoc<'_>, users: Users, sink: &mut Sink) -> Option<CheckpointPlan> {
    let view = doc.all.object("checkpoint");
    let group = per_group(doc);
    let key = checkpoint_key(doc, &view, sink);
    let needed = group || users.restored || key.is_some();
    let after = match view.find("after") {
        None => needed || users.live,
        Some(found) => {
            let after = found.node.text() == Some("true");
            if needed && !after {
                let why = match (group, users.restored) {
                    (true, _) => "it runs once a group, and its members start from its workspace",
                    (_, true) => "another step starts from its workspace in a new sandbox",
                    _ => "its result is shared by `key`",
                };
                let message = format!("{} must be saved: {why}", quoted(&doc.name));
                let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
                sink.push(fault.expected("`after: true`, or no `after`"));
            }
            after
        }
    };
    let every = match view.find("every") {
        None => None,
        Some(found) => match found.node.text()?.parse::<Millis>() {
            Ok(every) => Some(every),
            // What is no trigger at all has been refused.
            Err(_) if grammar::check(Grammar::Trigger, found.node.text()?, true).is_err() => None,
            Err(_) => {
                let message = "turns and actions are not counted yet".to_owned();
                let fault = Diagnostic::error(Code::NotAvailableYet, found.node.span, &found.path, message);
                sink.push(fault.expected("a duration, such as 5m"));
                None
            }
        },
    };
    let keep = match view.text("keep") {
        None | Some("last") => Keep::Last,
        Some("all") => Keep::All,
        Some(count) => Keep::Newest(count.parse().ok()?),
    };
    Some(CheckpointPlan { after, every, keep, key })
}

/// Steps with the same key share one result, so the key must name all that makes it.
fn checkpoint_key(doc: &StepDoc<'_>, view: &Layered<'_>, sink: &mut Sink) -> Option<Template> {
    let found = view.find("key")?;
    let template = expression::parse(found.node.text()?).ok()?;
    for wanted in ["image.digest", "step.hash"] {
        if !template.lookups().any(|lookup| lookup.join(".") == wanted) {
            let message =
                format!("the key could match another {}", wanted.split('.').next().unwrap_or(wanted));
            let fault = Diagnostic::warning(Code::CheckpointKeyWeak, found.node.span, &found.path, message);
            sink.push(fault.expected(format!("`${{{wanted}}}` in the key")));
        }
    }
    let mut refuse = |message: String, expected: &str| {
        let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
        sink.push(fault.expected(expected));
    };
    if doc.kind != StepKind::Run {
        refuse(
            format!(
                "{} is not a run step: what an agent, a driver or a grader does is never shared",
                quoted(&doc.name)
            ),
            "`key` on run steps only",
        );
    }
    if doc.own.has("outputs") {
        refuse(
            format!("{} has a `key` and `outputs`: only its workspace is shared", quoted(&doc.name)),
            "no `outputs`: leave the files in the workspace",
        );
    }
    Some(template)
}

/// Whether a step of this kind records nothing without a trained model.
pub(crate) fn lacks_tokens(doc: &StepDoc<'_>, trained: &[&str]) -> bool {
    let models = doc.all.find("models").map(|found| found.node.items()).unwrap_or_default();
    doc.kind == StepKind::Agent
        && !models.iter().any(|model| model.text().is_some_and(|name| trained.contains(&name)))
}
