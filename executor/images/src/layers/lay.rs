//! A layer over a tree that lives: what an overlay would show with it on top, made of copies.
//!
//! Nothing of the tree is trusted but its root. Every path is opened beneath that, through no
//! symlink; what stands in the way of the layer goes first.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{
    Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, mkdirat, mknodat, utimensat,
};
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};

use super::entry::{Entry, Kind, Mtime};
use super::paths::{self, beneath, by_number, split};
use super::runs::Run;
use super::unpack::spec;
use super::walk::{Owners, Sink, Source, Walk, read_failed};
use super::{Bounds, Error, attributes};

const BUFFER_BYTES: usize = 256 << 10;
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// Removes whatever has this name in the directory, a tree too, and follows no link. Nothing there
/// is no error. What stands there may be hostile: of any depth and size.
pub type Remove<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>;

/// The tree that a layer is laid over.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    pub root: BorrowedFd<'a>,
    /// The host's number of its root.
    pub id_base: u32,
    /// Names in its root over which something is mounted where it is used. What a layer has in
    /// such a directory is left out, as nobody would see it.
    pub mounted_over: &'a [&'a str],
}

/// Lays a layer, in directory form at `layer`, over a tree. At the end the tree is as if the layer
/// were mounted on top: its directories join those of the same name or hide them, everything else
/// replaces what was there, and what it marks as deleted is gone. Links are copied as links and
/// never followed.
///
/// Ends soon, with [`Error::Stopped`], when `stop` is set.
///
/// # Errors
/// The tree is full ([`Error::is_full`]), the disk fails, or the layer has no directory where one
/// is mounted over. A part of it may be there then.
pub fn lay_over(
    layer: &Path,
    ground: Ground<'_>,
    bounds: &Bounds,
    stop: &AtomicBool,
    remove: Remove<'_>,
) -> Result<(), Error> {
    let shown = layer.as_os_str().as_encoded_bytes();
    let flags = DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let from = nix::fcntl::open(layer, flags, Mode::empty()).map_err(Error::errno("open", shown))?;
    let top = beneath(ground.root, b"", DIRECTORY).map_err(Error::errno("open", b""))?;
    let sources = [Source { root: from.as_fd(), owners: Owners::Above(0) }];
    let (open, buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
    let mut laying = Laying { ground, stop, remove, parent: (Vec::new(), top), open, buffer };
    Walk::new(&sources, *bounds, stop).run(b"", &mut laying)?;
    laying.close_before(None)
}

/// A directory whose mode and time are set when nothing comes into it any more.
struct Open {
    path: Vec<u8>,
    mode: u32,
    mtime: Mtime,
}

struct Laying<'a> {
    ground: Ground<'a>,
    stop: &'a AtomicBool,
    remove: Remove<'a>,
    /// The directory of the last entry.
    parent: (Vec<u8>, OwnedFd),
    /// Each a prefix of the path at work.
    open: Vec<Open>,
    buffer: Vec<u8>,
}

impl Sink for Laying<'_> {
    fn take(&mut self, entry: &Entry, file: Option<&File>) -> Result<(), Error> {
        if self.is_hidden(entry)? {
            return Ok(());
        }
        self.close_before(Some(&entry.path))?;
        let (parent, name) = split(&entry.path);
        if self.parent.0 != parent {
            let opened = beneath(self.ground.root, parent, DIRECTORY);
            self.parent = (parent.to_vec(), opened.map_err(Error::errno("open", parent))?);
        }
        if let Kind::Directory { opaque } = entry.kind {
            return self.directory(entry, name, opaque);
        }
        self.clear(entry, name)?;
        self.make(entry, OsStr::from_bytes(name), file)
    }
}

