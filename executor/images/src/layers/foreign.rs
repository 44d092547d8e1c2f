//! Layers made elsewhere: the tar of an OCI layer into the directory form, whatever the bytes are.
//!
//! Who made it is unknown, and so is its order. A layer that holds what could leave its tree or
//! bend an overlay is refused whole; what means nothing in a sandbox is left out and counted. The
//! table is in docs/images.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{
    FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, futimens, mkdirat, mknodat, utimensat,
};
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};
use tar::{Archive, EntryType};

use super::entry::{Kind, Mtime, kept_mode};
use super::foreign_header::{Header, Pending};
use super::paths::{self, beneath, by_number, split};
use super::unpack::spec;
use super::{Bounds, Error, ID_MAX, PATH_BYTES_MAX, attributes};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);
const IMPLIED_MODE: u32 = 0o755;
/// Bytes of paths of directories and deletions, which are held in memory while a layer is unpacked.
const HELD_PATH_BYTES_MAX: usize = 64 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// What OCI writes before the name of something deleted.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names of a storage driver's own files.
const RESERVED: &[u8] = b".wh..wh.";

/// What came of a layer made elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Foreign {
    pub entries: u64,
    /// Bytes of data in its files.
    pub content: u64,
    /// Devices below `/dev`, which every sandbox has its own of.
    pub devices_dropped: u64,
    /// `security.*`: file capabilities above all.
    pub security_attributes_dropped: u64,
}

/// Unpacks the plain tar of an OCI layer into the directory `into`, which is made, and reads `tar`
/// to its end. On any error nothing is left there. Needs root. Nothing is synced.
///
/// # Errors
/// The layer holds what none may, is past a bound, or the disk fails.
pub fn unpack_foreign(mut tar: impl Read, into: &Path, bounds: &Bounds) -> Result<Foreign, Error> {
    let shown = into.as_os_str().as_encoded_bytes();
    std::fs::create_dir(into).map_err(Error::io("make", shown))?;
    let unpacked = fill(&mut tar, into, *bounds);
    if unpacked.is_err()
        && let Err(error) = std::fs::remove_dir_all(into)
    {
        tracing::error!(path = %into.display(), %error, "a half unpacked layer was not removed");
    }
    unpacked
}

fn fill(tar: &mut impl Read, into: &Path, bounds: Bounds) -> Result<Foreign, Error> {
    let mut tree = Tree::new(into, bounds)?;
    {
        let mut archive = Archive::new(&mut *tar);
        let entries = archive.entries().map_err(Error::stream)?;
        let mut pending = Pending::default();
        for found in entries.raw(true) {
            let mut found = found.map_err(Error::stream)?;
            if pending.take(&mut found)? {
                continue;
            }
            let header = std::mem::take(&mut pending).finish(&found)?;
            tree.take(header, &mut found)?;
        }
        if !pending.is_empty() {
            return Err(Error::format("records without an entry"));
        }
    }
    // Its digest is over every byte, whatever follows the end of the archive.
    io::copy(tar, &mut io::sink()).map_err(Error::stream)?;
    tree.finish()
}

#[derive(Debug, Clone, Copy)]
struct Directory {
    mode: u32,
    mtime: Mtime,
    /// It stands in the layer, and is not only on the way to something.
    is_named: bool,
}

struct Tree {
    root: OwnedFd,
    bounds: Bounds,
    found: Foreign,
    directories: BTreeMap<Vec<u8>, Directory>,
    whiteouts: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    /// Bytes of the paths in these three.
    held: usize,
    /// The directory of the last entry.
    parent: (Vec<u8>, OwnedFd),
    buffer: Vec<u8>,
}

