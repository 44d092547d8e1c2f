//! The whole document -> the plan, and the rules that span several parts of it.

use std::collections::BTreeMap;

use super::canonical::spec_hash;
use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::steps::{self, Steps};
use super::tables::{COLUMNS_MAX, GROUP_ROWS_MAX, JOB, JOB_LOOKUPS_MAX};
use super::tasks;
use super::tree::{Node, Span, item_path};
use super::view::View;
use super::walk::Scope;
use super::{matrix, models, schedule};
use crate::expression;
use crate::ids::StepIndex;
use crate::plan::{
    AdmissionPlan, Field, Generated, GroupPlan, JobPlan, OnIncomplete, OutputPlan, RetainPlan, ShardPlan,
    StepKind, StepPlan, Template,
};
use crate::resolve;
use crate::time::Millis;

const MAX_RUNNING: u32 = 256;
const PRIORITY: u8 = 50;
const REFILL_LIMIT: u32 = 2;

/// Reads a walked document. The plan is complete only if the sink holds no error afterwards.
pub(crate) fn read(
    root: &Node,
    generated: Option<Generated>,
    scope: &Scope,
    sink: &mut Sink,
) -> Option<JobPlan> {
    let job = View::new(root, &JOB, "");
    if !job.has("steps") {
        let from = job.object("tasks").and_then(|tasks| tasks.object("from"));
        let fault = match from.filter(|from| from.has("harbor")) {
            Some(from) => {
                let path = format!("{}.agent", from.path);
                let message = "`tasks.from.agent` is missing: who works on the tasks";
                Diagnostic::error(Code::MissingField, from.node.span, &path, message)
                    .expected("a list of arguments or `oracle`, or `steps` of your own")
            }
            None => Diagnostic::error(Code::MissingField, root.span, "steps", "`steps` is missing")
                .expected("`steps`: at least one step"),
        };
        sink.push(fault);
    }
    let models = models::check(&job, sink);
    let group = group(&job, sink);
    let admission = admission(&job, group.map_or(1, |group| group.size), sink);
    let tasks = tasks::read(&job, generated, sink);
    let output = output(&job, scope, &models, sink);
    let matrix = matrix::read(&job, sink);
    let schedule = schedule::read(&job, sink);
    let steps = steps::read(&job, sink);
    models::check_uses(&job, &steps.docs, &models, sink);
    warn_steps(&job, &steps, &models, sink);
    if sink.has_errors() {
        return None;
    }
    let mut plan = JobPlan {
        name: job.parse("name")?,
        project: job.text("project").map(str::to_owned),
        labels: labels(&job)?,
        tasks: tasks?,
        group: group?,
        admission: admission?,
        steps: steps.plan?,
        output: output?,
        matrix,
        schedule,
        timeout: job.text("timeout").map_or(Some(None), |text| text.parse().ok().map(Some))?,
        spec_hash: spec_hash(root),
    };
    let lookups = templates(&plan).flat_map(Template::lookups).count();
    if lookups > JOB_LOOKUPS_MAX {
        let message = format!("the job holds {lookups} lookups; the limit is {JOB_LOOKUPS_MAX}");
        sink.push(Diagnostic::error(Code::TooLarge, root.span, "", message).expected("fewer `${}`"));
        return None;
    }
    check_group_rows(&job, root.span, &plan, sink);
    warn_timeout(&job, &plan, sink);
    plan.tasks.columns_used = columns_used(&plan);
    tasks::check_inline(&job, &plan, sink);
    (!sink.has_errors()).then_some(plan)
}

fn labels(job: &View<'_>) -> Option<BTreeMap<String, String>> {
    let entries = job.find("labels").map(|found| found.node.entries()).unwrap_or_default();
    entries.iter().map(|entry| Some((entry.key.clone(), entry.value.text()?.to_owned()))).collect()
}

