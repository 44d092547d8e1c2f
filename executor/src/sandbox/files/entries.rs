//! What is at a path, and files that are known again. All of it by descriptors, as its parent module.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rollout::{Bytes, Timestamp};

use super::{DIR, Parts, SHOWN_MAX, kind_at, kind_of, readable_dir, remove_tree, reopen};
use crate::host::open;
use crate::sandbox::FileError;
use crate::sandbox::driven::{Entry, EntryKind, Page, Pinned, Version};

/// Names of a directory that are read for one page of it.
pub const NAMES_MAX: usize = 1_000_000;
/// Over these something is mounted in the sandbox: without its place that would be gone.
const MOUNT_POINTS: [&[u8]; 4] = [b"dev", b"proc", b"sys", b"usr"];

/// Opens what is at a path without reading it; the root itself too. None: nothing is there.
fn locate(root: BorrowedFd<'_>, workdir: &str, path: &str) -> Result<Option<OwnedFd>, FileError> {
    if path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | ".")) {
        let opened = open::beneath(root, c".", DIR, 0, open::CONFINED);
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        return opened.map(Some).map_err(failed);
    }
    let parts = Parts::new(path, workdir)?;
    let joined = joined(&parts)?;
    match open::beneath(root, &joined, libc::O_PATH | libc::O_NOFOLLOW, 0, open::CONFINED) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(parts.error(error)),
    }
}

fn joined(parts: &Parts<'_>) -> Result<CString, FileError> {
    let joined = parts.parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>().join(&b'/');
    let bad = |_| FileError::BadPath { path: parts.shown.to_owned(), problem: "it holds a NUL byte" };
    CString::new(joined).map_err(bad)
}

fn version(stat: &libc::stat) -> Version {
    Version(format!(
        "{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec
    ))
}

/// The version of an open file now.
pub fn version_of(file: &File) -> io::Result<Version> {
    open::stat(file.as_fd()).map(|stat| version(&stat))
}

fn kind(mode: u32) -> EntryKind {
    match mode & libc::S_IFMT {
        libc::S_IFREG => EntryKind::File,
        libc::S_IFDIR => EntryKind::Directory,
        libc::S_IFLNK => EntryKind::Symlink,
        libc::S_IFIFO => EntryKind::Fifo,
        libc::S_IFSOCK => EntryKind::Socket,
        _ => EntryKind::Device,
    }
}

fn target(link: BorrowedFd<'_>) -> io::Result<String> {
    let target = nix::fcntl::readlinkat(link, c"")?;
    Ok(target.to_string_lossy().into_owned())
}

fn entry(found: BorrowedFd<'_>, path: &str, id_base: u32) -> io::Result<Entry> {
    let stat = open::stat(found)?;
    let kind = kind(stat.st_mode);
    let micros = stat.st_mtime.saturating_mul(1_000_000).saturating_add(stat.st_mtime_nsec / 1000);
    Ok(Entry {
        path: path.to_owned(),
        kind,
        size: Bytes(u64::try_from(stat.st_size).unwrap_or(0)),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.wrapping_sub(id_base),
        gid: stat.st_gid.wrapping_sub(id_base),
        modified_at: Timestamp(micros),
        version: version(&stat),
        target: if kind == EntryKind::Symlink { Some(target(found)?) } else { None },
    })
}

/// What is at `path`. None: nothing is there.
pub fn stat(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    id_base: u32,
) -> Result<Option<Entry>, FileError> {
    let Some(found) = locate(root, workdir, path)? else { return Ok(None) };
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    entry(found.as_fd(), path, id_base).map(Some).map_err(failed)
}

/// Opens a regular file for reading, and says which it is. None: nothing is there.
pub fn open(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    id_base: u32,
) -> Result<Option<Pinned>, FileError> {
    let Some(found) = locate(root, workdir, path)? else { return Ok(None) };
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    let mode = open::stat(found.as_fd()).map_err(failed)?.st_mode;
    if mode & libc::S_IFMT != libc::S_IFREG {
        return Err(FileError::NotAFile { path: path.to_owned(), found: kind_of(mode) });
    }
    let again = reopen(found.as_fd());
    let file = again.map_err(failed)?;
    let entry = entry(file.as_fd(), path, id_base).map_err(failed)?;
    Ok(Some(Pinned { file, entry }))
}