impl Tree {
    fn new(into: &Path, bounds: Bounds) -> Result<Self, Error> {
        let shown = into.as_os_str().as_encoded_bytes();
        let open = || {
            let flags = DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            nix::fcntl::open(into, flags, Mode::empty()).map_err(Error::errno("open", shown))
        };
        let root = open()?;
        fchmod(&root, Mode::from_bits_truncate(IMPLIED_MODE)).map_err(Error::errno("shut", shown))?;
        Ok(Self {
            root,
            bounds,
            found: Foreign::default(),
            directories: BTreeMap::new(),
            whiteouts: BTreeSet::new(),
            opaque: BTreeSet::new(),
            held: 0,
            parent: (Vec::new(), open()?),
            buffer: Vec::new(),
        })
    }

    fn take(&mut self, mut header: Header, data: &mut impl Read) -> Result<(), Error> {
        let is_directory = header.kind == EntryType::Directory;
        let Some(path) = plain(&header.path, is_directory) else { return Ok(()) };
        paths::check(&path)?;
        self.count(&path)?;
        let (parent, name) = split(&path);
        if name == OPAQUE && parent.is_empty() {
            // Overlays always merge their roots.
            return Err(Error::entry(&path, "it hides all layers below: leave those out of the image"));
        }
        if name == OPAQUE {
            self.hold(parent)?;
            self.opaque.insert(parent.to_vec());
            return Ok(());
        }
        if name.starts_with(RESERVED) {
            return Err(Error::entry(&path, "it is a storage driver's own file"));
        }
        if let Some(deleted) = name.strip_prefix(WHITEOUT) {
            let deleted = if parent.is_empty() { deleted.to_vec() } else { [parent, b"/", deleted].concat() };
            paths::check(&deleted)?;
            self.hold(&deleted)?;
            self.whiteouts.insert(deleted);
            return Ok(());
        }
        if header.uid > ID_MAX || header.gid > ID_MAX {
            return Err(Error::entry(&path, "its owner is outside of a sandbox's range"));
        }
        if matches!(header.kind, EntryType::Char | EntryType::Block) {
            if parent != b"dev" && !parent.starts_with(b"dev/") {
                return Err(Error::entry(&path, "it is a device outside of /dev"));
            }
            self.found.devices_dropped += 1;
            return Ok(());
        }
        let dropped = header.keep_attributes(&path)?;
        self.found.security_attributes_dropped += dropped;
        self.go_to_parent(&path)?;
        self.make(&path, &header, data)
    }

    fn count(&mut self, path: &[u8]) -> Result<(), Error> {
        self.found.entries += 1;
        if self.found.entries > self.bounds.entries {
            return Err(Error::bound(path, "entries", self.bounds.entries));
        }
        Ok(())
    }

    fn hold(&mut self, path: &[u8]) -> Result<(), Error> {
        self.held += path.len();
        if self.held > HELD_PATH_BYTES_MAX {
            return Err(Error::bound(path, "bytes of paths of directories", HELD_PATH_BYTES_MAX as u64));
        }
        Ok(())
    }

    /// Opens the directory of `path`; what of it the layer does not name is made as root's.
    fn go_to_parent(&mut self, path: &[u8]) -> Result<(), Error> {
        let (parent, _) = split(path);
        if self.parent.0 == parent {
            return Ok(());
        }
        for end in (0..=parent.len()).filter(|end| *end == parent.len() || parent[*end] == b'/') {
            let part = &parent[..end];
            if part.is_empty() || self.directories.contains_key(part) {
                continue;
            }
            let (above, name) = split(part);
            let dir = beneath(self.root.as_fd(), above, DIRECTORY)
                .map_err(|_| Error::entry(path, "it lies in no directory of the layer"))?;
            match mkdirat(&dir, OsStr::from_bytes(name), Mode::from_bits_truncate(0o700)) {
                Ok(()) => {}
                Err(Errno::EEXIST) => return Err(Error::entry(path, "it lies in no directory of the layer")),
                Err(error) => return Err(Error::errno("make", part)(error)),
            }
            self.count(part)?;
            self.hold(part)?;
            let implied = Directory { mode: IMPLIED_MODE, mtime: Mtime::default(), is_named: false };
            self.directories.insert(part.to_vec(), implied);
        }
        let opened = beneath(self.root.as_fd(), parent, DIRECTORY);
        let opened = opened.map_err(|_| Error::entry(path, "it lies in no directory of the layer"))?;
        self.parent = (parent.to_vec(), opened);
        Ok(())
    }

