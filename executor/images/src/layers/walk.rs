//! The walk over one tree, or over a stack of them as overlayfs would show it: by descriptors,
//! through no symlink, in byte order of the paths.
//!
//! A directory is listed whole (bounded), its entries and the way into each of its directories are
//! sorted together: `a`, `a.txt`, then what is in `a`. So much of a tree is in memory: the
//! listings on the way down to one entry. Directories are held open near the end of the path only.

use std::cmp::Ordering as Order;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use super::attributes;
use super::entry::{Entry, Kind, Mtime, kept_mode};
use super::error::shown;
use super::pack::Dropped;
use super::paths::beneath;
use super::runs;
use super::unpack::OVERHEAD_FREE_BYTES;
use super::{Bounds, Error, FILE_BYTES_MAX, ID_MAX, LINK_BYTES_MAX, LISTING_BYTES_MAX, PATH_BYTES_MAX};

/// Directories held open at once for each tree of a stack.
const OPEN_LEVELS_MAX: usize = 64;
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// How a tree numbers its owners, and what its devices `0,0` mean.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owners {
    /// A tree of overlayfs: ids start at this one, marks are marks.
    Above(u32),
    /// A plain tree: all of it becomes root's.
    Root,
}

impl Owners {
    pub const fn has_marks(self) -> bool {
        matches!(self, Self::Above(_))
    }

    /// As the layer numbers it; none outside of the range.
    pub fn inside(self, id: u32) -> Option<u32> {
        match self {
            Self::Root => Some(0),
            Self::Above(base) => id.checked_sub(base).filter(|id| *id <= ID_MAX),
        }
    }
}

/// One tree of a stack.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub root: BorrowedFd<'a>,
    pub owners: Owners,
}

/// Takes the entries as they come.
pub(super) trait Sink {
    /// `file` is open for reading if the entry is a file.
    fn take(&mut self, entry: &Entry, file: Option<&File>) -> Result<(), Error>;
}

/// A directory of one tree of the stack.
#[derive(Debug)]
struct Part {
    source: usize,
    fd: Option<OwnedFd>,
    identity: (u64, u64),
}

/// A step on the way: an entry, or the way into a directory.
#[derive(Debug, Clone, Copy)]
struct Event {
    start: u32,
    length: u16,
    /// Index into the parts of the level: the topmost tree that has it.
    part: u16,
    enters: bool,
}

#[derive(Debug)]
struct Level {
    /// Topmost first.
    parts: Vec<Part>,
    names: Vec<u8>,
    events: Vec<Event>,
    next: usize,
    /// Of its path.
    path_length: usize,
}

impl Level {
    fn name(&self, event: Event) -> &[u8] {
        let start = event.start as usize;
        &self.names[start..start + usize::from(event.length)]
    }
}

/// The first paths of files with several links.
#[derive(Debug, Default)]
struct Links {
    paths: Vec<u8>,
    found: HashMap<(usize, u64, u64), (u32, u16)>,
}

/// Of all attributes of a tree. Half of what unpacking allows beside the content
/// ([`OVERHEAD_FREE_BYTES`]): what can be packed can be unpacked.
const ATTRIBUTES_BYTES_MAX: usize = (OVERHEAD_FREE_BYTES / 2) as usize;

pub(super) struct Walk<'a> {
    /// Topmost first.
    sources: &'a [Source<'a>],
    bounds: Bounds,
    stop: &'a AtomicBool,
    pub dropped: Dropped,
    links: Links,
    path: Vec<u8>,
    levels: Vec<Level>,
    entries: u64,
    content: u64,
    attribute_bytes: usize,
}

