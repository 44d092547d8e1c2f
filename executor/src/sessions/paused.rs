//! That a session stands still, written down in the directory of its attempt: the next executor finds it
//! there, if this one is killed, and lets it stand still.
//!
//! It is there before anyone is told of a pause and gone before anyone is told that the session goes on. So
//! no version of a lifecycle is told of two states, by however many executors.

use std::io;
use std::path::{Path, PathBuf};

use rollout::{BootTime, Bytes};
use serde::{Deserialize, Serialize};

/// In the directory of an attempt.
const PAUSED_FILE: &str = "paused";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Paused {
    /// Of its lifecycle.
    pub version: u64,
    /// Memory that was given back.
    pub reclaimed: Bytes,
    /// When somebody was last heard of.
    pub heard_at: BootTime,
}

impl Paused {
    /// What an executor that was killed left there. Blocks.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path(dir)).ok()?).ok()
    }

    /// Blocks.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let path = path(dir);
        let staged = path.with_extension("staged");
        std::fs::write(&staged, serde_json::to_vec(self)?)?;
        std::fs::rename(&staged, &path)
    }

    /// It goes on. Blocks.
    pub fn remove(dir: &Path) -> io::Result<()> {
        match std::fs::remove_file(path(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(PAUSED_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_mark_counts_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mark = |version| Paused { version, reclaimed: Bytes(7), heard_at: BootTime(9) };
        assert_eq!(Paused::read(dir.path()), None);
        mark(3).write(dir.path()).unwrap();
        // A kill in the middle of the next write.
        std::fs::write(dir.path().join("paused.staged"), "{\"version\":4").unwrap();
        assert_eq!(Paused::read(dir.path()), Some(mark(3)));
        mark(5).write(dir.path()).unwrap();
        assert_eq!(Paused::read(dir.path()), Some(mark(5)));
        Paused::remove(dir.path()).unwrap();
        Paused::remove(dir.path()).unwrap();
        assert_eq!(Paused::read(dir.path()), None);
        std::fs::write(dir.path().join("paused"), "{\"version\":4").unwrap();
        assert_eq!(Paused::read(dir.path()), None, "torn");
    }
}