impl Laying<'_> {
    fn is_hidden(&self, entry: &Entry) -> Result<bool, Error> {
        let top = entry.path.split(|byte| *byte == b'/').next().unwrap_or_default();
        if self.ground.mounted_over.iter().all(|name| name.as_bytes() != top) {
            return Ok(false);
        }
        let is_directory = matches!(entry.kind, Kind::Directory { .. });
        if top == entry.path && !is_directory {
            return Err(Error::entry(top, "it has to be a directory, as a mount of the sandbox lies there"));
        }
        Ok(true)
    }

    fn clear(&mut self, entry: &Entry, name: &[u8]) -> Result<(), Error> {
        let name = CString::new(name).map_err(|error| Error::io("remove", &entry.path)(error.into()))?;
        (self.remove)(self.parent.1.as_fd(), &name).map_err(Error::io("remove", &entry.path))
    }

    /// Of the directories at work, those that nothing at `path` or after it lies in.
    fn close_before(&mut self, path: Option<&[u8]>) -> Result<(), Error> {
        while let Some(dir) = self.open.last() {
            let rest = path.and_then(|path| path.strip_prefix(dir.path.as_slice()));
            // Between a directory and what is in it there may be names that go on otherwise.
            if rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte <= b'/')) {
                return Ok(());
            }
            let failed = |error| Error::errno("finish", &dir.path)(error);
            let fd = beneath(self.ground.root, &dir.path, DIRECTORY).map_err(failed)?;
            fchmod(&fd, Mode::from_bits_truncate(dir.mode)).map_err(failed)?;
            let time = spec(dir.mtime);
            futimens(&fd, &time, &time).map_err(failed)?;
            self.open.pop();
        }
        Ok(())
    }

    fn directory(&mut self, entry: &Entry, name: &[u8], opaque: bool) -> Result<(), Error> {
        let path = &entry.path;
        let named = OsStr::from_bytes(name);
        let joins = match fstatat(&self.parent.1, named, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => !opaque && found.st_mode & libc::S_IFMT == libc::S_IFDIR,
            Err(Errno::ENOENT) => false,
            Err(error) => return Err(Error::errno("look at", path)(error)),
        };
        if !joins {
            self.clear(entry, name)?;
            let made = mkdirat(&self.parent.1, named, Mode::from_bits_truncate(0o700));
            made.map_err(Error::errno("make", path))?;
        }
        let dir = beneath(self.parent.1.as_fd(), name, DIRECTORY).map_err(Error::errno("open", path))?;
        self.own(&File::from(dir), entry)?;
        self.open.push(Open { path: path.clone(), mode: entry.mode, mtime: entry.mtime });
        Ok(())
    }

    fn make(&mut self, entry: &Entry, name: &OsStr, file: Option<&File>) -> Result<(), Error> {
        let path = &entry.path;
        let failed = |error: Errno| Error::errno("make", path)(error);
        match (&entry.kind, file) {
            (Kind::File { size, runs }, Some(from)) => {
                let made = paths::create(self.parent.1.as_fd(), name.as_bytes()).map_err(failed)?;
                let made = File::from(made);
                self.copy(path, from, &made, runs)?;
                // A hole at the end, or nothing but holes.
                made.set_len(*size).map_err(Error::io("size", path))?;
                self.own(&made, entry)?;
                fchmod(&made, Mode::from_bits_truncate(entry.mode)).map_err(failed)?;
                let time = spec(entry.mtime);
                futimens(&made, &time, &time).map_err(failed)
            }
            (Kind::Symlink { target }, _) => {
                symlinkat(OsStr::from_bytes(target), &self.parent.1, name).map_err(failed)?;
                self.finish_nameless(entry, name)
            }
            (Kind::Fifo, _) => {
                let mode = Mode::from_bits_truncate(0o600);
                mknodat(&self.parent.1, name, SFlag::S_IFIFO, mode, 0).map_err(failed)?;
                let fd = beneath(self.parent.1.as_fd(), name.as_bytes(), OFlag::O_PATH).map_err(failed)?;
                // By number: the node is not opened, and its own descriptor takes no mode.
                let shut = std::fs::set_permissions(by_number(&fd), Permissions::from_mode(entry.mode));
                shut.map_err(Error::io("shut", path))?;
                self.finish_nameless(entry, name)
            }
            (Kind::Link { target }, _) => self.link(path, name, target),
            // The deletion is done. A directory and a file without its data do not come here.
            (Kind::Whiteout | Kind::Directory { .. } | Kind::File { .. }, _) => Ok(()),
        }
    }

    fn own(&self, file: &File, entry: &Entry) -> Result<(), Error> {
        let (uid, gid) = self.owner(entry);
        fchown(file, Some(uid), Some(gid)).map_err(Error::errno("give away", &entry.path))?;
        // What a directory hands down to what is made in it goes too.
        attributes::replace(file, &entry.path, &entry.attributes, self.ground.id_base)
    }

    fn owner(&self, entry: &Entry) -> (Uid, Gid) {
        let base = self.ground.id_base;
        (Uid::from_raw(base + entry.uid), Gid::from_raw(base + entry.gid))
    }

    /// Owner and time of what is never opened.
    fn finish_nameless(&self, entry: &Entry, name: &OsStr) -> Result<(), Error> {
        let failed = |error: Errno| Error::errno("finish", &entry.path)(error);
        let (uid, gid) = self.owner(entry);
        fchownat(&self.parent.1, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
        let time = spec(entry.mtime);
        utimensat(&self.parent.1, name, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(failed)
    }

    /// Another name of a file that was laid before.
    fn link(&self, path: &[u8], name: &OsStr, target: &[u8]) -> Result<(), Error> {
        let file = beneath(self.ground.root, target, OFlag::O_PATH).map_err(Error::errno("link", path))?;
        let found = fstat(&file).map_err(Error::errno("look at", target))?;
        if found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Changed { path: super::error::shown(target) });
        }
        linkat(AT_FDCWD, &by_number(&file), &self.parent.1, name, AtFlags::AT_SYMLINK_FOLLOW)
            .map_err(Error::errno("link", path))
    }

    fn copy(&mut self, path: &[u8], from: &File, to: &File, runs: &[Run]) -> Result<(), Error> {
        for run in runs {
            let (mut at, end) = (run.offset, run.offset + run.length);
            while at < end {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Stopped);
                }
                let want = self.buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let part = &mut self.buffer[..want];
                from.read_exact_at(part, at).map_err(|error| read_failed(path, error))?;
                to.write_all_at(part, at).map_err(Error::io("write", path))?;
                at += want as u64;
            }
        }
        Ok(())
    }
}
