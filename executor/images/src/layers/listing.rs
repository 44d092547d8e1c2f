//! What a packed layer says, without unpacking it: path after path, checked against its id.

use std::io::Read;

use rollout::checkpoint::{Layer, LayerId};
use sha2::{Digest, Sha256};

use super::entry::{Entry, Kind, Manifest, kept_mode};
use super::unpack::{check_claims, entries};
use super::{Bounds, Error, paths};

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedKind {
    /// Opaque: nothing of the layers below shows through.
    Directory {
        opaque: bool,
    },
    /// Bytes, holes included.
    File {
        size: u64,
    },
    Symlink,
    /// Another name of a file of the same layer.
    Link,
    Fifo,
    /// What the layers below have here is deleted.
    Whiteout,
}

/// A path of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub path: Vec<u8>,
    pub kind: ListedKind,
    /// Over all that a layer says of the path but its time: two that are the same have one.
    pub id: LayerId,
}

/// The paths of a packed layer, in byte order.
///
/// # Errors
/// It is past a bound of `bounds`, no packed layer, or not the one `expected` names.
pub fn list(packed: impl Read, expected: &Layer, bounds: &Bounds) -> Result<Vec<Listed>, Error> {
    check_claims(expected, bounds)?;
    let (mut listed, mut whole) = (Vec::new(), Manifest::new());
    let mut last = Vec::new();
    entries(packed, expected, |mut entry, data| {
        if let Kind::Directory { .. } = entry.kind
            && let Some(stripped) = entry.path.strip_suffix(b"/")
        {
            entry.path = stripped.to_vec();
        }
        paths::check(&entry.path)?;
        if entry.path <= last {
            return Err(Error::entry(&entry.path, "it is out of order"));
        }
        if whole.entries >= expected.entries {
            return Err(Error::bound(&entry.path, "entries it claims", expected.entries));
        }
        entry.mode = kept_mode(&entry.kind, entry.mode);
        let digest = content(&entry, data)?;
        whole.add(&entry, digest);
        let mut alone = Manifest::new();
        alone.add(&entry, digest);
        let kind = match &entry.kind {
            Kind::Directory { opaque } => ListedKind::Directory { opaque: *opaque },
            Kind::File { size, .. } => ListedKind::File { size: *size },
            Kind::Symlink { .. } => ListedKind::Symlink,
            Kind::Link { .. } => ListedKind::Link,
            Kind::Fifo => ListedKind::Fifo,
            Kind::Whiteout => ListedKind::Whiteout,
        };
        last.clone_from(&entry.path);
        listed.push(Listed { path: entry.path, kind, id: alone.id() });
        Ok(())
    })?;
    let found = whole.id();
    if found != expected.id {
        return Err(Error::OtherTree { expected: expected.id, found });
    }
    Ok(listed)
}

/// The digest of the data of a file.
fn content(entry: &Entry, data: &mut dyn Read) -> Result<Option<[u8; 32]>, Error> {
    let Kind::File { runs, .. } = &entry.kind else { return Ok(None) };
    let mut left: u64 = runs.iter().map(|run| run.length).sum();
    let mut hash = Sha256::new();
    let mut buffer = [0; 64 << 10];
    while left > 0 {
        let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let part = &mut buffer[..want];
        data.read_exact(part).map_err(|error| Error::format(error.to_string()))?;
        hash.update(&*part);
        left -= want as u64;
    }
    Ok(Some(hash.finalize().into()))
}
