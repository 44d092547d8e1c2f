//! A plan and a row -> steps with every lookup done.

mod fields;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize as _;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use fields::{arguments, checked, declared, files, health_check, image, layers, time};

use crate::backend::{self, FNCALL_DISK};
use crate::checkpoint::LAYER_PREFIX;
use crate::ids::{GroupId, JobId, RolloutId, StepIndex};
use crate::name::Name;
use crate::plan::{
    CommandPlan, Field, FileContent, HealthCheck, JobPlan, OUTPUT_PATHS_MAX, OutputDecl, OutputSource, Per,
    Piece, ResolvedCheckpoint, ResolvedCommand, ResolvedContent, ResolvedFile, ResolvedStep, ResolvedWork,
    ResourcesPlan, SourcePlan, StepPlan, Template, WorkPlan,
};
use crate::quantity::Resources;
use crate::result_key::ResultKey;
use crate::spec::{self, DiagnosticCode};
use crate::text::{nearest, shown};
use crate::time::Millis;

/// The longest task id, in bytes.
pub const TASK_ID_BYTES_MAX: usize = 256;

/// The longest key of a shared checkpoint, in bytes.
pub const CHECKPOINT_KEY_BYTES_MAX: usize = 1024;

/// The most text that the lookups of one field may give, in bytes: no field takes more.
const EXPANDED_BYTES_MAX: usize = spec::FILE_BYTES_MAX;

/// The most values of a row that are told not to fit.
pub const BAD_VALUES_MAX: usize = 32;

/// In the place of a text that is wrong, where an empty one would be told to be empty.
const WRONG: &str = "wrong";

/// The most columns of a row that are compared with a missing one.
const ROW_KEYS_COMPARED_MAX: usize = 256;

/// What lookups find, beside what the plan itself says.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    pub row: &'a Map<String, Value>,
    /// From [`task_id`].
    pub task_id: &'a str,
    pub group: GroupId,
    /// Pass over the task set, from 0.
    pub epoch: u32,
    /// None where no rollout runs yet: `${rollout.…}` is then an error.
    pub rollout: Option<RolloutId>,
}

/// A lookup that cannot be done, or whose value does not fit. Every text in it is escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("column `{column}` is missing")]
    MissingColumn { column: String },
    #[error("column `{column}` is {kind}; a lookup takes text, a number or a boolean")]
    NotText { column: String, kind: &'static str },
    #[error("`${{{lookup}}}` is not known here")]
    NotKnown { lookup: String },
    #[error("`{field}`: {problem}; expected {expected}")]
    BadValue { field: String, problem: String, expected: String },
    #[error("`{field}` has {bytes} bytes after its lookups; the limit is {limit} bytes")]
    TooLong { field: String, bytes: usize, limit: usize },
    #[error("step `{step}`: the client file `{path}` was not uploaded")]
    MissingFile { step: Name, path: String },
}

/// What is wrong with a task row. Rows count from 0, as in `row-<index>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {problem}")]
pub struct RowProblem {
    pub row: u64,
    /// The column at fault, if it is one.
    pub column: Option<String>,
    pub code: DiagnosticCode,
    /// The column of the row whose name is nearest to a missing one.
    pub nearest: Option<String>,
    pub problem: ResolveError,
}

