//! The steps of a Harbor source that brings none: `agent`, then `grade`.
//!
//! They are text of this format, so that they can be shown, and are checked as any others. What
//! differs from task to task is looked up in the rows that the client made of the directory; what
//! `defaults` says wins over the task.

use super::tree::{self, Entry, Node, Span, Value};
use crate::plan::{EnvironmentMode, Generated};

/// Who works on the tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarborAgent {
    Command(Vec<String>),
    /// The solution of each task.
    Oracle,
}

/// How tasks are graded that share the environment of their agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedAs {
    /// Over the agent's files, in a new sandbox.
    Fresh,
    /// In the agent's own sandbox.
    Reuse,
}

impl SharedAs {
    /// Also what a step's `isolate` says for it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Reuse => "reuse",
        }
    }
}

/// What the generated steps follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarborSteps {
    pub agent: HarborAgent,
    pub mode: EnvironmentMode,
    pub shared_as: SharedAs,
    /// Fields that `defaults` has: the steps leave them alone.
    pub defaults: Vec<String>,
}

/// Runs the script `$0`, also one that lacks its x bit.
const RUN_SCRIPT: &str = r#"if [ -x "$0" ]; then exec "$0"; else exec bash "$0"; fi"#;

impl HarborSteps {
    /// YAML with the one key `steps`.
    pub fn text(&self) -> String {
        let mut lines = vec!["steps:".to_owned(), "  - name: agent".to_owned()];
        self.agent(&mut lines);
        lines.extend(["  - name: grade".to_owned(), "    needs: [agent]".to_owned()]);
        self.grade(&mut lines);
        lines.join("\n") + "\n"
    }

    fn agent(&self, lines: &mut Vec<String>) {
        let (command, env) = match &self.agent {
            HarborAgent::Command(items) => (items.clone(), "env"),
            HarborAgent::Oracle => {
                let command = ["/bin/sh", "-c", RUN_SCRIPT, "/solution/solve.sh"];
                (command.map(str::to_owned).to_vec(), "solution_env")
            }
        };
        let items: Vec<String> = command.iter().map(|item| quoted(item)).collect();
        lines.push(format!("    agent: {{command: [{}]}}", items.join(", ")));
        lines.push("    files: [{path: /in/instruction.md, content: \"${row.instruction}\"}]".to_owned());
        if self.agent == HarborAgent::Oracle {
            lines.push("    layers: [\"${row.solution}\"]".to_owned());
        }
        lines.push(format!("    env: ${{row.{env}}}"));
        self.take("image", &["image: ${row.image}"], lines);
        self.take("user", &["user: ${row.user}"], lines);
        self.take("workdir", &["workdir: ${row.workdir}"], lines);
        self.take("timeout", &["timeout: ${row.agent_timeout}"], lines);
        self.take("resources", RESOURCES, lines);
        self.take("health_check", &["health_check: ${row.health_check}"], lines);
        if self.mode == EnvironmentMode::Separate {
            lines.push("    outputs: [{name: artifacts, paths: \"${row.artifacts}\"}]".to_owned());
        }
    }

    fn grade(&self, lines: &mut Vec<String>) {
        match self.mode {
            EnvironmentMode::Shared => {
                let isolate = format!("    isolate: {}", self.shared_as.as_str());
                lines.extend(["    from: agent".to_owned(), isolate]);
            }
            EnvironmentMode::Separate => {
                lines.push("    from: image".to_owned());
                lines.push("    inputs: [{artifact: agent.artifacts, path: /}]".to_owned());
                self.take("image", &["image: ${row.image}"], lines);
            }
        }
        lines.push("    layers: [\"${row.tests}\"]".to_owned());
        lines.push("    env: ${row.verifier_env}".to_owned());
        self.take("user", &["user: ${row.verifier_user}"], lines);
        self.take("workdir", &["workdir: ${row.workdir}"], lines);
        self.take("timeout", &["timeout: ${row.verifier_timeout}"], lines);
        self.take("resources", RESOURCES, lines);
        lines.push("    grader: {}".to_owned());
        let run = RUN_SCRIPT.replace("\"$0\"", "/tests/test.sh");
        lines.push(format!("    run: {run}"));
    }

    /// The lines that take `field` from the task.
    fn take(&self, field: &str, of_task: &[&str], lines: &mut Vec<String>) {
        if !self.defaults.iter().any(|known| known == field) {
            lines.extend(of_task.iter().map(|line| format!("    {line}")));
        }
    }
}

const RESOURCES: &[&str] = &[
    "resources:",
    "  request: {cpu: \"${row.resources.request.cpu}\", memory: \"${row.resources.request.memory}\", disk: \"${row.resources.request.disk}\"}",
    "  limit: {cpu: \"${row.resources.limit.cpu}\", memory: \"${row.resources.limit.memory}\", disk: \"${row.resources.limit.disk}\"}",
];