fn group(job: &View<'_>, sink: &mut Sink) -> Option<GroupPlan> {
    let Some(view) = job.object("group") else {
        return Some(GroupPlan {
            size: 1,
            min_valid: 1,
            on_incomplete: OnIncomplete::Refill,
            refill_limit: REFILL_LIMIT,
            over_sample: 0,
        });
    };
    let size: u32 = view.text("size").map_or(Some(1), |text| text.parse().ok())?;
    if size == 0 {
        // Refused as a value; no relation to it makes sense.
        return None;
    }
    let default = size.min(2).max(size.saturating_mul(3).div_ceil(4));
    let min_valid: u32 = view.text("min_valid").map_or(Some(default), |text| text.parse().ok())?;
    if min_valid > size
        && let Some(found) = view.find("min_valid")
    {
        let message = format!("`group.min_valid` {min_valid} is more than `group.size` {size}");
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected(format!("1 to {size}")));
    }
    if let (Some(over), Some(found)) = (view.parse::<u32>("over_sample"), view.find("over_sample"))
        && over > size
    {
        let message = format!("`group.over_sample` {over} is more than `group.size` {size}");
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected(format!("0 to {size}")));
    } else if let Some(found) = view.find("over_sample").filter(|found| found.node.text() != Some("0")) {
        let message = "the slowest members of each group are cancelled: the sample leans to short rollouts";
        let fault = Diagnostic::warning(Code::OverSampleBias, found.node.span, &found.path, message);
        sink.push(fault.expected("no `over_sample`, or a trainer that allows for it"));
    }
    let on_incomplete = match view.text("on_incomplete") {
        None | Some("refill") => OnIncomplete::Refill,
        Some("deliver") => OnIncomplete::Deliver,
        Some("drop") => OnIncomplete::Drop,
        Some(_) => return None,
    };
    Some(GroupPlan {
        size,
        min_valid,
        on_incomplete,
        refill_limit: view.text("refill_limit").map_or(Some(REFILL_LIMIT), |text| text.parse().ok())?,
        over_sample: view.text("over_sample").map_or(Some(0), |text| text.parse().ok())?,
    })
}

fn admission(job: &View<'_>, size: u32, sink: &mut Sink) -> Option<AdmissionPlan> {
    let over_sample = job.object("group").and_then(|group| group.parse::<u32>("over_sample")).unwrap_or(0);
    let members = size.saturating_add(over_sample);
    let default = AdmissionPlan { max_running: MAX_RUNNING.max(members), priority: PRIORITY, burst: false };
    let Some(view) = job.object("admission") else { return Some(default) };
    for (given, other) in [("max_staleness", "batch_groups"), ("batch_groups", "max_staleness")] {
        if let (Some(found), None) = (view.find(given), view.find(other)) {
            let message = format!("`admission.{given}` without `admission.{other}`");
            let fault = Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message);
            sink.push(fault.expected("both or neither"));
        }
    }
    let max_running: u32 =
        view.text("max_running").map_or(Some(default.max_running), |text| text.parse().ok())?;
    if max_running < members
        && let Some(found) = view.find("max_running")
    {
        let message =
            format!("`admission.max_running` {max_running} cannot hold one group of {members} members");
        let fault = Diagnostic::error(Code::BadRelation, found.node.span, &found.path, message);
        sink.push(fault.expected(format!("at least {members}")));
    }
    let priority = view.text("priority").map_or(Some(PRIORITY), |text| text.parse().ok())?;
    let burst = view.text("burst") == Some("true");
    Some(AdmissionPlan { max_running, priority, burst })
}

