//! Paths of a layer: opened by descriptors, beneath the root, through no symlink and no mount.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::{Error, NAME_BYTES_MAX, PATH_BYTES_MAX};

/// EAGAIN (a rename raced the lookup) is tried this often.
const TRIES_MAX: u32 = 16;

/// Opens `path` beneath `root`, neither through a symlink nor into another mount. An empty path is
/// the root itself.
pub(super) fn beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    );
    let path = if path.is_empty() { b"." } else { path };
    let mut tries = 0;
    loop {
        match openat2(root, OsStr::from_bytes(path), how) {
            Err(Errno::EAGAIN) if tries < TRIES_MAX => tries += 1,
            other => return other,
        }
    }
}

/// Creates a regular file that must not be there yet.
pub(super) fn create(dir: BorrowedFd<'_>, name: &[u8]) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::fcntl::openat(dir, OsStr::from_bytes(name), flags, mode)
}

/// The name by which a descriptor can be used where the kernel wants a path.
pub(super) fn by_number(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The directory and the name of a path.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Whether a path of unknown origin can be one of a layer: relative, every part a name.
pub(super) fn check(path: &[u8]) -> Result<(), Error> {
    let refused = |problem: &str| Err(Error::entry(path, problem));
    if path.is_empty() {
        return refused("its path is empty");
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::bound(path, "bytes of one path", PATH_BYTES_MAX as u64));
    }
    if path.contains(&0) {
        return refused("its path holds a NUL byte");
    }
    if path[0] == b'/' {
        return refused("its path is absolute");
    }
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" => return refused("its path has an empty part"),
            b"." | b".." => return refused("its path holds `.` or `..`"),
            part if part.len() > NAME_BYTES_MAX => {
                return Err(Error::bound(path, "bytes of one name", NAME_BYTES_MAX as u64));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_of_plain_names_are_paths_of_a_layer() {
        for good in ["a", "a/b", "...", "a/.wh.b", "\u{1b}[31m"] {
            check(good.as_bytes()).unwrap();
        }
        let long = "a/".repeat(2048);
        let name = "n".repeat(256);
        for (bad, words) in [
            ("", "empty"),
            ("/a", "absolute"),
            ("a/../b", "`..`"),
            ("..", "`..`"),
            ("./a", "`.`"),
            ("a//b", "empty part"),
            ("a/", "empty part"),
            ("a\0b", "NUL"),
            (long.as_str(), "4095 bytes of one path"),
            (name.as_str(), "255 bytes of one name"),
        ] {
            let message = check(bad.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(words), "{bad}: {message}");
        }
        assert!(!check(b"/\x1b[31m").unwrap_err().to_string().contains('\x1b'));
    }
}
