//! Committing a batch, whatever it takes: it is a value, so it is tried again until it is stored,
//! the epoch is lost, or the scheduler stops.

use std::time::Duration;

use rollout::Timestamp;

use super::Driver;
use crate::error::Error;
use crate::health::{Trouble, chain};
use crate::store::{Batch, CommitError};

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Driver {
    /// True once the batch is stored; false if the scheduler was stopped before it was. Nothing
    /// was sent or acknowledged then, and the next start goes on from what is stored.
    pub(super) async fn commit(&mut self, batch: &Batch, now: Timestamp) -> Result<bool, Error> {
        let mut backoff = BACKOFF_FIRST;
        loop {
            let error = match self.writer.commit(batch, now).await {
                Ok(()) => break,
                Err(CommitError::Fatal(error)) => return Err(error),
                Err(CommitError::Definite(error)) => error,
                Err(CommitError::Unknown(error)) => {
                    tracing::debug!(error = chain(&error), "the outcome of a commit is unknown");
                    match self.settle(&mut backoff).await? {
                        None => return Ok(false),
                        Some(true) => break,
                        Some(false) => error,
                    }
                }
            };
            if !self.wait(&error, &mut backoff).await {
                return Ok(false);
            }
        }
        if self.health.now().store.is_some() {
            tracing::info!("the store takes writes again");
            self.health.store(None);
        }
        Ok(true)
    }

    /// Whether the batch of unknown outcome is stored; none if the scheduler was stopped.
    async fn settle(&mut self, backoff: &mut Duration) -> Result<Option<bool>, Error> {
        loop {
            match self.writer.settle().await {
                Ok(stored) => return Ok(Some(stored)),
                Err(CommitError::Fatal(error)) => return Err(error),
                Err(CommitError::Definite(error) | CommitError::Unknown(error)) => {
                    if !self.wait(&error, backoff).await {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn wait(&mut self, error: &Error, backoff: &mut Duration) -> bool {
        let problem = chain(error);
        // Once until it changes: a disk may stay full for hours.
        if self.health.now().store.is_none_or(|trouble| trouble.problem != problem) {
            tracing::warn!(problem, "the store does not take writes; it is tried again");
        }
        self.health.store(Some(Trouble { since: crate::clock::wall(), problem }));
        tokio::select! {
            () = self.stop.cancelled() => return false,
            () = tokio::time::sleep(*backoff) => {}
        }
        *backoff = (*backoff * 2).min(BACKOFF_MAX);
        true
    }
}
