//! A packed layer into the directory form, whatever the bytes are: whole and as promised, or not
//! at all.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, fchmod, futimens, mkdirat, mknodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};
use rollout::checkpoint::Layer;
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use super::entry::{Entry, Kind, Manifest, Mtime, kept_mode};
use super::paths::{self, beneath, by_number, split};
use super::runs::Run;
use super::{Bounds, Error, ID_MAX, PATH_BYTES_MAX, archive, attributes};

/// The largest window a packed layer may ask memory for, as a power of two. Ours ask for 2^19.
const WINDOW_LOG_MAX: u32 = 23;
/// What zstd can do at most: more content for the packed bytes than this is no layer of ours.
const RATIO_MAX: u64 = 1 << 15;
/// Content that any number of packed bytes may have.
const RATIO_FREE_BYTES: u64 = 1 << 20;
/// Bytes of headers and records, for each entry, that are read before a packed layer is refused.
const OVERHEAD_BYTES_MAX: u64 = 16 << 10;
/// The same for a layer of few entries: one may have long attributes and many runs.
pub(super) const OVERHEAD_FREE_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// Of a tar.
const BLOCK_BYTES: usize = 512;

/// Unpacks a layer into the directory `into`, which is made. On any error nothing is left there.
/// At the end the tree is the one `expected` names, or it is an error. Needs root. Nothing is
/// synced.
pub fn unpack(packed: impl Read, into: &Path, expected: &Layer, bounds: &Bounds) -> Result<(), Error> {
    let shown = into.as_os_str().as_encoded_bytes();
    check_claims(expected, bounds)?;
    std::fs::create_dir(into).map_err(Error::io("make", shown))?;
    let unpacked = fill(packed, into, expected);
    if unpacked.is_err()
        && let Err(error) = std::fs::remove_dir_all(into)
    {
        tracing::error!(path = %into.display(), %error, "a half unpacked layer was not removed");
    }
    unpacked
}

/// What a layer claims is bounded before a byte is read.
pub(super) fn check_claims(expected: &Layer, bounds: &Bounds) -> Result<(), Error> {
    let (content, packed) = (expected.content.0, expected.packed.0);
    if expected.entries > bounds.entries {
        return Err(Error::bound(b"", "entries", bounds.entries));
    }
    if content > bounds.content.0 {
        return Err(Error::bound(b"", "bytes of content", bounds.content.0));
    }
    if content > packed.saturating_mul(RATIO_MAX).saturating_add(RATIO_FREE_BYTES) {
        return Err(Error::bound(b"", "times its packed bytes", RATIO_MAX));
    }
    Ok(())
}

fn fill(packed: impl Read, into: &Path, expected: &Layer) -> Result<(), Error> {
    let mut tree = Tree::new(into, expected)?;
    entries(packed, expected, |entry, data| tree.take(entry, data))?;
    tree.finish()
}

/// Gives `take` every entry of a packed layer, and its data to read.
pub(super) fn entries(
    packed: impl Read,
    expected: &Layer,
    mut take: impl FnMut(Entry, &mut dyn Read) -> Result<(), Error>,
) -> Result<(), Error> {
    let decoder = zstd::Decoder::new(packed).and_then(|mut decoder| {
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(decoder)
    });
    let decoder = decoder.map_err(|error| Error::format(error.to_string()))?;
    let overhead = expected.entries.saturating_mul(OVERHEAD_BYTES_MAX).saturating_add(OVERHEAD_FREE_BYTES);
    let mut limited = Limited { inner: decoder, left: expected.content.0.saturating_add(overhead) };
    {
        let mut archive = Archive::new(&mut limited);
        let entries = archive.entries().map_err(|error| Error::format(error.to_string()))?;
        let mut records: Option<Vec<u8>> = None;
        for found in entries.raw(true) {
            let mut found = found.map_err(|error| Error::format(error.to_string()))?;
            if found.header().entry_type() == EntryType::XHeader {
                if records.is_some() {
                    return Err(Error::format("records follow records"));
                }
                records = Some(archive::read_records(&mut found)?);
                continue;
            }
            let entry = archive::parse(found.header(), records.take().as_deref())?;
            take(entry, &mut found)?;
        }
        if records.is_some() {
            return Err(Error::format("records without an entry"));
        }
    }
    // The first of two blocks of zeros ended the entries.
    let mut rest = Vec::new();
    let read = (&mut limited).take(2 * BLOCK_BYTES as u64).read_to_end(&mut rest);
    read.map_err(|error| Error::format(error.to_string()))?;
    if rest != [0; BLOCK_BYTES] {
        return Err(Error::format("it does not end as a layer does"));
    }
    Ok(())
}

