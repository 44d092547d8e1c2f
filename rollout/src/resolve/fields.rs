//! Each field of a step with its lookups done, checked as the spec checks a written one.

use super::*;

pub(super) fn image(names: &Names<'_>, step: &StepPlan) -> Result<String, ResolveError> {
    let image = names.expand(&step.image)?;
    spec::check_image(&image).map_err(|mismatch| bad(step, "image", mismatch.message, mismatch.expected))?;
    Ok(image)
}

pub(super) fn layers(names: &Names<'_>, step: &StepPlan) -> Result<Vec<String>, ResolveError> {
    let layer = |(position, layer)| {
        let text = names.expand(layer)?;
        spec::check_layer(&text).map_err(|mismatch| {
            bad(step, &format!("layers[{position}]"), mismatch.message, mismatch.expected)
        })?;
        Ok(text)
    };
    step.layers.iter().enumerate().map(layer).collect()
}

/// None: there is no such field, or the column is null.
pub(super) fn health_check(names: &Names<'_>, step: &StepPlan) -> Result<Option<HealthCheck>, ResolveError> {
    let Some(column) = &step.health_check else { return Ok(None) };
    let (found, shown_column) = names.column(column);
    let wrong = |problem: String| {
        let expected = "null, or an object with `command`, `interval_ms`, `timeout_ms`, `start_period_ms`, \
                        `start_interval_ms` and `retries`";
        bad(step, "health_check", format!("column `{shown_column}` holds {problem}"), expected)
    };
    let check = match found {
        None => return Err(ResolveError::MissingColumn { column: shown_column }),
        Some(Value::Null) => return Ok(None),
        Some(value) => HealthCheck::deserialize(value)
            .map_err(|error| wrong(format!("no health check: {}", shown(&error.to_string(), 200))))?,
    };
    match check.command.len() {
        0 => Err(wrong("a health check without a command".to_owned())),
        bytes if bytes > spec::SHELL_BYTES_MAX => {
            Err(wrong(format!("a command of {bytes} bytes, at most {}", spec::SHELL_BYTES_MAX)))
        }
        _ if check.retries == 0 => Err(wrong("a health check without a try".to_owned())),
        _ => Ok(Some(check)),
    }
}

/// An output with its paths looked up.
pub(super) fn declared(
    names: &Names<'_>,
    step: &StepPlan,
    output: &OutputDecl<SourcePlan>,
) -> Result<OutputDecl, ResolveError> {
    let field = format!("outputs.{}.paths", output.name);
    let checked = |path: String| {
        spec::check_path(&path, true)
            .map_err(|mismatch| bad(step, &field, mismatch.message, mismatch.expected))?;
        Ok(path)
    };
    let source = match &output.source {
        SourcePlan::Fixed(source) => source.clone(),
        SourcePlan::Paths(paths) => {
            let paths = paths.iter().map(|path| checked(names.expand(path)?));
            OutputSource::Paths(paths.collect::<Result<_, ResolveError>>()?)
        }
        SourcePlan::PathsOf(column) => {
            let (found, shown_column) = names.column(column);
            let items = match found {
                None => return Err(ResolveError::MissingColumn { column: shown_column }),
                Some(Value::Array(items)) if items.len() <= OUTPUT_PATHS_MAX => items,
                Some(_) => {
                    let problem = format!("column `{shown_column}` holds no list");
                    let expected = format!("a list of at most {OUTPUT_PATHS_MAX} paths (OUTPUT_PATHS_MAX)");
                    return Err(bad(step, &field, problem, expected));
                }
            };
            let path = |item: &Value| match item {
                Value::String(path) => checked(path.clone()),
                _ => {
                    let problem = format!("column `{shown_column}` holds an item that is no text");
                    Err(bad(step, &field, problem, "a list of absolute paths"))
                }
            };
            OutputSource::Paths(items.iter().map(path).collect::<Result<_, _>>()?)
        }
    };
    let OutputDecl { name, media_type, max_bytes, .. } = output;
    Ok(OutputDecl { name: name.clone(), source, media_type: media_type.clone(), max_bytes: *max_bytes })
}

/// Text of a field with a grammar of its own.
pub(super) fn checked(
    names: &Names<'_>,
    step: &StepPlan,
    field: &str,
    template: &Template,
) -> Result<String, ResolveError> {
    let text = names.expand(template)?;
    if template.as_literal().is_none() {
        spec::check_step_field(field, &text)
            .map_err(|mismatch| bad(step, field, mismatch.message, mismatch.expected))?;
    }
    Ok(text)
}

pub(super) fn time(
    names: &Names<'_>,
    step: &StepPlan,
    name: &str,
    field: &Field<Millis>,
) -> Result<Millis, ResolveError> {
    let template = match field {
        Field::Fixed(time) => return Ok(*time),
        Field::PerRow(template) => template,
    };
    let text = names.expand(template)?;
    spec::check_step_field(name, &text)
        .map_err(|mismatch| bad(step, name, mismatch.message, mismatch.expected))?;
    text.parse().map_err(|quantity: crate::quantity::BadQuantity| {
        bad(step, name, format!("`{}` is not a {}", quantity.shown, quantity.kind), quantity.expected)
    })
}