    fn make(&mut self, path: &[u8], header: &Header, data: &mut impl Read) -> Result<(), Error> {
        let (_, name) = split(path);
        let name = OsStr::from_bytes(name);
        let failed = |error: Errno| match error {
            Errno::EEXIST => Error::entry(path, "it is there twice"),
            error => Error::errno("make", path)(error),
        };
        match header.kind {
            EntryType::Directory => self.directory(path, header),
            EntryType::Regular | EntryType::Continuous => {
                let file = File::from(paths::create(self.parent.1.as_fd(), name.as_bytes()).map_err(failed)?);
                self.copy(path, &file, header.size, data)?;
                self.own(&file, path, header)?;
                let mode = kept_mode(&Kind::File { size: 0, runs: Vec::new() }, header.mode);
                fchmod(&file, Mode::from_bits_truncate(mode)).map_err(failed)?;
                let time = spec(header.mtime);
                futimens(&file, &time, &time).map_err(failed)
            }
            EntryType::Symlink => {
                let target = &header.target;
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                    return Err(Error::entry(path, "it is a symlink whose target cannot be one"));
                }
                symlinkat(OsStr::from_bytes(target), &self.parent.1, name).map_err(failed)?;
                self.finish_nameless(path, name, header)
            }
            EntryType::Fifo => {
                let mode = Mode::from_bits_truncate(kept_mode(&Kind::Fifo, header.mode));
                mknodat(&self.parent.1, name, SFlag::S_IFIFO, mode, 0).map_err(failed)?;
                self.finish_nameless(path, name, header)
            }
            EntryType::Link => self.link(path, name, &header.target),
            other => {
                let problem = format!("it is of the tar type {:?}", char::from(other.as_byte()));
                Err(Error::entry(path, problem))
            }
        }
    }

    /// A directory may stand in a layer several times: the last counts.
    fn directory(&mut self, path: &[u8], header: &Header) -> Result<(), Error> {
        let (_, name) = split(path);
        if !self.directories.contains_key(path) {
            let made = mkdirat(&self.parent.1, OsStr::from_bytes(name), Mode::from_bits_truncate(0o700));
            made.map_err(|error| match error {
                Errno::EEXIST => Error::entry(path, "it is there twice"),
                error => Error::errno("make", path)(error),
            })?;
        }
        let opened = beneath(self.parent.1.as_fd(), name, DIRECTORY).map_err(Error::errno("open", path))?;
        self.own(&File::from(opened), path, header)?;
        let mode = kept_mode(&Kind::Directory { opaque: false }, header.mode);
        self.hold(path)?;
        self.directories.insert(path.to_vec(), Directory { mode, mtime: header.mtime, is_named: true });
        Ok(())
    }

    fn own(&self, file: &File, path: &[u8], header: &Header) -> Result<(), Error> {
        let (uid, gid) = (Uid::from_raw(header.uid), Gid::from_raw(header.gid));
        fchown(file, Some(uid), Some(gid)).map_err(Error::errno("give away", path))?;
        attributes::set(file, path, &header.attributes)
    }

    fn finish_nameless(&self, path: &[u8], name: &OsStr, header: &Header) -> Result<(), Error> {
        let failed = |error: Errno| Error::errno("finish", path)(error);
        let (uid, gid) = (Uid::from_raw(header.uid), Gid::from_raw(header.gid));
        fchownat(&self.parent.1, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
        let time = spec(header.mtime);
        utimensat(&self.parent.1, name, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(failed)
    }

    /// Another name of a file that this layer made.
    fn link(&self, path: &[u8], name: &OsStr, target: &[u8]) -> Result<(), Error> {
        let refused = |problem: &str| Err(Error::entry(path, format!("it is a hard link {problem}")));
        let Some(target) = plain(target, false).filter(|target| paths::check(target).is_ok()) else {
            return refused("out of the layer");
        };
        let Ok(file) = beneath(self.root.as_fd(), &target, OFlag::O_PATH) else {
            return refused("to nothing that comes before it in the layer");
        };
        if kind_of(&fstat(&file).map_err(Error::errno("look at", &target))?) != libc::S_IFREG {
            return refused("to what is no file");
        }
        let linked = linkat(AT_FDCWD, &by_number(&file), &self.parent.1, name, AtFlags::AT_SYMLINK_FOLLOW);
        match linked {
            Err(Errno::EEXIST) => Err(Error::entry(path, "it is there twice")),
            linked => linked.map_err(Error::errno("link", path)),
        }
    }

    fn copy(&mut self, path: &[u8], file: &File, size: u64, data: &mut impl Read) -> Result<(), Error> {
        let limit = self.bounds.content.0;
        self.found.content = self.found.content.saturating_add(size);
        if self.found.content > limit {
            return Err(Error::bound(path, "bytes of content", limit));
        }
        self.buffer.resize(BUFFER_BYTES, 0);
        let (mut left, mut file) = (size, file);
        while left > 0 {
            let want = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let part = &mut self.buffer[..want];
            data.read_exact(part).map_err(Error::stream)?;
            file.write_all(part).map_err(Error::io("write", path))?;
            left -= want as u64;
        }
        Ok(())
    }

    /// Marks, then modes and times: nothing comes into a directory any more.
    fn finish(mut self) -> Result<Foreign, Error> {
        for deleted in std::mem::take(&mut self.whiteouts) {
            self.whiteout(&deleted)?;
        }
        for dir in std::mem::take(&mut self.opaque) {
            self.go_to_parent(&[dir.as_slice(), b"/x"].concat())?;
            self.mark(&dir)?;
        }
        for (path, Directory { mode, mtime, is_named }) in &self.directories {
            let failed = |error| Error::errno("finish", path)(error);
            let fd = beneath(self.root.as_fd(), path, DIRECTORY).map_err(failed)?;
            fchmod(&fd, Mode::from_bits_truncate(*mode)).map_err(failed)?;
            if *is_named {
                let time = spec(*mtime);
                futimens(&fd, &time, &time).map_err(failed)?;
            }
        }
        Ok(self.found)
    }

    /// What the layer has under the name itself stays: a deletion is of the layers below.
    fn whiteout(&mut self, path: &[u8]) -> Result<(), Error> {
        self.go_to_parent(path)?;
        let (_, name) = split(path);
        match mknodat(&self.parent.1, OsStr::from_bytes(name), SFlag::S_IFCHR, Mode::empty(), 0) {
            Err(Errno::EEXIST) if self.directories.contains_key(path) => self.mark(path),
            Err(Errno::EEXIST) => Ok(()),
            made => made.map_err(Error::errno("make", path)),
        }
    }

    fn mark(&self, path: &[u8]) -> Result<(), Error> {
        let dir = beneath(self.root.as_fd(), path, DIRECTORY).map_err(Error::errno("open", path))?;
        attributes::set_opaque(&File::from(dir)).map_err(Error::io("mark", path))
    }
}

fn kind_of(found: &FileStat) -> u32 {
    found.st_mode & libc::S_IFMT
}

/// A path without what means nothing: `./` before it, `/` after a directory. None: the root.
fn plain(path: &[u8], is_directory: bool) -> Option<Vec<u8>> {
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"./") {
        path = rest;
    }
    if is_directory {
        if path == b"/" || path == b"." {
            return None;
        }
        path = path.strip_suffix(b"/").unwrap_or(path);
        if path.is_empty() {
            return None;
        }
    }
    Some(path.to_vec())
}
