//! Task rows of a job: inline in its spec, or a file in the blob store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use blobs::BlobStore;
use datasets::tasks::{JsonlFile, RowError};
use rollout::plan::{JobPlan, TaskSource};
use serde_json::{Map, Value};

pub type Row = Map<String, Value>;

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("client file `{path}` was not sent with the spec")]
    NotSent { path: String },
    #[error("blob {sha256} of client file `{path}` is not in the store")]
    BlobMissing { path: String, sha256: String },
    #[error("cannot look for blob {sha256}")]
    Blob { sha256: String, source: blobs::Error },
    #[error("client file `{path}`")]
    File { path: String, source: RowError },
    #[error("there is no row {index}")]
    NoSuchRow { index: u32 },
}

impl RowsError {
    /// Reading again gives the same answer.
    pub const fn is_permanent(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::BlobMissing { .. } | Self::NoSuchRow { .. } => true,
            Self::Blob { .. } => false,
            Self::File { source, .. } => !matches!(source, RowError::Io { .. }),
        }
    }
}

#[derive(Debug)]
pub enum TaskRows {
    /// They are in the plan.
    Inline,
    Jsonl {
        path: String,
        file: JsonlFile,
    },
}

impl TaskRows {
    /// Opens and checks the rows. Blocks on the disk.
    pub fn open(
        plan: &JobPlan,
        files: &BTreeMap<String, String>,
        blobs: &BlobStore,
    ) -> Result<Self, RowsError> {
        let path = match &plan.tasks.source {
            TaskSource::Inline(_) => return Ok(Self::Inline),
            TaskSource::Jsonl { path } => path.clone(),
        };
        let Some(sha256) = files.get(&path) else { return Err(RowsError::NotSent { path }) };
        let found: Option<PathBuf> =
            blobs.local_path(sha256).map_err(|source| RowsError::Blob { sha256: sha256.clone(), source })?;
        let Some(found) = found else {
            return Err(RowsError::BlobMissing { path, sha256: sha256.clone() });
        };
        match JsonlFile::open(&found) {
            Ok(file) => Ok(Self::Jsonl { path, file }),
            Err(source) => Err(RowsError::File { path, source }),
        }
    }

    pub fn len(&self, plan: &JobPlan) -> usize {
        match (self, &plan.tasks.source) {
            (Self::Jsonl { file, .. }, _) => file.len(),
            (Self::Inline, TaskSource::Inline(rows)) => rows.len(),
            (Self::Inline, TaskSource::Jsonl { .. }) => 0,
        }
    }

    /// Row `index` of the task set. Blocks on the disk.
    pub fn row(&self, plan: &JobPlan, index: u32) -> Result<Row, RowsError> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        match (self, &plan.tasks.source) {
            (Self::Jsonl { path, file }, _) => {
                file.row(at).map_err(|source| RowsError::File { path: path.clone(), source })
            }
            (Self::Inline, TaskSource::Inline(rows)) => {
                rows.get(at).cloned().ok_or(RowsError::NoSuchRow { index })
            }
            (Self::Inline, TaskSource::Jsonl { .. }) => Err(RowsError::NoSuchRow { index }),
        }
    }
}
