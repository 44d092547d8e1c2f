//! Workspaces at rest: what an attempt's sandbox changed is packed and stored, and another sandbox
//! starts over it.
//!
//! The durable form is the packed layer in the blob store. The layers on the node are a cache of
//! directories: fetched and checked once for all who wait, mounted and never copied, kept while a
//! sandbox lies over them.
//!
//! ```text
//! sandbox ──pack──> packed ──put──> blob store ──fetch, unpack──> layer directory ──lower──> sandbox
//!                                  registry   ──pull, unpack───────────┘
//! ```
//! Invariant: a sandbox is made over whole layers with the ids its checkpoint names, or not at all.
//! Invariant: what lies under a sandbox is never written; two forks share nothing else.

mod fetch;
mod image;
mod save;
mod stack;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use images::layers::{LayerStore, Pinned};
use images::oci::Image;
use images::oci::registry::{Client as Registries, docker_config};
use rollout::checkpoint::{Layer, LayerId};
use tokio::sync::{OnceCell, Semaphore, watch};

pub(crate) use fetch::FetchError;
pub(crate) use save::{SaveError, Saving, save};
pub(crate) use stack::{StackError, absent, fetch_beside, stack};

/// Workspaces packed at once. Packing keeps a core and the disk busy.
const PACKS_MAX: usize = 2;
/// Layers fetched at once.
const FETCHES_MAX: usize = 2;

/// A layer of an image as one of a workspace.
type Repacked = Arc<OnceCell<Layer>>;
/// Of one image, once they are read.
type Documents = Arc<OnceCell<Arc<Image>>>;
type Fetched = Option<Result<Pinned, FetchError>>;

/// The layers of this node, and the work on them.
#[derive(Debug)]
pub(crate) struct Workspaces {
    store: LayerStore,
    /// Of each layer that is being fetched, what comes of it.
    fetching: Mutex<BTreeMap<fetch::Key, watch::Receiver<Fetched>>>,
    images: Mutex<BTreeMap<String, Documents>>,
    /// By their ids in the store.
    repacked: Mutex<BTreeMap<LayerId, Repacked>>,
    registries: Registries,
    images_dir: Option<PathBuf>,
    packs: Semaphore,
    fetches: Arc<Semaphore>,
}

impl Workspaces {
    /// A layer of this node, by where its tree is.
    pub(crate) fn pin(&self, tree: &std::path::Path) -> Option<Pinned> {
        self.store.get_at(tree)
    }

    pub(crate) fn new(store: LayerStore, images_dir: Option<PathBuf>) -> Self {
        Self {
            store,
            fetching: Mutex::default(),
            images: Mutex::default(),
            repacked: Mutex::default(),
            registries: Registries::new(docker_config()),
            images_dir,
            packs: Semaphore::new(PACKS_MAX),
            fetches: Arc::new(Semaphore::new(FETCHES_MAX)),
        }
    }
}
