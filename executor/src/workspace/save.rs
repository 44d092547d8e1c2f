//! What a sandbox changed, into the blob store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use images::layers::{self, Bounds};
use rollout::checkpoint::{Checkpoint, LAYERS_MAX, Layer};
use rollout::plan::{SAVE_MAX, SAVE_TURN_MAX};
use rollout::{Bytes, Millis};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{PACKS_MAX, Workspaces};
use crate::sandbox::{Pack, PackError, Sandbox};
use crate::storage::{Storage, StorageError, chain};

/// Of packed files, so that no two have one name: one that was given up may still be written.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What saving needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saving<'a> {
    pub workspaces: &'a Arc<Workspaces>,
    pub storage: &'a Storage,
    pub tasks: &'a TaskTracker,
    pub sandbox: &'a dyn Sandbox,
    pub dir: &'a Path,
    pub disk_limit: Bytes,
}

#[derive(Debug)]
pub(crate) struct Saved {
    pub checkpoint: Checkpoint,
    /// What the sandbox added to it; none if nothing was changed.
    pub layer: Option<Layer>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The workspace holds what no layer can: the doing of what ran in it.
    #[error("its workspace cannot be saved: {0}")]
    Refused(String),
    /// Not in the time given; what runs goes on.
    #[error("{0}")]
    TooSlow(String),
    #[error("{0}")]
    Storage(String),
    #[error("the session is over")]
    Over,
}

/// Packs the workspace and stores it. `freeze`: what runs in it stands still meanwhile, for at most
/// so long; without, everything in it must be dead. `last`: the layer of the checkpoint before, on
/// the same base: if nothing changed since, it is not stored again.
///
/// A stack that is as high as one can be is packed into one layer.
pub(crate) async fn save(
    saving: Saving<'_>,
    freeze: Option<Duration>,
    last: Option<&Layer>,
) -> Result<Saved, SaveError> {
    let Saving { workspaces, sandbox, dir, disk_limit, .. } = saving;
    let below = sandbox.layers();
    let is_full = below.len() >= LAYERS_MAX;
    let collapsed = if is_full { below } else { &[] };
    let content =
        collapsed.iter().map(|mounted| mounted.layer.content.0).fold(disk_limit.0, u64::saturating_add);
    let pack = Pack {
        out: dir.join(format!("workspace-{}", NEXT.fetch_add(1, Ordering::Relaxed))),
        below: collapsed.iter().map(|mounted| mounted.at.path.clone()).collect(),
        bounds: Bounds::new(Bytes(content)),
        freeze,
    };
    // However this ends: what was packed and is stored, or is not, does not stay here.
    let _packed = Unlinked(pack.out.clone());
    let turn = timeout(within(SAVE_TURN_MAX), workspaces.packs.acquire()).await;
    let turn = turn.map_err(|_| {
        SaveError::Storage(format!(
            "its turn to be saved did not come within {SAVE_TURN_MAX} (SAVE_TURN_MAX): {PACKS_MAX} are saved at once"
        ))
    })?;
    let turn = turn.map_err(|error| SaveError::Storage(error.to_string()))?;
    let stored = timeout(within(SAVE_MAX), store(saving, pack, last, turn)).await;
    stored.map_err(|_| SaveError::Storage(format!("it was not saved within {SAVE_MAX} (SAVE_MAX)")))?
}

fn within(time: Millis) -> Duration {
    Duration::from_millis(time.0)
}

/// Removes a file of this attempt when it is dropped; there may be none.
struct Unlinked(PathBuf);

impl Drop for Unlinked {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "packed workspace not removed");
        }
    }
}

async fn store(
    saving: Saving<'_>,
    pack: Pack,
    last: Option<&Layer>,
    turn: SemaphorePermit<'_>,
) -> Result<Saved, SaveError> {
    let Saving { workspaces, storage, tasks, sandbox, .. } = saving;
    let failed = |error: &StorageError| SaveError::Storage(chain(error));
    let below = sandbox.layers();
    let is_full = below.len() >= LAYERS_MAX;
    let packed = sandbox.pack(pack).await.map_err(|error| refused(&error))?;
    drop(turn);
    let dropped = packed.dropped;
    // One that differs in times alone is the same, and the one that is stored stands.
    let stored = last.filter(|last| last.id == packed.layer.id);
    let layer = stored.cloned().unwrap_or(packed.layer);
    if dropped != layers::Dropped::default() {
        tracing::debug!(layer = %layer.id, ?dropped, "left out of a workspace");
    }
    let is_empty = layer.entries == 0;
    if !is_empty && stored.is_none() {
        let blob = storage.put_file(&packed.file).await.map_err(|error| failed(&error))?;
        if blob.sha256 != layer.blob {
            let problem = format!("the packed workspace was {}, and {} was stored", layer.blob, blob.sha256);
            return Err(SaveError::Storage(problem));
        }
        warm(workspaces, storage, tasks, &layer);
    }
    let kept = if is_full { &[] } else { below };
    let mut layers: Vec<Layer> = kept.iter().map(|mounted| mounted.layer.clone()).collect();
    layers.extend((!is_empty).then(|| layer.clone()));
    let checkpoint = Checkpoint { image: sandbox.image_digest().to_owned(), layers };
    Ok(Saved { checkpoint, layer: (!is_empty).then_some(layer) })
}

/// Makes the layer's directory here in the background: the next step likely starts on this node.
fn warm(workspaces: &Arc<Workspaces>, storage: &Storage, tasks: &TaskTracker, layer: &Layer) {
    let (workspaces, storage, layer) = (Arc::clone(workspaces), storage.clone(), layer.clone());
    let inner = tasks.clone();
    tasks.spawn(async move {
        if let Err(error) = workspaces.fetch(&storage, &inner, &layer).await {
            tracing::info!(layer = %layer.id, %error, "the saved workspace is not kept on this node");
        }
    });
}

fn refused(error: &PackError) -> SaveError {
    match error {
        PackError::Tree(tree) if tree.of_the_tree() => SaveError::Refused(chain(tree)),
        PackError::NotOffered { .. } => SaveError::Refused(chain(error)),
        PackError::TooSlow { .. } => SaveError::TooSlow(chain(error)),
        PackError::Freeze(_) | PackError::Upper(_) | PackError::Tree(_) | PackError::Panicked => {
            SaveError::Storage(chain(error))
        }
    }
}
