//! What attempts leave on the disk, used again: to make and remove up to four files for each costs more than the
//! rest of its bookkeeping, above all where a file system has no journal and hands out no inode that was
//! given back just now.
//!
//! Nothing of one attempt is met by the next: a file is used again only if nobody else has it open, and is
//! empty then.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::libc;

use crate::broker::serve::lock;
use crate::capture::{self, Stream};
use crate::private_dir;

/// Directories, and files, that wait to be used again.
const SPARES_MAX: usize = 1024;
/// As the kernel numbers it; `libc` has it not.
const F_SETSIG: libc::c_int = 10;

#[derive(Debug)]
pub(crate) struct Spares {
    dir: PathBuf,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Of the last one that was taken in.
    number: u64,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Dir,
    File,
}

impl Free {
    fn of(&mut self, kind: Kind) -> &mut Vec<PathBuf> {
        match kind {
            Kind::Dir => &mut self.dirs,
            Kind::File => &mut self.files,
        }
    }
}

impl Spares {
    /// They are kept in `dir`, which is empty, on the file system of the attempts.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, free: Mutex::default() }
    }

    /// Makes the directory of an attempt, for its owner alone. Blocks.
    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        if self.place(Kind::Dir, path) { Ok(()) } else { private_dir::make(path) }
    }

    /// Opens a file to append to, and makes it if it is not there. Blocks.
    pub fn append(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true);
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        self.place(Kind::File, path);
        options.create(true).open(path)
    }

    /// Removes the directory of an attempt with all in it. Blocks.
    pub fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let Some(taken) = self.take_in(Kind::Dir, path) else { return std::fs::remove_dir_all(path) };
        if empties(&taken).unwrap_or(false) {
            lock(&self.free).dirs.push(taken);
            return Ok(());
        }
        std::fs::remove_dir_all(taken)
    }

    /// Removes a file. Blocks.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        let Some(taken) = self.take_in(Kind::File, path) else { return std::fs::remove_file(path) };
        if empty(&taken).unwrap_or(false) {
            lock(&self.free).files.push(taken);
            return Ok(());
        }
        std::fs::remove_file(taken)
    }

    /// Puts a spare one there. False: there is none.
    fn place(&self, kind: Kind, path: &Path) -> bool {
        let spare = lock(&self.free).of(kind).pop();
        spare.is_some_and(|spare| match std::fs::rename(&spare, path) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a spare of an attempt is not used");
                false
            }
        })
    }

    /// Under a name where nobody opens it any more. None: there are enough.
    fn take_in(&self, kind: Kind, path: &Path) -> Option<PathBuf> {
        let number = {
            let mut free = lock(&self.free);
            if free.of(kind).len() >= SPARES_MAX {
                return None;
            }
            free.number += 1;
            free.number
        };
        let taken = self.dir.join(number.to_string());
        match std::fs::rename(path, &taken) {
            Ok(()) => Some(taken),
            // Removed as ever: then it shows whether it is there at all.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "not taken in as a spare");
                None
            }
        }
    }
}