/// The entries of a directory behind `after`, by name. None: nothing is there.
pub fn list(
    root: BorrowedFd<'_>,
    workdir: &str,
    path: &str,
    after: &str,
    entries_max: usize,
    id_base: u32,
) -> Result<Option<Page>, FileError> {
    let Some(found) = locate(root, workdir, path)? else { return Ok(None) };
    let failed = |source: io::Error| FileError::Io { path: path.to_owned(), source };
    let mode = open::stat(found.as_fd()).map_err(failed)?.st_mode;
    if mode & libc::S_IFMT != libc::S_IFDIR {
        let part = path.rsplit('/').next().unwrap_or_default().to_owned();
        return Err(FileError::NotADirectory { path: path.to_owned(), part, found: kind_of(mode) });
    }
    let bad = |problem| FileError::BadPath { path: path.chars().take(SHOWN_MAX).collect(), problem };
    let opened = readable_dir(found.as_fd(), c".").map_err(failed)?;
    let mut listed = nix::dir::Dir::from_fd(opened).map_err(|error| failed(error.into()))?;
    // The first of those behind `after`, and one more to know whether there are others.
    let mut names: BTreeMap<String, CString> = BTreeMap::new();
    for (seen, name) in listed.iter().enumerate() {
        let name = name.map_err(|error| failed(error.into()))?;
        if seen > NAMES_MAX {
            return Err(bad("the directory holds more than 1000000 names (NAMES_MAX)"));
        }
        if name.file_name() == c"." || name.file_name() == c".." {
            continue;
        }
        let name = name.file_name();
        match name.to_str() {
            Ok(shown) if shown > after => drop(names.insert(shown.to_owned(), name.to_owned())),
            Ok(_) => {}
            // Whoever lists the directory learns of it, and of everything else there.
            Err(_) => {
                let shown = name.to_bytes().escape_ascii().to_string();
                if shown.as_str() > after {
                    names.entry(shown).or_insert_with(|| name.to_owned());
                }
            }
        }
        if names.len() > entries_max + 1 {
            names.pop_last();
        }
    }
    let more = names.len() > entries_max;
    let mut page = Page { entries: Vec::with_capacity(names.len().min(entries_max)), more };
    for (shown, name) in names.iter().take(entries_max) {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        match open::beneath(found.as_fd(), name, flags, 0, open::CONFINED)
            .and_then(|found| entry(found.as_fd(), shown, id_base))
        {
            Ok(mut entry) => {
                if shown.as_bytes() != name.to_bytes() {
                    entry.kind = EntryKind::NotUtf8;
                }
                page.entries.push(entry);
            }
            // It went between the two looks.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(Some(page))
}

/// Removes a file, or a directory with what it holds. False: nothing was there.
pub fn remove(root: BorrowedFd<'_>, workdir: &str, path: &str) -> Result<bool, FileError> {
    let parts = Parts::new(path, workdir)?;
    if let [only] = parts.parts.as_slice()
        && MOUNT_POINTS.contains(&only.as_bytes())
    {
        let problem = "something is mounted there in the sandbox";
        return Err(FileError::BadPath { path: path.to_owned(), problem });
    }
    let (name, above) = parts.parts.split_last().unwrap_or_else(|| unreachable!("never empty"));
    let above = Parts { shown: parts.shown, parts: above.to_vec() };
    let above = if above.parts.is_empty() { c".".to_owned() } else { joined(&above)? };
    let dir = match open::beneath(root, &above, DIR, 0, open::CONFINED) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
            // A file on the way has nothing below it; a link is never followed.
            return match locate(root, "/", &above.to_string_lossy()) {
                Err(error @ FileError::Escapes { .. }) => Err(error),
                _ if is_link(root, &above) => Err(FileError::Escapes { path: path.to_owned() }),
                _ => Ok(false),
            };
        }
        Err(error) => return Err(parts.error(error)),
    };
    match kind_at(dir.as_fd(), name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(parts.error(error)),
        Ok(_) => {}
    }
    remove_tree(dir.as_fd(), name).map_err(|error| parts.error(error))?;
    Ok(true)
}

