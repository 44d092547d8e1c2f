use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no sealed table is at {}", path.display())]
    NoTables { path: PathBuf },
    #[error("{} is there already", path.display())]
    OutputExists { path: PathBuf },
    #[error("another export writes to {}", path.display())]
    OutputBusy { path: PathBuf },
    #[error("the table cannot be read")]
    CannotRead {
        #[source]
        source: crate::Error,
    },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write the rows to {}", path.display())]
    Encode {
        path: PathBuf,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// Every code; docs/errors.md has a paragraph for each.
    pub const CODES: [&'static str; 5] =
        ["no_tables", "output_exists", "output_busy", "table_unreadable", "export_failed"];

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoTables { .. } => "no_tables",
            Self::OutputExists { .. } => "output_exists",
            Self::OutputBusy { .. } => "output_busy",
            Self::CannotRead { .. } => "table_unreadable",
            Self::Io { .. } | Self::Encode { .. } => "export_failed",
        }
    }

    /// What to do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoTables { .. } => {
                Some("name the folder of a job, such as out/JOB, or one table in it, such as out/JOB/steps")
            }
            Self::OutputExists { .. } => Some("choose another --out, or replace it with --overwrite"),
            Self::OutputBusy { .. } => Some("wait for it, or choose another --out"),
            _ => None,
        }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
