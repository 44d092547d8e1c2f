//! How much clients may have open at once. What is past a bound is refused by the bound's name.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{ApiCode, ApiError};

/// Uploads of client files at once.
pub const UPLOADS_MAX: usize = 64;
/// Followed jobs, followed or read logs and read outputs at once.
pub const STREAMS_MAX: usize = 2_048;
/// Specs checked at once: checking a large one keeps a processor busy.
const CHECKS_MAX: usize = 2;

/// What the body of a request must reach on average beyond its stall, in bytes a second: a drip does
/// not keep its place.
const SENT_BYTES_PER_SEC_MIN: u64 = 16 << 10;

/// Until when more of a request must have come: the client may pause for `stall`, and may be as slow as
/// [`SENT_BYTES_PER_SEC_MIN`] on the whole.
pub(crate) fn more_until(now: Instant, began_at: Instant, received: u64, stall: Duration) -> Instant {
    let earned = Duration::from_secs(received / SENT_BYTES_PER_SEC_MIN);
    (now + stall).min(began_at + stall + earned)
}

/// In words.
pub(crate) fn too_slow(stall: Duration) -> String {
    format!(
        "nothing of the request came for {} s, or less than {SENT_BYTES_PER_SEC_MIN} bytes a second of the whole",
        stall.as_secs_f64()
    )
}

/// Cheap to clone: clones share the places.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    uploads: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    /// How long a client may send nothing.
    pub client_stall: Duration,
    /// How long a reader may take nothing.
    pub reader_stall: Duration,
}

impl Limits {
    pub(crate) fn new(client_stall: Duration, reader_stall: Duration) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            uploads: places(UPLOADS_MAX),
            streams: places(STREAMS_MAX),
            checks: places(CHECKS_MAX),
            client_stall,
            reader_stall,
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

    /// A client that did not go on with what it sends.
    pub(super) fn too_slow(&self) -> ApiError {
        let message = too_slow(self.client_stall);
        ApiError::new(ApiCode::ClientTooSlow, message).hint("send it again; nothing half sent was kept")
    }

    /// A client that took nothing of a stream.
    pub(super) fn took_nothing(&self) -> ApiError {
        let message =
            format!("the client took nothing of the stream for {} s", self.reader_stall.as_secs_f64());
        ApiError::new(ApiCode::ClientTooSlow, message).hint("ask again; what it did not take is still there")
    }
}
