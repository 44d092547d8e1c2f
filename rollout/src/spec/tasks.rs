//! `tasks`: the source, its filter, and the rows that are in the document itself.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, quoted};
use super::tree::{Node, Span, Value, item_path};
use super::view::{Found, View};
use super::walk::json_scalar;
use crate::expression;
use crate::plan::{EnvironmentMode, Filter, Generated, JobPlan, OnUnsupported, Split, TaskSource, TasksPlan};
use crate::resolve;
use crate::selection::{Selection, WantedIds};

const SOURCES: [&str; 5] = ["inline", "jsonl", "parquet", "harbor", "feed"];

pub(crate) fn read(job: &View<'_>, generated: Option<Generated>, sink: &mut Sink) -> Option<TasksPlan> {
    let view = job.object("tasks")?;
    let from = view.object("from")?;
    check_one_source(&from, sink);
    for (key, belongs_to) in
        [("columns", "parquet"), ("agent", "harbor"), ("shared_as", "harbor"), ("environment_mode", "harbor")]
    {
        check_belongs(&from, key, &from, belongs_to, sink);
    }
    check_belongs(&view, "on_unsupported", &from, "harbor", sink);
    for beside in ["filter", "epochs"] {
        if let Some(found) = view.find(beside).filter(|_| from.has("feed")) {
            let message = format!("`{beside}` beside a `feed` source: rows come as they are sent");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected(format!("no `{beside}`")));
        }
    }
    check_harbor(job, &from, generated, sink);
    let source = source(&from, generated)?;
    let id = match view.text("id") {
        // Of a task of Harbor, its directory.
        None if from.has("harbor") => Some(expression::parse("${row.task}").ok()?),
        None => None,
        Some(text) => Some(expression::parse(text).ok()?),
    };
    let split = match view.text("split") {
        None | Some("train") => Split::Train,
        Some("eval") => Split::Eval,
        Some(_) => return None,
    };
    let epochs = view.text("epochs").map_or(Some(1), |text| text.parse().ok())?;
    let on_unsupported = match view.text("on_unsupported") {
        None | Some("error") => OnUnsupported::Error,
        Some("skip") => OnUnsupported::Skip,
        Some(_) => return None,
    };
    let filter = filter(&view)?;
    Some(TasksPlan { source, filter, on_unsupported, id, split, epochs, columns_used: Vec::new() })
}

fn check_one_source(from: &View<'_>, sink: &mut Sink) {
    let sources: Vec<(&str, Found<'_>)> =
        SOURCES.into_iter().filter_map(|key| Some((key, from.find(key)?))).collect();
    let expected = "exactly one of `inline`, `jsonl`, `parquet`, `harbor`";
    match sources.as_slice() {
        [] => {
            let message = "`tasks.from` names no source";
            let fault = Diagnostic::error(Code::MissingField, from.node.span, &from.path, message);
            sink.push(fault.expected(expected));
        }
        [_] => {}
        [(first, _), (second, found), ..] => {
            let message = format!("`{second}` beside `{first}`: a job has one source");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected(expected));
        }
    }
}

fn check_belongs(view: &View<'_>, key: &str, from: &View<'_>, belongs_to: &str, sink: &mut Sink) {
    if let Some(found) = view.find(key).filter(|_| !from.has(belongs_to)) {
        let message = format!("`{key}` belongs to a `{belongs_to}` source");
        sink.push(Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message));
    }
}

/// The agent belongs to the generated steps: there is one exactly if the spec has none.
fn check_harbor(job: &View<'_>, from: &View<'_>, generated: Option<Generated>, sink: &mut Sink) {
    if !from.has("harbor") {
        return;
    }
    if generated.is_none() && job.has("steps") {
        for key in ["agent", "shared_as", "environment_mode"] {
            let Some(found) = from.find(key) else { continue };
            let message = format!("`{key}` is for generated steps, and the spec has its own `steps`");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected(format!("no `{key}` here, or no `steps`")));
        }
    }
    let agent = from.find("agent");
    if agent.as_ref().is_some_and(|agent| agent.node.items().is_empty() && agent.node.text().is_none())
        && let Some(found) = agent
    {
        let fault =
            Diagnostic::error(Code::BadValue, found.key_span, &found.path, "the agent has no program");
        sink.push(fault.expected("a list of arguments, or `oracle`"));
    }
    let found = generated.filter(|generated| generated.mode == EnvironmentMode::Separate);
    if found.is_some()
        && let Some(shared_as) = from.find("shared_as")
    {
        let message = "`shared_as` beside `environment_mode: separate`: nothing is shared";
        sink.push(Diagnostic::error(Code::BadRelation, shared_as.key_span, &shared_as.path, message));
    }
}

