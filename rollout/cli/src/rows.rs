//! The task rows of a spec, checked where they lie: read once, a row at a time, and not kept. A
//! column that is missing is told once, however many rows lack it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use datasets::tasks::{Format, RowError};
use rollout::plan::{Filter, JobPlan, TaskSource};
use rollout::resolve::{self, RowProblem};
use rollout::selection::{Selection, WantedIds, missing_ids};
use rollout::spec::{DiagnosticCode as Code, Severity};
use rollout::text::shown;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::harbor::Tasks;
use crate::spec::{Finding, Source};

/// The most problems of rows that are listed at once; one more says how many there are.
pub const ROW_FINDINGS_MAX: usize = 20;

/// What was found in the rows of a valid spec.
#[derive(Debug)]
pub struct Rows {
    /// As the spec writes it.
    path: PathBuf,
    /// Those that run in one epoch.
    count: u64,
    problems: u64,
    /// At most as many as the spec looks up.
    missing: Vec<Missing>,
    /// By line; at most [`ROW_FINDINGS_MAX`], and one that counts the rest.
    pub findings: Vec<Finding>,
    /// What else is worth a word to people.
    pub notes: Vec<String>,
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

/// Checks the rows of a file that can run; inline rows were checked with the spec.
pub fn check(plan: &JobPlan, source: &Source) -> Result<Rows, Error> {
    let format = match &plan.tasks.source {
        TaskSource::Inline(rows) => {
            let mut chosen = Chosen::of(plan);
            for (index, row) in (0u64..).zip(rows) {
                chosen.takes(plan, index, row);
            }
            let mut found = Rows::new(Path::new(""));
            found.count = chosen.selection(rows.len()).len().into();
            return Ok(found);
        }
        TaskSource::Parquet { columns, .. } => Format::Parquet { columns: columns.as_deref() },
        TaskSource::Jsonl { .. } | TaskSource::Harbor { .. } => Format::Jsonl,
    };
    let path = Path::new(plan.tasks.source.path().unwrap_or_default());
    let mut checking = Checking::of(plan, path);
    if let Some(tasks) = Tasks::read(plan, source)? {
        checking.rows.add(tasks.faults());
        checking.rows.notes = tasks.notes();
        for (line, row) in (1..).zip(tasks.rows()) {
            checking.visit(line, Ok(row));
        }
    } else {
        let file = source.dir.join(path);
        let scanned = datasets::tasks::scan(&file, format, |line, row| checking.visit(line, row));
        scanned.map_err(|source| Error::Rows { path: path.to_owned(), source })?;
    }
    Ok(checking.end())
}

/// Rows while they are read.
struct Checking<'a> {
    plan: &'a JobPlan,
    rows: Rows,
    ids: Ids,
    chosen: Chosen<'a>,
    lines: u64,
}

impl<'a> Checking<'a> {
    fn of(plan: &'a JobPlan, path: &Path) -> Self {
        Self { plan, rows: Rows::new(path), ids: Ids::default(), chosen: Chosen::of(plan), lines: 0 }
    }

    fn visit(&mut self, line: u64, row: Result<Map<String, Value>, RowError>) {
        self.lines = line;
        match row {
            Ok(row) if self.chosen.takes(self.plan, line - 1, &row) => {
                self.rows.check_row(self.plan, line, &row, &mut self.ids);
            }
            Ok(_) => {}
            Err(error) => self.rows.note(line, Code::RowBadValue, "", crate::error::chain(&error), None),
        }
    }

    fn end(mut self) -> Rows {
        self.rows.tell_missing(self.lines);
        self.rows.count_the_rest();
        self.rows.close(&self.chosen, self.lines);
        self.rows
    }
}

/// The rows that `tasks.filter` lets some epoch run, while they are read.
struct Chosen<'a> {
    filter: &'a Filter,
    wanted: Option<WantedIds<'a>>,
    listed: Vec<u32>,
    /// Rows past `ids` so far.
    place: u64,
}

impl<'a> Chosen<'a> {
    fn of(plan: &'a JobPlan) -> Self {
        let filter = &plan.tasks.filter;
        Self { filter, wanted: WantedIds::of(filter), listed: Vec::new(), place: 0 }
    }

    /// Whether some epoch can run this row. One whose id cannot be told counts as chosen, so that
    /// what is wrong with it is said.
    fn takes(&mut self, plan: &JobPlan, index: u64, row: &Map<String, Value>) -> bool {
        if let Some(wanted) = &mut self.wanted
            && let Ok(id) = resolve::task_id(plan, index, row)
        {
            if !wanted.wants(&id) {
                return false;
            }
            self.listed.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        let place = self.place;
        self.place += 1;
        let Filter { shuffle_seed, offset, limit, .. } = self.filter;
        let end = limit.map_or(u64::MAX, |limit| offset.saturating_add(limit));
        shuffle_seed.is_some() || (*offset..end).contains(&place)
    }

    fn selection(&self, rows: usize) -> Selection {
        let listed = self.wanted.is_some().then(|| self.listed.clone());
        Selection::new(self.filter, u32::try_from(rows).unwrap_or(u32::MAX), listed)
    }
}

impl Rows {
    fn new(path: &Path) -> Self {
        let path = path.to_owned();
        Self { path, count: 0, problems: 0, missing: Vec::new(), findings: Vec::new(), notes: Vec::new() }
    }

    /// How many rows there are.
    ///
    /// # Errors
    /// Some row has a problem.
    pub fn count(self) -> Result<u64, Error> {
        match self.problems {
            0 => Ok(self.count),
            errors => Err(Error::BadRows { path: self.path, errors }),
        }
    }

    /// For people.
    pub fn rendered(&self) -> String {
        rollout::spec::render(&self.findings, "")
    }

    /// Once every row was seen: ids that none has, and whether any is left.
    fn close(&mut self, chosen: &Chosen<'_>, lines: u64) {
        let missing = chosen.wanted.as_ref().map(WantedIds::missing).unwrap_or_default();
        let selection = chosen.selection(usize::try_from(lines).unwrap_or(usize::MAX));
        self.count = selection.len().into();
        if !missing.is_empty() {
            self.note(1, Code::UnknownTask, "tasks.filter.ids", missing_ids(&missing), None);
        } else if self.problems == 0 && selection.is_empty() && *chosen.filter != Filter::default() {
            let message = format!("the filter leaves none of {lines} rows");
            self.note(1, Code::NoTaskLeft, "tasks.filter", message, None);
        }
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

    /// Once all `lines` were seen.
    fn tell_missing(&mut self, lines: u64) {
        let noted = std::mem::take(&mut self.findings);
        for Missing { column, rows, first_line, nearest } in std::mem::take(&mut self.missing) {
            let first = if rows == 1 { "on" } else { "first on" };
            let of = if lines == 1 { "row" } else { "rows" };
            let message =
                format!("column `{column}` is missing in {rows} of {lines} {of}, {first} line {first_line}");
            self.note(first_line, Code::RowMissingColumn, &format!("row.{column}"), message, nearest);
        }
        self.findings.extend(noted);
        self.findings.sort_by_key(|finding| finding.line);
        self.findings.truncate(ROW_FINDINGS_MAX);
    }

    fn add(&mut self, findings: Vec<Finding>) {
        self.problems += findings.len() as u64;
        self.findings.extend(findings);
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
        let more = self.problems.saturating_sub(self.findings.len() as u64);
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