fn output(job: &View<'_>, scope: &Scope, models: &models::Models, sink: &mut Sink) -> Option<OutputPlan> {
    let default = OutputPlan {
        table: None,
        shard: ShardPlan::default(),
        columns: Vec::new(),
        artifacts: true,
        retain: RetainPlan::default(),
    };
    let Some(view) = job.object("output") else { return Some(default) };
    let artifacts = match view.find("include") {
        None => true,
        Some(found) => {
            let items = found.node.items();
            if let Some(tokens) =
                items.iter().find(|item| item.text() == Some("tokens")).filter(|_| models.trained.is_empty())
            {
                let message = "`tokens` are recorded from trained models only, and the job has none";
                let fault = Diagnostic::warning(Code::NoTokenColumns, tokens.span, &found.path, message);
                sink.push(fault.expected("the list without `tokens`"));
            }
            items.iter().any(|item| item.text() == Some("artifacts"))
        }
    };
    let columns = view.find("columns").map(|found| (found.path, found.node.items())).unwrap_or_default();
    for (index, item) in columns.1.iter().enumerate().take(COLUMNS_MAX) {
        let (Some(known), Some(name)) = (&scope.columns, item.text()) else { continue };
        if !known.iter().any(|column| column == name) {
            let known = || known.iter().map(String::as_str);
            let message = format!("the task rows have no column {}", quoted(name));
            let fault =
                Diagnostic::error(Code::UnknownName, item.span, &item_path(&columns.0, index), message);
            sink.push(
                fault.expected(format!("one of the columns {}", listed(known()))).nearest(name, known()),
            );
        }
    }
    let table = match view.text("table") {
        None => None,
        Some(text) => Some(expression::parse(text).ok()?),
    };
    let shard = match view.object("shard") {
        None => ShardPlan::default(),
        Some(shard) => ShardPlan {
            rows: shard.text("rows").map_or(Some(default.shard.rows), |text| text.parse().ok())?,
            bytes: shard.text("bytes").map_or(Some(default.shard.bytes), |text| text.parse().ok())?,
            flush: shard.text("flush").map_or(Some(default.shard.flush), |text| text.parse().ok())?,
        },
    };
    let columns = columns.1.iter().map(|item| item.text().map(str::to_owned)).collect::<Option<_>>()?;
    let retain = match view.object("retain") {
        None => RetainPlan::default(),
        Some(retain) => {
            let of = |name, default| retain.text(name).map_or(Some(default), |text| text.parse().ok());
            RetainPlan {
                committed: of("committed", default.retain.committed)?,
                failed_workspaces: of("failed_workspaces", default.retain.failed_workspaces)?,
                checkpoints: of("checkpoints", default.retain.checkpoints)?,
            }
        }
    };
    Some(OutputPlan { table, shard, columns, artifacts, retain })
}

fn warn_steps(job: &View<'_>, steps: &Steps<'_>, models: &models::Models, sink: &mut Sink) {
    let docs = &steps.docs;
    let rewarded = docs.iter().any(|doc| matches!(doc.kind, StepKind::Grader | StepKind::Session));
    if !rewarded && let Some(found) = job.find("steps").filter(|_| !docs.is_empty()) {
        let message = "no step gives a reward: `reward` will be null in every row";
        let fault = Diagnostic::warning(Code::NoReward, found.key_span, &found.path, message);
        sink.push(fault.expected("a step with `grader` or `session`, if rewards are wanted"));
    }
    let trained: Vec<&str> = models.trained.iter().map(String::as_str).collect();
    for doc in docs.iter().filter(|doc| super::step::lacks_tokens(doc, &trained)) {
        let message = format!(
            "the agent step {} records no token ids: its rows serve evaluation and SFT only",
            quoted(&doc.name)
        );
        sink.push(Diagnostic::warning(Code::NoTokenColumns, doc.name_span, &doc.own.path, message));
    }
    let Some(graph) = steps.graph.as_ref().filter(|_| docs.len() > 1) else { return };
    for (index, doc) in docs.iter().enumerate() {
        let idle = doc.kind == StepKind::Run && !doc.own.has("outputs");
        if idle && !graph.is_needed(index) {
            let message = format!(
                "nothing uses the step {}: it feeds no reward, no output and no step",
                quoted(&doc.name)
            );
            let fault = Diagnostic::warning(Code::UnreachableStep, doc.name_span, &doc.own.path, message);
            sink.push(fault.expected("`outputs`, or a step that needs it"));
        }
    }
}

