//! A spec on the client's side: read it, check it, find its files, say where its tables go.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use rollout::Timestamp;
use rollout::plan::{JobPlan, Piece, Template};
use rollout::schedule::ScheduleDescription;
pub use rollout::spec::Diagnostic as Finding;
use rollout::spec::{Description, Severity, TEXT_BYTES_MAX};
use rollout::text::shown;
use serde::Serialize;

use crate::client::YardUrl;
use crate::commands::absolute;
use crate::error::Error;

/// Where tables go if neither the spec nor `--table` says it and the yard is on this machine.
const DEFAULT_TABLE: &str = "out";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// As given, for messages.
    pub name: String,
    pub text: String,
    /// What relative paths in it start from.
    pub dir: PathBuf,
}

impl Source {
    pub fn shown(&self) -> String {
        shown(&self.name, 200)
    }
}

/// Reads a file, or standard input for `-`.
pub fn read(path: &Path) -> Result<Source, Error> {
    let failed = |source| Error::ReadFile { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // One byte above the bound tells a spec that is too large from one that just fits.
    let limit = TEXT_BYTES_MAX as u64 + 1;
    let stdin = path == Path::new("-");
    if stdin {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(failed)?;
    }
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Error::SpecTooLarge { path: path.to_owned(), limit: TEXT_BYTES_MAX });
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::SpecNotText { path: path.to_owned() })?;
    let dir = if stdin { None } else { path.parent() }.unwrap_or(Path::new(""));
    let dir = absolute(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?;
    let name = if stdin { "stdin".to_owned() } else { path.to_string_lossy().into_owned() };
    Ok(Source { name, text, dir })
}

#[derive(Debug)]
pub struct Checked {
    plan: Option<JobPlan>,
    pub findings: Vec<Finding>,
    /// For people: position, snippet, what to write instead.
    pub rendered: String,
}

pub fn check(source: &Source) -> Checked {
    let checked = rollout::spec::check(&source.text, &source.name);
    let rendered = checked.render(&source.text);
    Checked { plan: checked.plan, findings: checked.diagnostics, rendered }
}

impl Checked {
    /// The plan, unless a finding forbids it.
    pub fn plan(&self, deny_warnings: bool) -> Result<&JobPlan, Error> {
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        let warnings = self.findings.len() - errors;
        match &self.plan {
            Some(plan) if errors == 0 => {
                if deny_warnings && warnings > 0 {
                    Err(Error::Warnings { warnings })
                } else {
                    Ok(plan)
                }
            }
            _ => Err(Error::BadSpec { errors }),
        }
    }
}

pub fn client_files(plan: &JobPlan) -> Vec<String> {
    rollout::spec::client_files(plan).into_iter().map(str::to_owned).collect()
}

/// Absolute path or URL of the tables; empty where only the yard can know it, since the spec looks
/// something up.
pub fn table_root(plan: &JobPlan, table: Option<&Path>, yard: &YardUrl) -> Result<String, Error> {
    let relative = |path: &Path| {
        if !yard.on_this_machine() {
            return Err(Error::OutputRelative { table: path.display().to_string(), yard: yard.to_string() });
        }
        Ok(resolved(path)?.display().to_string())
    };
    if let Some(table) = table {
        return if table.is_absolute() { Ok(table.display().to_string()) } else { relative(table) };
    }
    let Some(template) = &plan.output.table else {
        return relative(Path::new(DEFAULT_TABLE));
    };
    match template.as_literal() {
        Some(text) if is_absolute(text) => Ok(text.to_owned()),
        Some(text) => relative(Path::new(text)),
        None if matches!(template.0.first(), Some(Piece::Literal(text)) if is_absolute(text)) => {
            Ok(String::new())
        }
        None => Err(Error::OutputLookup { table: written(template) }),
    }
}

/// `path` as an absolute path without `.`, `..` and symlinks, as far as it exists. The same folder
/// always gets the same name, by which an unfinished job is found again.
fn resolved(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::ReadFile { path: path.to_owned(), source };
    let whole = absolute(path)?;
    let mut real = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::Normal(name) => real.push(name),
            Component::ParentDir => _ = real.pop(),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => continue,
        }
        match std::fs::canonicalize(&real) {
            Ok(found) => real = found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(real)
}

fn is_absolute(table: &str) -> bool {
    let scheme = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    table.starts_with('/') || table.split_once("://").is_some_and(|(before, _)| scheme(before))
}

/// A template as it was written.
fn written(template: &Template) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(text) => text.clone(),
        Piece::Lookup(path) => format!("${{{}}}", path.join(".")),
    };
    template.0.iter().map(piece).collect()
}

/// What `submit --dry-run` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DryRun {
    #[serde(flatten)]
    pub plan: Description,
    /// When a yard would run it; none: once, now.
    pub schedule: Option<ScheduleDescription>,
    pub warnings: Vec<Finding>,
}

impl DryRun {
    pub fn of(plan: &JobPlan, rows: u64, checked: &Checked, now: Timestamp) -> Self {
        Self {
            plan: rollout::spec::describe(plan, rows),
            schedule: plan.schedule.as_ref().map(|schedule| schedule.describe(now)),
            warnings: checked.findings.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(table: &str) -> JobPlan {
        let hello = include_str!("../../../docs/examples/hello.yaml");
        let text = hello.replace("output: {table: ./out}", table);
        check(&Source { name: "test".into(), text, dir: PathBuf::new() }).plan.expect("a valid spec")
    }

    #[test]
    fn a_table_is_absolute_before_it_leaves() {
        let here = std::env::current_dir().and_then(|dir| dir.canonicalize()).expect("a directory");
        let here = |rest: &str| Some(here.join(rest).display().to_string());
        let local = YardUrl::Unix("/y".into());
        for (written, flag, expected) in [
            ("", None, here("out")),
            ("output: {table: ./a/../b}", None, here("b")),
            ("output: {table: /data/t}", None, Some("/data/t".to_owned())),
            ("output: {table: '/data/${job.id}'}", None, Some(String::new())),
            ("output: {table: 'data/${job.id}'}", None, None),
            ("output: {table: /data/t}", Some("mine"), here("mine")),
            ("output: {table: 'data/${job.id}'}", Some("/mine"), Some("/mine".to_owned())),
        ] {
            let got = table_root(&plan(written), flag.map(Path::new), &local);
            assert_eq!(got.ok(), expected, "{written} {flag:?}");
        }
    }

    #[test]
    fn a_yard_elsewhere_gets_no_relative_table() {
        let far = YardUrl::Http("http://127.0.0.1:1".into());
        for (written, flag) in
            [("", None), ("output: {table: ./a}", None), ("output: {table: /a}", Some("b"))]
        {
            let error = table_root(&plan(written), flag.map(Path::new), &far).expect_err(written);
            assert_eq!(error.code(), "output_relative", "{written}");
        }
        assert_eq!(table_root(&plan("output: {table: /a}"), None, &far).ok().as_deref(), Some("/a"));
    }

    #[test]
    fn a_link_and_its_target_are_one_table() {
        let dir = tempfile::tempdir().expect("a directory");
        let real = dir.path().canonicalize().expect("a path").join("real");
        std::fs::create_dir(&real).expect("made");
        std::os::unix::fs::symlink("real", dir.path().join("link")).expect("made");
        let resolve = |path: &str| resolved(&dir.path().join(path)).expect("resolved");
        assert_eq!(resolve("link/new/table"), real.join("new/table"));
        assert_eq!(resolve("link/../real/./new"), real.join("new"));
    }
}
