//! The task rows of a spec, checked where they lie: read once, a row at a time, and not kept. A
//! column that is missing is told once, however many rows lack it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

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
    /// As the spec writes it.
    path: PathBuf,
    lines: u64,
    problems: u64,
    /// At most as many as the spec looks up.
    missing: Vec<Missing>,
    /// By line; at most [`ROW_FINDINGS_MAX`], and one that counts the rest.
    pub findings: Vec<Finding>,
}

/// A column that the spec looks up and some rows do not have.
#[derive(Debug)]
struct Missing {
    column: String,
    rows: u64,
    first_line: u64,
    /// In the first of these rows.
    nearest: Option<String>,
}

/// Checks the rows of a JSONL file; inline rows were checked with the spec.
pub fn check(plan: &JobPlan, source: &Source) -> Result<Rows, Error> {
    let path = match &plan.tasks.source {
        TaskSource::Inline(rows) => return Ok(Rows::new(Path::new(""), rows.len() as u64)),
        TaskSource::Jsonl { path } => Path::new(path),
    };
    let mut rows = Rows::new(path, 0);
    let mut ids = Ids::default();
    let scanned = datasets::tasks::scan(&source.dir.join(path), |line, row| {
        rows.lines = line;
        match row {
            Ok(row) => rows.check_row(plan, line, &row, &mut ids),
            Err(error) => rows.note(line, Code::RowBadValue, "", crate::error::chain(&error), None),
        }
    });
    scanned.map_err(|source| Error::Rows { path: path.to_owned(), source })?;
    rows.tell_missing();
    rows.count_the_rest();
    Ok(rows)
}

impl Rows {
    fn new(path: &Path, lines: u64) -> Self {
        Self { path: path.to_owned(), lines, problems: 0, missing: Vec::new(), findings: Vec::new() }
    }

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
        for problem in resolve::row_problems(plan, index, row) {
            let message = crate::error::chain(&problem);
            let RowProblem { column, code, nearest, .. } = problem;
            match column {
                Some(column) if code == Code::RowMissingColumn => self.count_missing(column, line, nearest),
                column => {
                    let path = column.map_or_else(String::new, |column| format!("row.{column}"));
                    self.note(line, code, &path, message, nearest);
                }
            }
        }
        // Without `tasks.id` ids are row numbers: they cannot repeat.
        if plan.tasks.id.is_none() {
            return;
        }
        // An id that cannot be made was told above.
        let Ok(id) = resolve::task_id(plan, index, row) else { return };
        if let Some(first) = ids.first(&id, line) {
            let id = shown(&id, 64);
            let message = format!("row {index} has the task id `{id}`, as the row of line {first} has");
            self.note(line, Code::DuplicateTask, "tasks.id", message, None);
        }
    }

    fn count_missing(&mut self, column: String, line: u64, nearest: Option<String>) {
        match self.missing.iter_mut().find(|missing| missing.column == column) {
            Some(missing) => missing.rows += 1,
            None => self.missing.push(Missing { column, rows: 1, first_line: line, nearest }),
        }
    }

    /// Once all rows were seen.
    fn tell_missing(&mut self) {
        let noted = std::mem::take(&mut self.findings);
        for Missing { column, rows, first_line, nearest } in std::mem::take(&mut self.missing) {
            let first = if rows == 1 { "on" } else { "first on" };
            let of = if self.lines == 1 { "row" } else { "rows" };
            let message = format!(
                "column `{column}` is missing in {rows} of {} {of}, {first} line {first_line}",
                self.lines
            );
            self.note(first_line, Code::RowMissingColumn, &format!("row.{column}"), message, nearest);
        }
        self.findings.extend(noted);
        self.findings.sort_by_key(|finding| finding.line);
        self.findings.truncate(ROW_FINDINGS_MAX);
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
