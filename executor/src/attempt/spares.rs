//! What attempts leave on the disk, used again: to make and remove up to four files for each costs more than the
//! rest of its bookkeeping, above all where a file system has no journal and hands out no inode that was
//! given back just now.
//!
//! Nothing of one attempt is met by the next: a file is used again only if nobody else has it open, and is
//! empty then.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::libc;

use crate::broker::serve::lock;
use crate::capture::{self, Stream};
use crate::private_dir;

/// Directories, and files, that wait to be used again.
const SPARES_MAX: usize = 1024;
/// Made ahead before others have a turn, and for how long those have it.
const STOCK_BATCH: usize = 16;
const STOCK_PAUSE: Duration = Duration::from_millis(1);
/// As the kernel numbers it; `libc` has it not.
const F_SETSIG: libc::c_int = 10;

#[derive(Debug)]
pub(crate) struct Spares {
    dir: PathBuf,
    /// The largest number of an executor before this one.
    before: u64,
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
    /// They are kept in `dir`, on the file system of the attempts. What lies there already waits for
    /// [`stock`](Self::stock). Blocks.
    pub fn new(dir: PathBuf) -> io::Result<Self> {
        let mut before = 0;
        for entry in std::fs::read_dir(&dir)? {
            let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            before = before.max(number.unwrap_or(0));
        }
        Ok(Self { dir, before, free: Mutex::new(Free { number: before, ..Free::default() }) })
    }

    /// Takes in what an executor before this one left, then makes directories and files until there are `most` of
    /// each. Blocks, with pauses, until that is done or `is_ended`.
    pub fn stock(&self, most: usize, is_ended: impl Fn() -> bool) {
        if let Err(error) = self.stock_up(most.min(SPARES_MAX), is_ended) {
            tracing::warn!(dir = %self.dir.display(), %error, "no files of attempts are made ahead");
        }
    }

    fn stock_up(&self, most: usize, is_ended: impl Fn() -> bool) -> io::Result<()> {
        let mut worked = 0;
        let mut goes_on = || {
            worked += 1;
            if worked % STOCK_BATCH == 0 {
                std::thread::sleep(STOCK_PAUSE);
            }
            !is_ended()
        };
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
            if number.is_some_and(|number| number > self.before) {
                continue;
            }
            if !goes_on() {
                return Ok(());
            }
            self.inherit(path)?;
        }
        for kind in [Kind::Dir, Kind::File] {
            while goes_on() && self.make_spare(kind, most)? {}
        }
        Ok(())
    }

    /// What an executor left there, perhaps one that was killed before it had emptied it.
    fn inherit(&self, path: PathBuf) -> io::Result<()> {
        let (kind, is_spare) = match std::fs::symlink_metadata(&path)?.is_dir() {
            true => (Kind::Dir, empties(&path).unwrap_or(false)),
            false => (Kind::File, empty(&path).unwrap_or(false)),
        };
        if is_spare {
            let mut free = lock(&self.free);
            if free.of(kind).len() < SPARES_MAX {
                free.of(kind).push(path);
                return Ok(());
            }
        }
        match kind {
            Kind::Dir => std::fs::remove_dir_all(path),
            Kind::File => std::fs::remove_file(path),
        }
    }

    /// False: there are enough.
    fn make_spare(&self, kind: Kind, most: usize) -> io::Result<bool> {
        let Some(path) = self.next(kind, most) else { return Ok(false) };
        match kind {
            Kind::Dir => private_dir::make(&path)?,
            Kind::File => drop(OpenOptions::new().append(true).create_new(true).open(&path)?),
        }
        lock(&self.free).of(kind).push(path);
        Ok(true)
    }

    /// A place for one more. None: there are `most`.
    fn next(&self, kind: Kind, most: usize) -> Option<PathBuf> {
        let mut free = lock(&self.free);
        if free.of(kind).len() >= most {
            return None;
        }
        free.number += 1;
        Some(self.dir.join(free.number.to_string()))
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
        let taken = self.next(kind, SPARES_MAX)?;
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

/// Empties a file that nobody else has open. False: somebody has, or that cannot be told here. A link is an error.
fn empty(path: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() || is_shared(&file) {
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
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

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
        Place { spares: Spares::new(spare).unwrap(), attempts, _root: root }
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
    fn files_are_made_ahead_and_are_as_those_made_when_they_are_needed() {
        let place = place();
        place.spares.stock(3, || true);
        assert_eq!(std::fs::read_dir(&place.spares.dir).unwrap().count(), 0, "it had ended");
        place.spares.stock(3, || false);
        assert_eq!(std::fs::read_dir(&place.spares.dir).unwrap().count(), 6);
        let late = place.attempts.join("late");
        private_dir::make(&late).unwrap();
        drop(OpenOptions::new().append(true).create(true).open(late.join("f")).unwrap());
        let facts = |path: &Path| {
            let found = std::fs::metadata(path).unwrap();
            (found.permissions().mode(), found.uid(), found.len() * u64::from(found.is_file()))
        };
        for n in 0..3 {
            let dir = place.attempts.join(format!("job-{n}"));
            place.spares.make_dir(&dir).unwrap();
            drop(place.spares.append(&dir.join("f")).unwrap());
            assert_eq!((facts(&dir), facts(&dir.join("f"))), (facts(&late), facts(&late.join("f"))));
        }
        assert_eq!(std::fs::read_dir(&place.spares.dir).unwrap().count(), 0);
    }

    /// By one that was killed while it took in what it had not emptied yet.
    #[test]
    fn what_an_executor_before_left_is_taken_in_empty() {
        let place = place();
        let (first, inode) = used(&place, "job-1");
        std::fs::rename(&first, place.spares.dir.join("7")).unwrap();
        std::fs::write(place.spares.dir.join("9"), "secrets of a record").unwrap();
        let (second, _) = used(&place, "job-2");
        std::fs::write(second.join("input-0"), "x").unwrap();
        std::fs::rename(&second, place.spares.dir.join("8")).unwrap();
        let elsewhere = place.attempts.join("elsewhere");
        std::fs::write(&elsewhere, "not a spare").unwrap();
        std::os::unix::fs::symlink(&elsewhere, place.spares.dir.join("stray")).unwrap();
        let spares = Spares::new(place.spares.dir.clone()).unwrap();
        // Taken in meanwhile, under a name that nothing else has.
        let (third, _) = used(&place, "job-3");
        spares.remove_dir(&third).unwrap();
        assert!(place.spares.dir.join("10").exists());
        spares.stock(0, || false);
        let mut found: Vec<_> =
            std::fs::read_dir(&spares.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, ["10", "7", "9"]);
        let again = place.attempts.join("again");
        spares.make_dir(&again).unwrap();
        assert_eq!(std::fs::metadata(&again).unwrap().ino(), inode);
        spares.make_dir(&place.attempts.join("third")).unwrap();
        assert!(lock(&spares.free).dirs.is_empty(), "each waits once");
        assert_eq!(std::fs::read(capture::path(&again, Stream::Stdout)).unwrap(), b"");
        assert_eq!(spares.append(&place.attempts.join("record")).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"not a spare");
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
