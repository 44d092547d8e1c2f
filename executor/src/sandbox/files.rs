//! Files of a sandbox, reached from outside while hostile processes may run in it.
//!
//! The root is a mount of the writable tree alone: nothing mounted inside the sandbox lies over
//! it. Every path is opened beneath it, through no symlink, and what was opened is looked at
//! before it is used: a FIFO or device is never opened for reading at all.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rollout::Bytes;

use super::{FileError, FileSource, Listing};
use crate::host::open;

pub(super) mod entries;

/// The longest path, in bytes: what the kernel takes with its terminator.
const PATH_MAX: usize = 4095;
/// Of a path that cannot be one, this many characters are shown.
const SHOWN_MAX: usize = 200;
/// Directories of a path.
const DEPTH_MAX: usize = 128;
/// Open directories while a tree is removed. What lies deeper is moved up first.
const REMOVE_DEPTH_MAX: usize = 64;
/// Directory reads while a tree is removed: a process that makes files as fast as they are removed
/// does not keep us.
const REMOVE_READS_MAX: u64 = 4_000_000;

/// Host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    /// Host id of the sandbox's root, which owns made parents.
    pub root: u32,
}

/// In the sandbox something else is mounted at these places: what files have there, no program of it
/// sees.
pub fn check_not_mounted_over(path: &str, workdir: &str, has_host_usr: bool) -> Result<(), FileError> {
    let from = if path.starts_with('/') { path } else { workdir };
    let first = from.split('/').find(|part| !part.is_empty() && *part != ".");
    let problem = match first {
        Some("dev" | "proc") => "the sandbox has a mount of its own there, which only its programs reach",
        Some("usr") if has_host_usr => "the machine's own /usr is mounted there, read-only",
        _ => return Ok(()),
    };
    Err(FileError::BadPath { path: path.chars().take(SHOWN_MAX).collect(), problem })
}

/// A path that was looked at: its parts, none of them `..`.
struct Parts<'a> {
    shown: &'a str,
    parts: Vec<CString>,
}

