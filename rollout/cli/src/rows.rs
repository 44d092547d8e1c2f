//! The task rows of a spec, checked where they lie: read once, a row at a time, and not kept.

use std::collections::HashMap;
use std::path::PathBuf;

use rollout::plan::{JobPlan, TaskSource};
use rollout::resolve::{self, RowProblem};
use rollout::spec::{DiagnosticCode as Code, Severity};
use rollout::text::shown;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::spec::{Finding, Source};

/// The most problems of rows that are listed at once; one more says how many there are.
pub const ROW_FINDINGS_MAX: usize = 20;

/// What was found in the rows of a valid spec.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    lines: u64,
    problems: u64,
    /// At most [`ROW_FINDINGS_MAX`], and one that counts the rest.
    pub findings: Vec<Finding>,
}

/// Checks the rows of a JSONL file; inline rows were checked with the spec.
pub fn check(plan: &JobPlan, source: &Source) -> Result<Rows, Error> {
    let path = match &plan.tasks.source {
        TaskSource::Inline(rows) => {
            let lines = rows.len() as u64;
            return Ok(Rows { path: PathBuf::new(), lines, problems: 0, findings: Vec::new() });
        }
        TaskSource::Jsonl { path } => source.dir.join(path),
    };
    let mut rows = Rows { path, lines: 0, problems: 0, findings: Vec::new() };
    let mut ids = Ids::default();
    let path = rows.path.clone();
    let scanned = datasets::tasks::scan(&path, |line, row| {
        rows.lines = line;
        match row {
            Ok(row) => rows.check_row(plan, line, &row, &mut ids),
            Err(error) => rows.note(line, Code::RowBadValue, "", crate::error::chain(&error), None),
        }
    });
    scanned.map_err(|source| Error::Rows { path, source })?;
    rows.count_the_rest();
    Ok(rows)
}

impl Rows {
    /// How many rows there are.
    ///
    /// # Errors
    /// Some row has a problem.
    pub fn count(self) -> Result<u64, Error> {
        match self.problems {
            0 => Ok(self.lines),
            errors => Err(Error::BadRows { path: self.path, errors }),
        }
    }

    /// For people.
    pub fn rendered(&self) -> String {
        rollout::spec::render(&self.findings, "")
    }

    fn check_row(&mut self, plan: &JobPlan, line: u64, row: &Map<String, Value>, ids: &mut Ids) {
        let index = line - 1;
        let problems = resolve::row_problems(plan, index, row);
        for problem in &problems {
            let RowProblem { column, code, nearest, .. } = problem;
            let path = column.as_ref().map_or_else(String::new, |column| format!("row.{column}"));
            self.note(line, *code, &path, crate::error::chain(problem), nearest.clone());
        }
        // Without `tasks.id` ids are row numbers: they cannot repeat.
        if !problems.is_empty() || plan.tasks.id.is_none() {
            return;
        }
        let Ok(id) = resolve::task_id(plan, index, row) else { return };
        if let Some(first) = ids.first(&id, line) {
            let id = shown(&id, 64);
            let message = format!("row {index} has the task id `{id}`, as the row of line {first} has");
            self.note(line, Code::DuplicateTask, "tasks.id", message, None);
        }
    }

    fn note(&mut self, line: u64, code: Code, path: &str, message: String, nearest: Option<String>) {
        self.problems += 1;
        if self.findings.len() < ROW_FINDINGS_MAX {
            self.findings.push(Finding {
                code,
                severity: Severity::Error,
                file: self.path.to_string_lossy().into_owned(),
                line: u32::try_from(line).unwrap_or(u32::MAX),
                col: 1,
                path: path.to_owned(),
                message,
                expected: None,
                nearest,
                width: 1,
            });
        }
    }

    fn count_the_rest(&mut self) {
        let more = self.problems - self.findings.len() as u64;
        if let Some(last) = self.findings.last().filter(|_| more > 0) {
            let message =
                format!("and {more} more; the limit is {ROW_FINDINGS_MAX} at once (ROW_FINDINGS_MAX)");
            self.findings.push(Finding {
                code: Code::TooLarge,
                message,
                path: String::new(),
                nearest: None,
                ..last.clone()
            });
        }
    }
}

/// The line of each task id, under a part of its hash: 20 bytes a row, whatever the ids are.
#[derive(Debug, Default)]
struct Ids(HashMap<[u8; 16], u32>);

impl Ids {
    /// The line that had this id before.
    fn first(&mut self, id: &str, line: u64) -> Option<u32> {
        let mut key = [0; 16];
        key.copy_from_slice(&Sha256::digest(id.as_bytes())[..16]);
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        match *self.0.entry(key).or_insert(line) {
            first if first == line => None,
            first => Some(first),
        }
    }
}
