//! Images of a job, by digest before it begins: a tag that moves afterwards changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use ::images::oci::stored::Stored;
use ::images::oci::{Platform, resolve};
use futures::{StreamExt as _, TryStreamExt as _};
use rollout::image::{Digest, ImageRef};
use rollout::text::shown;
use rollout_wire::v1;

use super::{ApiCode, ApiError, JobsService, error};
use crate::health::chain;
use crate::store::PinnedImage;

/// Different images of one job.
pub const IMAGES_MAX: usize = 10_000;
/// Tags asked after at once.
const RESOLVES_MAX: usize = 8;

/// Refuses a job of too many images.
pub(super) fn check_count(count: usize) -> Result<(), ApiError> {
    if count <= IMAGES_MAX {
        return Ok(());
    }
    let message = format!("its rows name more than {IMAGES_MAX} different images (IMAGES_MAX)");
    Err(ApiError::new(ApiCode::JobTooLarge, message).hint("split the task set"))
}

/// The images of `named` that need it, with their digests: of the client's own as it `sent` them, of
/// a registry as the registry says now.
pub(super) async fn pin(
    service: &JobsService,
    named: BTreeSet<String>,
    sent: &[v1::ImagePin],
) -> Result<Vec<PinnedImage>, ApiError> {
    if sent.len() > IMAGES_MAX {
        return Err(ApiError::bad_request("images", format!("at most {IMAGES_MAX}")));
    }
    let sent: BTreeMap<&str, &str> =
        sent.iter().map(|pin| (pin.reference.as_str(), pin.digest.as_str())).collect();
    let parsed = named.into_iter().filter_map(|text| Some((text.parse::<ImageRef>().ok()?, text)));
    let named: Vec<(ImageRef, String)> = parsed.collect();
    let unsent = |(image, text): &&(ImageRef, String)| image.is_local() && !sent.contains_key(text.as_str());
    if let Some((_, first)) = named.iter().find(unsent) {
        let message = format!("image `{}` lies on the client's machine, and was not sent", shown(first, 200));
        let mut refused = ApiError::new(ApiCode::ImageUnsent, message)
            .hint("`rollyard submit` and `rollyard sandbox create` send it; then any client can name it as `stored:DIGEST`");
        // A client that does not read specs learns here what to send.
        refused.details =
            error::list(named.iter().filter(unsent).filter_map(|(_, text)| serde_json::to_vec(text).ok()));
        return Err(refused);
    }
    let each = named.into_iter().map(|(image, text)| {
        let digest = sent.get(text.as_str()).copied();
        async move { pin_one(service, image, text, digest).await }
    });
    let pinned: Vec<_> = futures::stream::iter(each).buffer_unordered(RESOLVES_MAX).try_collect().await?;
    Ok(pinned.into_iter().flatten().collect())
}

async fn pin_one(
    service: &JobsService,
    image: ImageRef,
    reference: String,
    sent: Option<&str>,
) -> Result<Option<PinnedImage>, ApiError> {
    let unresolved = |problem: String| {
        let message = format!("image `{}`: {problem}", shown(&reference, 200));
        Err(ApiError::new(ApiCode::ImageUnresolved, message)
            .hint("nothing was stored; correct the reference, or try again. `host` is the node's own /usr and `dir:/PATH` a tree there; an image of your machine is `oci-layout:PATH` or `oci-archive:PATH`; `rollyard image ls` has the words for its own"))
    };
    let pinned = match &image {
        ImageRef::Host | ImageRef::Directory(_) => return Ok(None),
        ImageRef::Registry(registry) => match service.registries.resolve(registry).await {
            Ok(digest) => ImageRef::Registry(registry.pinned(digest)),
            Err(error) => return unresolved(chain(&error)),
        },
        ImageRef::Stored(digest) => match check_stored(service, digest).await {
            Ok(()) => return Ok(None),
            Err(problem) => return unresolved(problem),
        },
        ImageRef::Layout { .. } | ImageRef::Archive { .. } => {
            let Some(Ok(digest)) = sent.map(str::parse::<Digest>) else {
                return Err(ApiError::bad_request("images.digest", "expected `sha256:` and 64 hex digits"));
            };
            match check_stored(service, &digest).await {
                Ok(()) => ImageRef::Stored(digest),
                Err(problem) => return unresolved(problem),
            }
        }
    };
    Ok(Some(PinnedImage { reference, pinned: pinned.to_string() }))
}

/// All of it must be in the blob store: a job must not begin without.
async fn check_stored(service: &JobsService, digest: &Digest) -> Result<(), String> {
    let source = Stored(service.blobs.clone());
    let image = resolve(&source, digest, &Platform::here()).await.map_err(|error| chain(&error))?;
    // From here on the job names them: they are not collected meanwhile.
    for (document, _) in &image.documents {
        service.blobs.renew(&document.hex()).await.map_err(|error| chain(&error))?;
    }
    for layer in &image.layers {
        match service.blobs.renew(&layer.blob.hex()).await.map_err(|error| chain(&error))? {
            Some(size) if size == layer.size => {}
            Some(size) => return Err(format!("layer {} has {size} bytes, not {}", layer.blob, layer.size)),
            None => return Err(format!("layer {} is not in the blob store", layer.blob)),
        }
    }
    Ok(())
}
