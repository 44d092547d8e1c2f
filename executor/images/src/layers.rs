//! Layers: trees of changes, their identity, their packed form and their place on a node.
//!
//! A layer exists in two forms with one id. On a node it is a *directory* that overlayfs takes as
//! a lower as it is: owners as the sandbox numbers them (0..65536), deletions as overlay marks
//! (`c 0,0` nodes, `trusted.overlay.opaque`). In the blob store it is *packed*: a tar with neutral
//! marks, compressed. The id is the sha256 of the canonical manifest, which both forms have.
//!
//! [`pack_upper`] and [`pack_directory`] make the packed form in one walk, [`unpack`] makes the
//! directory form of it, [`list`] says what is in it, and [`LayerStore`] keeps directories within a bound.
//! [`lay_over`] copies a directory over a tree that cannot be mounted anew.
//!
//! Packed form: entries in byte order of their paths, each parent before what is in it, no entry
//! for the root. PAX records hold what a header cannot: long names, fractions of seconds,
//! `SCHILY.xattr.*`, the runs of data of a file with holes (`GNU.sparse.*`, as other programs read
//! them), and the marks `ROLLYARD.whiteout` and `ROLLYARD.opaque`. The same tree packs to the same
//! bytes.
//!
//! Identity: per entry its path, kind, mode (no set-id bits of files), owner and attributes; of a
//! file its size, its runs of data and the sha256 of what is in them; of a link its target. Blocks
//! of zeros are holes, whether they were written or not. Modification times are restored and not
//! part of the identity.

mod archive;
mod attributes;
mod entry;
mod error;
mod foreign;
mod foreign_header;
mod lay;
mod listing;
mod pack;
mod paths;
mod runs;
mod store;
mod unpack;
mod walk;

#[cfg(test)]
mod tests;

use rollout::Bytes;

pub use error::Error;
pub use foreign::{Foreign, unpack_foreign};
pub use lay::{Ground, lay_over};
pub use listing::{Listed, ListedKind, list};
pub use pack::{Dropped, Packed, pack_directory, pack_upper};
pub use store::{LayerStore, Pinned, STAGED_DIR, Staged};
pub use unpack::unpack;

/// The most entries of a layer.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// The longest path in a layer, in bytes.
pub const PATH_BYTES_MAX: usize = 4095;
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The most bytes of extended attributes of one entry, names and values.
///
/// What every file system takes: a tmpfs holds more, and what is saved there must be made on the
/// disk of another node.
pub const ATTRIBUTE_BYTES_MAX: usize = 3 << 10;
/// What an attribute takes beside its name and value.
pub(crate) const ATTRIBUTE_OVERHEAD_BYTES: usize = 32;
/// The longest file, holes counted; as with attributes, a tmpfs takes longer ones.
pub const FILE_BYTES_MAX: u64 = 8 << 40;
/// The most bytes of names in one directory. Held in memory while it is packed.
pub const LISTING_BYTES_MAX: usize = 64 << 20;
/// The most bytes of paths of files with several links. Held in memory while a tree is packed.
pub const LINK_BYTES_MAX: usize = 64 << 20;
/// The highest user and group of a layer.
pub const ID_MAX: u32 = 65_535;

/// What a tree may be at most. Past a bound it is refused whole, by the bound's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// At most [`ENTRIES_MAX`].
    pub entries: u64,
    /// Bytes of data in its files; holes do not count.
    pub content: Bytes,
}

impl Bounds {
    pub fn new(content: Bytes) -> Self {
        Self { entries: ENTRIES_MAX, content }
    }
}