/// Every template of a step.
pub(crate) fn step_templates(step: &StepPlan) -> impl Iterator<Item = &Template> {
    let arguments = match &step.work {
        WorkPlan::Command(CommandPlan::Argv(arguments)) => arguments.as_slice(),
        WorkPlan::Command(CommandPlan::Shell(_)) | WorkPlan::Session(_) => &[],
    };
    let files = step.files.iter().flat_map(|file| {
        let content = match &file.content {
            FileContent::Text(content) => Some(content),
            FileContent::Client { .. } => None,
        };
        [Some(&file.path), content].into_iter().flatten()
    });
    let times = [&step.timeout, &step.start_timeout, &step.grace].into_iter().filter_map(per_row);
    let resources: &[Field<u64>] = match &step.resources {
        ResourcesPlan::PerRow(fields) => fields.as_slice(),
        ResourcesPlan::Fixed(_) => &[],
    };
    std::iter::once(&step.image)
        .chain(&step.layers)
        .chain([&step.user, &step.workdir])
        .chain(step.env.values())
        .chain(&step.env_column)
        .chain(arguments)
        .chain(files)
        .chain(step.outputs.iter().flat_map(|output| match &output.source {
            SourcePlan::Fixed(_) => &[],
            SourcePlan::Paths(paths) => paths.as_slice(),
            SourcePlan::PathsOf(column) => std::slice::from_ref(column),
        }))
        .chain(&step.health_check)
        .chain(&step.checkpoint.key)
        .chain(times)
        .chain(resources.iter().filter_map(per_row))
}

fn per_row<T>(field: &Field<T>) -> Option<&Template> {
    match field {
        Field::PerRow(template) => Some(template),
        Field::Fixed(_) => None,
    }
}

/// Where a lookup is done: which names have values.
struct Names<'a> {
    plan: &'a JobPlan,
    job: Option<JobId>,
    row: Option<&'a Map<String, Value>>,
    lookup: Option<&'a Lookup<'a>>,
    step: Option<(&'a StepPlan, &'a str)>,
}

impl Names<'_> {
    fn expand(&self, template: &Template) -> Result<String, ResolveError> {
        let mut bytes = 0;
        template.expand(|path| {
            let value = self.value(path)?;
            bytes += value.len();
            if bytes > EXPANDED_BYTES_MAX {
                let field = shown(&template.to_string(), 128);
                return Err(ResolveError::TooLong { field, bytes, limit: EXPANDED_BYTES_MAX });
            }
            Ok(value)
        })
    }

    fn value(&self, path: &[String]) -> Result<String, ResolveError> {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let found = match parts.as_slice() {
            ["job", "id"] => self.job.map(|job| job.to_string()),
            ["job", "name"] => Some(self.plan.name.to_string()),
            ["job", "hash"] => Some(self.plan.spec_hash.clone()),
            ["job", "labels", key @ ..] => self.plan.labels.get(&key.join(".")).cloned(),
            ["matrix", key] => self.plan.matrix.as_ref().and_then(|matrix| matrix.values.get(*key).cloned()),
            ["row", columns @ ..] => match self.row {
                Some(row) => return row_value(row, columns),
                None => None,
            },
            ["task", "id"] => self.lookup.map(|lookup| lookup.task_id.to_owned()),
            ["group", "id"] => self.lookup.map(|lookup| lookup.group.to_string()),
            ["group", "size"] => Some(self.plan.group.size.to_string()),
            ["group", "epoch"] => self.lookup.map(|lookup| lookup.epoch.to_string()),
            ["step", "name"] => self.step.map(|(step, _)| step.name.to_string()),
            ["step", "hash"] => self.step.map(|(_, hash)| hash.to_owned()),
            ["rollout", "id"] => self.rollout().map(|rollout| rollout.to_string()),
            ["rollout", "sample_index"] => self.rollout().map(|rollout| rollout.sample.to_string()),
            _ => None,
        };
        found.ok_or_else(|| ResolveError::NotKnown { lookup: shown(&path.join("."), 128) })
    }

    /// The value of a column that a template of one lookup names, and the column for messages.
    fn column(&self, lookup: &Template) -> (Option<&Value>, String) {
        let path = match lookup.0.as_slice() {
            [Piece::Lookup(path)] => path.get(1..).unwrap_or_default(),
            _ => &[],
        };
        let mut parts = path.iter();
        let first = parts.next().and_then(|first| self.row?.get(first));
        (parts.fold(first, |value, part| value?.get(part)), shown(&path.join("."), 128))
    }

    /// The variables that a column holds: an object of texts, numbers and booleans.
    fn variables(
        &self,
        step: &StepPlan,
        column: &Template,
    ) -> Result<BTreeMap<String, String>, ResolveError> {
        let (found, shown_column) = self.column(column);
        let entries = match found {
            None => return Err(ResolveError::MissingColumn { column: shown_column }),
            Some(Value::Object(entries)) => entries,
            Some(_) => {
                let problem = format!("column `{shown_column}` holds no object");
                return Err(bad(step, "env", problem, "an object of variables"));
            }
        };
        let mut variables = BTreeMap::new();
        for key in entries.keys() {
            spec::check_env_name(key)
                .map_err(|mismatch| bad(step, "env", mismatch.message, mismatch.expected))?;
            let value = row_value(entries, &[key])?;
            if value.len() > spec::ARGUMENT_BYTES_MAX {
                let field = field_of(step, &format!("env.{key}"));
                return Err(ResolveError::TooLong {
                    field,
                    bytes: value.len(),
                    limit: spec::ARGUMENT_BYTES_MAX,
                });
            }
            if value.contains('\0') {
                return Err(bad(
                    step,
                    &format!("env.{key}"),
                    "holds a NUL character".to_owned(),
                    "text without NUL characters",
                ));
            }
            variables.insert(key.clone(), value);
        }
        Ok(variables)
    }

    fn rollout(&self) -> Option<RolloutId> {
        self.lookup.and_then(|lookup| lookup.rollout)
    }
}