fn source(from: &View<'_>, generated: Option<Generated>) -> Option<TaskSource> {
    if let Some(found) = from.find("inline") {
        let rows = found.node.items().iter().map(row);
        return Some(TaskSource::Inline(rows.collect::<Option<_>>()?));
    }
    if let Some(path) = from.text("jsonl") {
        return Some(TaskSource::Jsonl { path: path.to_owned() });
    }
    if let Some(path) = from.text("harbor") {
        return Some(TaskSource::Harbor { path: path.to_owned(), generated });
    }
    let path = from.text("parquet")?.to_owned();
    let columns = match from.find("columns") {
        None => None,
        Some(found) => Some(texts(found.node)?),
    };
    Some(TaskSource::Parquet { path, columns })
}

fn texts(list: &Node) -> Option<Vec<String>> {
    list.items().iter().map(|item| item.text().map(str::to_owned)).collect()
}

fn filter(tasks: &View<'_>) -> Option<Filter> {
    let Some(view) = tasks.object("filter") else { return Some(Filter::default()) };
    let number = |name: &str| view.text(name).map_or(Some(None), |text| text.parse::<u64>().ok().map(Some));
    Some(Filter {
        ids: match view.find("ids") {
            None => None,
            Some(found) => Some(texts(found.node)?),
        },
        shuffle_seed: number("shuffle_seed")?,
        offset: number("offset")?.unwrap_or(0),
        limit: number("limit")?,
    })
}

fn row(node: &Node) -> Option<Map<String, Json>> {
    match json(node)? {
        Json::Object(row) => Some(row),
        _ => None,
    }
}

fn json(node: &Node) -> Option<Json> {
    Some(match &node.value {
        Value::Scalar { .. } => json_scalar(node).ok()?,
        Value::List(items) => Json::Array(items.iter().map(json).collect::<Option<_>>()?),
        Value::Map(entries) => Json::Object(
            entries
                .iter()
                .map(|entry| Some((entry.key.clone(), json(&entry.value)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

/// Inline rows are known now, so their problems are too.
pub(crate) fn check_inline(job: &View<'_>, plan: &JobPlan, sink: &mut Sink) {
    let TaskSource::Inline(rows) = &plan.tasks.source else { return };
    let Some(tasks) = job.object("tasks") else { return };
    let Some(found) = tasks.object("from").and_then(|from| from.find("inline")) else { return };
    let Some(selection) = select(&tasks, plan, rows, sink) else { return };
    let nodes = found.node.items();
    let mut ids: BTreeMap<String, usize> = BTreeMap::new();
    for index in selection.candidates().map(|index| index as usize) {
        let (Some(row), Some(node)) = (rows.get(index), nodes.get(index)) else { continue };
        let path = item_path(&found.path, index);
        let number = u64::try_from(index).unwrap_or(u64::MAX);
        let span = Span { width: 1, ..node.span };
        let problems = resolve::row_problems(plan, number, row);
        for problem in &problems {
            let fault = Diagnostic::error(problem.code, span, &path, problem.to_string());
            sink.push(Diagnostic { nearest: problem.nearest.clone(), ..fault });
        }
        if !problems.is_empty() {
            continue;
        }
        let Ok(id) = resolve::task_id(plan, number, row) else { continue };
        if let Some(first) = ids.insert(id.clone(), index) {
            let message = format!("row {index} has the task id {}, as row {first} has", quoted(&id));
            let fault = Diagnostic::error(Code::DuplicateTask, span, &path, message);
            sink.push(fault.expected("a different `tasks.id` for every row"));
        }
    }
}

/// The rows that the filter leaves. None if it names ids that no row has.
fn select(
    tasks: &View<'_>,
    plan: &JobPlan,
    rows: &[Map<String, Json>],
    sink: &mut Sink,
) -> Option<Selection> {
    let filter = &plan.tasks.filter;
    let listed = match WantedIds::of(filter) {
        None => None,
        Some(mut wanted) => {
            let ids = (0u64..).zip(rows).map(|(index, row)| resolve::task_id(plan, index, row));
            // A row without an id is a candidate: its problem is told with those of the others.
            let wants = ids.map(|id| id.map_or(true, |id| wanted.wants(&id)));
            let listed = (0u32..).zip(wants).filter_map(|(index, wants)| wants.then_some(index)).collect();
            check_ids(tasks, &wanted.missing(), sink)?;
            Some(listed)
        }
    };
    let selection = Selection::new(filter, u32::try_from(rows.len()).unwrap_or(u32::MAX), listed);
    if selection.is_empty()
        && let Some(found) = tasks.find("filter")
    {
        let message = format!("the filter leaves none of {} rows", rows.len());
        let fault = Diagnostic::error(Code::NoTaskLeft, found.key_span, &found.path, message);
        sink.push(fault.expected("a smaller `offset`"));
    }
    Some(selection)
}

fn check_ids(tasks: &View<'_>, missing: &[&str], sink: &mut Sink) -> Option<()> {
    let found = tasks.object("filter").and_then(|filter| filter.find("ids"))?;
    for (index, item) in found.node.items().iter().enumerate() {
        let Some(id) = item.text().filter(|id| missing.binary_search(id).is_ok()) else { continue };
        let path = item_path(&found.path, index);
        let message = format!("no row has the task id {}", quoted(id));
        sink.push(Diagnostic::error(Code::UnknownTask, item.span, &path, message));
    }
    missing.is_empty().then_some(())
}
