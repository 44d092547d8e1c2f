//! The job spec: YAML or JSON text -> diagnostics, and the plan if there is no error.
//!
//! The text becomes a bounded tree with positions (`tree`); the tree is compared with the tables
//! of fields (`walk`, `tables`), which also give the JSON Schema (`schema`); what fits is read
//! into the plan (`job`, `steps`, `step`). An unreadable document stops at its first fault (but not
//! at a lookup that lacks its quotes, see `unquoted`); all other faults are reported at once.

mod canonical;
mod describe;
mod diagnostic;
mod fields;
mod fncall;
mod grammar;
mod graph;
mod harbor;
mod job;
mod matrix;
mod models;
mod render;
mod resources;
mod schedule;
mod schema;
mod step;
mod steps;
mod tables;
mod tasks;
mod tree;
mod unquoted;
mod view;
mod walk;

pub use describe::{Description, describe};
pub use diagnostic::{DIAGNOSTICS_MAX, Diagnostic, DiagnosticCode, Severity};
pub use harbor::{HarborAgent, HarborSteps, SharedAs};
pub use matrix::{Cell, cells};
pub use schema::schema;
pub use tables::{
    ARGUMENT_BYTES_MAX, ARGUMENTS_BYTES_MAX, ARGUMENTS_MAX, ARTIFACTS_MAX, COLUMNS_MAX, ENV_MAX, EPOCHS_MAX,
    FILE_BYTES_MAX, FILES_BYTES_MAX, FILES_MAX, FILTER_IDS_MAX, GROUP_ROWS_MAX, GROUP_SIZE_MAX,
    INLINE_ROWS_MAX, JOB_LOOKUPS_MAX, LABEL_BYTES_MAX, LABELS_MAX, MATRIX_CELLS_MAX, MODELS_MAX,
    PATH_BYTES_MAX, RUNNING_MAX, SECRETS_MAX, SHELL_BYTES_MAX,
};
pub use tree::{DEPTH_MAX, EXPANDED_BYTES_MAX, KEY_BYTES_MAX, NODES_MAX, TEXT_BYTES_MAX};
pub use unquoted::UNQUOTED_MAX;

pub(crate) use grammar::{
    env_name as check_env_name, image as check_image, layer as check_layer, path as check_path,
    table as check_table,
};
pub(crate) use resources::{SLOTS, empty_limit, from_slots, over_limit, parse_slot, show_slot};

use crate::plan::JobPlan;

/// What a check found.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Sorted by position; at most [`DIAGNOSTICS_MAX`] and one that counts the rest.
    pub diagnostics: Vec<Diagnostic>,
    /// None iff there is an error.
    pub plan: Option<JobPlan>,
}

impl Checked {
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error)
    }

    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning)
    }

    /// The diagnostics as a compiler prints them, over the text that was checked. Safe for a
    /// terminal: everything unprintable is escaped. Empty if there is none.
    pub fn render(&self, source: &str) -> String {
        render::render(&self.diagnostics, source)
    }
}

/// Checks a spec. `source_name` is the file as people should see it. Never panics, and refuses
/// what is over a limit before it costs anything of that size.
pub fn check(text: &str, source_name: &str) -> Checked {
    let mut sink = diagnostic::Sink::default();
    let unquoted::Reading { root, mut faults } = unquoted::read(text);
    for fault in &mut faults {
        if fault.code == DiagnosticCode::ExpressionHere && !takes_lookup(&fault.path) {
            let expected = fault.expected.take().unwrap_or_default();
            fault.expected = Some(format!("{expected}; and `{}` takes no lookup", fault.path));
        }
        sink.push(fault.clone());
    }
    let Some(mut root) = root else {
        return Checked { diagnostics: sink.finish(source_name), plan: None };
    };
    let generated = harbor::of(&root).map(|(_, generated)| generated);
    harbor::add_steps(&mut root);
    let scope = walk::Scope::of(&root);
    walk::Walk { source: text, scope: &scope, sink: &mut sink }.object(&root, &tables::JOB, "");
    let plan = job::read(&root, generated, &scope, &mut sink);
    let plan = plan.filter(|_| !sink.has_errors());
    let mut diagnostics = sink.finish(source_name);
    diagnostics.retain(|found| !unquoted::repeats(found, &faults));
    Checked { diagnostics, plan }
}

/// The document with the steps that its Harbor source is given, and without the fields that these
/// follow from: a spec of the same job, to be edited. None if the document is no such one.
pub fn with_generated_steps(text: &str) -> Option<String> {
    let mut root = unquoted::read(text).root?;
    let (steps, _) = harbor::of(&root)?;
    if text.trim_start().starts_with('{') {
        // No lines can be added to JSON.
        harbor::add_steps(&mut root);
        harbor::remove_step_fields(&mut root);
        return Some(canonical::json(&root) + "\n");
    }
    let mut whole = harbor::without_step_fields(text, &root);
    if !whole.ends_with('\n') {
        whole.push('\n');
    }
    Some(whole + &steps.text())
}

/// Diagnostics over the text they are about; empty where that is not at hand. See
/// [`Checked::render`].
pub fn render(diagnostics: &[Diagnostic], source: &str) -> String {
    render::render(diagnostics, source)
}