fn row_value(row: &Map<String, Value>, columns: &[&str]) -> Result<String, ResolveError> {
    let column = || shown(&columns.join("."), 128);
    let [first, nested @ ..] = columns else {
        return Err(ResolveError::MissingColumn { column: column() });
    };
    let mut value = row.get(*first);
    for key in nested {
        value = value.and_then(|value| value.get(key));
    }
    let kind = match value {
        None => return Err(ResolveError::MissingColumn { column: column() }),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Number(number)) => return Ok(number.to_string()),
        Some(Value::Bool(boolean)) => return Ok(boolean.to_string()),
        Some(Value::Null) => "null",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "an object",
    };
    Err(ResolveError::NotText { column: column(), kind })
}

/// The id of a task: `tasks.id` of the spec, or `row-<index>`.
///
/// # Errors
/// A column is missing or holds no text, or the id is empty, longer than [`TASK_ID_BYTES_MAX`] or
/// not printable ASCII.
pub fn task_id(plan: &JobPlan, index: u64, row: &Map<String, Value>) -> Result<String, ResolveError> {
    let Some(template) = &plan.tasks.id else { return Ok(format!("row-{index}")) };
    let id = Names { plan, job: None, row: Some(row), lookup: None, step: None }.expand(template)?;
    if id.len() > TASK_ID_BYTES_MAX {
        return Err(ResolveError::TooLong {
            field: "tasks.id".to_owned(),
            bytes: id.len(),
            limit: TASK_ID_BYTES_MAX,
        });
    }
    if id.trim().is_empty() || !id.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return Err(ResolveError::BadValue {
            field: "tasks.id".to_owned(),
            problem: format!("`{}` is not a task id", shown(&id, 64)),
            expected: "printable ASCII".to_owned(),
        });
    }
    Ok(id)
}

/// The folder of the tables, with its lookups done; none if the spec names none.
///
/// # Errors
/// The path is empty, too long, a URL, or holds a control character.
pub fn output_table(plan: &JobPlan, job: JobId) -> Result<Option<String>, ResolveError> {
    let Some(template) = &plan.output.table else { return Ok(None) };
    let table = Names { plan, job: Some(job), row: None, lookup: None, step: None }.expand(template)?;
    spec::check_table(&table).map_err(|bad| ResolveError::BadValue {
        field: "output.table".to_owned(),
        problem: bad.message,
        expected: bad.expected,
    })?;
    Ok(Some(table))
}

/// Whether a job can run this row: every column the spec uses is there, and every value fits
/// where it goes.
///
/// # Errors
/// The first problem, with the row's number and, where it is one, the column.
pub fn check_row(plan: &JobPlan, index: u64, row: &Map<String, Value>) -> Result<(), Box<RowProblem>> {
    match row_problems(plan, index, row).into_iter().next() {
        Some(problem) => Err(Box::new(problem)),
        None => Ok(()),
    }
}

