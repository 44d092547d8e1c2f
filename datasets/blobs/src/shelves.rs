//! What a local store holds, by the first byte of the digest, and how blobs leave it.
//!
//! A writer that finds its blob in the store only renews the time of access; a sweep removes a
//! file only if that time is old. Both happen under one lock file (writers share it, a sweep has it
//! alone for a few files at a time), so a blob that is put again while it is swept survives.

use std::fs::{self, File, FileTimes, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use crate::staging::{StagedFile, io, restore, sync_dir};
use crate::{Digest, Error};

/// Blobs of one shelf that are listed, of 256 shelves.
pub const SHELF_BLOBS_MAX: usize = 1 << 20;
/// Files removed while writers wait.
const REMOVED_AT_ONCE: usize = 64;
const LOCK: &str = "sweep.lock";
const OWNER: &str = "owner";

/// A blob of a shelf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    /// When it was last put.
    pub put_at: SystemTime,
}

/// Held by writers, many at once, from the look for a blob until its time is new.
#[derive(Debug)]
pub(crate) struct Writing {
    _lock: File,
}

impl Writing {
    pub(crate) fn begin(root: &Path) -> Result<Self, Error> {
        let (lock, path) = (open_lock(root)?, root.join(LOCK));
        lock.lock_shared().map_err(io("lock", &path))?;
        Ok(Self { _lock: lock })
    }
}

fn open_lock(root: &Path) -> Result<File, Error> {
    let path = root.join(LOCK);
    let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let opened = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            restore(root)?;
            open()
        }
        opened => opened,
    };
    opened.map_err(io("open", &path))
}

/// When a file was written, or renewed since. Renewing leaves the time of writing alone, by which its
/// readers know that nobody wrote to it. Where the file system keeps access times, reading a blob
/// makes it young as well: it only stays longer.
fn put_at(metadata: &Metadata) -> std::io::Result<SystemTime> {
    Ok(metadata.modified()?.max(metadata.accessed()?))
}

/// Makes the blob as young as one that is put now; its size, or none if there is no such blob.
pub(crate) fn renew(root: &Path, digest: &Digest) -> Result<Option<u64>, Error> {
    let path = root.join(digest.location());
    let _writing = Writing::begin(root)?;
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("open", &path)(error)),
    };
    let metadata = file.metadata().map_err(io("read the metadata of", &path))?;
    if !metadata.is_file() {
        return Ok(None);
    }
    make_young(&file, &path)?;
    Ok(Some(metadata.len()))
}

/// Sets the time by which sweeps go to now, and never back: each writer reads the clock under a lock of the file. To be
/// called between [`Writing::begin`] and its end.
pub(crate) fn make_young(file: &File, path: &Path) -> Result<(), Error> {
    file.lock().map_err(io("lock", path))?;
    let set = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
    file.unlock().map_err(io("unlock", path))?;
    set.map_err(io("set the time of", path))
}

/// The blobs whose digest begins with `shelf`.
pub(crate) fn list(root: &Path, shelf: u8) -> Result<Vec<Listed>, Error> {
    let first = format!("{shelf:02x}");
    let folder = root.join("sha256").join(&first);
    let mut listed = Vec::new();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(listed),
        Err(error) => return Err(io("list", &folder)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(io("list", &folder))?;
        let name = entry.file_name();
        let Some(digest) = name.to_str().and_then(|rest| format!("{first}{rest}").parse().ok()) else {
            continue;
        };
        let metadata = match entry.metadata() {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(io("read the metadata of", &entry.path())(error)),
        };
        let put_at = put_at(&metadata).map_err(io("read the time of", &entry.path()))?;
        if listed.len() == SHELF_BLOBS_MAX {
            return Err(Error::ShelfTooFull { shelf: first, blobs_max: SHELF_BLOBS_MAX });
        }
        listed.push(Listed { digest, size: metadata.len(), put_at });
    }
    Ok(listed)
}

/// Removes those of `digests` that were put before `before`; which ones that were.
pub(crate) fn remove(root: &Path, digests: &[Digest], before: SystemTime) -> Result<Vec<Digest>, Error> {
    let mut removed = Vec::new();
    for some in digests.chunks(REMOVED_AT_ONCE) {
        let (lock, lock_path) = (open_lock(root)?, root.join(LOCK));
        lock.lock().map_err(io("lock", &lock_path))?;
        for digest in some {
            let path = root.join(digest.location());
            let put_at = match fs::metadata(&path).and_then(|metadata| put_at(&metadata)) {
                Ok(put_at) => put_at,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io("read the time of", &path)(error)),
            };
            if put_at < before {
                fs::remove_file(&path).map_err(io("remove", &path))?;
                removed.push(digest.clone());
            }
        }
    }
    Ok(removed)
}

/// Writes down who owns the store, unless somebody does; the owner.
pub(crate) fn claim(root: &Path, owner: &str) -> Result<String, Error> {
    let path = root.join(OWNER);
    let mut staged = StagedFile::create(root)?;
    staged.write(owner.as_bytes())?;
    staged.sync()?;
    match fs::hard_link(staged.path(), &path) {
        Ok(()) => sync_dir(root)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io("create", &path)(error)),
    }
    fs::read_to_string(&path).map_err(io("read", &path))
}
