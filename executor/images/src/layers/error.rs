use std::io;

use rollout::checkpoint::LayerId;

/// Of a path, this many bytes are shown.
const SHOWN_MAX: usize = 160;

/// Why a tree is not packed, unpacked or kept. Nothing half done is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tree holds what no layer can.
    #[error("`{path}` cannot be part of a layer: {problem}")]
    Entry { path: String, problem: String },
    #[error("`{path}` is past the bound of {limit} {what}")]
    Bound { what: &'static str, limit: u64, path: String },
    /// The packed bytes are not those of a layer.
    #[error("not a packed layer: {problem}")]
    Format { problem: String },
    #[error("the packed tree is layer {found}, not {expected}")]
    OtherTree { expected: LayerId, found: LayerId },
    #[error("the layer has {found} {what}, not the {expected} it claims")]
    OtherCount { what: &'static str, expected: u64, found: u64 },
    /// Something still writes in the tree.
    #[error("`{path}` changed while it was read")]
    Changed { path: String },
    /// The caller set its flag.
    #[error("it was stopped")]
    Stopped,
    #[error("{needed} bytes do not fit the layer store: {used} of {bytes_max} are in use by sandboxes")]
    Full { needed: u64, used: u64, bytes_max: u64 },
    #[error("cannot {action} `{path}`")]
    Io {
        action: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The tree itself is to blame: packing it again would end the same.
    pub fn of_the_tree(&self) -> bool {
        matches!(self, Self::Entry { .. } | Self::Bound { .. })
    }

    /// There was no room to write: no space, or over a quota.
    pub fn is_full(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// The packed form is to blame, wherever it is unpacked.
    pub fn of_the_packed(&self) -> bool {
        matches!(
            self,
            Self::Entry { .. }
                | Self::Bound { .. }
                | Self::Format { .. }
                | Self::OtherTree { .. }
                | Self::OtherCount { .. }
        )
    }

    pub(super) fn entry(path: &[u8], problem: impl Into<String>) -> Self {
        Self::Entry { path: shown(path), problem: problem.into() }
    }

    pub(super) fn format(problem: impl Into<String>) -> Self {
        Self::Format { problem: problem.into() }
    }

    /// What is read is to blame: a bad stream, or one that ends early.
    #[expect(clippy::needless_pass_by_value, reason = "it stands where an error is mapped")]
    pub(crate) fn stream(error: io::Error) -> Self {
        Self::Format { problem: error.to_string() }
    }

    pub(super) fn bound(path: &[u8], what: &'static str, limit: u64) -> Self {
        Self::Bound { what, limit, path: shown(path) }
    }

    pub(super) fn io(action: &'static str, path: &[u8]) -> impl FnOnce(io::Error) -> Self {
        let path = shown(path);
        move |source| Self::Io { action, path, source }
    }

    pub(super) fn errno(action: &'static str, path: &[u8]) -> impl FnOnce(nix::errno::Errno) -> Self {
        let path = shown(path);
        move |source| Self::Io { action, path, source: source.into() }
    }
}

/// A path for people: no control character of it reaches a terminal.
pub(super) fn shown(path: &[u8]) -> String {
    let start = &path[..path.len().min(SHOWN_MAX)];
    let dots = if path.len() > SHOWN_MAX { "..." } else { "" };
    format!("/{}{dots}", start.escape_ascii())
}