/// Names and time of the longest chain of steps, by their fixed timeouts (one attempt each).
pub(crate) fn critical_path(steps: &[StepPlan]) -> (Vec<usize>, Millis) {
    let own = |step: &StepPlan| match &step.timeout {
        Field::Fixed(timeout) => timeout.0,
        Field::PerRow(_) => 0,
    };
    let mut best: Vec<(u64, Option<usize>)> = Vec::new();
    for step in steps {
        let before = step.needs.iter().map(|need| usize::from(need.0)).max_by_key(|&need| best[need].0);
        best.push((own(step) + before.map_or(0, |need| best[need].0), before));
    }
    let end = (0..steps.len()).max_by_key(|&step| (best[step].0, std::cmp::Reverse(step)));
    let mut path: Vec<usize> = std::iter::successors(end, |&step| best[step].1).collect();
    path.reverse();
    (path, Millis(end.map_or(0, |step| best[step].0)))
}

/// A group becomes one batch a table: what could not be one is refused before it runs.
fn check_group_rows(job: &View<'_>, document: Span, plan: &JobPlan, sink: &mut Sink) {
    let size = u64::from(plan.group.size);
    let outputs: u64 = plan.steps.iter().map(|step| step.outputs.len() as u64).sum();
    let attempts: u64 = plan.step_indices().map(|step| attempts_max(plan, step)).sum();
    let uses = [
        ("artifacts", outputs, format!("{outputs} outputs"), "outputs"),
        ("steps", attempts, format!("up to {attempts} attempts of steps"), "steps, or a lower `retry.limit`"),
    ];
    let group = job.object("group").and_then(|group| group.find("size"));
    let (span, path) = group.map_or((document, String::new()), |found| (found.node.span, found.path));
    for (table, rows, what, fewer) in uses {
        let total = size.saturating_mul(rows);
        let rows_max = GROUP_ROWS_MAX as u64;
        if total > rows_max {
            let message = format!(
                "one group can have {total} rows in the table `{table}` ({size} members x {what}); \
                 the limit is {GROUP_ROWS_MAX} (GROUP_ROWS_MAX)"
            );
            let fault = Diagnostic::error(Code::TooLarge, span, &path, message);
            let most = rows_max / rows.max(1);
            sink.push(fault.expected(format!("`group.size` of at most {most}, or fewer {fewer}")));
        }
    }
}

/// The most attempts of a step: its own, and those that a lost sandbox of a later step of its chain
/// costs it.
fn attempts_max(plan: &JobPlan, index: StepIndex) -> u64 {
    let chain = plan.chain(plan.chain_head(index));
    let from_here = chain.iter().skip_while(|&&step| step != index);
    let retries: u64 = from_here.map(|&step| u64::from(plan.step(step).retry.limit)).sum();
    let regrades = plan.step(index).grader.as_ref().map_or(0, |grader| u64::from(grader.regrades));
    1 + retries + regrades
}

fn warn_timeout(job: &View<'_>, plan: &JobPlan, sink: &mut Sink) {
    let (path, total) = critical_path(&plan.steps);
    let (Some(timeout), Some(found)) = (plan.timeout, job.find("timeout")) else { return };
    if timeout < total {
        let names: Vec<&str> = path.iter().map(|&step| plan.steps[step].name.as_str()).collect();
        let message = format!(
            "the job's timeout {timeout} is shorter than one rollout may take: {} can run for {total}",
            names.join(" -> ")
        );
        let fault = Diagnostic::warning(Code::TimeoutShort, found.node.span, &found.path, message);
        sink.push(fault.expected(format!("at least {total}")));
    }
}

/// Every template of the plan.
pub(crate) fn templates(plan: &JobPlan) -> impl Iterator<Item = &Template> {
    let steps = plan.steps.iter().flat_map(resolve::step_templates);
    plan.tasks.id.iter().chain(&plan.output.table).chain(steps)
}

fn columns_used(plan: &JobPlan) -> Vec<String> {
    let looked_up = templates(plan).flat_map(Template::lookups).filter_map(|lookup| match lookup {
        [root, column, ..] if root == "row" => Some(column.clone()),
        _ => None,
    });
    let mut columns: Vec<String> = looked_up.chain(plan.output.columns.iter().cloned()).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}
