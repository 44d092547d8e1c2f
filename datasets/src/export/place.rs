//! Where copies appear: whole, under their final name, or not at all.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::Error;

/// The output folder, held against other exports until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// The folder itself, locked: no lock file stays behind.
    handle: File,
}

/// A copy being made, removed again unless [`Place::put`] takes it.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    taken: bool,
}

impl Target {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file: the target itself.
    pub(super) fn file(&self) -> Result<File, Error> {
        File::create(&self.path).map_err(Error::io("create", &self.path))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.taken
            && let Err(error) = remove(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "removing an unfinished copy");
        }
    }
}

impl Place {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let handle = File::open(dir).map_err(Error::io("open", dir))?;
        match handle.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), handle }),
            Err(TryLockError::WouldBlock) => Err(Error::OutputBusy { path: dir.to_owned() }),
            Err(TryLockError::Error(source)) => Err(Error::io("lock", dir)(source)),
        }
    }

    /// Whether `name` may be written.
    pub(super) fn check(&self, name: &str, overwrite: bool) -> Result<(), Error> {
        let path = self.dir.join(name);
        match path.symlink_metadata() {
            Ok(_) if !overwrite => Err(Error::OutputExists { path }),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io("look at", &path)(error)),
        }
    }

    /// The temporary name for `name`; what an export that was killed left there is removed.
    pub(super) fn target(&self, name: &str, folder: bool) -> Result<Target, Error> {
        let path = self.dir.join(format!(".{name}.tmp"));
        remove(&path).map_err(Error::io("remove", &path))?;
        if folder {
            fs::create_dir(&path).map_err(Error::io("create", &path))?;
        }
        Ok(Target { path, taken: false })
    }

    /// Gives a finished target its name. Returns the path and its bytes.
    pub(super) fn put(
        &self,
        mut target: Target,
        name: &str,
        overwrite: bool,
    ) -> Result<(PathBuf, u64), Error> {
        let bytes = size(&target.path).map_err(Error::io("measure", &target.path))?;
        self.check(name, overwrite)?;
        let path = self.dir.join(name);
        // A folder cannot be renamed over another, nor over a file: the old one steps aside.
        let aside = self.dir.join(format!(".{name}.old"));
        remove(&aside).map_err(Error::io("remove", &aside))?;
        let replaces = path.is_dir() || target.path.is_dir() && path.symlink_metadata().is_ok();
        if replaces {
            fs::rename(&path, &aside).map_err(Error::io("move aside", &path))?;
        }
        fs::rename(&target.path, &path).map_err(Error::io("rename", &target.path))?;
        target.taken = true;
        self.handle.sync_all().map_err(Error::io("sync", &self.dir))?;
        remove(&aside).map_err(Error::io("remove", &aside))?;
        Ok((path, bytes))
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Of a file, or of the files in a folder.
fn size(path: &Path) -> std::io::Result<u64> {
    let found = path.metadata()?;
    if !found.is_dir() {
        return Ok(found.len());
    }
    fs::read_dir(path)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
