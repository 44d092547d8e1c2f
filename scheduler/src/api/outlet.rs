//! The sending end of an answer that goes on: bounded, with a place kept for how it ends, and
//! given up when the client takes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{ApiError, JobsService, Stream};

/// The client closed its stream, or takes nothing.
pub(super) struct Gone;

#[derive(Debug)]
pub(super) struct Outlet<T> {
    sender: mpsc::Sender<Result<T, Status>>,
    last: mpsc::OwnedPermit<Result<T, Status>>,
    stall: Duration,
    stalled: Arc<AtomicBool>,
    _place: OwnedSemaphorePermit,
}

impl<T: Send + 'static> Outlet<T> {
    /// A stream of which at most `messages_max` wait for the client.
    pub(super) fn open(service: &JobsService, messages_max: usize) -> Result<(Self, Stream<T>), ApiError> {
        let place = service.limits.stream()?;
        let (sender, stream) = mpsc::channel(messages_max + 1);
        let last = sender.clone().try_reserve_owned().map_err(|_| ApiError::from(crate::inbox::Stopping))?;
        let stall = service.limits.reader_stall;
        let outlet = Self { sender, last, stall, stalled: Arc::default(), _place: place };
        Ok((outlet, ReceiverStream::new(stream)))
    }

    pub(super) async fn send(&self, message: T) -> Result<(), Gone> {
        match tokio::time::timeout(self.stall, self.sender.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Gone),
            Err(_) => {
                self.stalled.store(true, Ordering::Relaxed);
                Err(Gone)
            }
        }
    }

    /// Returns once the client has closed its stream.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// The last message of the stream, if there is one: why it ends early.
    pub(super) fn end(self, service: &JobsService, ended: Result<(), ApiError>) {
        let ended = match ended {
            Ok(()) if self.stalled.load(Ordering::Relaxed) => Err(service.limits.took_nothing()),
            ended => ended,
        };
        if let Err(error) = ended {
            error.log();
            // The client may be gone.
            self.last.send(Err(error.into()));
        }
    }
}
