//! How much clients may have open at once. What is past a bound is refused by the bound's name.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ApiCode, ApiError};

/// Uploads of client files at once.
pub const UPLOADS_MAX: usize = 64;
/// Followed jobs, followed or read logs and read outputs at once.
pub const STREAMS_MAX: usize = 2_048;
/// Specs checked at once: checking a large one keeps a processor busy.
const CHECKS_MAX: usize = 2;

/// Cheap to clone: clones share the places.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    uploads: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    /// How long a client may send or take nothing.
    pub client_stall: Duration,
}

impl Limits {
    pub(crate) fn new(client_stall: Duration) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            uploads: places(UPLOADS_MAX),
            streams: places(STREAMS_MAX),
            checks: places(CHECKS_MAX),
            client_stall,
        }
    }

    pub(super) fn upload(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.uploads.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{UPLOADS_MAX} uploads are open, the most at once");
            ApiError::new(ApiCode::TooManyUploads, message).hint("try again when some have ended")
        })
    }

    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{STREAMS_MAX} watched jobs, logs and outputs are open, the most at once");
            ApiError::new(ApiCode::TooManyStreams, message).hint("close some, or ask without following")
        })
    }

    /// Waits for a turn to check a spec.
    pub(super) async fn check(&self) -> Option<OwnedSemaphorePermit> {
        self.checks.clone().acquire_owned().await.ok()
    }

    /// A client that neither sent nor took anything.
    pub(super) fn too_slow(&self, what: &str) -> ApiError {
        let message = format!("{what} for {} s", self.client_stall.as_secs_f64());
        ApiError::new(ApiCode::ClientTooSlow, message).hint("start again; nothing half done was kept")
    }
}