impl<'a> Walk<'a> {
    pub fn new(sources: &'a [Source<'a>], bounds: Bounds, stop: &'a AtomicBool) -> Self {
        Self {
            sources,
            bounds,
            stop,
            dropped: Dropped::default(),
            links: Links::default(),
            path: Vec::new(),
            levels: Vec::new(),
            entries: 0,
            content: 0,
            attribute_bytes: 0,
        }
    }

    /// Walks everything beneath the roots; paths begin with `prefix` (empty, or with no slash at
    /// its end), whose directories must have been told already.
    pub fn run(&mut self, prefix: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        self.path = prefix.to_vec();
        let mut parts = Vec::new();
        for (source, tree) in self.sources.iter().enumerate() {
            let fd = beneath(tree.root, b"", DIRECTORY).map_err(Error::errno("open", &self.path))?;
            parts.push(self.part(source, fd)?);
        }
        let root = self.list(parts)?;
        self.levels.push(root);
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.path_length);
            let Some(event) = level.events.get(level.next).copied() else {
                self.levels.pop();
                continue;
            };
            level.next += 1;
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            let start = event.start as usize;
            self.path.extend_from_slice(&level.names[start..start + usize::from(event.length)]);
            self.go_on()?;
            self.open_last(prefix)?;
            if event.enters {
                self.enter(event)?;
            } else {
                self.tell(event, sink)?;
            }
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }

    fn part(&self, source: usize, fd: OwnedFd) -> Result<Part, Error> {
        let found = fstat(&fd).map_err(Error::errno("look at", &self.path))?;
        Ok(Part { source, fd: Some(fd), identity: (found.st_dev, found.st_ino) })
    }

    /// Opens the directories of the last level again if they were closed on the way down.
    fn open_last(&mut self, prefix: &[u8]) -> Result<(), Error> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let whole = &self.path[..level.path_length];
        let below = whole.strip_prefix(prefix).unwrap_or(whole);
        let path = below.strip_prefix(b"/").unwrap_or(below);
        for part in level.parts.iter_mut().filter(|part| part.fd.is_none()) {
            let root = self.sources[part.source].root;
            let fd = beneath(root, path, DIRECTORY).map_err(Error::errno("open again", whole))?;
            let found = fstat(&fd).map_err(Error::errno("look at", whole))?;
            if (found.st_dev, found.st_ino) != part.identity {
                return Err(Error::Changed { path: shown(whole) });
            }
            part.fd = Some(fd);
        }
        Ok(())
    }

    /// Lists the directories of a level together.
    fn list(&self, parts: Vec<Part>) -> Result<Level, Error> {
        let mut level =
            Level { parts, names: Vec::new(), events: Vec::new(), next: 0, path_length: self.path.len() };
        let several = level.parts.len() > 1;
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        let mut count = 0;
        for index in 0..level.parts.len() {
            let part = level.parts[index].fd.as_ref().map_or(Err(Errno::EBADF), |fd| {
                // A description of its own, so that reading starts at the first entry.
                beneath(fd.as_fd(), b"", DIRECTORY)
            });
            let opened = part.and_then(Dir::from_fd).map_err(Error::errno("list", &self.path))?;
            for found in opened {
                self.go_on()?;
                let found = found.map_err(Error::errno("list", &self.path))?;
                let name = found.file_name().to_bytes();
                if name == b"." || name == b".." || several && !seen.insert(name.to_vec()) {
                    continue;
                }
                if level.names.len() + name.len() > LISTING_BYTES_MAX {
                    return Err(Error::bound(
                        &self.path,
                        "bytes of names in one directory",
                        LISTING_BYTES_MAX as u64,
                    ));
                }
                let (Ok(start), Ok(length), Ok(part)) =
                    (u32::try_from(level.names.len()), u16::try_from(name.len()), u16::try_from(index))
                else {
                    return Err(Error::entry(&self.path, "a name in it is too long"));
                };
                level.names.extend_from_slice(name);
                let event = Event { start, length, part, enters: false };
                level.events.push(event);
                if matches!(found.file_type(), None | Some(Type::Directory)) {
                    level.events.push(Event { enters: true, ..event });
                }
                // Before all of them are in memory.
                count += 1;
                if self.entries + count > self.bounds.entries {
                    return Err(Error::bound(&self.path, "entries", self.bounds.entries));
                }
            }
        }
        let names = &level.names;
        let name = |event: &Event| {
            let start = event.start as usize;
            &names[start..start + usize::from(event.length)]
        };
        level.events.sort_unstable_by(|a, b| compare((name(a), a.enters), (name(b), b.enters)));
        Ok(level)
    }

    /// Opens the directories that lie at the path, topmost first; whether they hide what the trees
    /// below the stack have there.
    fn open_parts(&mut self, event: Event) -> Result<(Vec<Part>, Vec<attributes::Attribute>, bool), Error> {
        let Some(level) = self.levels.last() else { return Ok((Vec::new(), Vec::new(), false)) };
        let name = level.name(event);
        let (mut parts, mut kept, mut opaque) = (Vec::new(), Vec::new(), false);
        for (index, parent) in level.parts.iter().enumerate().skip(usize::from(event.part)) {
            let Some(dir) = &parent.fd else { continue };
            let is_top = index == usize::from(event.part);
            let fd = match beneath(dir.as_fd(), name, DIRECTORY) {
                Ok(fd) => fd,
                Err(Errno::ENOENT) if !is_top => continue,
                // A file or a whiteout in between hides the rest.
                Err(Errno::ENOTDIR | Errno::ELOOP | Errno::ENXIO) if !is_top => {
                    opaque = true;
                    break;
                }
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {
                    return Err(Error::Changed { path: shown(&self.path) });
                }
                Err(error) => return Err(Error::errno("open", &self.path)(error)),
            };
            let file = File::from(fd);
            let owners = self.sources[parent.source].owners;
            let found = attributes::read(&file, &self.path, owners, &mut self.dropped)?;
            if is_top {
                kept = found.kept;
            }
            parts.push(self.part(parent.source, file.into())?);
            if found.opaque {
                opaque = true;
                break;
            }
        }
        Ok((parts, kept, opaque))
    }

    fn enter(&mut self, event: Event) -> Result<(), Error> {
        // Of an entry whose kind the listing did not say.
        let level = self.levels.last();
        let (Some(dir), Some(name)) = (
            level.and_then(|level| level.parts[usize::from(event.part)].fd.as_ref()),
            level.map(|level| level.name(event)),
        ) else {
            return Ok(());
        };
        let found = stat_at(dir.as_fd(), name).map_err(Error::errno("look at", &self.path))?;
        if kind_of(&found) != SFlag::S_IFDIR {
            return Ok(());
        }
        let before = self.dropped;
        let (parts, ..) = self.open_parts(event)?;
        // They were counted when the directory was told.
        self.dropped = before;
        let level = self.list(parts)?;
        self.levels.push(level);
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS_MAX + 1) {
            self.levels[far].parts.iter_mut().for_each(|part| part.fd = None);
        }
        Ok(())
    }

    fn tell(&mut self, event: Event, sink: &mut impl Sink) -> Result<(), Error> {
        if self.path.len() > PATH_BYTES_MAX {
            return Err(Error::bound(&self.path, "bytes of one path", PATH_BYTES_MAX as u64));
        }
        let Some(level) = self.levels.last() else { return Ok(()) };
        let parent = &level.parts[usize::from(event.part)];
        let (source, owners) = (parent.source, self.sources[parent.source].owners);
        let Some(dir) = &parent.fd else { return Ok(()) };
        let found = stat_at(dir.as_fd(), level.name(event)).map_err(Error::errno("look at", &self.path))?;
        let mut file = None;
        let kind = kind_of(&found);
        let (kind, attributes, found) = if kind == SFlag::S_IFREG {
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            let opened = beneath(dir.as_fd(), level.name(event), flags);
            let opened = File::from(opened.map_err(|error| self.changed(error))?);
            let now = fstat(&opened).map_err(Error::errno("look at", &self.path))?;
            if kind_of(&now) != SFlag::S_IFREG {
                return Err(Error::Changed { path: shown(&self.path) });
            }
            if let Some(target) = self.first_link(source, &now)? {
                (Kind::Link { target }, Vec::new(), now)
            } else {
                let attributes = attributes::read(&opened, &self.path, owners, &mut self.dropped)?;
                if attributes.opaque {
                    return Err(Error::entry(&self.path, "it is a file and carries an overlay mark"));
                }
                let size = u64::try_from(now.st_size).unwrap_or(0);
                let runs = self.runs(&opened, size)?;
                file = Some(opened);
                (Kind::File { size, runs }, attributes.kept, now)
            }
        } else if kind == SFlag::S_IFDIR {
            let (_, attributes, opaque) = self.open_parts(event)?;
            (Kind::Directory { opaque }, attributes, found)
        } else if kind == SFlag::S_IFLNK {
            let target = nix::fcntl::readlinkat(dir, std::ffi::OsStr::new(os(level.name(event))));
            let target = target.map_err(|error| self.changed(error))?.into_vec();
            (Kind::Symlink { target }, Vec::new(), found)
        } else if kind == SFlag::S_IFIFO {
            (Kind::Fifo, Vec::new(), found)
        } else if kind == SFlag::S_IFCHR && found.st_rdev == 0 && owners.has_marks() {
            (Kind::Whiteout, Vec::new(), found)
        } else if kind == SFlag::S_IFSOCK {
            self.dropped.sockets += 1;
            return Ok(());
        } else {
            let what = if kind == SFlag::S_IFBLK { "a block device" } else { "a character device" };
            return Err(Error::entry(&self.path, format!("it is {what}")));
        };
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(Error::bound(&self.path, "entries", self.bounds.entries));
        }
        self.attribute_bytes +=
            attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if self.attribute_bytes > ATTRIBUTES_BYTES_MAX {
            return Err(Error::bound(&self.path, "bytes of attributes", ATTRIBUTES_BYTES_MAX as u64));
        }
        let entry = self.entry(kind, attributes, &found, owners)?;
        sink.take(&entry, file.as_ref())
    }

    /// Between a look and an open something took the place of what was seen.
    fn changed(&self, error: Errno) -> Error {
        match error {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EINVAL | Errno::ENXIO => {
                Error::Changed { path: shown(&self.path) }
            }
            other => Error::errno("read", &self.path)(other),
        }
    }

    fn entry(
        &self,
        kind: Kind,
        attributes: Vec<attributes::Attribute>,
        found: &FileStat,
        owners: Owners,
    ) -> Result<Entry, Error> {
        let path = self.path.clone();
        let mode = kept_mode(&kind, found.st_mode);
        if !kind.has_inode() {
            return Ok(Entry { path, kind, mode, uid: 0, gid: 0, mtime: Mtime::default(), attributes });
        }
        let inside = |what: &str, id: u32| {
            let refused =
                || Error::entry(&path, format!("its {what} {id} is outside of the sandbox's range"));
            owners.inside(id).ok_or_else(refused)
        };
        let (uid, gid) = (inside("owner", found.st_uid)?, inside("group", found.st_gid)?);
        let mtime =
            Mtime { seconds: found.st_mtime, nanos: u32::try_from(found.st_mtime_nsec).unwrap_or_default() };
        Ok(Entry { path, kind, mode, uid, gid, mtime, attributes })
    }

    fn runs(&mut self, file: &File, size: u64) -> Result<Vec<runs::Run>, Error> {
        let stop = self.stop;
        let mut go_on = || {
            if stop.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        };
        if size > FILE_BYTES_MAX {
            return Err(Error::bound(&self.path, "bytes of one file", FILE_BYTES_MAX));
        }
        let found = runs::find(file, size, &mut go_on).map_err(|error| self.read_failed(error))?;
        let data = found.iter().fold(0u64, |sum, run| sum.saturating_add(run.length));
        self.content = self.content.saturating_add(data);
        if self.content > self.bounds.content.0 {
            return Err(Error::bound(&self.path, "bytes of content", self.bounds.content.0));
        }
        Ok(found)
    }

    fn read_failed(&self, error: io::Error) -> Error {
        read_failed(&self.path, error)
    }

    /// Where the file was told already, under another name.
    fn first_link(&mut self, source: usize, found: &FileStat) -> Result<Option<Vec<u8>>, Error> {
        if found.st_nlink < 2 {
            return Ok(None);
        }
        let key = (source, found.st_dev, found.st_ino);
        if let Some((start, length)) = self.links.found.get(&key) {
            let start = *start as usize;
            return Ok(Some(self.links.paths[start..start + usize::from(*length)].to_vec()));
        }
        if self.links.paths.len() + self.path.len() > LINK_BYTES_MAX {
            return Err(Error::bound(
                &self.path,
                "bytes of paths of files with links",
                LINK_BYTES_MAX as u64,
            ));
        }
        let place = (u32::try_from(self.links.paths.len()), u16::try_from(self.path.len()));
        if let (Ok(start), Ok(length)) = place {
            self.links.paths.extend_from_slice(&self.path);
            self.links.found.insert(key, (start, length));
        }
        Ok(None)
    }
}

/// As if the way into a directory were written with a slash at its end.
fn compare((a, enters_a): (&[u8], bool), (b, enters_b): (&[u8], bool)) -> Order {
    let common = a.len().min(b.len());
    let next = |name: &[u8], enters: bool| name.get(common).copied().or(enters.then_some(b'/'));
    a[..common].cmp(&b[..common]).then_with(|| next(a, enters_a).cmp(&next(b, enters_b)))
}

/// Reading the data of a file failed: it was cut meanwhile, or packing is to stop.
pub(super) fn read_failed(path: &[u8], error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Changed { path: shown(path) },
        io::ErrorKind::Interrupted => Error::Stopped,
        _ => Error::io("read", path)(error),
    }
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}

fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> nix::Result<FileStat> {
    fstatat(dir, os(name), AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn kind_of(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}