fn is_link(root: BorrowedFd<'_>, path: &CStr) -> bool {
    matches!(kind_at(root, path), Ok("symlink"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("secret"), "host bytes").unwrap();
        let fd = OwnedFd::from(File::open(dir.path().join("root")).unwrap());
        (dir, fd)
    }

    #[test]
    fn a_name_that_is_no_text_hides_nothing_else() {
        use std::os::unix::ffi::OsStrExt as _;
        let (dir, fd) = root();
        let at = |name: &[u8]| dir.path().join("root").join(std::ffi::OsStr::from_bytes(name));
        for name in [&b"a"[..], b"b\xff\xfe", b"c", b"d\xff", b"d\\xff"] {
            fs::write(at(name), "x").unwrap();
        }
        let mut found = Vec::new();
        let mut after = String::new();
        loop {
            let page = list(fd.as_fd(), "/", "/", &after, 2, 0).unwrap().unwrap();
            found.extend(page.entries.iter().map(|entry| (entry.path.clone(), entry.kind)));
            let Some(last) = page.entries.last().filter(|_| page.more) else { break };
            after.clone_from(&last.path);
        }
        let expected = [
            ("a", EntryKind::File),
            ("b\\xff\\xfe", EntryKind::NotUtf8),
            ("c", EntryKind::File),
            ("d\\xff", EntryKind::File),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn entries_are_told_by_kind_and_links_are_shown_not_followed() {
        let (dir, fd) = root();
        let at = |name: &str| dir.path().join("root").join(name);
        fs::write(at("file"), "12345").unwrap();
        fs::create_dir(at("dir")).unwrap();
        symlink("../secret", at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let of = |path: &str| stat(fd.as_fd(), "/", path, 0).unwrap();
        for (path, kind) in [
            ("/file", EntryKind::File),
            ("dir", EntryKind::Directory),
            ("/link", EntryKind::Symlink),
            ("/fifo", EntryKind::Fifo),
            ("/", EntryKind::Directory),
        ] {
            assert_eq!(of(path).unwrap().kind, kind, "{path}");
        }
        assert_eq!(of("/file").unwrap().size, Bytes(5));
        assert_eq!(of("/link").unwrap().target.as_deref(), Some("../secret"));
        assert_eq!((of("/none"), of("/file/below")), (None, None));
        assert!(matches!(stat(fd.as_fd(), "/", "/link/x", 0), Err(FileError::Escapes { .. })));
        assert!(matches!(stat(fd.as_fd(), "/", "/../secret", 0), Err(FileError::BadPath { .. })));
    }

    #[test]
    fn a_version_changes_with_the_file_and_only_with_it() {
        let (dir, fd) = root();
        let path = dir.path().join("root/f");
        fs::write(&path, "one").unwrap();
        let pinned = open(fd.as_fd(), "/", "/f", 0).unwrap().unwrap();
        assert_eq!(pinned.version_now().unwrap(), pinned.entry.version);
        assert_eq!(stat(fd.as_fd(), "/", "/f", 0).unwrap().unwrap().version, pinned.entry.version);
        fs::write(&path, "three").unwrap();
        assert_ne!(pinned.version_now().unwrap(), pinned.entry.version, "written over");
        let pinned = open(fd.as_fd(), "/", "/f", 0).unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        assert_ne!(pinned.version_now().unwrap(), pinned.entry.version, "removed");
    }

    #[test]
    fn a_directory_is_listed_page_by_page_in_order() {
        let (dir, fd) = root();
        for name in ["c", "a", "e", "b", "d"] {
            fs::write(dir.path().join("root").join(name), "").unwrap();
        }
        let page = |after: &str, max| {
            let page = list(fd.as_fd(), "/", "/", after, max, 0).unwrap().unwrap();
            (page.entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>().concat(), page.more)
        };
        assert_eq!(page("", 2), ("ab".to_owned(), true));
        assert_eq!(page("b", 2), ("cd".to_owned(), true));
        assert_eq!(page("d", 2), ("e".to_owned(), false));
        assert_eq!(page("", 5), ("abcde".to_owned(), false));
        assert!(list(fd.as_fd(), "/", "/none", "", 5, 0).unwrap().is_none());
        assert!(matches!(list(fd.as_fd(), "/", "/a", "", 5, 0), Err(FileError::NotADirectory { .. })));
    }

    #[test]
    fn removing_takes_whole_trees_and_never_what_a_link_leads_to() {
        let (dir, fd) = root();
        let at = |name: &str| dir.path().join("root").join(name);
        fs::create_dir_all(at("t/a/b")).unwrap();
        fs::write(at("t/a/b/c"), "").unwrap();
        symlink(dir.path(), at("t/out")).unwrap();
        symlink(dir.path(), at("link")).unwrap();
        let gone = |path: &str| remove(fd.as_fd(), "/", path);
        assert!(gone("/t").unwrap());
        assert!(!at("t").exists());
        assert!(!gone("/t").unwrap());
        assert!(!gone("/none/deeper").unwrap());
        assert!(matches!(gone("/link/secret"), Err(FileError::Escapes { .. })));
        assert!(gone("/link").unwrap());
        for path in ["/", "/usr", "/proc", "/../secret"] {
            assert!(matches!(gone(path), Err(FileError::BadPath { .. })), "{path}");
        }
        assert_eq!(fs::read_to_string(dir.path().join("secret")).unwrap(), "host bytes");
    }
}
