//! What the agent changes in the records of attempts that are over, one after the other: it waits for no disk.
//! Of a change that a kill forestalls the next executor tells what was told before: the scheduler acknowledges
//! the end again, or has the sandbox released.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Record, Stage, path, remove};
use crate::attempt::spares::Spares;

/// Changes that wait for the disk.
const CHANGES_MAX: usize = 1 << 17;

/// Of the record beside this directory.
#[derive(Debug)]
enum Change {
    Remove(PathBuf),
    /// Its end is stored by the scheduler, and its sandbox waits.
    Keep(PathBuf),
}

#[derive(Debug)]
pub(crate) struct Changes {
    queue: mpsc::Sender<(Change, TaskTrackerToken)>,
    /// Not empty until all are made.
    tasks: TaskTracker,
}

impl Changes {
    /// Call within a tokio runtime.
    pub fn new(spares: Arc<Spares>, tasks: TaskTracker) -> Self {
        let (queue, mut coming) = mpsc::channel(CHANGES_MAX);
        tokio::spawn(async move {
            while let Some((change, made)) = coming.recv().await {
                let spares = Arc::clone(&spares);
                let making = tokio::task::spawn_blocking(move || {
                    make(&spares, change);
                    drop(made);
                });
                if let Err(error) = making.await {
                    tracing::error!(%error, "the record of an attempt stays as it was");
                }
            }
        });
        Self { queue, tasks }
    }

    pub fn remove(&self, dir: PathBuf) {
        self.send(Change::Remove(dir));
    }

    pub fn keep(&self, dir: PathBuf) {
        self.send(Change::Keep(dir));
    }

    fn send(&self, change: Change) {
        if let Err(error) = self.queue.try_send((change, self.tasks.token())) {
            let words = "the record of an attempt stays as it was (CHANGES_MAX)";
            tracing::error!(CHANGES_MAX, %error, "{words}");
        }
    }
}

/// Blocks.
fn make(spares: &Spares, change: Change) {
    match change {
        Change::Remove(dir) => remove(spares, &path(&dir)),
        Change::Keep(dir) => {
            let path = path(&dir);
            // None: its sandbox dies with this executor.
            let Some(record) = Record::read(&path) else { return remove(spares, &path) };
            if let Err(error) = record.goes_on(spares, &path, &Stage::Kept) {
                tracing::warn!(path = %path.display(), %error, "not written down");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{begun, spares};
    use super::*;

    #[tokio::test]
    async fn changes_are_made_in_their_order_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let spares = spares(dir.path());
        let (kept, gone) = (dir.path().join("job-1"), dir.path().join("job-2"));
        for dir in [&kept, &gone] {
            let outcome = Box::new(crate::attempt::panicked());
            begun(&spares, path(dir), &Stage::Ended { outcome, kept: true });
        }
        let tasks = TaskTracker::new();
        let changes = Changes::new(spares, tasks.clone());
        changes.keep(kept.clone());
        changes.keep(gone.clone());
        changes.remove(gone.clone());
        changes.keep(dir.path().join("job-3"));
        tasks.close();
        tasks.wait().await;
        assert!(matches!(Record::read(&path(&kept)).unwrap().stage, Stage::Kept));
        assert!(!path(&gone).exists());
    }
}