/// Whether the directory holds captured streams alone, which are empty now.
fn empties(dir: &Path) -> io::Result<bool> {
    let streams = [Stream::Stdout, Stream::Stderr].map(|stream| capture::path(dir, stream));
    for entry in std::fs::read_dir(dir)? {
        if !streams.contains(&entry?.path()) {
            return Ok(false);
        }
    }
    for stream in streams {
        match empty(&stream) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Empties a file that nobody else has open. False: somebody has, or that cannot be told here.
fn empty(path: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).open(path)?;
    if is_shared(&file) {
        return Ok(false);
    }
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    Ok(true)
}

/// Whether another descriptor of this file is open anywhere: then the kernel grants no lease to write.
///
/// Nobody opens it afterwards, since its name is not told; should somebody all the same (a backup that walks the
/// directory), the signal that a lease is broken with is one that is ignored, and not SIGIO, which ends the process.
fn is_shared(file: &File) -> bool {
    let set = |command, value: libc::c_int| {
        // SAFETY: a call without pointers, on a descriptor that is open.
        unsafe { libc::fcntl(file.as_raw_fd(), command, value) == 0 }
    };
    let is_alone = set(F_SETSIG, libc::SIGURG) && set(libc::F_SETLEASE, libc::F_WRLCK);
    // The answer is all that was wanted: nobody who opens it has to wait.
    if is_alone {
        set(libc::F_SETLEASE, libc::F_UNLCK);
    }
    !is_alone
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

    use super::*;

    struct Place {
        _root: tempfile::TempDir,
        spares: Spares,
        attempts: PathBuf,
    }

    fn place() -> Place {
        let root = tempfile::tempdir().unwrap();
        let (spare, attempts) = (root.path().join("spares"), root.path().join("attempts"));
        private_dir::make(&spare).unwrap();
        private_dir::make(&attempts).unwrap();
        Place { spares: Spares::new(spare), attempts, _root: root }
    }

    /// As an attempt leaves it.
    fn used(place: &Place, name: &str) -> (PathBuf, u64) {
        let dir = place.attempts.join(name);
        place.spares.make_dir(&dir).unwrap();
        for stream in [Stream::Stdout, Stream::Stderr] {
            std::fs::write(capture::path(&dir, stream), format!("secrets of {name}")).unwrap();
        }
        let inode = std::fs::metadata(&dir).unwrap().ino();
        (dir, inode)
    }

    #[test]
    fn a_directory_is_used_again_and_is_as_a_new_one() {
        let place = place();
        let (first, inode) = used(&place, "job-1");
        place.spares.remove_dir(&first).unwrap();
        assert!(!first.exists());
        let second = place.attempts.join("job-2");
        place.spares.make_dir(&second).unwrap();
        let made = std::fs::metadata(&second).unwrap();
        assert_eq!((made.ino(), made.permissions().mode() & 0o777), (inode, 0o700));
        for stream in [Stream::Stdout, Stream::Stderr] {
            assert_eq!(std::fs::read(capture::path(&second, stream)).unwrap(), b"");
        }
    }

    /// A reader of a log that is slow, or a capture that was given up and still has its file.
    #[test]
    fn what_somebody_has_open_is_not_used_again() {
        for is_reader in [true, false] {
            let place = place();
            let (first, _) = used(&place, "job-1");
            let path = capture::path(&first, Stream::Stderr);
            let mut open = OpenOptions::new().read(is_reader).write(!is_reader).open(path).unwrap();
            place.spares.remove_dir(&first).unwrap();
            let (second, _) = used(&place, "job-2");
            if is_reader {
                let mut text = String::new();
                open.read_to_string(&mut text).unwrap();
                assert_eq!(text, "secrets of job-1");
            } else {
                open.write_all(b"late").unwrap();
                let text = std::fs::read(capture::path(&second, Stream::Stderr)).unwrap();
                assert_eq!(text, b"secrets of job-2");
            }
        }
    }

    #[test]
    fn a_directory_with_anything_else_in_it_is_removed() {
        let place = place();
        let (first, _) = used(&place, "job-1");
        std::fs::write(first.join("input-0"), "x").unwrap();
        place.spares.remove_dir(&first).unwrap();
        assert_eq!(std::fs::read_dir(&place.spares.dir).unwrap().count(), 0);
        let (second, _) = used(&place, "job-2");
        assert!(!second.join("input-0").exists() && !first.exists());
        assert!(place.spares.remove_dir(&first).is_err(), "it is gone");
    }

    #[test]
    fn a_file_is_appended_to_and_used_again_empty() {
        let place = place();
        let path = |name| place.attempts.join(name);
        for text in ["one", "two"] {
            place.spares.append(&path("a")).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read(path("a")).unwrap(), b"onetwo");
        let inode = std::fs::metadata(path("a")).unwrap().ino();
        place.spares.remove_file(&path("a")).unwrap();
        assert!(!path("a").exists());
        drop(place.spares.append(&path("b")).unwrap());
        let made = std::fs::metadata(path("b")).unwrap();
        assert_eq!((made.ino(), made.len()), (inode, 0));
    }

    /// Somebody cleans up, or looks through everything.
    #[test]
    fn a_place_that_is_gone_keeps_nothing_from_being_removed() {
        let place = place();
        let (first, _) = used(&place, "job-1");
        std::fs::remove_dir(&place.spares.dir).unwrap();
        place.spares.remove_dir(&first).unwrap();
        assert!(!first.exists());
        let missing = place.spares.remove_dir(&first).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn whoever_opens_a_file_that_is_looked_at_waits_for_nothing_and_ends_nobody() {
        let place = place();
        let path = place.attempts.join("f");
        let file = place.spares.append(&path).unwrap();
        assert!(!is_shared(&file));
        assert!(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).is_ok());
        // As it is while another looks.
        for (command, value) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
            // SAFETY: as in `is_shared`.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), command, value) }, 0);
        }
        let broken = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn no_more_than_some_are_kept() {
        let place = place();
        let dirs: Vec<_> = (0..=SPARES_MAX).map(|n| used(&place, &format!("job-{n}")).0).collect();
        for dir in &dirs {
            place.spares.remove_dir(dir).unwrap();
        }
        assert_eq!(std::fs::read_dir(&place.spares.dir).unwrap().count(), SPARES_MAX);
        assert_eq!(std::fs::read_dir(&place.attempts).unwrap().count(), 0);
    }
}