/// What keeps a job from running this row: every column that is missing, then every value that does
/// not fit, of those the first [`BAD_VALUES_MAX`].
pub fn row_problems(plan: &JobPlan, index: u64, row: &Map<String, Value>) -> Vec<RowProblem> {
    let mut problems: Vec<RowProblem> = missing_columns(plan, index, row).collect();
    problems.extend(bad_values(plan, index, row).into_iter().map(|problem| bad_value(index, problem)));
    problems
}

fn missing_columns<'a>(
    plan: &'a JobPlan,
    index: u64,
    row: &'a Map<String, Value>,
) -> impl Iterator<Item = RowProblem> + 'a {
    let missing = plan.tasks.columns_used.iter().filter(|column| !row.contains_key(*column));
    missing.map(move |column| {
        let nearest = nearest(column, row.keys().take(ROW_KEYS_COMPARED_MAX).map(String::as_str));
        RowProblem {
            row: index,
            column: Some(shown(column, 128)),
            code: DiagnosticCode::RowMissingColumn,
            nearest: nearest.map(|name| shown(name, 128)),
            problem: ResolveError::MissingColumn { column: shown(column, 128) },
        }
    })
}

fn bad_value(row: u64, problem: ResolveError) -> RowProblem {
    let (code, column) = match &problem {
        ResolveError::MissingColumn { column } => (DiagnosticCode::RowMissingColumn, Some(column.clone())),
        ResolveError::NotText { column, .. } => (DiagnosticCode::RowBadValue, Some(column.clone())),
        _ => (DiagnosticCode::RowBadValue, None),
    };
    RowProblem { row, column, code, nearest: None, problem }
}

fn bad_values(plan: &JobPlan, index: u64, row: &Map<String, Value>) -> Vec<ResolveError> {
    let missing = plan.tasks.columns_used.iter().filter(|column| !row.contains_key(*column));
    let told = missing.map(|column| shown(column, 128)).collect();
    let mut faults = Faults { told, problems: Vec::new(), problems_max: BAD_VALUES_MAX };
    let task_id = task_id(plan, index, row);
    let task_id = task_id.or_else(|problem| faults.pass(problem).map(|()| format!("row-{index}")));
    // Ids of any job and group have the same form: these stand in for the real ones.
    let group = GroupId { job: JobId::from_bits(0), index: 0 };
    let rollout = RolloutId { group, sample: 0, refill: 0 };
    let checked = task_id.and_then(|task_id| {
        let mut steps = plan.step_indices();
        steps.try_for_each(|step| {
            // What runs once a group knows no rollout.
            let rollout = (plan.step(step).per == Per::Rollout).then_some(rollout);
            let lookup = Lookup { row, task_id: &task_id, group, epoch: 0, rollout };
            resolve(plan, step, &lookup, None, &mut faults)?;
            let key = result_key(plan, step, &lookup, None);
            faults.take(key, None).map(drop)
        })
    });
    faults.problems.extend(checked.err());
    faults.problems
}

/// The images of the steps as this row names them, and the layers that are images. Of a row that
/// was checked.
///
/// # Errors
/// A lookup has no value here, or its value does not fit.
pub fn image_texts(
    plan: &JobPlan,
    index: u64,
    row: &Map<String, Value>,
) -> Result<BTreeSet<String>, ResolveError> {
    let task_id = task_id(plan, index, row)?;
    let group = GroupId { job: JobId::from_bits(0), index: 0 };
    let rollout = RolloutId { group, sample: 0, refill: 0 };
    let mut found = BTreeSet::new();
    for step in plan.step_indices().map(|step| plan.step(step)) {
        let rollout = (step.per == Per::Rollout).then_some(rollout);
        let lookup = Lookup { row, task_id: &task_id, group, epoch: 0, rollout };
        let names = names(plan, step, &lookup, "");
        found.insert(image(&names, step)?);
        found.extend(layers(&names, step)?.into_iter().filter(|layer| !layer.starts_with(LAYER_PREFIX)));
    }
    Ok(found)
}

