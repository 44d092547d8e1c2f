//! Task rows of a job: inline in its spec, or a file in the blob store; and which of them run.

use std::collections::BTreeMap;

use blobs::BlobStore;
use datasets::tasks::{Format, RowError, TaskFile};
use rollout::plan::{JobPlan, TaskSource};
use rollout::resolve::{self, ResolveError};
use rollout::selection::{Selection, WantedIds, missing_ids};
use serde_json::{Map, Value};

pub type Row = Map<String, Value>;

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("client file `{path}` was not sent with the spec")]
    NotSent { path: String },
    #[error("blob {sha256} of client file `{path}` is not in the store")]
    BlobMissing { path: String, sha256: String },
    #[error("cannot look for blob {sha256}")]
    Blob { sha256: String, source: Box<blobs::Error> },
    #[error("client file `{path}`")]
    File { path: String, source: RowError },
    #[error("there is no row {index}")]
    NoSuchRow { index: u32 },
    #[error("{rows} rows are more than a task set can have")]
    TooMany { rows: usize },
    #[error("the id of row {index}")]
    Id { index: u32, source: ResolveError },
    /// Of `tasks.filter.ids`.
    #[error("{missing}")]
    UnknownIds { missing: String },
}

impl RowsError {
    /// Reading again gives the same answer.
    pub const fn is_permanent(&self) -> bool {
        match self {
            Self::NotSent { .. }
            | Self::BlobMissing { .. }
            | Self::NoSuchRow { .. }
            | Self::TooMany { .. }
            | Self::Id { .. }
            | Self::UnknownIds { .. } => true,
            Self::Blob { .. } => false,
            Self::File { source, .. } => !matches!(source, RowError::Io { .. }),
        }
    }
}

/// The rows of one job.
#[derive(Debug)]
pub struct TaskRows {
    source: Source,
    selection: Selection,
}

#[derive(Debug)]
enum Source {
    /// They are in the plan.
    Inline,
    File {
        path: String,
        file: Box<TaskFile>,
    },
}

impl TaskRows {
    /// Opens and checks the rows, and finds those that run. Blocks on the disk.
    pub fn open(
        plan: &JobPlan,
        files: &BTreeMap<String, String>,
        blobs: &BlobStore,
    ) -> Result<Self, RowsError> {
        let source = Source::open(plan, files, blobs)?;
        let selection = source.select(plan)?;
        Ok(Self { source, selection })
    }

    /// Which rows run, and in which order.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Rows of a file, whether or not they run: each has its place in an index.
    pub fn indexed(&self) -> usize {
        match &self.source {
            Source::Inline => 0,
            Source::File { file, .. } => file.len(),
        }
    }

    /// Row `index` of the task set, whether or not it runs. Blocks on the disk.
    pub fn row(&self, plan: &JobPlan, index: u32) -> Result<Row, RowsError> {
        self.source.row(plan, index)
    }
}

impl Source {
    fn open(plan: &JobPlan, files: &BTreeMap<String, String>, blobs: &BlobStore) -> Result<Self, RowsError> {
        let Some(path) = plan.tasks.source.path().map(str::to_owned) else { return Ok(Self::Inline) };
        let format = match &plan.tasks.source {
            TaskSource::Parquet { columns, .. } => Format::Parquet { columns: columns.as_deref() },
            TaskSource::Jsonl { .. } | TaskSource::Harbor { .. } | TaskSource::Inline(_) => Format::Jsonl,
        };
        let Some(sha256) = files.get(&path) else { return Err(RowsError::NotSent { path }) };
        // Called on a thread that may block. What is opened stays open, whatever becomes of a copy.
        let found = tokio::runtime::Handle::current().block_on(blobs.local_copy(sha256));
        let found =
            found.map_err(|source| RowsError::Blob { sha256: sha256.clone(), source: Box::new(source) })?;
        let Some(found) = found else {
            return Err(RowsError::BlobMissing { path, sha256: sha256.clone() });
        };
        match TaskFile::open(found.path(), format) {
            Ok(file) => Ok(Self::File { path, file: Box::new(file) }),
            Err(source) => Err(RowsError::File { path, source }),
        }
    }

    fn len(&self, plan: &JobPlan) -> usize {
        match (self, &plan.tasks.source) {
            (Self::File { file, .. }, _) => file.len(),
            (Self::Inline, TaskSource::Inline(rows)) => rows.len(),
            (Self::Inline, _) => 0,
        }
    }

    fn row(&self, plan: &JobPlan, index: u32) -> Result<Row, RowsError> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        match (self, &plan.tasks.source) {
            (Self::File { path, file }, _) => {
                file.row(at).map_err(|source| RowsError::File { path: path.clone(), source })
            }
            (Self::Inline, TaskSource::Inline(rows)) => {
                rows.get(at).cloned().ok_or(RowsError::NoSuchRow { index })
            }
            (Self::Inline, _) => Err(RowsError::NoSuchRow { index }),
        }
    }

    /// Reads the rows once more if the filter names ids.
    fn select(&self, plan: &JobPlan) -> Result<Selection, RowsError> {
        let len = self.len(plan);
        let rows = u32::try_from(len).map_err(|_| RowsError::TooMany { rows: len })?;
        let filter = &plan.tasks.filter;
        let Some(mut wanted) = WantedIds::of(filter) else {
            return Ok(Selection::new(filter, rows, None));
        };
        let mut listed = Vec::new();
        for index in 0..rows {
            let row = if plan.tasks.id.is_some() { self.row(plan, index)? } else { Row::new() };
            let id = resolve::task_id(plan, u64::from(index), &row)
                .map_err(|source| RowsError::Id { index, source })?;
            if wanted.wants(&id) {
                listed.push(index);
            }
        }
        match wanted.missing().as_slice() {
            [] => Ok(Selection::new(filter, rows, Some(listed))),
            missing => Err(RowsError::UnknownIds { missing: missing_ids(missing) }),
        }
    }
}
