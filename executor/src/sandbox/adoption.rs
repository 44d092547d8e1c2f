//! What an executor needs to take over a sandbox that one before it made.
//!
//! The broker lives on and so does the sandbox; what only the executor knew is written down beside its
//! attempt, and what only it held (the channel, the ends of streams) is with a keeper.

use std::io;
use std::path::PathBuf;

use rollout::checkpoint::Layer;
use rollout::{BootTime, Bytes};
use serde::{Deserialize, Serialize};

use super::{CreateError, Mounted, OciBase};
use std::sync::Arc;

/// What is written down about one sandbox. Its image and its limits are those of the order it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deed {
    /// As the broker and the cgroups have it.
    pub id: String,
    pub image: String,
    pub image_digest: String,
    pub workdir: String,
    pub id_base: u32,
    pub init_pid: i32,
    pub memory_disk: Bytes,
    pub disk_limit: Bytes,
    /// Its layers, and where their trees are.
    pub layers: Vec<(Layer, PathBuf)>,
    /// Of an OCI image.
    pub base: Option<BaseDeed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseDeed {
    pub digest: String,
    pub trees: Vec<PathBuf>,
    pub env: Vec<(String, String)>,
}

/// A sandbox to take over, with what lies under it held again.
#[derive(Debug, Clone)]
pub struct Adoption {
    pub deed: Deed,
    pub layers: Vec<Mounted>,
    pub base: Option<Arc<OciBase>>,
}

/// What an executor that was killed left with a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inheritance {
    /// Names of the sandboxes.
    pub sandboxes: Vec<String>,
    /// They may live until then.
    pub ends_at: Option<BootTime>,
}

/// Why a sandbox is not taken over. It is destroyed with all that nobody claims.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error("backend {backend} takes no sandbox over")]
    NotOffered { backend: &'static str },
    #[error("{0} is not there any more")]
    Gone(String),
    #[error("its image cannot be used: {0}")]
    Image(#[source] CreateError),
    #[error("{action}")]
    Failed {
        action: &'static str,
        #[source]
        source: io::Error,
    },
}