/// Whether some row may name other images than the first.
pub fn images_vary(plan: &JobPlan) -> bool {
    let mut texts = plan.steps.iter().flat_map(|step| std::iter::once(&step.image).chain(&step.layers));
    texts.any(|text| text.as_literal().is_none())
}

/// Up to how many problems a resolution goes on, with something in the place of what is wrong.
struct Faults {
    /// Columns that were told to be missing, and are not told again.
    told: BTreeSet<String>,
    problems: Vec<ResolveError>,
    problems_max: usize,
}

impl Faults {
    /// The first problem ends it.
    fn none() -> Self {
        Self { told: BTreeSet::new(), problems: Vec::new(), problems_max: 1 }
    }

    /// Notes the problem, once; or hands it back as the last.
    fn pass(&mut self, problem: ResolveError) -> Result<(), ResolveError> {
        let is_told = matches!(&problem, ResolveError::MissingColumn { column }
            if column.split('.').next().is_some_and(|first| self.told.contains(first)));
        if is_told || self.problems.contains(&problem) {
            return Ok(());
        }
        if self.problems.len() + 1 >= self.problems_max {
            return Err(problem);
        }
        self.problems.push(problem);
        Ok(())
    }

    fn take<T>(&mut self, result: Result<T, ResolveError>, instead: T) -> Result<T, ResolveError> {
        result.or_else(|problem| self.pass(problem).map(|()| instead))
    }
}

/// Step `index` with every lookup done. `client_files`: path as written in the spec -> sha256.
///
/// # Errors
/// A lookup has no value here, or its value does not fit where it goes.
pub fn resolve_step(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
    client_files: &BTreeMap<String, String>,
) -> Result<ResolvedStep, ResolveError> {
    resolve(plan, index, lookup, Some(client_files), &mut Faults::none())
}

/// Request and limit of the sandbox that step `index` runs in: the larger of each entry over the
/// steps that use that sandbox in turn.
///
/// # Errors
/// A lookup has no value here, its value is no quantity, or a request is over its limit.
pub fn resolve_resources(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
) -> Result<Resources, ResolveError> {
    chain_resources(plan, index, lookup, &mut Faults::none())
}

/// The longest a step may take by its own times: `start_timeout`, `timeout` and `grace`.
///
/// # Errors
///
/// If one is looked up and the row has none, or not as a time in bounds.
pub fn resolve_span(plan: &JobPlan, index: StepIndex, lookup: &Lookup<'_>) -> Result<Millis, ResolveError> {
    let step = plan.step(index);
    let names = names(plan, step, lookup, "");
    let times = [("start_timeout", &step.start_timeout), ("timeout", &step.timeout), ("grace", &step.grace)];
    times.into_iter().try_fold(Millis(0), |sum, (name, field)| {
        Ok(Millis(sum.0.saturating_add(time(&names, step, name, field)?.0)))
    })
}

fn chain_resources(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
    faults: &mut Faults,
) -> Result<Resources, ResolveError> {
    let mut chain = plan.chain(plan.chain_head(index)).into_iter();
    let first = own_resources(plan, chain.next().unwrap_or(index), lookup, faults)?;
    chain.try_fold(first, |largest, step| Ok(largest.max(&own_resources(plan, step, lookup, faults)?)))
}