impl<'a> Parts<'a> {
    fn new(path: &'a str, workdir: &str) -> Result<Self, FileError> {
        let bad = |problem| Err(FileError::BadPath { path: path.chars().take(SHOWN_MAX).collect(), problem });
        if path.is_empty() {
            return bad("it is empty");
        }
        if path.len() > PATH_MAX {
            return bad("it is longer than 4095 bytes");
        }
        let start = if path.starts_with('/') { "" } else { workdir };
        let mut parts = Vec::new();
        for part in start.split('/').chain(path.split('/')).filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." {
                return bad("it holds `..`");
            }
            let Ok(part) = CString::new(part) else { return bad("it holds a NUL byte") };
            parts.push(part);
        }
        if parts.is_empty() {
            return bad("it names the root");
        }
        if parts.len() > DEPTH_MAX {
            return bad("it has more than 128 parts");
        }
        Ok(Self { shown: path, parts })
    }

    fn error(&self, error: io::Error) -> FileError {
        let path = self.shown.to_owned();
        match error.raw_os_error() {
            Some(libc::ELOOP | libc::EXDEV) => FileError::Escapes { path },
            Some(libc::ENAMETOOLONG) => {
                let problem = "a part of it is longer than the filesystem takes";
                FileError::BadPath { path: path.chars().take(SHOWN_MAX).collect(), problem }
            }
            // A directory took the place of the file meanwhile.
            Some(libc::EISDIR) => FileError::NotAFile { path, found: "directory" },
            Some(libc::ENOSPC | libc::EDQUOT) => FileError::Full { path },
            _ => FileError::Io { path, source: error },
        }
    }

    fn not_a_file(&self, found: &'static str) -> FileError {
        FileError::NotAFile { path: self.shown.to_owned(), found }
    }

    /// The parent directory, made where missing.
    fn parent(&self, root: BorrowedFd<'_>, owner: Owner) -> Result<(OwnedFd, &CStr), FileError> {
        let (last, parents) = self.parts.split_last().unwrap_or_else(|| unreachable!("never empty"));
        let mut dir = open::beneath(root, c".", DIR, 0, open::CONFINED).map_err(|error| self.error(error))?;
        for part in parents {
            dir = match open::beneath(dir.as_fd(), part, DIR, 0, open::CONFINED) {
                Ok(next) => next,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make_owned_dir(dir.as_fd(), part, 0o755, owner.root, owner.root)
                        .map_err(|error| self.error(error))?
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
                    return Err(self.symlink_or_file(dir.as_fd(), part));
                }
                Err(error) => return Err(self.error(error)),
            };
        }
        Ok((dir, last))
    }

    /// What stands in the way of a path.
    fn symlink_or_file(&self, dir: BorrowedFd<'_>, part: &CStr) -> FileError {
        match kind_at(dir, part) {
            Ok("symlink") => FileError::Escapes { path: self.shown.to_owned() },
            Ok(found) => FileError::NotADirectory {
                path: self.shown.to_owned(),
                part: part.to_string_lossy().into_owned(),
                found,
            },
            Err(_) => self.error(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
}

const DIR: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

fn make_owned_dir(dir: BorrowedFd<'_>, name: &CStr, mode: u32, uid: u32, gid: u32) -> io::Result<OwnedFd> {
    match open::make_dir(dir, name, 0o700) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let made =
        open::beneath(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0, open::CONFINED)?;
    // Mode before owner: until then nobody inside can open it.
    set_mode(made.as_fd(), mode)?;
    open::change_owner(made.as_fd(), uid, gid)?;
    open::beneath(made.as_fd(), c".", DIR, 0, open::CONFINED)
}

fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: no memory involved.
    if unsafe { libc::fchmod(fd.as_raw_fd(), mode & 0o1777) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn kind_of(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "FIFO",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR | libc::S_IFBLK => "device",
        _ => "special file",
    }
}

fn kind_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<&'static str> {
    let found = open::beneath(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0, open::CONFINED)?;
    Ok(kind_of(open::stat(found.as_fd())?.st_mode))
}

/// Opens a regular file for reading. None: nothing is there.
pub fn read(root: BorrowedFd<'_>, workdir: &str, path: &str) -> Result<Option<(File, Bytes)>, FileError> {
    let parts = Parts::new(path, workdir)?;
    let joined = parts.parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>().join(&b'/');
    let Ok(joined) = CString::new(joined) else {
        return Err(FileError::BadPath { path: path.to_owned(), problem: "it holds a NUL byte" });
    };
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let found = match open::beneath(root, &joined, flags, 0, open::CONFINED) {
        Ok(found) => found,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
        Err(error) => return Err(parts.error(error)),
    };
    let stat = open::stat(found.as_fd()).map_err(|error| parts.error(error))?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(parts.not_a_file(kind_of(stat.st_mode)));
    }
    let again = reopen(found.as_fd());
    let file = again.map_err(|error| parts.error(error))?;
    Ok(Some((file, Bytes(u64::try_from(stat.st_size).unwrap_or(0)))))
}

/// Opens for reading what a descriptor stands for. The descriptor already is that file: by number no path
/// is followed. Never waits for anybody who holds the file.
fn reopen(found: BorrowedFd<'_>) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let by_number = format!("/proc/self/fd/{}", found.as_raw_fd());
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(by_number)
}

/// What is at `path`: a file, or the names in a directory. None: nothing is there.
pub fn list(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    names_max: usize,
) -> Result<Option<Listing>, FileError> {
    let parts = Parts::new(path, workdir)?;
    let joined = parts.parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>().join(&b'/');
    let Ok(joined) = CString::new(joined) else {
        return Err(FileError::BadPath { path: path.to_owned(), problem: "it holds a NUL byte" });
    };
    let found = match open::beneath(root, &joined, libc::O_PATH | libc::O_NOFOLLOW, 0, open::CONFINED) {
        Ok(found) => found,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
        Err(error) => return Err(parts.error(error)),
    };
    let stat = open::stat(found.as_fd()).map_err(|error| parts.error(error))?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => return Ok(Some(Listing::File)),
        libc::S_IFDIR => {}
        _ => return Err(parts.not_a_file(kind_of(stat.st_mode))),
    }
    let opened = readable_dir(found.as_fd(), c".").map_err(|error| parts.error(error))?;
    let mut names = Vec::new();
    let dir = nix::dir::Dir::from_fd(opened).map_err(|error| parts.error(error.into()))?;
    for entry in dir {
        let entry = entry.map_err(|error| parts.error(error.into()))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let bad = |problem| FileError::BadPath { path: path.chars().take(SHOWN_MAX).collect(), problem };
        if names.len() == names_max {
            return Err(bad("it holds too many names"));
        }
        names.push(name.to_str().map_err(|_| bad("a name in it is not UTF-8"))?.to_owned());
    }
    names.sort_unstable();
    Ok(Some(Listing::Directory(names)))
}

