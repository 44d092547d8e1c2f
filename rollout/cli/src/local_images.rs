//! Images that lie on this machine, handed in with a spec that names them.

use std::collections::BTreeMap;
use std::path::Path;

use images::oci::layout::Layout;
use images::oci::{self, Platform, extract, resolve};
use rollout::image::{Digest, ImageRef, Pick};
use rollout_wire::v1::ImagePin;

use crate::client::Client;
use crate::error::Error;
use crate::upload;

/// An image of this machine, while it is read.
#[derive(Debug)]
pub struct Local {
    pub layout: Layout,
    pub digest: Digest,
    /// Where an archive was extracted.
    _scratch: Option<tempfile::TempDir>,
}

/// Opens a layout, or extracts an archive; paths are relative to `dir`.
pub async fn opened(reference: &ImageRef, dir: &Path) -> Result<Local, oci::Error> {
    let (reference, dir) = (reference.clone(), dir.to_owned());
    let open = move || match &reference {
        ImageRef::Archive { path } => {
            let scratch = tempfile::tempdir().map_err(|source| oci::Error::Io {
                action: "make a directory in",
                path: std::env::temp_dir().display().to_string(),
                source,
            })?;
            let layout = extract(&dir.join(path), scratch.path())?;
            let digest = layout.pick(&Pick::Only)?;
            Ok(Local { layout, digest, _scratch: Some(scratch) })
        }
        ImageRef::Layout { path, pick } => {
            let layout = Layout::open(&dir.join(path))?;
            let digest = layout.pick(pick)?;
            Ok(Local { layout, digest, _scratch: None })
        }
        other => {
            Err(oci::Error::NotFound { what: other.to_string(), place: "files of this machine".to_owned() })
        }
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(opened) => opened,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Uploads the images that `texts` name, relative to `dir`; adds them to `pins`.
pub async fn hand_in(
    client: &Client,
    dir: &Path,
    texts: &[String],
    pins: &mut BTreeMap<String, ImagePin>,
) -> Result<(), Error> {
    for text in texts {
        let failed = |source| Error::Image { reference: text.clone(), source: Box::new(source) };
        let reference = text.parse::<ImageRef>();
        let reference = reference
            .map_err(|error| Error::ImageName { text: text.clone(), problem: error.problem.to_owned() })?;
        let local = opened(&reference, dir).await.map_err(failed)?;
        let image = resolve(&local.layout, &local.digest, &Platform::here()).await.map_err(failed)?;
        let documents = image.documents.iter().map(|(digest, bytes)| (*digest, bytes.len() as u64));
        let layers = image.layers.iter().map(|layer| (layer.blob, layer.size));
        for (digest, size) in documents.chain(layers) {
            let layout = local.layout.clone();
            let checked = tokio::task::spawn_blocking(move || layout.check(&digest)).await;
            match checked {
                Ok(checked) => _ = checked.map_err(failed)?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
            upload::put(client, local.layout.blob(&digest), &digest.hex(), size).await?;
        }
        let pin = ImagePin { reference: text.clone(), digest: local.digest.to_string() };
        pins.insert(text.clone(), pin);
    }
    Ok(())
}