fn own_resources(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
    faults: &mut Faults,
) -> Result<Resources, ResolveError> {
    let step = plan.step(index);
    let fields = match &step.resources {
        ResourcesPlan::Fixed(resources) => return Ok(*resources),
        ResourcesPlan::PerRow(fields) => fields,
    };
    let names = names(plan, step, lookup, "");
    let mut slots = [0; 7];
    let mut wrong: Vec<&Field<u64>> = Vec::new();
    for ((slot, field), (side, key)) in slots.iter_mut().zip(fields.iter()).zip(spec::SLOTS) {
        // A request that is also the limit is told once.
        if wrong.contains(&field) {
            continue;
        }
        let value = match field {
            Field::Fixed(value) => Ok(*value),
            Field::PerRow(template) => names.expand(template).and_then(|text| {
                spec::parse_slot(key, &text).ok_or_else(|| {
                    let expected =
                        if key == "cpu" { "cores such as 2, 0.5 or 500m" } else { "a size such as 512Mi" };
                    bad(step, &format!("resources.{side}.{key}"), format!("`{}`", shown(&text, 40)), expected)
                })
            }),
        };
        if value.is_err() {
            wrong.push(field);
        }
        *slot = faults.take(value, 0)?;
    }
    if !wrong.is_empty() {
        return Ok(Resources::default());
    }
    faults.take(fitting(step, slots), Resources::default())
}

/// What the slots say of each other.
fn fitting(step: &StepPlan, slots: [u64; 7]) -> Result<Resources, ResolveError> {
    if let Some(key) = spec::empty_limit(&slots) {
        let problem = "a limit of nothing at all".to_owned();
        return Err(bad(step, &format!("resources.limit.{key}"), problem, "more than 0"));
    }
    if let Some((key, request, limit)) = spec::over_limit(&slots) {
        let (request, limit) = (spec::show_slot(key, request), spec::show_slot(key, limit));
        let problem = format!("the request {request} is more than the limit {limit}");
        return Err(bad(
            step,
            &format!("resources.request.{key}"),
            problem,
            "a request of at most the limit",
        ));
    }
    spec::from_slots(slots)
        .ok_or_else(|| bad(step, "resources.limit.pids", "too large".to_owned(), "a smaller count"))
}

fn names<'a>(plan: &'a JobPlan, step: &'a StepPlan, lookup: &'a Lookup<'a>, hash: &'a str) -> Names<'a> {
    let job = Some(lookup.group.job);
    Names { plan, job, row: Some(lookup.row), lookup: Some(lookup), step: Some((step, hash)) }
}

fn field_of(step: &StepPlan, field: &str) -> String {
    format!("{}.{field}", step.name)
}

fn bad(step: &StepPlan, field: &str, problem: String, expected: impl Into<String>) -> ResolveError {
    ResolveError::BadValue { field: field_of(step, field), problem, expected: expected.into() }
}

fn resolve(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
    client_files: Option<&BTreeMap<String, String>>,
    faults: &mut Faults,
) -> Result<ResolvedStep, ResolveError> {
    let step = plan.step(index);
    let uses_hash =
        step_templates(step).flat_map(Template::lookups).any(|path| path.join(".") == "step.hash");
    let resources = chain_resources(plan, index, lookup, faults)?;
    let resolved = with_hash(&names(plan, step, lookup, ""), step, resources, client_files, faults)?;
    if !uses_hash {
        return Ok(resolved);
    }
    let hash = step_hash(plan, step, &resolved, lookup, client_files)?;
    with_hash(&names(plan, step, lookup, &hash), step, resources, client_files, faults)
}

/// `sha256:<hex>` over what makes the workspace after the step: image, user, folder, command,
/// environment and files (as they are without the hash itself), and the same of the step whose
/// workspace it started from.
fn step_hash(
    plan: &JobPlan,
    step: &StepPlan,
    resolved: &ResolvedStep,
    lookup: &Lookup<'_>,
    client_files: Option<&BTreeMap<String, String>>,
) -> Result<String, ResolveError> {
    let before = match step.origin.step() {
        None => None,
        Some(index) => {
            let before = plan.step(index);
            let resources = own_resources(plan, index, lookup, &mut Faults::none())?;
            let names = names(plan, before, lookup, "");
            let bare = with_hash(&names, before, resources, client_files, &mut Faults::none())?;
            Some(step_hash(plan, before, &bare, lookup, client_files)?)
        }
    };
    let command = resolved.work.command();
    let ResolvedStep { image, layers, user, workdir, env, files, .. } = resolved;
    let text = serde_json::json!([image, layers, user, workdir, command, env, files, before]).to_string();
    Ok(format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes()))))
}