/// Whether the field at `path` is known and expands lookups.
fn takes_lookup(path: &str) -> bool {
    use fields::{Expands, Shape};
    let mut shape = Shape::Object(&tables::JOB);
    for part in path.split(['.', '[']) {
        let next = match shape {
            Shape::Object(object) => object.field(part).map(|field| field.shape),
            Shape::List { of, .. } | Shape::Map { of, .. } => Some(*of),
            _ => None,
        };
        let Some(next) = next else { return false };
        shape = match next {
            Shape::Either { of, .. } => of[0],
            other => other,
        };
    }
    matches!(shape, Shape::Scalar(_, Expands::When(_) | Expands::Later))
}

/// A looked-up value of a scalar field of a step, such as `timeout`, against its table entry.
pub(crate) fn check_step_field(name: &str, text: &str) -> Result<(), grammar::Mismatch> {
    match tables::STEP.field(name).map(|field| field.shape) {
        Some(fields::Shape::Scalar(grammar, _)) => grammar::check(grammar, text, true),
        _ => Ok(()),
    }
}

/// Paths on the client's machine that a submit uploads, as written, sorted, each once: the task
/// file and `files[].from`. Relative ones are relative to the spec file.
pub fn client_files(plan: &JobPlan) -> Vec<&str> {
    use crate::plan::FileContent;
    let tasks = plan.tasks.source.path();
    let files = plan.steps.iter().flat_map(|step| &step.files).filter_map(|file| match &file.content {
        FileContent::Client { path } => Some(path.as_str()),
        FileContent::Text(_) => None,
    });
    let mut paths: Vec<&str> = tasks.into_iter().chain(files).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::fields::{Field, Object, Shape};
    use super::*;

    /// Sources beside the one of [`EVERYTHING`].
    const SOURCES: [&str; 2] = ["{parquet: a.parquet}, filter: {}", "{harbor: tasks}"];

    /// Uses every map of the format that this build serves.
    const EVERYTHING: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: x
labels: {}
tasks: {from: {inline: [{n: 1}]}}
group: {}
admission: {}
defaults: {image: host, resources: {request: {}, limit: {}}, retry: {}, checkpoint: {}, idle: {}}
output: {shard: {}, retain: {}}
matrix: {values: {}}
steps:
  - {name: a, agent: {command: [x]}, outputs: [{name: o, path: o}], resources: {request: {}, limit: {}}}
  - {name: s, session: {}}
  - name: g
    needs: [a]
    image: host
    grader: {}
    run: x
    files: [{path: /x, from: y}]
    inputs: [{artifact: a.o, path: /in}]
"#;

    /// A field with one value that works says nothing that a reader could need.
    fn has_one_value(shape: Shape) -> bool {
        match shape {
            Shape::Choice(choices) => choices.iter().filter(|choice| choice.later.is_none()).count() == 1,
            Shape::Either { of, .. } => has_one_value(of[0]),
            _ => false,
        }
    }

    fn served(object: &'static Object, found: &mut BTreeSet<(&'static str, String)>) {
        for field in object.fields().filter(|field| field.later.is_none() && !has_one_value(field.shape)) {
            if found.insert((object.name, field.name.to_owned())) {
                nested(field.shape, &mut |object| served(object, found));
            }
        }
    }

    fn nested(shape: Shape, visit: &mut impl FnMut(&'static Object)) {
        match shape {
            Shape::Object(object) => visit(object),
            Shape::List { of, .. } | Shape::Map { of, .. } => nested(*of, visit),
            Shape::Either { of, .. } => of.iter().for_each(|shape| nested(*shape, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_field_this_build_serves_is_read_into_the_plan() {
        view::reads::take();
        let other = |source: &&str| EVERYTHING.replace("{inline: [{n: 1}]}", source);
        // A matrix has no schedule.
        let scheduled = EVERYTHING.replace("matrix: {values: {}}", "schedule: {cron: \"0 2 * * *\"}");
        for text in SOURCES.iter().map(other).chain([EVERYTHING.to_owned(), scheduled]) {
            let checked = check(&text, "everything.yaml");
            assert!(checked.plan.is_some(), "{}", checked.render(&text));
        }
        let reads = view::reads::take();
        let mut fields = BTreeSet::new();
        served(&tables::JOB, &mut fields);
        // A secret is refused wherever it is used, by the reader of `env`.
        fields.retain(|(object, _)| *object != "SecretUse");
        let forgotten: Vec<_> = fields.difference(&reads).collect();
        assert!(forgotten.is_empty(), "accepted and never read: {forgotten:?}");
    }

    #[test]
    fn the_schema_holds_exactly_the_fields_of_the_tables() {
        fn compare(object: &'static Object, schema: &serde_json::Value, seen: &mut BTreeSet<&'static str>) {
            if !seen.insert(object.name) {
                return;
            }
            let properties = schema["$defs"][object.name]["properties"].as_object().unwrap();
            let names: BTreeSet<&str> = object.fields().map(|field| field.name).collect();
            assert_eq!(
                properties.keys().map(String::as_str).collect::<BTreeSet<_>>(),
                names,
                "{}",
                object.name
            );
            for Field { shape, .. } in object.fields() {
                nested(*shape, &mut |object| compare(object, schema, seen));
            }
        }
        let (schema, mut seen) = (schema(), BTreeSet::new());
        compare(&tables::JOB, &schema, &mut seen);
        let defined: BTreeSet<&str> =
            schema["$defs"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(defined, seen, "every map has a name of its own and its place in the tables");
    }
}
