//! A layer onto this node, from the blob store or a registry: one fetch for all who want it, whatever
//! becomes of the one who asked first.

use std::sync::Arc;

use images::layers::{self, Bounds, Pinned, unpack};
use images::oci::layout::Layout;
use images::oci::registry::Repository;
use images::oci::stored::Stored;
use images::oci::{self, ImageLayer, Source as _, unpack_layer};
use rollout::Bytes;
use rollout::checkpoint::{Layer, LayerId};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::{Fetched, Workspaces};
use crate::broker::serve::lock;
use crate::storage::{Storage, StorageError, chain};

/// What is to be here, and where it is.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// What a sandbox changed.
    Packed(Layer),
    Image(ImageLayer, Origin),
}

/// Where the parts of an image are.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Stored,
    Registry(Repository),
    /// The library of this machine; what it lacks comes from the registry.
    Library(Layout, Repository),
}

/// What a fetch is joined by. Of a packed layer the whole claim: another one for the same layer may be
/// false.
pub(super) type Key = (LayerId, Option<Layer>);

impl Wanted {
    fn key(&self) -> Key {
        let claim = match self {
            Self::Packed(layer) => Some(layer.clone()),
            Self::Image(..) => None,
        };
        (self.id(), claim)
    }

    fn id(&self) -> LayerId {
        match self {
            Self::Packed(layer) => layer.id,
            Self::Image(layer, _) => layer.id(),
        }
    }

    /// As messages call it.
    fn name(&self) -> String {
        match self {
            Self::Packed(layer) => layer.id.to_string(),
            Self::Image(layer, _) => layer.diff_id.to_string(),
        }
    }

    fn blob(&self) -> String {
        match self {
            Self::Packed(layer) => layer.blob.clone(),
            Self::Image(layer, _) => layer.blob.to_string(),
        }
    }
}

/// Why a layer is not here. One for all who wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    /// The blob is missing, or is not what the layer claims: the same everywhere.
    #[error("chunk_corrupt: layer {layer}, blob {blob}: {problem}")]
    Bad { layer: String, blob: String, problem: String },
    /// An image, or a layer of one, that is refused: the same everywhere.
    #[error("image_refused: {problem}")]
    Image { problem: String },
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
        self.fetch_wanted(storage, tasks, Wanted::Packed(layer.clone())).await
    }

    pub(super) async fn fetch_wanted(
        self: &Arc<Self>,
        storage: &Storage,
        tasks: &TaskTracker,
        wanted: Wanted,
    ) -> Result<Pinned, FetchError> {
        let id = wanted.id();
        if let Some(here) = self.store.get(&id) {
            return Ok(here);
        }
        let mut fetched = {
            let mut fetching = lock(&self.fetching);
            // One whose task ended without a word is none.
            let at_work = fetching.get(&wanted.key()).filter(|fetched| fetched.has_changed().is_ok());
            if let Some(fetched) = at_work {
                fetched.clone()
            } else {
                let (sender, receiver) = watch::channel(None);
                fetching.insert(wanted.key(), receiver.clone());
                tasks.spawn(Arc::clone(self).fetch_and_tell(storage.clone(), wanted.clone(), sender));
                receiver
            }
        };
        let fetched = fetched.wait_for(Option::is_some).await.ok().and_then(|fetched| fetched.clone());
        fetched.unwrap_or_else(|| Err(failed(&wanted, "the fetch ended early".to_owned())))
    }

    async fn fetch_and_tell(self: Arc<Self>, storage: Storage, wanted: Wanted, told: watch::Sender<Fetched>) {
        let fetched = self.fetch_now(&storage, &wanted).await;
        if let Err(error) = &fetched {
            tracing::info!(layer = wanted.name(), %error, "layer not fetched");
        }
        // Those who ask from now on find it in the store, or try anew.
        lock(&self.fetching).remove(&wanted.key());
        told.send_replace(Some(fetched));
    }

    async fn fetch_now(self: &Arc<Self>, storage: &Storage, wanted: &Wanted) -> Result<Pinned, FetchError> {
        let failure = |problem: String| failed(wanted, problem);
        let _turn = self.fetches.acquire().await.map_err(|error| failure(error.to_string()))?;
        // Another fetch may have ended between the look and the turn.
        if let Some(here) = self.store.get(&wanted.id()) {
            return Ok(here);
        }
        let staged = self.store.stage().map_err(|error| of_layers(wanted, &error))?;
        let packed = match wanted {
            Wanted::Packed(layer) => {
                let packed = storage.fetch(&layer.blob, Some(layer.packed), &staged.packed()).await;
                packed.map_err(|error| of_storage(wanted, &error))?
            }
            Wanted::Image(layer, origin) => {
                let pulled = match origin {
                    Origin::Stored => Stored(storage.blobs().clone()).layer(layer, &staged.packed()).await,
                    Origin::Registry(repository) => repository.layer(layer, &staged.packed()).await,
                    Origin::Library(library, repository) => {
                        match library.layer(layer, &staged.packed()).await {
                            Ok(()) => Ok(()),
                            Err(error) => {
                                tracing::info!(layer = %layer.blob, error = chain(&error), "not taken from the images of this machine");
                                repository.layer(layer, &staged.packed()).await
                            }
                        }
                    }
                };
                pulled.map_err(|error| of_image(wanted, &error))?;
                std::fs::File::open(staged.packed()).map_err(|error| failure(error.to_string()))?
            }
        };
        let (workspaces, work) = (Arc::clone(self), wanted.clone());
        let unpacked = tokio::task::spawn_blocking(move || {
            let layer = match &work {
                // The claim bounds itself; the store decides whether so much has room.
                Wanted::Packed(layer) => {
                    let unpacked = unpack(packed, &staged.tree(), layer, &Bounds::new(layer.content));
                    unpacked.map_err(|error| of_layers(&work, &error))?;
                    layer.clone()
                }
                Wanted::Image(layer, _) => {
                    let bounds = Bounds::new(Bytes(workspaces.store.bytes_max()));
                    let unpacked = unpack_layer(packed, &staged.tree(), layer, &bounds);
                    unpacked.map_err(|error| of_image(&work, &error))?
                }
            };
            std::fs::remove_file(staged.packed()).map_err(|error| failed(&work, error.to_string()))?;
            workspaces.store.commit(staged, &layer).map_err(|error| of_layers(&work, &error))
        });
        unpacked.await.map_err(|error| failure(error.to_string()))?
    }
}

fn failed(wanted: &Wanted, problem: String) -> FetchError {
    FetchError::Failed { layer: wanted.name(), problem }
}

fn bad(wanted: &Wanted, problem: String) -> FetchError {
    FetchError::Bad { layer: wanted.name(), blob: wanted.blob(), problem }
}

fn of_image(wanted: &Wanted, error: &oci::Error) -> FetchError {
    if error.is_passing() {
        failed(wanted, chain(error))
    } else {
        FetchError::Image { problem: chain(error) }
    }
}

fn of_layers(wanted: &Wanted, error: &layers::Error) -> FetchError {
    match error {
        layers::Error::Full { .. } => FetchError::Busy(chain(error)),
        error if error.of_the_packed() => bad(wanted, chain(error)),
        error => failed(wanted, chain(error)),
    }
}

fn of_storage(wanted: &Wanted, error: &StorageError) -> FetchError {
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
    if is_bad { bad(wanted, chain(error)) } else { failed(wanted, chain(error)) }
}
