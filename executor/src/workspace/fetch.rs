//! A layer from the blob store onto this node: one fetch for all who want it, whatever becomes of
//! the one who asked first.

use std::sync::Arc;

use images::layers::{self, Bounds, Pinned, unpack};
use rollout::checkpoint::Layer;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::{Fetched, Workspaces};
use crate::broker::serve::lock;
use crate::storage::{Storage, StorageError, chain};

/// Why a layer is not here. One for all who wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    /// The blob is missing, or is not what the layer claims: the same everywhere.
    #[error("chunk_corrupt: layer {layer}, blob {blob}: {problem}")]
    Bad { layer: String, blob: String, problem: String },
    /// Sandboxes use so many layers that there is no room now.
    #[error("{0}")]
    Busy(String),
    /// This machine's own trouble.
    #[error("fetching layer {layer}: {problem}")]
    Failed { layer: String, problem: String },
}

impl Workspaces {
    /// The layer, from this node or from the blob store.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        storage: &Storage,
        tasks: &TaskTracker,
        layer: &Layer,
    ) -> Result<Pinned, FetchError> {
        if let Some(here) = self.store.get(&layer.id) {
            return Ok(here);
        }
        let mut fetched = {
            let mut fetching = lock(&self.fetching);
            // One whose task ended without a word is none.
            let at_work = fetching.get(layer).filter(|fetched| fetched.has_changed().is_ok());
            if let Some(fetched) = at_work {
                fetched.clone()
            } else {
                let (sender, receiver) = watch::channel(None);
                fetching.insert(layer.clone(), receiver.clone());
                tasks.spawn(Arc::clone(self).fetch_and_tell(storage.clone(), layer.clone(), sender));
                receiver
            }
        };
        let fetched = fetched.wait_for(Option::is_some).await.ok().and_then(|fetched| fetched.clone());
        fetched.unwrap_or_else(|| Err(failed(layer, "the fetch ended early".to_owned())))
    }

    async fn fetch_and_tell(self: Arc<Self>, storage: Storage, layer: Layer, told: watch::Sender<Fetched>) {
        let fetched = self.fetch_now(&storage, &layer).await;
        if let Err(error) = &fetched {
            tracing::info!(layer = %layer.id, %error, "layer not fetched");
        }
        // Those who ask from now on find it in the store, or try anew.
        lock(&self.fetching).remove(&layer);
        told.send_replace(Some(fetched));
    }

    async fn fetch_now(self: &Arc<Self>, storage: &Storage, layer: &Layer) -> Result<Pinned, FetchError> {
        let failure = |problem: String| failed(layer, problem);
        let _turn = self.fetches.acquire().await.map_err(|error| failure(error.to_string()))?;
        // Another fetch may have ended between the look and the turn.
        if let Some(here) = self.store.get(&layer.id) {
            return Ok(here);
        }
        let staged = self.store.stage().map_err(|error| of_layers(layer, &error))?;
        let packed = storage.fetch(&layer.blob, Some(layer.packed), &staged.packed()).await;
        let packed = packed.map_err(|error| of_storage(layer, &error))?;
        let (workspaces, wanted) = (Arc::clone(self), layer.clone());
        let unpacked = tokio::task::spawn_blocking(move || {
            // The claim bounds itself; the store decides whether so much has room.
            unpack(packed, &staged.tree(), &wanted, &Bounds::new(wanted.content))?;
            let removed = std::fs::remove_file(staged.packed());
            removed.map_err(|source| layers::Error::Io {
                action: "remove",
                path: staged.packed().display().to_string(),
                source,
            })?;
            workspaces.store.commit(staged, &wanted)
        });
        let unpacked = unpacked.await.map_err(|error| failure(error.to_string()))?;
        unpacked.map_err(|error| of_layers(layer, &error))
    }
}

fn failed(layer: &Layer, problem: String) -> FetchError {
    FetchError::Failed { layer: layer.id.to_string(), problem }
}

fn bad(layer: &Layer, problem: String) -> FetchError {
    FetchError::Bad { layer: layer.id.to_string(), blob: layer.blob.clone(), problem }
}

fn of_layers(layer: &Layer, error: &layers::Error) -> FetchError {
    match error {
        layers::Error::Full { .. } => FetchError::Busy(chain(error)),
        error if error.of_the_packed() => bad(layer, chain(error)),
        error => failed(layer, chain(error)),
    }
}

fn of_storage(layer: &Layer, error: &StorageError) -> FetchError {
    let is_bad = match error {
        StorageError::Size { .. } => true,
        StorageError::Blob { source, .. } => matches!(
            **source,
            blobs::Error::NotFound { .. }
                | blobs::Error::ChunkCorrupt { .. }
                | blobs::Error::BadDigest { .. }
        ),
        StorageError::Capture { .. } | StorageError::File { .. } | StorageError::TimedOut { .. } => false,
    };
    if is_bad { bad(layer, chain(error)) } else { failed(layer, chain(error)) }
}
