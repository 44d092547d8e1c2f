//! Checkpoints and what is collected, as they are printed.

use rollout_wire::v1;
use serde::Serialize;

/// A checkpoint that was taken of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// As in the columns `ckpt_in` and `ckpt_out`.
    pub id: String,
    pub rollout: String,
    pub step: String,
    pub attempt: u32,
    pub ordinal: u32,
    pub kind: String,
    /// `needed`: its group is open; `kept`; `removed`.
    pub state: String,
    pub packed_bytes: u64,
    pub content_bytes: u64,
    /// Layers.
    pub depth: u32,
    pub taken_at_us: i64,
    /// Null while its group or job is open.
    pub expires_at_us: Option<i64>,
    pub removed_at_us: Option<i64>,
    pub removed_why: Option<String>,
}

impl From<v1::StoredCheckpoint> for Checkpoint {
    fn from(of: v1::StoredCheckpoint) -> Self {
        Self {
            id: of.id,
            rollout: of.rollout,
            step: of.step,
            attempt: of.attempt,
            ordinal: of.ordinal,
            kind: of.kind,
            state: of.state,
            packed_bytes: of.packed_bytes,
            content_bytes: of.content_bytes,
            depth: of.depth,
            taken_at_us: of.taken_at_us,
            expires_at_us: of.expires_at_us,
            removed_at_us: of.removed_at_us,
            removed_why: Some(of.removed_why).filter(|why| !why.is_empty()),
        }
    }
}

/// What a checkpoint is made of, and who has to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointDetail {
    pub id: String,
    /// Digest of the image it lies over.
    pub image: String,
    /// Bottom first.
    pub layers: Vec<Layer>,
    pub taken: Vec<Checkpoint>,
    /// Attempts that started from it, those that run first.
    pub users: Vec<User>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    pub id: String,
    pub blob_sha256: String,
    pub packed_bytes: u64,
    pub content_bytes: u64,
    pub entries: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct User {
    pub rollout: String,
    pub step: String,
    pub attempt: u32,
    pub running: bool,
}

impl From<v1::GetCheckpointReply> for CheckpointDetail {
    fn from(of: v1::GetCheckpointReply) -> Self {
        let checkpoint = of.checkpoint.unwrap_or_default();
        let layer = |layer: v1::Layer| Layer {
            id: layer.id,
            blob_sha256: layer.blob_sha256,
            packed_bytes: layer.packed_bytes,
            content_bytes: layer.content_bytes,
            entries: layer.entries,
        };
        let user = |user: v1::CheckpointUser| User {
            rollout: user.rollout,
            step: user.step,
            attempt: user.attempt,
            running: user.running,
        };
        Self {
            id: of.id,
            image: checkpoint.image,
            layers: checkpoint.layers.into_iter().map(layer).collect(),
            taken: of.taken.into_iter().map(Checkpoint::from).collect(),
            users: of.users.into_iter().map(user).collect(),
        }
    }
}

/// What differs between two checkpoints. What only the image has is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointDiff {
    pub from: String,
    pub to: String,
    /// Both lie over the same image.
    pub same_image: bool,
    pub changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `added`, `changed` or `removed`.
    pub change: &'static str,
    /// Of what is there now; of what was there, if it is removed.
    pub kind: &'static str,
    /// Before and after; null where it is no file.
    pub from_bytes: Option<u64>,
    pub to_bytes: Option<u64>,
    /// What is no UTF-8 in it is replaced, and `path_hex` has its bytes.
    pub path: String,
    pub path_hex: Option<String>,
}

/// What was collected, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Collected {
    pub dry_run: bool,
    pub expired_checkpoints: u64,
    pub layers: BlobSum,
    pub unnamed: BlobSum,
    pub kept: BlobSum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BlobSum {
    pub blobs: u64,
    pub bytes: u64,
}

impl From<v1::CollectGarbageReply> for Collected {
    fn from(of: v1::CollectGarbageReply) -> Self {
        let sum = |sum: Option<v1::BlobSum>| {
            let v1::BlobSum { blobs, bytes } = sum.unwrap_or_default();
            BlobSum { blobs, bytes }
        };
        Self {
            dry_run: of.dry_run,
            expired_checkpoints: of.expired_checkpoints,
            layers: sum(of.layers),
            unnamed: sum(of.unnamed),
            kept: sum(of.kept),
        }
    }
}