pub(super) fn arguments(
    names: &Names<'_>,
    step: &StepPlan,
    faults: &mut Faults,
) -> Result<(ResolvedWork, BTreeMap<String, String>), ResolveError> {
    let mut env = match &step.env_column {
        None => BTreeMap::new(),
        Some(column) => faults.take(names.variables(step, column), BTreeMap::new())?,
    };
    let mut total = 0;
    let mut expand = |field: String, template: &Template| {
        let text = faults.take(argument(names, step, &field, template), WRONG.to_owned())?;
        total += text.len();
        Ok(text)
    };
    let work = match &step.work {
        WorkPlan::Session(session) => ResolvedWork::Session(*session),
        WorkPlan::Command(CommandPlan::Shell(text)) => {
            ResolvedWork::Command(ResolvedCommand::Shell(text.clone()))
        }
        WorkPlan::Command(CommandPlan::Argv(arguments)) => {
            let arguments = arguments.iter().enumerate();
            let expanded =
                arguments.map(|(position, argument)| expand(format!("agent.command[{position}]"), argument));
            ResolvedWork::Command(ResolvedCommand::Argv(expanded.collect::<Result<_, _>>()?))
        }
    };
    for (key, value) in &step.env {
        env.insert(key.clone(), expand(format!("env.{key}"), value)?);
    }
    total += env
        .iter()
        .filter(|(key, _)| !step.env.contains_key(*key))
        .map(|(_, value)| value.len())
        .sum::<usize>();
    if env.len() > spec::ENV_MAX {
        let problem = format!("has {} variables", env.len());
        faults.pass(bad(step, "env", problem, format!("at most {} (ENV_MAX)", spec::ENV_MAX)))?;
    }
    if total > spec::ARGUMENTS_BYTES_MAX {
        let field = format!("{}: command and env", step.name);
        faults.pass(ResolveError::TooLong { field, bytes: total, limit: spec::ARGUMENTS_BYTES_MAX })?;
    }
    if let Some(ResolvedCommand::Argv(arguments)) = work.command()
        && arguments.first().is_none_or(String::is_empty)
    {
        faults.pass(bad(step, "agent.command[0]", "is empty".to_owned(), "a program"))?;
    }
    Ok((work, env))
}

fn argument(
    names: &Names<'_>,
    step: &StepPlan,
    field: &str,
    template: &Template,
) -> Result<String, ResolveError> {
    let text = names.expand(template)?;
    if text.len() > spec::ARGUMENT_BYTES_MAX {
        let field = field_of(step, field);
        return Err(ResolveError::TooLong { field, bytes: text.len(), limit: spec::ARGUMENT_BYTES_MAX });
    }
    if text.contains('\0') {
        return Err(bad(step, field, "holds a NUL character".to_owned(), "text without NUL characters"));
    }
    Ok(text)
}

pub(super) fn files(
    names: &Names<'_>,
    step: &StepPlan,
    client_files: Option<&BTreeMap<String, String>>,
    faults: &mut Faults,
) -> Result<Vec<ResolvedFile>, ResolveError> {
    let mut total = 0;
    let mut files = Vec::with_capacity(step.files.len());
    for (position, file) in step.files.iter().enumerate() {
        let path = faults.take(path(names, step, position, &file.path), WRONG.to_owned())?;
        let content = match &file.content {
            FileContent::Text(template) => {
                let text = faults.take(content(names, step, position, template), String::new())?;
                total += text.len();
                ResolvedContent::Text(text)
            }
            FileContent::Client { path } => match client_files {
                // A check of rows: which blob it is makes no difference.
                None => ResolvedContent::Blob(String::new()),
                Some(known) => ResolvedContent::Blob(known.get(path).cloned().ok_or_else(|| {
                    ResolveError::MissingFile { step: step.name.clone(), path: shown(path, 256) }
                })?),
            },
        };
        files.push(ResolvedFile { path, content, mode: file.mode });
    }
    if total > spec::FILES_BYTES_MAX {
        let field = field_of(step, "files");
        faults.pass(ResolveError::TooLong { field, bytes: total, limit: spec::FILES_BYTES_MAX })?;
    }
    Ok(files)
}

fn path(
    names: &Names<'_>,
    step: &StepPlan,
    position: usize,
    template: &Template,
) -> Result<String, ResolveError> {
    let path = names.expand(template)?;
    spec::check_path(&path, true).map_err(|mismatch| {
        bad(step, &format!("files[{position}].path"), mismatch.message, mismatch.expected)
    })?;
    Ok(path)
}

fn content(
    names: &Names<'_>,
    step: &StepPlan,
    position: usize,
    template: &Template,
) -> Result<String, ResolveError> {
    let text = names.expand(template)?;
    if text.len() > spec::FILE_BYTES_MAX {
        let field = field_of(step, &format!("files[{position}].content"));
        return Err(ResolveError::TooLong { field, bytes: text.len(), limit: spec::FILE_BYTES_MAX });
    }
    Ok(text)
}
