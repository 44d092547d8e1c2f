//! The descriptors that work may take: pipes, captures, connections, files on their way. The kernel counts
//! them for the whole process, and so does this. Whoever is about to make one takes it here first and holds
//! it as long as the descriptor lives; what is over the limit is refused, and nothing else suffers.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{FILES_RESERVED, Host};
use crate::host::budgets;

/// How long a command waits for others to end when as many run as have descriptors.
const WAIT: Duration = Duration::from_secs(30);

/// Of this process.
static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
    if let Err(error) = budgets::raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((FILES_RESERVED, FILES_RESERVED));
    Budget::new(Host { open_files, ..Host::default() }.for_work())
});

/// Descriptors that were taken; given back when it is dropped.
pub(crate) type Held = OwnedSemaphorePermit;

/// There are no more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "descriptors for commands, connections and files are at their limit of {limit} (open files of the executor)"
)]
pub(crate) struct Spent {
    limit: u32,
}

impl From<Spent> for io::Error {
    fn from(spent: Spent) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, spent)
    }
}

/// Takes `count` now.
pub(crate) fn take(count: u32) -> Result<Held, Spent> {
    BUDGET.take(count)
}

/// The same, once others gave back enough.
pub(crate) async fn wait_for(count: u32) -> Result<Held, Spent> {
    BUDGET.wait_for(count, WAIT).await
}

#[derive(Debug)]
struct Budget {
    free: Arc<Semaphore>,
    limit: u32,
}

impl Budget {
    fn new(limit: u64) -> Self {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let permits = usize::try_from(limit).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))), limit }
    }

    fn take(&self, count: u32) -> Result<Held, Spent> {
        Arc::clone(&self.free).try_acquire_many_owned(count).map_err(|_| Spent { limit: self.limit })
    }

    async fn wait_for(&self, count: u32, within: Duration) -> Result<Held, Spent> {
        let taking = Arc::clone(&self.free).acquire_many_owned(count);
        match tokio::time::timeout(within, taking).await {
            Ok(Ok(held)) => Ok(held),
            _ => Err(Spent { limit: self.limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_taken_is_bounded_and_comes_back() {
        let budget = Budget::new(5);
        let four = budget.take(4).unwrap();
        let refused = budget.take(2).unwrap_err();
        assert!(refused.to_string().contains("limit of 5 (open files of the executor)"), "{refused}");
        assert_eq!(budget.wait_for(2, Duration::from_millis(1)).await.unwrap_err(), Spent { limit: 5 });
        let (waited, ()) = tokio::join!(budget.wait_for(5, WAIT), async { drop(four) });
        assert!(budget.take(1).is_err());
        drop(waited.unwrap());
        assert!(budget.take(5).is_ok());
    }
}