/// The key under which the result of step `index` is shared, if it has one.
///
/// # Errors
/// A lookup has no value here, or the key is empty or longer than [`CHECKPOINT_KEY_BYTES_MAX`],
/// digests not counted.
pub fn result_key(
    plan: &JobPlan,
    index: StepIndex,
    lookup: &Lookup<'_>,
    client_files: Option<&BTreeMap<String, String>>,
) -> Result<Option<ResultKey>, ResolveError> {
    let step = plan.step(index);
    let Some(template) = &step.checkpoint.key else { return Ok(None) };
    let resources = own_resources(plan, index, lookup, &mut Faults::none())?;
    let bare = with_hash(&names(plan, step, lookup, ""), step, resources, client_files, &mut Faults::none())?;
    let hash = step_hash(plan, step, &bare, lookup, client_files)?;
    let names = names(plan, step, lookup, &hash);
    let is_digest = |piece: &Piece| matches!(piece, Piece::Lookup(path) if path.join(".") == "image.digest");
    let between = template.0.split(is_digest).map(|pieces| names.expand(&Template(pieces.to_vec())));
    let parts = between.collect::<Result<Vec<String>, ResolveError>>()?;
    let bytes: usize = parts.iter().map(String::len).sum();
    if bytes == 0 && parts.len() == 1 {
        return Err(bad(step, "checkpoint.key", "is empty".to_owned(), "a key that names the result"));
    }
    if bytes > CHECKPOINT_KEY_BYTES_MAX {
        let field = field_of(step, "checkpoint.key");
        return Err(ResolveError::TooLong { field, bytes, limit: CHECKPOINT_KEY_BYTES_MAX });
    }
    let project = plan.project.clone().unwrap_or_default();
    Ok(Some(ResultKey { project, image: bare.image, parts }))
}

fn with_hash(
    names: &Names<'_>,
    step: &StepPlan,
    resources: Resources,
    client_files: Option<&BTreeMap<String, String>>,
    faults: &mut Faults,
) -> Result<ResolvedStep, ResolveError> {
    let image = faults.take(image(names, step), String::new())?;
    if let Some(problem) = backend::refuses_image(step.backend, &image) {
        let expected = "`host`, a `dir:` image, or `backend: container`";
        faults.pass(bad(step, "image", format!("is {}: {problem}", shown(&image, 80)), expected))?;
    }
    if let Some(problem) = backend::refuses_disk(step.backend, resources.limit.disk) {
        let expected = format!("{FNCALL_DISK}, or `backend: container`");
        faults.pass(bad(
            step,
            "resources.limit.disk",
            format!("is {}: {problem}", resources.limit.disk),
            expected,
        ))?;
    }
    let (work, env) = arguments(names, step, faults)?;
    let mut time = |name, field| faults.take(time(names, step, name, field), Millis(0));
    let timeout = time("timeout", &step.timeout)?;
    let start_timeout = time("start_timeout", &step.start_timeout)?;
    let grace = time("grace", &step.grace)?;
    let layers = faults.take(layers(names, step), Vec::new())?;
    let user = faults.take(checked(names, step, "user", &step.user), String::new())?;
    let workdir = faults.take(checked(names, step, "workdir", &step.workdir), String::new())?;
    let outputs = step.outputs.iter().map(|output| declared(names, step, output)).collect();
    let outputs = faults.take(outputs, Vec::new())?;
    Ok(ResolvedStep {
        name: step.name.clone(),
        kind: step.kind,
        per: step.per,
        checkpoint: ResolvedCheckpoint { after: step.checkpoint.after, every: step.checkpoint.every },
        work,
        backend: step.backend,
        image,
        layers,
        user,
        workdir,
        env,
        files: files(names, step, client_files, faults)?,
        outputs,
        resources,
        timeout,
        start_timeout,
        grace,
        health_check: faults.take(health_check(names, step), None)?,
        idle: step.idle,
        best_effort: names.plan.admission.burst,
        grader: step.grader.clone(),
    })
}
