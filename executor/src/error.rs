use std::io;
use std::path::PathBuf;

/// What the executor cannot do at all. How an attempt ended is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two executors must never share a data directory. Code `data_dir_locked`.
    #[error("data_dir_locked: another executor uses {}", path.display())]
    DataDirLocked { path: PathBuf },
    #[error("cannot {action} {}", path.display())]
    DataDir {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the layers in {}", path.display())]
    Layers {
        path: PathBuf,
        #[source]
        source: Box<images::layers::Error>,
    },
    /// The socket that sandboxes are driven over. Its path has at most 107 bytes.
    #[error("cannot listen on {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Code `endpoint_refused`.
    #[error("endpoint_refused: `{shown}`: {problem}")]
    BadEndpoint { shown: String, problem: &'static str },
    /// When idle sandboxes were to go down early. Code `pressure_refused`.
    #[error("pressure_refused: {option} {shown}: {problem}")]
    BadPressure { option: &'static str, shown: String, problem: String },
    #[error("cannot measure {what}")]
    Measure {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the scheduler's endpoint cannot be used")]
    Endpoint(#[source] tonic::transport::Error),
    /// No sandbox can be made any more. Code `backend_ended`.
    #[error("backend_ended: no sandbox can be made any more: {reason}")]
    Backend { reason: String },
    #[error("the executor's task failed")]
    Task(#[source] tokio::task::JoinError),
}

impl Error {
    /// What to do about it, where something can be done.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::DataDirLocked { .. } => {
                Some("stop the other executor, or give this one another --data-dir")
            }
            Self::BadEndpoint { .. } => Some(
                "use unix:/absolute/path or http://127.0.0.1:port; other addresses wait for TLS and tokens",
            ),
            Self::BadPressure { .. } => Some(
                "let --pressure-low be at least the node's reserve, --pressure-ok above it, and both less than the machine's memory",
            ),
            Self::Listen { .. } => {
                Some("choose a --data-dir whose path is short enough for a socket in it (107 bytes)")
            }
            Self::Backend { .. } => {
                Some("start the executor again: it removes what was left and joins its yard as a new life")
            }
            _ => None,
        }
    }
}
