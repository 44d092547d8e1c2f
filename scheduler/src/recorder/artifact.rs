//! The bytes of small artifacts for their rows.

use std::cell::RefCell;
use std::collections::BTreeSet;

use blobs::{BlobStore, Error};
use datasets::record::GroupRecord;
use datasets::recorder::FetchError;
use rollout::RolloutId;
use tokio::runtime::Handle;

/// Blobs of one job that are told to be gone; what is past it is not told.
const ABSENT_TOLD_MAX: usize = 16;

/// Which blobs of a job were told to be gone: many rows may name the same one.
#[derive(Debug, Default)]
pub(super) struct Absent(BTreeSet<String>);

impl Absent {
    /// Whether to tell of it.
    fn add(&mut self, sha256: &str) -> bool {
        self.0.len() < ABSENT_TOLD_MAX && self.0.insert(sha256.to_owned())
    }

    fn is_full(&self) -> bool {
        self.0.len() == ABSENT_TOLD_MAX
    }
}

/// An artifact of `bytes` bytes, named in `group`, for its row. One that is gone, damaged or of
/// another size stays named without its bytes; a store that does not answer is tried again.
pub(super) fn fetch(
    runtime: &Handle,
    blobs: &BlobStore,
    group: &GroupRecord,
    absent: &RefCell<Absent>,
    sha256: &str,
    bytes: u64,
) -> Result<Option<Vec<u8>>, FetchError> {
    let problem = match runtime.block_on(blobs.get(sha256, bytes)) {
        Ok(found) if found.len() as u64 == bytes => return Ok(Some(found.to_vec())),
        Ok(found) => format!("it has {} bytes, not the {bytes} that were reported", found.len()),
        Err(error @ (Error::NotFound { .. } | Error::ChunkCorrupt { .. } | Error::TooLarge { .. })) => {
            error.to_string()
        }
        Err(error) => return Err(Box::new(error)),
    };
    let mut absent = absent.borrow_mut();
    if absent.add(sha256) {
        let rollout = names(group, sha256).map(|rollout| rollout.to_string()).unwrap_or_default();
        tracing::warn!(rollout, sha256, problem, "an artifact is named in its row without its bytes");
        if absent.is_full() {
            let job = group.group.job;
            tracing::warn!(%job, told = ABSENT_TOLD_MAX, "more artifacts of this job without bytes are not told");
        }
    }
    Ok(None)
}

/// The first rollout of `group` that has the artifact.
fn names(group: &GroupRecord, sha256: &str) -> Option<RolloutId> {
    let has = |step: &datasets::record::StepRecord| {
        step.outcome.artifacts.iter().any(|artifact| artifact.sha256 == sha256)
    };
    group.members.iter().find(|member| member.steps.iter().any(has)).map(|member| member.rollout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_told_once_and_no_more_than_the_bound() {
        let mut absent = Absent::default();
        assert!(absent.add("a"));
        assert!(!absent.add("a"));
        let told = (0..10 * ABSENT_TOLD_MAX).filter(|n| absent.add(&n.to_string())).count();
        assert_eq!(told, ABSENT_TOLD_MAX - 1);
        assert!(absent.is_full());
    }
}
