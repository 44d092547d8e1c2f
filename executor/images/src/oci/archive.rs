//! A layout in a tar file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use tar::{Archive, EntryType};

use super::layout::{BLOBS_DIR, INDEX_FILE, LAYOUT_FILE, Layout};
use super::{Error, LAYER_BYTES_MAX};

/// Files of one archive.
const FILES_MAX: usize = 4096;
/// Bytes of one archive's files.
const ARCHIVE_BYTES_MAX: u64 = 4 * LAYER_BYTES_MAX;

/// Extracts the OCI archive at `archive` into the directory `into`, which must be there and empty.
/// What belongs to no layout is left out. Blocks on the disk.
///
/// # Errors
/// It is no OCI archive, or past a bound. What was written stays: the caller owns the directory.
pub fn extract(archive: &Path, into: &Path) -> Result<Layout, Error> {
    let shown = || archive.display().to_string();
    let bad = |error: io::Error| Error::format(archive.display(), error.to_string());
    let file = File::open(archive).map_err(Error::io("open", archive))?;
    fs::create_dir_all(into.join(BLOBS_DIR)).map_err(Error::io("make", into))?;
    let mut tar = Archive::new(file);
    let (mut files, mut bytes) = (0, 0u64);
    for entry in tar.entries().map_err(bad)?.raw(true) {
        let mut entry = entry.map_err(bad)?;
        files += 1;
        if files > FILES_MAX {
            return Err(Error::bound(shown(), "entries of an archive (FILES_MAX)", FILES_MAX as u64));
        }
        let size = entry.header().entry_size().map_err(bad)?;
        bytes = bytes.saturating_add(size);
        if bytes > ARCHIVE_BYTES_MAX {
            return Err(Error::bound(shown(), "bytes of an archive (ARCHIVE_BYTES_MAX)", ARCHIVE_BYTES_MAX));
        }
        let path = entry.path_bytes().into_owned();
        let path = path.strip_prefix(b"./").unwrap_or(&path);
        let Some(place) = place(path).filter(|_| entry.header().entry_type() == EntryType::Regular) else {
            continue;
        };
        let place = into.join(place);
        let mut out = File::options().write(true).create_new(true).open(&place);
        // Some writers store the same blob twice; the first is as good.
        if out.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
            continue;
        }
        let out = out.as_mut().map_err(|error| Error::Io {
            action: "create",
            path: place.display().to_string(),
            source: io::Error::from(error.kind()),
        })?;
        let copied = io::copy(&mut entry.by_ref().take(size), out).map_err(Error::io("write", &place))?;
        if copied != size {
            return Err(Error::format(shown(), "it ends early"));
        }
    }
    if !into.join(LAYOUT_FILE).exists() {
        let problem = "it holds no `oci-layout` file: it is no OCI archive";
        return Err(Error::format(shown(), problem));
    }
    Layout::open(into)
}

/// Where a file of a layout lies; none for what is none.
fn place(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    if path == LAYOUT_FILE || path == INDEX_FILE {
        return Some(path.to_owned());
    }
    let name = path.strip_prefix(BLOBS_DIR)?.strip_prefix('/')?;
    let is_hex = name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_hex.then(|| path.to_owned())
}
