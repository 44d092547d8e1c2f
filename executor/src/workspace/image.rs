//! An OCI image onto this node: its documents are read once for all who want it, its layers fetched
//! like any other.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use images::layers::{Bounds, Pinned, pack_upper};
use images::oci::layout::Layout;
use images::oci::library::{self, Hold};
use images::oci::stored::Stored;
use images::oci::{Image, ImageLayer, Platform, resolve};
use rollout::Bytes;
use rollout::checkpoint::{Layer, LayerId};
use rollout::image::{ImageRef, RegistryRef, Version};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::fetch::{FetchError, Origin, Wanted};
use super::{Documents, Repacked, Workspaces};
use crate::broker::serve::lock;
use crate::sandbox::{Mounted, OciBase};
use crate::storage::{Storage, chain};

/// Layers of images that were made layers of workspaces, remembered.
const REPACKED_MAX: usize = 4096;
/// Images whose documents are remembered; any of them goes when there are more.
const IMAGES_MAX: usize = 256;

impl Workspaces {
    /// The image that a step names, if it is an OCI image.
    pub(crate) async fn base(
        self: &Arc<Self>,
        storage: &Storage,
        tasks: &TaskTracker,
        text: &str,
    ) -> Result<Option<Arc<OciBase>>, FetchError> {
        let Some((image, layers)) = self.image(storage, tasks, text).await? else { return Ok(None) };
        let hold = self.hold(&image).await?;
        let digest = digest_of(&image);
        Ok(Some(Arc::new(OciBase { digest, layers, env: image.config.env.clone(), hold })))
    }

    /// The digest that sandboxes of the image will report. No layer is fetched. None: `host` and `dir:`.
    pub(crate) async fn digest(&self, storage: &Storage, text: &str) -> Result<Option<String>, FetchError> {
        Ok(self.read(storage, text).await?.map(|(image, _)| digest_of(&image)))
    }

    /// Its documents, and its layers bottom first. None: `host` and `dir:`.
    pub(super) async fn image(
        self: &Arc<Self>,
        storage: &Storage,
        tasks: &TaskTracker,
        text: &str,
    ) -> Result<Option<(Arc<Image>, Vec<Pinned>)>, FetchError> {
        let Some((image, origin)) = self.read(storage, text).await? else { return Ok(None) };
        let fetches = visible(&image)
            .map(|layer| self.fetch_wanted(storage, tasks, Wanted::Image(layer.clone(), origin.clone())));
        let layers = futures::future::try_join_all(fetches).await?;
        Ok(Some((image, layers)))
    }

    async fn read(&self, storage: &Storage, text: &str) -> Result<Option<(Arc<Image>, Origin)>, FetchError> {
        let refused = |problem: &str| FetchError::Image { problem: format!("`{text}`: {problem}") };
        let reference: ImageRef = text.parse().map_err(|error| refused(&format!("{error}")))?;
        let (digest, origin) = match reference {
            ImageRef::Host | ImageRef::Directory(_) => return Ok(None),
            ImageRef::Stored(digest) => (digest, Origin::Stored),
            ImageRef::Registry(registry) => match registry.version {
                Version::Digest(digest) => (digest, self.origin(&registry)),
                Version::Tag(_) => return Err(refused("it has no digest: a tag is never pulled")),
            },
            ImageRef::Layout { .. } | ImageRef::Archive { .. } => {
                return Err(refused("it lies on another machine, and was not handed in"));
            }
        };
        let cell = self.documents(text);
        let image = cell.get_or_try_init(|| async {
            let platform = Platform::here();
            let read = match &origin {
                Origin::Stored => resolve(&Stored(storage.blobs().clone()), &digest, &platform).await,
                Origin::Registry(repository) => resolve(repository, &digest, &platform).await,
                Origin::Library(library, repository) => match resolve(library, &digest, &platform).await {
                    Ok(image) => Ok(image),
                    Err(_) => resolve(repository, &digest, &platform).await,
                },
            };
            let read = read.map(|image| Arc::new(Image { documents: Vec::new(), ..image }));
            read.map_err(|error| {
                let problem = format!("`{text}`: {}", chain(&error));
                if error.is_passing() {
                    FetchError::Failed { layer: "documents".to_owned(), problem }
                } else {
                    FetchError::Image { problem }
                }
            })
        });
        let image = Arc::clone(image.await?);
        Ok(Some((image, origin)))
    }

