use std::fmt::Display;
use std::io;
use std::path::Path;

use rollout::image::Digest;

use crate::layers;

/// Why an image is not to be had. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{what} is not in {place}")]
    NotFound { what: String, place: String },
    /// The bytes are others than those that were asked for.
    #[error("wrong digest: asked for {expected}, got the bytes of {found}")]
    WrongDigest { expected: Digest, found: Digest },
    #[error("layer {layer} unpacks to the bytes of {found}, not of {expected}, as its configuration says")]
    WrongDiffId { layer: Digest, expected: Digest, found: Digest },
    #[error("{what} is past the bound of {limit} {bound}")]
    Bound { what: String, bound: &'static str, limit: u64 },
    #[error("{what} cannot be used: {problem}")]
    Format { what: String, problem: String },
    #[error("{image} has no image for {wanted}; it has {offered}")]
    NoPlatform { image: String, wanted: String, offered: String },
    #[error("`{path}` holds several images ({tags}): name one, as in `oci-layout:{path}:TAG`")]
    Ambiguous { path: String, tags: String },
    #[error("image `{image}` is in use by a live sandbox")]
    InUse { image: String },
    #[error("layer {layer} cannot be unpacked")]
    Layer {
        layer: Digest,
        #[source]
        source: Box<layers::Error>,
    },
    /// The registry said no, and will again.
    #[error("{host} refused {what}: {status} {answer}")]
    Refused { host: String, what: String, status: u16, answer: String },
    /// Tried as often as it is tried, or told to come back later than anybody waits.
    #[error("{host} gave no {what} in {tries} tries: {problem}")]
    GaveUp { host: String, what: String, tries: u32, problem: String },
    #[error("the blob store did not give {what}")]
    Store {
        what: String,
        #[source]
        source: Box<blobs::Error>,
    },
    #[error("cannot {action} `{path}`")]
    Io {
        action: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(super) fn format(what: impl Display, problem: impl Into<String>) -> Self {
        Self::Format { what: what.to_string(), problem: problem.into() }
    }

    pub(super) fn bound(what: impl Display, bound: &'static str, limit: u64) -> Self {
        Self::Bound { what: what.to_string(), bound, limit }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Io { action, path, source }
    }

    /// It may work at another time, or on another machine: nothing is wrong with the image.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::GaveUp { .. } | Self::InUse { .. } | Self::Store { .. } | Self::Io { .. } => true,
            Self::Layer { source, .. } => !source.of_the_packed(),
            Self::NotFound { .. }
            | Self::WrongDigest { .. }
            | Self::WrongDiffId { .. }
            | Self::Bound { .. }
            | Self::Format { .. }
            | Self::NoPlatform { .. }
            | Self::Ambiguous { .. }
            | Self::Refused { .. } => false,
        }
    }
}
