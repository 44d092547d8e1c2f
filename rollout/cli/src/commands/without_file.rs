//! A spec made of the command line: `run --harbor`.

use std::path::Path;

use rollout::plan::EnvironmentMode;
use rollout::text::shown;
use serde_json::Value;

use super::absolute;
use crate::args::{Harbor, OnUnsupported};
use crate::error::Error;
use crate::harbor::common_mode;
use crate::spec::Source;

/// The longest name of a job.
const NAME_CHARS_MAX: usize = 63;

/// The spec that the command line stands for.
pub(super) fn spec(dir: &Path, args: &Harbor) -> Result<Source, Error> {
    if let Some(url) = &args.model {
        return Err(Error::NoModels { url: shown(url, 200) });
    }
    let dir =
        std::fs::canonicalize(dir).map_err(|source| Error::ReadFile { path: dir.to_owned(), source })?;
    let path = dir.to_str().ok_or_else(|| Error::SpecNotText { path: dir.clone() })?;
    let agent = match args.agent.as_deref().unwrap_or_default() {
        "oracle" => "oracle".to_owned(),
        command => format!("[/bin/sh, -c, {}]", quoted(command)),
    };
    // Tasks that disagree are told one by one, as those of another mode.
    let mode = match common_mode(&dir)? {
        Some(EnvironmentMode::Separate) => ", environment_mode: separate",
        Some(EnvironmentMode::Shared) | None => "",
    };
    let unsupported = match args.on_unsupported {
        OnUnsupported::Error => "",
        OnUnsupported::Skip => ", on_unsupported: skip",
    };
    let mut lines = vec![
        "apiVersion: rollyard/v1".to_owned(),
        "kind: RolloutJob".to_owned(),
        format!("name: {}", quoted(&name(&dir))),
        format!("tasks: {{from: {{harbor: {}, agent: {agent}{mode}}}{unsupported}}}", quoted(path)),
        format!("group: {{size: {}}}", args.samples),
    ];
    if let Some(image) = &args.image {
        lines.push(format!("defaults: {{image: {}}}", quoted(image)));
    }
    Ok(Source { name: "--harbor".to_owned(), text: lines.join("\n") + "\n", dir: absolute(Path::new("."))? })
}

/// The document with the steps that it is given if it has none.
pub(super) fn whole(text: &str) -> String {
    let mut whole = rollout::spec::with_generated_steps(text).unwrap_or_else(|| text.to_owned());
    if !whole.ends_with('\n') {
        whole.push('\n');
    }
    whole
}

/// A name of a job out of that of the directory.
fn name(dir: &Path) -> String {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(plain).take(NAME_CHARS_MAX).collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "harbor".to_owned() } else { name.to_owned() }
}

/// A YAML text between double quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
