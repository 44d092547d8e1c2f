//! Kinds of isolation, as specs and nodes name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, TMPFS_DISK_MAX};

/// The disk of every sandbox of [`BackendKind::Fncall`]: it was made before anybody asked.
pub const FNCALL_DISK: Bytes = TMPFS_DISK_MAX;

/// What makes the sandbox of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// A sandbox made for the step.
    #[default]
    Container,
    /// The same walls, made ahead and used once.
    Fncall,
}

impl BackendKind {
    pub const ALL: &'static [Self] = &[Self::Container, Self::Fncall];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Fncall => "fncall",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No such kind here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a kind of backend")]
pub struct UnknownBackend;

impl FromStr for BackendKind {
    type Err = UnknownBackend;
    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or(UnknownBackend)
    }
}

/// Why a sandbox of `kind` cannot be over `image`, if so.
pub fn refuses_image(kind: BackendKind, image: &str) -> Option<&'static str> {
    let is_local = image == "host" || image.starts_with("dir:");
    (kind == BackendKind::Fncall && !is_local)
        .then_some("`fncall` keeps sandboxes over `host` and `dir:` images only")
}

/// Why a sandbox of `kind` cannot have a disk of this limit, if so.
pub fn refuses_disk(kind: BackendKind, limit: Bytes) -> Option<String> {
    (kind == BackendKind::Fncall && limit != FNCALL_DISK)
        .then(|| format!("`fncall` has sandboxes with a disk of {FNCALL_DISK} only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_by_the_name_it_shows() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
        }
        assert_eq!("vm".parse::<BackendKind>(), Err(UnknownBackend));
    }

    #[test]
    fn what_is_made_ahead_has_one_disk_and_images_of_the_node() {
        for (image, is_refused) in [("host", false), ("dir:/a", false), ("oci:sha256:0", true), ("a:1", true)]
        {
            assert_eq!(refuses_image(BackendKind::Fncall, image).is_some(), is_refused, "{image}");
            assert_eq!(refuses_image(BackendKind::Container, image), None);
        }
        assert_eq!(refuses_disk(BackendKind::Fncall, FNCALL_DISK), None);
        assert!(refuses_disk(BackendKind::Fncall, Bytes(1)).is_some());
        assert_eq!(refuses_disk(BackendKind::Container, Bytes(1)), None);
    }
}
