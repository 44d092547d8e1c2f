//! Logs of sessions that are over. A log is read whole to be asked, so few of them are at hand, and one is
//! read at a time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Mutex;

use super::error::{Refusal, SandboxCode};
use super::log::{ActionLog, LogError};

/// Logs at hand: a page of one is seldom the last that is asked for.
const AT_HAND_MAX: usize = 4;

/// Another file, or one that grew, is another log.
type Stamp = (PathBuf, u64, Option<SystemTime>);

/// The most recently asked last.
#[derive(Debug, Default)]
pub(super) struct PastLogs(Mutex<VecDeque<(Stamp, Arc<ActionLog>)>>);

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    Some((path.to_owned(), data.len(), data.modified().ok()))
}

impl PastLogs {
    /// The log at `path`. None: it is not there any more.
    pub async fn get(&self, path: PathBuf) -> Result<Option<Arc<ActionLog>>, Refusal> {
        // Held while it is read: the others wait without a thread, and what they read is bounded.
        let mut at_hand = self.0.lock().await;
        let Some(stamp) = stamp(&path) else { return Ok(None) };
        if let Some(at) = at_hand.iter().position(|(known, _)| *known == stamp)
            && let Some(found) = at_hand.remove(at)
        {
            let log = Arc::clone(&found.1);
            at_hand.push_back(found);
            return Ok(Some(log));
        }
        let reading = tokio::task::spawn_blocking(move || ActionLog::past(&path)).await;
        let lost =
            |error: tokio::task::JoinError| Refusal::new(SandboxCode::StorageFailed, error.to_string());
        let log = reading.map_err(lost)?.map(Arc::new).map_err(|error: LogError| Refusal::from(error))?;
        if at_hand.len() >= AT_HAND_MAX {
            at_hand.pop_front();
        }
        at_hand.push_back((stamp, Arc::clone(&log)));
        Ok(Some(log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::log::Begun;

    #[tokio::test]
    async fn a_log_is_read_once_while_it_stays_as_it_is_and_few_are_at_hand() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: usize| dir.path().join(n.to_string());
        let add = async |log: &Arc<ActionLog>, id: &str| {
            let Begun::New { end, .. } = log.begin(id, "p", None).unwrap() else { panic!("{id} is known") };
            log.commit(end).await.unwrap();
        };
        let mut written = Vec::new();
        for n in 0..=AT_HAND_MAX {
            let log = Arc::new(ActionLog::create(&path(n)).unwrap());
            add(&log, "a").await;
            written.push(log);
        }
        let past = PastLogs::default();
        let first = past.get(path(0)).await.unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &past.get(path(0)).await.unwrap().unwrap()), "not read again");
        add(&written[0], "b").await;
        assert_eq!(past.get(path(0)).await.unwrap().unwrap().count(), 2, "what grew is read again");
        for n in 1..=AT_HAND_MAX {
            past.get(path(n)).await.unwrap().unwrap();
        }
        assert_eq!(past.0.lock().await.len(), AT_HAND_MAX);
        std::fs::remove_file(path(0)).unwrap();
        assert!(past.get(path(0)).await.unwrap().is_none());
    }
}