/// Makes a directory unless one is there.
pub fn make_dir(root: BorrowedFd<'_>, workdir: &str, path: &str, owner: Owner) -> Result<(), FileError> {
    let parts = Parts::new(path, workdir)?;
    let (dir, name) = parts.parent(root, owner)?;
    match kind_at(dir.as_fd(), name) {
        Ok("directory") => return Ok(()),
        Ok(_) => return Err(parts.symlink_or_file(dir.as_fd(), name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(parts.error(error)),
    }
    let made = make_owned_dir(dir.as_fd(), name, 0o755, owner.uid, owner.gid);
    made.map(drop).map_err(|error| parts.error(error))
}

/// Writes a file beside its place and moves it there: readers see the old or the new one.
pub fn write(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    content: FileSource,
    mode: u32,
    owner: Owner,
) -> Result<(), FileError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let parts = Parts::new(path, workdir)?;
    let (dir, name) = parts.parent(root, owner)?;
    if kind_at(dir.as_fd(), name).is_ok_and(|kind| kind == "directory") {
        return Err(parts.not_a_file("directory"));
    }
    let beside = format!(".rollyard-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let beside = CString::new(beside).map_err(|error| parts.error(error.into()))?;
    let (file, has_name) = new_file(dir.as_fd(), &beside).map_err(|error| parts.error(error))?;
    let written = fill(&mut File::from(file), content, mode, owner, |file| match has_name {
        true => Ok(()),
        false => open::link_nameless(file, dir.as_fd(), &beside),
    });
    let written = written.and_then(|()| {
        // SAFETY: both names are C strings.
        let moved =
            unsafe { libc::renameat(dir.as_raw_fd(), beside.as_ptr(), dir.as_raw_fd(), name.as_ptr()) };
        if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    written.map_err(|error| {
        // Ours alone by its name; if it is gone already, so much the better.
        let _ = open::remove(dir.as_fd(), &beside, 0);
        parts.error(error)
    })
}

/// Between two looks whether a copy is still wanted.
const COPY_BYTES: u64 = 8 << 20;

/// Without a name where the filesystem can: nobody sees it half written, and no checkpoint takes it along.
/// Says whether it has one.
fn new_file(dir: BorrowedFd<'_>, beside: &CStr) -> io::Result<(OwnedFd, bool)> {
    let flags = libc::O_WRONLY | libc::O_TMPFILE;
    match open::beneath(dir, c".", flags, 0o600, open::CONFINED) {
        Ok(file) => Ok((file, false)),
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) =>
        {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            Ok((open::beneath(dir, beside, flags, 0o600, open::CONFINED)?, true))
        }
        Err(error) => Err(error),
    }
}

/// Content, mode and owner, then its name.
fn fill(
    file: &mut File,
    content: FileSource,
    mode: u32,
    owner: Owner,
    name: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<()> {
    use std::io::{Seek, Write};
    match content {
        FileSource::Bytes(bytes) => file.write_all(&bytes)?,
        FileSource::File(mut from) => {
            from.rewind()?;
            io::copy(&mut from, file)?;
        }
        FileSource::Stoppable { file: mut from, stop } => {
            from.rewind()?;
            while io::copy(&mut io::Read::take(&from, COPY_BYTES), file)? > 0 {
                if stop.is_cancelled() {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "nobody waits for it any more"));
                }
            }
        }
        FileSource::Part { file: mut from, offset, size } => {
            from.seek(io::SeekFrom::Start(offset))?;
            if io::copy(&mut io::Read::take(from, size), file)? != size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    // No set-id bits: they mean nothing here, and nothing may carry them out.
    set_mode(file.as_fd(), mode & 0o777)?;
    open::change_owner(file.as_fd(), owner.uid, owner.gid)?;
    name(file.as_fd())
}

/// Removes whatever is at `path` and makes an empty directory there.
pub fn reset_dir(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    mode: u32,
    owner: Owner,
) -> Result<(), FileError> {
    let parts = Parts::new(path, workdir)?;
    let (dir, name) = parts.parent(root, owner)?;
    remove_tree(dir.as_fd(), name).map_err(|error| parts.error(error))?;
    make_owned_dir(dir.as_fd(), name, mode, owner.uid, owner.gid).map_err(|error| parts.error(error))?;
    Ok(())
}

/// Removes a tree by descriptors, in place, with bounded memory and descriptors however deep it
/// is. Nothing there: nothing done.
pub fn remove_tree(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match open::remove(dir, name, 0) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => return other,
    }
    let mut reads = 0u64;
    let mut moved = 0u64;
    // Directories being emptied, outermost first.
    let mut stack: Vec<(OwnedFd, CString)> = vec![(readable_dir(dir, name)?, name.to_owned())];
    while let Some((current, _)) = stack.last() {
        reads += 1;
        if reads > REMOVE_READS_MAX {
            return Err(io::Error::other("the tree does not get empty"));
        }
        match first_directory_after_files(current.as_fd())? {
            Some(child) if stack.len() < REMOVE_DEPTH_MAX => {
                let next = readable_dir(current.as_fd(), &child)?;
                stack.push((next, child));
            }
            Some(child) => {
                // Too deep to hold open: it becomes a child of the top, emptied later.
                let up = CString::new(format!(".rollyard-deep-{moved}")).unwrap_or_default();
                moved += 1;
                let top = stack[0].0.as_fd();
                // SAFETY: both names are C strings.
                let done = unsafe {
                    libc::renameat(current.as_raw_fd(), child.as_ptr(), top.as_raw_fd(), up.as_ptr())
                };
                if done < 0 {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        // What lies there already has that name: the next number. Or it is gone.
                        Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR | libc::ENOENT) => {}
                        _ => return Err(error),
                    }
                }
            }
            None => {
                let Some((_, emptied)) = stack.pop() else { break };
                let parent = stack.last().map_or(dir, |(parent, _)| parent.as_fd());
                match open::remove(parent, &emptied, libc::AT_REMOVEDIR) {
                    // Something was made in it meanwhile: empty it again.
                    Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => {
                        let again = readable_dir(parent, &emptied)?;
                        stack.push((again, emptied));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

fn readable_dir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    open::beneath(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0, open::CONFINED)
}

/// Removes what is no directory; the first directory found, none when the rest is gone.
fn first_directory_after_files(dir: BorrowedFd<'_>) -> io::Result<Option<CString>> {
    // A description of its own, so that reading starts at the first entry.
    let mut listed = nix::dir::Dir::from_fd(readable_dir(dir, c".")?)?;
    for entry in listed.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match open::remove(dir, name, 0) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {
                return Ok(Some(name.to_owned()));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    struct Root {
        dir: tempfile::TempDir,
        fd: OwnedFd,
        owner: Owner,
    }

    fn root() -> Root {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("root");
        fs::create_dir(&top).unwrap();
        fs::write(dir.path().join("secret"), "host bytes").unwrap();
        let fd = OwnedFd::from(File::open(&top).unwrap());
        let own = fs::metadata(&top).unwrap();
        let owner = Owner { uid: own.uid(), gid: own.gid(), root: own.uid() };
        Root { dir, fd, owner }
    }

    impl Root {
        fn path(&self, path: &str) -> std::path::PathBuf {
            self.dir.path().join("root").join(path)
        }
        fn write(&self, path: &str) -> Result<(), FileError> {
            let content = FileSource::Bytes(b"content".to_vec());
            write(self.fd.as_fd(), "/work", path, content, 0o4640, self.owner)
        }
        fn read(&self, path: &str) -> Result<Option<String>, FileError> {
            read(self.fd.as_fd(), "/work", path).map(|found| {
                found.map(|(mut file, size)| {
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    assert_eq!(size.0, text.len() as u64);
                    text
                })
            })
        }
        fn reset(&self, path: &str) -> Result<(), FileError> {
            reset_dir(self.fd.as_fd(), "/work", path, 0o750, self.owner)
        }
    }

    #[test]
    fn a_written_file_is_read_back_and_carries_no_set_id_bit() {
        let root = root();
        for path in ["/a", "/b/c/d", "relative", "./x//y/./z"] {
            root.write(path).unwrap();
            root.write(path).unwrap();
            assert_eq!(root.read(path).unwrap().as_deref(), Some("content"), "{path}");
        }
        assert_eq!(fs::metadata(root.path("b/c/d")).unwrap().permissions().mode() & 0o7777, 0o640);
        assert!(root.path("work/relative").exists());
        assert_eq!(fs::read_dir(root.path("b/c")).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_copy_that_is_stopped_leaves_what_was_there() {
        let root = root();
        root.write("/a").unwrap();
        let copy = |is_stopped: bool| {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, b"new").unwrap();
            let stop = tokio_util::sync::CancellationToken::new();
            if is_stopped {
                stop.cancel();
            }
            let content = FileSource::Stoppable { file, stop };
            write(root.fd.as_fd(), "/work", "/a", content, 0o644, root.owner)
        };
        assert!(matches!(copy(true), Err(FileError::Io { .. })));
        assert_eq!(root.read("/a").unwrap().as_deref(), Some("content"));
        let beside = |entry: io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().starts_with(".rollyard-")
        };
        assert!(!fs::read_dir(root.path("")).unwrap().any(beside));
        copy(false).unwrap();
        assert_eq!(root.read("/a").unwrap().as_deref(), Some("new"));
    }

    #[test]
    fn paths_that_lead_out_or_through_links_are_refused_and_land_nowhere() {
        let root = root();
        symlink("..", root.path("up")).unwrap();
        symlink(root.dir.path().join("secret"), root.path("file")).unwrap();
        for path in ["/up/secret", "/up/new", "/file/x"] {
            assert!(matches!(root.write(path), Err(FileError::Escapes { .. })), "{path}");
            assert!(matches!(root.read(path), Err(FileError::Escapes { .. })), "{path}");
            assert!(matches!(root.reset(path), Err(FileError::Escapes { .. })), "{path}");
        }
        assert!(matches!(root.read("/file"), Err(FileError::NotAFile { found: "symlink", .. })));
        root.write("/file").unwrap();
        assert_eq!(root.read("/file").unwrap().as_deref(), Some("content"), "the link itself is replaced");
        assert_eq!(fs::read_to_string(root.dir.path().join("secret")).unwrap(), "host bytes");
        assert!(!root.dir.path().join("new").exists());
    }

    #[test]
    fn paths_that_cannot_be_paths_are_refused() {
        let root = root();
        let long = "a/".repeat(3000);
        let deep = "a/".repeat(200);
        for path in ["", "/", "//.", "/../secret", "a/../../x", "nul\0byte", &long, &deep] {
            assert!(matches!(root.write(path), Err(FileError::BadPath { .. })), "{path:?}");
            assert!(matches!(root.read(path), Err(FileError::BadPath { .. })), "{path:?}");
            assert!(matches!(root.reset(path), Err(FileError::BadPath { .. })), "{path:?}");
        }
    }

    #[test]
    fn what_stands_in_the_way_of_a_path_is_never_the_nodes_fault() {
        let root = root();
        root.write("/plain").unwrap();
        let name = "n".repeat(300);
        for (path, words) in [
            ("/plain/below", "`plain` is a file"),
            ("/plain/below/deeper", "`plain` is a file"),
            (&format!("/{name}"), "longer than the filesystem takes"),
            (&format!("/{name}/x"), "longer than the filesystem takes"),
        ] {
            for refused in [root.write(path).unwrap_err(), root.reset(path).unwrap_err()] {
                assert!(refused.to_string().contains(words), "{path}: {refused}");
                assert!(!matches!(refused, FileError::Io { .. }), "{path}: {refused:?}");
            }
        }
        let refused = root.read(&format!("/{name}")).unwrap_err();
        assert!(matches!(refused, FileError::BadPath { .. }), "{refused:?}");
    }

    #[test]
    fn a_deep_tree_is_removed_whatever_bears_the_names_of_what_is_moved_up() {
        let root = root();
        fs::create_dir(root.path("deep")).unwrap();
        for name in ["0", "1", "3"] {
            root.write(&format!("/deep/.rollyard-deep-{name}/x")).unwrap();
        }
        root.write("/deep/.rollyard-deep-2").unwrap();
        let mut dir = OwnedFd::from(File::open(root.path("deep")).unwrap());
        for _ in 0..300 {
            open::make_dir(dir.as_fd(), c"d", 0o755).unwrap();
            dir = open::at(dir.as_fd(), c"d", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        }
        drop(dir);
        root.reset("/deep").unwrap();
        assert_eq!(fs::read_dir(root.path("deep")).unwrap().count(), 0);
    }

    #[test]
    fn directories_are_listed_and_made_beneath_the_root_only() {
        let root = root();
        let list = |path: &str, max| list(root.fd.as_fd(), "/w", path, max);
        let make = |path: &str| make_dir(root.fd.as_fd(), "/w", path, root.owner);
        root.write("/d/b").unwrap();
        root.write("/d/a").unwrap();
        let names = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(list("/d", 2).unwrap(), Some(Listing::Directory(names)));
        assert_eq!(list("/d/a", 2).unwrap(), Some(Listing::File));
        assert_eq!(list("/none", 2).unwrap(), None);
        assert!(matches!(list("/d", 1), Err(FileError::BadPath { .. })));
        symlink("/etc", root.path("d/link")).unwrap();
        for path in ["/d/link", "/d/link/passwd", "/d/../d"] {
            assert!(list(path, 9).is_err(), "{path}");
        }
        make("/new/inner").unwrap();
        make("/new/inner").unwrap();
        assert!(root.path("new/inner").is_dir());
        for path in ["/d/a", "/d/link", "/d/link/x"] {
            assert!(make(path).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_named_without_blocking() {
        let root = root();
        nix::unistd::mkfifo(&root.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::create_dir(root.path("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path("socket")).unwrap();
        for (path, expected) in [("/fifo", "FIFO"), ("/dir", "directory"), ("/socket", "socket")] {
            match root.read(path) {
                Err(FileError::NotAFile { found, .. }) => assert_eq!(found, expected),
                other => panic!("{path}: {other:?}"),
            }
        }
        assert_eq!(root.read("/absent").unwrap(), None);
        root.write("/plain").unwrap();
        assert_eq!(root.read("/plain/below").unwrap(), None);
        assert!(matches!(root.write("/dir"), Err(FileError::NotAFile { found: "directory", .. })));
    }

    #[test]
    fn a_directory_is_reset_over_anything() {
        let root = root();
        root.write("/t/a/b/c").unwrap();
        root.write("/t/a/d").unwrap();
        symlink("/", root.path("t/out")).unwrap();
        root.write("/plain").unwrap();
        symlink(root.dir.path(), root.path("link")).unwrap();
        for path in ["/t", "/plain", "/link", "/fresh/below"] {
            root.reset(path).unwrap();
            let made = root.path(&path[1..]);
            assert!(fs::symlink_metadata(&made).unwrap().is_dir(), "{path}");
            assert_eq!(fs::read_dir(&made).unwrap().count(), 0, "{path}");
            assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0o750);
        }
        assert!(root.dir.path().join("secret").exists(), "no link was followed");
    }

    #[test]
    fn a_tree_deeper_than_any_bound_is_removed() {
        let root = root();
        fs::create_dir(root.path("deep")).unwrap();
        let mut dir = OwnedFd::from(File::open(root.path("deep")).unwrap());
        for _ in 0..5000 {
            open::make_dir(dir.as_fd(), c"d", 0o755).unwrap();
            dir = open::at(dir.as_fd(), c"d", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        }
        drop(dir);
        root.reset("/deep").unwrap();
        assert_eq!(fs::read_dir(root.path("deep")).unwrap().count(), 0);
    }
}