    fn origin(&self, registry: &RegistryRef) -> Origin {
        let repository = self.registries.repository(registry);
        let library = self.images_dir.as_ref().filter(|dir| dir.is_dir());
        match library.and_then(|dir| Layout::open(dir).ok()) {
            Some(library) => Origin::Library(library, repository),
            None => Origin::Registry(repository),
        }
    }

    /// Keeps the image in the library of this machine, if it is there.
    async fn hold(&self, image: &Image) -> Result<Option<Hold>, FetchError> {
        let Some(dir) = self.images_dir.clone() else { return Ok(None) };
        let digest = image.digest;
        let held = tokio::task::spawn_blocking(move || library::hold(&dir, &digest)).await;
        let failed = |problem| FetchError::Failed { layer: digest.to_string(), problem };
        held.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(chain(&error)))
    }

    /// The layers of an image as layers of a workspace: packed into the blob store once, so that a
    /// checkpoint over them can be restored anywhere. None: `host` and `dir:`.
    pub(super) async fn layers_of(
        self: &Arc<Self>,
        storage: &Storage,
        tasks: &TaskTracker,
        text: &str,
    ) -> Result<Option<Vec<Mounted>>, FetchError> {
        let Some((image, pinned)) = self.image(storage, tasks, text).await? else { return Ok(None) };
        let mut layers = Vec::new();
        for (layer, at) in visible(&image).zip(pinned) {
            let cell = self.repacked(layer.id());
            let packed = match cell.get() {
                None => cell.get_or_try_init(|| self.repack(storage, layer, &at)).await?.clone(),
                Some(packed) => {
                    // Nobody may have named it for long, and it may have been collected.
                    let failed = |error| FetchError::Failed {
                        layer: layer.diff_id.to_string(),
                        problem: chain(&error),
                    };
                    if !storage.renew(&packed.blob).await.map_err(failed)? {
                        self.repack(storage, layer, &at).await?;
                    }
                    packed.clone()
                }
            };
            layers.push(Mounted { layer: packed, at });
        }
        Ok(Some(layers))
    }

    async fn repack(&self, storage: &Storage, layer: &ImageLayer, at: &Pinned) -> Result<Layer, FetchError> {
        let name = layer.diff_id.to_string();
        let failed = |problem: String| FetchError::Failed { layer: name.clone(), problem };
        let turn = self.packs.acquire().await;
        let _turn = turn.map_err(|error| failed(error.to_string()))?;
        let staged = self.store.stage().map_err(|error| failed(chain(&error)))?;
        let (tree, out, bytes_max) = (at.path.clone(), staged.packed(), self.store.bytes_max());
        let packing = tokio::task::spawn_blocking(move || {
            let root = std::fs::File::open(&tree).map_err(|error| error.to_string())?;
            let never = AtomicBool::new(false);
            let packed = pack_upper(root.as_fd(), 0, &[], &out, &Bounds::new(Bytes(bytes_max)), &never);
            packed.map_err(|error| chain(&error))
        });
        let packed = packing.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
        let stored = storage.put_file(&packed.file).await.map_err(|error| failed(chain(&error)))?;
        if stored.sha256 != packed.layer.blob {
            return Err(failed(format!(
                "it was packed as {}, and {} was stored",
                packed.layer.blob, stored.sha256
            )));
        }
        Ok(packed.layer)
    }

    fn repacked(&self, id: LayerId) -> Repacked {
        let mut repacked = lock(&self.repacked);
        if repacked.len() >= REPACKED_MAX && !repacked.contains_key(&id) {
            repacked.pop_first();
        }
        Arc::clone(repacked.entry(id).or_default())
    }

    fn documents(&self, text: &str) -> Documents {
        let mut images = lock(&self.images);
        if images.len() >= IMAGES_MAX && !images.contains_key(text) {
            images.pop_first();
        }
        Arc::clone(images.entry(text.to_owned()).or_insert_with(|| Arc::new(OnceCell::new())))
    }
}

fn digest_of(image: &Image) -> String {
    format!("oci:{}", image.digest)
}

/// Bottom first. An overlay takes a directory once, and of a layer that is there twice the upper one
/// hides the lower.
fn visible(image: &Image) -> impl Iterator<Item = &ImageLayer> {
    let above = |index: usize| image.layers.iter().skip(index + 1);
    let each = image.layers.iter().enumerate();
    each.filter(move |(index, layer)| above(*index).all(|other| other.diff_id != layer.diff_id))
        .map(|(_, layer)| layer)
}
