//! Writing a file so that it is absent or whole.
//!
//! `object_store` can fsync local writes too, but it stages beside the target: leftovers of a
//! killed writer would be found only by walking every blob. And the name of a blob is known only
//! after its last byte. So a local directory is written here (one staging folder, two fsyncs a
//! blob); everything that reads goes through `object_store`.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::shelves::{Writing, make_young};
use crate::{Digest, Error};

const FOLDER: &str = "staged";
/// Marks the files that are ours to sweep.
const SUFFIX: &str = ".staged";
/// Leftovers removed by one sweep; the next one goes on.
const SWEPT_FILES_MAX: usize = 100_000;

static NEXT: AtomicU64 = AtomicU64::new(0);

pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io("sync the directory", path))
}

/// Creates a directory and its missing parents, and makes the name of each durable before the next
/// one is made: a crash leaves at most one that is not.
fn make_dir(dir: &Path) -> Result<(), Error> {
    let mut missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
    while let Some(dir) = missing.pop() {
        match fs::create_dir(dir) {
            Ok(()) => {}
            // Another process was faster; its name is synced here all the same.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
            Err(error) => return Err(io("create the directory", dir)(error)),
        }
        dir.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_dir)?;
    }
    Ok(())
}

/// Creates every folder a store will use, durably, so that publishing a blob makes none.
pub(crate) fn prepare(root: &Path) -> Result<(), Error> {
    make_dir(root)?;
    let digests = root.join("sha256");
    let fan_out = (0..=u8::MAX).map(|byte| digests.join(format!("{byte:02x}")));
    for path in fan_out.chain([root.join(FOLDER)]) {
        fs::create_dir_all(&path).map_err(io("create the directory", &path))?;
    }
    sync_dir(&digests)?;
    sync_dir(root)?;
    root.parent().map_or(Ok(()), sync_dir)
}

/// Makes the folders again that somebody removed under a store in use. What holds the store is not
/// made: without it the store is gone, or its file system is not mounted.
pub(crate) fn restore(root: &Path) -> Result<(), Error> {
    if let Some(parent) = root.parent() {
        fs::metadata(parent).map_err(io("find the directory of the store", parent))?;
    }
    tracing::warn!(root = %root.display(), "folders of the blob store were removed; making them again");
    prepare(root)
}

/// Removes what killed writers left behind, and says how many files that were.
///
/// A writer holds a lock on its staged file, and the kernel drops it when the writer dies: a file
/// whose lock is free has no writer. Neither a clock nor a process id has to be trusted, and a
/// second process on the same store loses nothing.
pub(crate) fn sweep(root: &Path) -> Result<usize, Error> {
    let folder = root.join(FOLDER);
    let mut swept = 0;
    for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
        let path = entry.map_err(io("list", &folder))?.path();
        if swept == SWEPT_FILES_MAX {
            break;
        }
        if !path.to_string_lossy().ends_with(SUFFIX) {
            continue;
        }
        match remove_abandoned(&path) {
            Ok(removed) => swept += usize::from(removed),
            // A file that cannot be removed costs space, not the store.
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot sweep a staged blob"),
        }
    }
    Ok(swept)
}

fn remove_abandoned(path: &Path) -> std::io::Result<bool> {
    let removed = File::open(path).and_then(|file| {
        if file.try_lock().is_err() {
            return Ok(false);
        }
        // The lock is held until the file is gone; see `StagedFile::create` for the other side.
        fs::remove_file(path).map(|()| true)
    });
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(false) } else { Err(error) })
}

/// A file being written. Dropped before [`StagedFile::publish`], it is removed.
#[derive(Debug)]
pub(crate) struct StagedFile {
    file: File,
    path: PathBuf,
    published: bool,
}

impl StagedFile {
    pub(crate) fn create(root: &Path) -> Result<Self, Error> {
        let mut is_restored = false;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = root.join(FOLDER).join(format!("{}-{number}{SUFFIX}", process::id()));
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => file,
                // A leftover under a recycled process id: take the next number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) if error.kind() == ErrorKind::NotFound && !is_restored => {
                    restore(root)?;
                    is_restored = true;
                    continue;
                }
                Err(error) => return Err(io("create", &path)(error)),
            };
            file.lock().map_err(io("lock", &path))?;
            // A sweep may have taken the file between its creation and the lock.
            if file.metadata().map_err(io("read the metadata of", &path))?.nlink() > 0 {
                return Ok(Self { file, path, published: false });
            }
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(io("write", &self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(io("sync", &self.path))
    }

    /// Makes the file the blob `digest`: durable when this returns.
    pub(crate) fn publish(mut self, root: &Path, digest: &Digest) -> Result<(), Error> {
        self.sync()?;
        let target = root.join(digest.location());
        let writing = Writing::begin(root)?;
        // The time of a file that took long to write is that of its last byte, by a coarse clock.
        self.file.set_modified(SystemTime::now()).map_err(io("set the time of", &self.path))?;
        let placed = match fs::rename(&self.path, &target) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.path.exists() => {
                restore(root)?;
                fs::rename(&self.path, &target)
            }
            placed => placed,
        };
        placed.map_err(io("rename into place", &target))?;
        // Another writer may have put the same blob between the time above and the rename, and this one now lies in its
        // place: it must not be older than a sweep that must leave the other's. Readers go by the time of writing.
        make_young(&self.file, &target)?;
        drop(writing);
        self.published = true;
        sync_dir(target.parent().unwrap_or(root))
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "staged blob not removed; the next open sweeps it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(root: &Path) -> usize {
        fs::read_dir(root.join(FOLDER)).unwrap().count()
    }

    #[test]
    fn a_sweep_takes_the_files_of_dead_writers_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let alive = StagedFile::create(dir.path()).unwrap();
        fs::write(dir.path().join(FOLDER).join("1-0.staged"), b"half").unwrap();
        fs::write(dir.path().join(FOLDER).join("someone-else.txt"), b"not ours").unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), 1);
        assert_eq!(staged(dir.path()), 2);
        alive.publish(dir.path(), &Digest::of(b"")).unwrap();
        assert_eq!((sweep(dir.path()).unwrap(), staged(dir.path())), (0, 1));
    }

    #[test]
    fn folders_removed_under_a_store_in_use_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("blobs");
        prepare(&root).unwrap();
        let digest = Digest::of(b"");
        for folder in ["", FOLDER, "sha256"] {
            fs::remove_dir_all(root.join(folder)).unwrap();
            StagedFile::create(&root).unwrap().publish(&root, &digest).unwrap();
            assert!(root.join(digest.location()).is_file(), "without `{folder}`");
        }
        let file = StagedFile::create(&root).unwrap();
        fs::remove_dir_all(root.join("sha256")).unwrap();
        file.publish(&root, &digest).unwrap();
        assert!(root.join(digest.location()).is_file());
    }

    #[test]
    fn a_store_whose_own_directory_is_gone_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let holder = dir.path().join("yard");
        prepare(&holder.join("blobs")).unwrap();
        fs::remove_dir_all(&holder).unwrap();
        let refused = StagedFile::create(&holder.join("blobs")).unwrap_err();
        assert!(matches!(refused, Error::Io { ref path, .. } if *path == holder), "{refused}");
        assert!(!holder.exists());
    }

    #[test]
    fn an_unpublished_file_is_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let mut file = StagedFile::create(dir.path()).unwrap();
        file.write(b"half a blob").unwrap();
        assert_eq!(staged(dir.path()), 1);
        drop(file);
        assert_eq!(staged(dir.path()), 0);
    }
}
