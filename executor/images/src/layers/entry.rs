//! What a layer says about one path, and the identity that follows from all of them.

use rollout::checkpoint::LayerId;
use sha2::{Digest, Sha256};

use super::runs::Run;

/// The first bytes of every manifest: another encoding would be another version.
const VERSION: &[u8] = b"rollyard layer 1\n";
/// Set-id bits of files mean nothing in a sandbox, and nothing carries them out of one.
const FILE_MODE: u32 = 0o1777;
/// Of directories, set-group-id hands down a group and is kept.
const DIRECTORY_MODE: u32 = 0o3777;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Opaque: nothing of the layers below shows through.
    Directory {
        opaque: bool,
    },
    /// Its runs of data, ascending.
    File {
        size: u64,
        runs: Vec<Run>,
    },
    Symlink {
        target: Vec<u8>,
    },
    /// Another name of a file that came before.
    Link {
        target: Vec<u8>,
    },
    Fifo,
    /// What the layers below have here is deleted.
    Whiteout,
}

impl Kind {
    const fn code(&self) -> u8 {
        match self {
            Self::Directory { opaque: false } => b'd',
            Self::Directory { opaque: true } => b'o',
            Self::File { .. } => b'f',
            Self::Symlink { .. } => b'l',
            Self::Link { .. } => b'h',
            Self::Fifo => b'p',
            Self::Whiteout => b'w',
        }
    }

    /// Links and whiteouts have no mode, owner or attributes of their own.
    pub const fn has_inode(&self) -> bool {
        !matches!(self, Self::Link { .. } | Self::Whiteout)
    }
}

/// Seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mtime {
    pub seconds: i64,
    pub nanos: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Mtime,
    /// Sorted by name.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The bits of a mode that are kept.
pub(super) const fn kept_mode(kind: &Kind, mode: u32) -> u32 {
    match kind {
        Kind::Directory { .. } => mode & DIRECTORY_MODE,
        Kind::Symlink { .. } => 0o777,
        Kind::Link { .. } | Kind::Whiteout => 0,
        Kind::File { .. } | Kind::Fifo => mode & FILE_MODE,
    }
}

/// The hash of a tree, fed entry by entry in byte order of their paths.
pub(super) struct Manifest {
    hash: Sha256,
    pub entries: u64,
    /// Bytes of data.
    pub content: u64,
}

impl Manifest {
    pub fn new() -> Self {
        Self { hash: Sha256::new_with_prefix(VERSION), entries: 0, content: 0 }
    }

    /// `data`: of a file, the sha256 of its runs of data, one after the other.
    pub fn add(&mut self, entry: &Entry, data: Option<[u8; 32]>) {
        self.entries += 1;
        self.bytes(&entry.path);
        self.hash.update([entry.kind.code()]);
        if entry.kind.has_inode() {
            for number in [entry.mode, entry.uid, entry.gid] {
                self.hash.update(number.to_le_bytes());
            }
            self.number(entry.attributes.len() as u64);
            for (name, value) in &entry.attributes {
                self.bytes(name);
                self.bytes(value);
            }
        }
        match &entry.kind {
            Kind::File { size, runs } => {
                self.number(*size);
                self.number(runs.len() as u64);
                for run in runs {
                    self.number(run.offset);
                    self.number(run.length);
                    self.content += run.length;
                }
                self.hash.update(data.unwrap_or_default());
            }
            Kind::Symlink { target } | Kind::Link { target } => self.bytes(target),
            Kind::Directory { .. } | Kind::Fifo | Kind::Whiteout => {}
        }
    }

    pub fn id(self) -> LayerId {
        LayerId::from_bytes(self.hash.finalize().into())
    }

    fn number(&mut self, number: u64) {
        self.hash.update(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.hash.update(bytes);
    }
}