/// A stream that has at most so many bytes.
struct Limited<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 && !into.is_empty() {
            return Err(io::Error::other("it unpacks to more bytes than it claims"));
        }
        let count = self.inner.read(&mut into[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

/// A directory whose mode and time are set when nothing comes into it any more.
struct Open {
    path: Vec<u8>,
    mode: u32,
    mtime: Mtime,
}

struct Tree<'a> {
    root: OwnedFd,
    expected: &'a Layer,
    manifest: Manifest,
    last: Vec<u8>,
    /// The directory of the last entry.
    parent: (Vec<u8>, OwnedFd),
    /// Each a prefix of the path at work.
    open: Vec<Open>,
    buffer: Vec<u8>,
}

impl<'a> Tree<'a> {
    fn new(into: &Path, expected: &'a Layer) -> Result<Self, Error> {
        let shown = into.as_os_str().as_encoded_bytes();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = || nix::fcntl::open(into, flags, Mode::empty()).map_err(Error::errno("open", shown));
        let root = open()?;
        fchmod(&root, Mode::from_bits_truncate(0o755)).map_err(Error::errno("shut", shown))?;
        let parent = (Vec::new(), open()?);
        let manifest = Manifest::new();
        Ok(Self { root, expected, manifest, last: Vec::new(), parent, open: Vec::new(), buffer: Vec::new() })
    }

    fn take(&mut self, mut entry: Entry, data: &mut dyn Read) -> Result<(), Error> {
        if let Kind::Directory { .. } = entry.kind
            && let Some(stripped) = entry.path.strip_suffix(b"/")
        {
            entry.path = stripped.to_vec();
        }
        paths::check(&entry.path)?;
        if entry.path <= self.last {
            let problem = if entry.path == self.last { "it is there twice" } else { "it is out of order" };
            return Err(Error::entry(&entry.path, problem));
        }
        if self.manifest.entries >= self.expected.entries {
            return Err(Error::bound(&entry.path, "entries it claims", self.expected.entries));
        }
        if entry.uid > ID_MAX || entry.gid > ID_MAX {
            return Err(Error::entry(&entry.path, "its owner is outside of a sandbox's range"));
        }
        entry.mode = kept_mode(&entry.kind, entry.mode);
        entry.attributes.iter().try_for_each(|attribute| attributes::check(&entry.path, attribute))?;
        if matches!(entry.kind, Kind::Symlink { .. } | Kind::Link { .. } | Kind::Fifo | Kind::Whiteout)
            && !entry.attributes.is_empty()
        {
            return Err(Error::entry(&entry.path, "it has attributes and is neither file nor directory"));
        }
        self.close_before(&entry.path)?;
        self.go_to_parent(&entry.path)?;
        let digest = self.make(&entry, data)?;
        self.manifest.add(&entry, digest);
        self.last = entry.path;
        Ok(())
    }

    /// Of the directories at work, those that no later path can lie in.
    fn close_before(&mut self, path: &[u8]) -> Result<(), Error> {
        while let Some(dir) = self.open.last() {
            let rest = path.strip_prefix(dir.path.as_slice());
            if rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte <= b'/')) {
                break;
            }
            self.close_last()?;
        }
        Ok(())
    }

    fn close_last(&mut self) -> Result<(), Error> {
        let Some(dir) = self.open.pop() else { return Ok(()) };
        let failed = |error| Error::errno("finish", &dir.path)(error);
        let fd =
            beneath(self.root.as_fd(), &dir.path, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        fchmod(&fd, Mode::from_bits_truncate(dir.mode)).map_err(failed)?;
        let time = spec(dir.mtime);
        futimens(&fd, &time, &time).map_err(failed)
    }

    fn go_to_parent(&mut self, path: &[u8]) -> Result<(), Error> {
        let (parent, _) = split(path);
        if self.parent.0 == parent {
            return Ok(());
        }
        let opened = beneath(self.root.as_fd(), parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let opened = opened.map_err(|_| Error::entry(path, "it lies in no directory of the layer"))?;
        self.parent = (parent.to_vec(), opened);
        Ok(())
    }

    fn make(&mut self, entry: &Entry, data: &mut dyn Read) -> Result<Option<[u8; 32]>, Error> {
        let path = &entry.path;
        let (_, name) = split(path);
        let name = OsStr::from_bytes(name);
        let failed = |error: nix::errno::Errno| Error::errno("make", path)(error);
        match &entry.kind {
            Kind::Directory { opaque } => {
                mkdirat(&self.parent.1, name, Mode::from_bits_truncate(0o700)).map_err(failed)?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
                let dir = File::from(beneath(self.parent.1.as_fd(), name.as_bytes(), flags).map_err(failed)?);
                own(&dir, entry)?;
                attributes::set(&dir, path, &entry.attributes)?;
                if *opaque {
                    attributes::set_opaque(&dir).map_err(Error::io("mark", path))?;
                }
                self.open.push(Open { path: path.clone(), mode: entry.mode, mtime: entry.mtime });
                Ok(None)
            }
            Kind::File { size, runs } => {
                let file = File::from(paths::create(self.parent.1.as_fd(), name.as_bytes()).map_err(failed)?);
                let digest = self.copy(path, &file, *size, runs, data)?;
                own(&file, entry)?;
                attributes::set(&file, path, &entry.attributes)?;
                fchmod(&file, Mode::from_bits_truncate(entry.mode)).map_err(failed)?;
                let time = spec(entry.mtime);
                futimens(&file, &time, &time).map_err(failed)?;
                Ok(Some(digest))
            }
            Kind::Symlink { target } => {
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                    return Err(Error::entry(path, "it is a symlink whose target cannot be one"));
                }
                symlinkat(OsStr::from_bytes(target), &self.parent.1, name).map_err(failed)?;
                self.finish_nameless(entry, name)
            }
            Kind::Fifo => {
                let mode = Mode::from_bits_truncate(entry.mode);
                mknodat(&self.parent.1, name, SFlag::S_IFIFO, mode, 0).map_err(failed)?;
                let fd = beneath(self.parent.1.as_fd(), name.as_bytes(), OFlag::O_PATH).map_err(failed)?;
                // By number: the node is not opened, and its own descriptor takes no mode.
                let permissions = std::os::unix::fs::PermissionsExt::from_mode(entry.mode);
                let shut = std::fs::set_permissions(by_number(&fd), permissions);
                shut.map_err(Error::io("shut", path))?;
                self.finish_nameless(entry, name)
            }
            Kind::Whiteout => {
                mknodat(&self.parent.1, name, SFlag::S_IFCHR, Mode::empty(), 0).map_err(failed)?;
                Ok(None)
            }
            Kind::Link { target } => {
                self.link(path, name, target)?;
                Ok(None)
            }
        }
    }

    /// Owner and time of what is never opened.
    fn finish_nameless(&self, entry: &Entry, name: &OsStr) -> Result<Option<[u8; 32]>, Error> {
        let failed = |error: nix::errno::Errno| Error::errno("finish", &entry.path)(error);
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        fchownat(&self.parent.1, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
        let time = spec(entry.mtime);
        utimensat(&self.parent.1, name, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(failed)?;
        Ok(None)
    }

    /// Another name of a file that this layer made.
    fn link(&self, path: &[u8], name: &OsStr, target: &[u8]) -> Result<(), Error> {
        let refused = |problem: &str| Err(Error::entry(path, format!("it is a hard link {problem}")));
        if paths::check(target).is_err() {
            return refused("out of the layer");
        }
        if target >= path {
            return refused("to what does not come before it");
        }
        let Ok(file) = beneath(self.root.as_fd(), target, OFlag::O_PATH) else {
            return refused("to nothing in the layer");
        };
        let found = nix::sys::stat::fstat(&file).map_err(Error::errno("look at", target))?;
        if found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return refused("to what is no file");
        }
        linkat(AT_FDCWD, &by_number(&file), &self.parent.1, name, AtFlags::AT_SYMLINK_FOLLOW)
            .map_err(Error::errno("link", path))
    }

    fn copy(
        &mut self,
        path: &[u8],
        file: &File,
        size: u64,
        runs: &[Run],
        data: &mut dyn Read,
    ) -> Result<[u8; 32], Error> {
        let total: u64 = runs.iter().map(|run| run.length).sum();
        if self.manifest.content.saturating_add(total) > self.expected.content.0 {
            return Err(Error::bound(path, "bytes of content it claims", self.expected.content.0));
        }
        let mut hash = Sha256::new();
        self.buffer.resize(BUFFER_BYTES, 0);
        for run in runs {
            let (mut at, end) = (run.offset, run.offset + run.length);
            while at < end {
                let want = self.buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let part = &mut self.buffer[..want];
                data.read_exact(part).map_err(|error| Error::format(error.to_string()))?;
                hash.update(&*part);
                file.write_all_at(part, at).map_err(Error::io("write", path))?;
                at += want as u64;
            }
        }
        // A hole at the end, or nothing but holes.
        file.set_len(size).map_err(Error::io("size", path))?;
        Ok(hash.finalize().into())
    }

    fn finish(mut self) -> Result<(), Error> {
        while !self.open.is_empty() {
            self.close_last()?;
        }
        let Self { expected, manifest, .. } = self;
        for (what, found, claimed) in [
            ("entries", manifest.entries, expected.entries),
            ("bytes of content", manifest.content, expected.content.0),
        ] {
            if found != claimed {
                return Err(Error::OtherCount { what, expected: claimed, found });
            }
        }
        let found = manifest.id();
        if found != expected.id {
            return Err(Error::OtherTree { expected: expected.id, found });
        }
        Ok(())
    }
}

fn own(file: &File, entry: &Entry) -> Result<(), Error> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    fchown(file, Some(uid), Some(gid)).map_err(Error::errno("give away", &entry.path))
}

pub(super) fn spec(time: Mtime) -> TimeSpec {
    TimeSpec::new(time.seconds, time.nanos.into())
}