/// A YAML text between double quotes that stands for exactly `text`, lookups and all.
fn quoted(text: &str) -> String {
    serde_json::Value::String(text.replace("${", "$${")).to_string()
}

/// The text that was generated for the document `root`; none if it has steps or no Harbor source.
pub(crate) fn of(root: &Node) -> Option<(HarborSteps, Generated)> {
    let from = root.get("tasks")?.get("from")?;
    if root.get("steps").is_some() || from.get("harbor").is_none() {
        return None;
    }
    let agent = match from.get("agent")? {
        node if node.text() == Some("oracle") => HarborAgent::Oracle,
        node => {
            let items = node.items().iter().map(|item| item.text().map(str::to_owned));
            HarborAgent::Command(items.collect::<Option<_>>()?)
        }
    };
    let mode = match from.get("environment_mode").and_then(Node::text) {
        Some("separate") => EnvironmentMode::Separate,
        _ => EnvironmentMode::Shared,
    };
    let shared_as = match from.get("shared_as").and_then(Node::text) {
        Some("reuse") => SharedAs::Reuse,
        _ => SharedAs::Fresh,
    };
    let defaults = root.get("defaults").map(Node::entries).unwrap_or_default();
    let defaults = defaults.iter().map(|entry| entry.key.clone()).collect();
    let generated = Generated { oracle: agent == HarborAgent::Oracle, mode };
    Some((HarborSteps { agent, mode, shared_as, defaults }, generated))
}

/// Of the source, for generated steps only.
const STEP_FIELDS: [&str; 3] = ["agent", "shared_as", "environment_mode"];

pub(crate) fn remove_step_fields(root: &mut Node) {
    let Value::Map(entries) = &mut root.value else { return };
    let Some(tasks) = entries.iter_mut().find(|entry| entry.key == "tasks") else { return };
    let Value::Map(entries) = &mut tasks.value.value else { return };
    let Some(source) = entries.iter_mut().find(|entry| entry.key == "from") else { return };
    let Value::Map(fields) = &mut source.value.value else { return };
    fields.retain(|field| !STEP_FIELDS.contains(&field.key.as_str()));
}

/// The text without the fields of the source that are for generated steps.
pub(crate) fn without_step_fields(text: &str, root: &Node) -> String {
    let source = root.get("tasks").and_then(|tasks| tasks.get("from")).map(Node::entries).unwrap_or_default();
    let mut whole = text.to_owned();
    // From the end, so that the places before stay right.
    for entry in source.iter().rev().filter(|entry| STEP_FIELDS.contains(&entry.key.as_str())) {
        whole.replace_range(place_of(&whole, entry), "");
    }
    whole
}

/// Of a field and what separates it from the next: its lines, or its part of a `{}`.
fn place_of(text: &str, entry: &Entry) -> std::ops::Range<usize> {
    let (start, end) = (entry.key_span.start as usize, end_of(text, &entry.value));
    let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    if text[line..start].trim().is_empty() {
        let end = text[end..].find('\n').map_or(text.len(), |newline| end + newline + 1);
        return line..end;
    }
    let after = text[end..].trim_start();
    if let Some(next) = after.strip_prefix(',') {
        return start..text.len() - next.trim_start().len();
    }
    let before = text[..start].trim_end();
    before.strip_suffix(',').map_or(start, |before| before.trim_end().len())..end
}

/// The byte after a text or a list of texts.
fn end_of(text: &str, node: &Node) -> usize {
    let last = node.items().last().unwrap_or(node).span.end as usize;
    let open = text[node.span.start as usize..].starts_with('[');
    if !open || node.text().is_some() {
        return last;
    }
    text[last..].find(']').map_or(last, |close| last + close + 1)
}

/// Adds the generated steps to the document. What is wrong in them is told at its source.
pub(crate) fn add_steps(root: &mut Node) {
    let Some((steps, _)) = of(root) else { return };
    let Some(source) = root.get("tasks").and_then(|tasks| tasks.get("from")) else { return };
    let Some(at) = source.entry("harbor").map(|entry| entry.key_span) else { return };
    let text = steps.text();
    let Ok(read) = tree::parse_stand_in(&text, &text, &[]) else { return };
    let (Value::Map(entries), Value::Map(of_root)) = (read.value, &mut root.value) else { return };
    for Entry { key, mut value, .. } in entries {
        place(&mut value, at);
        of_root.push(Entry { key, key_span: at, value });
    }
}

fn place(node: &mut Node, at: Span) {
    node.span = at;
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| place(item, at)),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| {
            entry.key_span = at;
            place(&mut entry.value, at);
        }),
    }
}
