//! Trees into packed layers, in one walk: every byte is read once to find its holes, once to hash
//! and store it.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat};
use rollout::Bytes;
use rollout::checkpoint::Layer;
use sha2::{Digest, Sha256};
use tar::Builder;

use super::entry::{Entry, Kind, Manifest, Mtime, kept_mode};
use super::runs::RunsReader;
use super::walk::{Owners, Sink, Source, Walk, read_failed};
use super::{Bounds, Error, archive, paths};

/// Fast rather than small: packing is waited for, at times by what is frozen.
const ZSTD_LEVEL: i32 = -3;
const WRITE_BYTES: usize = 256 << 10;

/// A packed layer on disk, to be put into the blob store under [`Layer::blob`]. It is not synced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    pub layer: Layer,
    pub file: PathBuf,
    pub dropped: Dropped,
}

/// What a layer does not keep, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    pub sockets: u64,
    /// `user.overlay.*`.
    pub overlay_attributes: u64,
    /// `security.*`: file capabilities above all.
    pub security_attributes: u64,
}

/// Packs a plain tree, placed under `prefix` (a relative path; empty: at the root), where nothing
/// of the layers below shows through: what was planted there is gone. Everything becomes root's; modes and modification times are kept. A device, or a mark of an overlay, is
/// refused.
pub fn pack_directory(root: &Path, prefix: &str, out: &Path, bounds: &Bounds) -> Result<Packed, Error> {
    let never = AtomicBool::new(false);
    let opened = File::open(root).map_err(Error::io("open", root.as_os_str().as_encoded_bytes()))?;
    let sources = [Source { root: opened.as_fd(), owners: Owners::Root }];
    if !prefix.is_empty() {
        paths::check(prefix.as_bytes())?;
    }
    pack(&sources, prefix.as_bytes(), out, *bounds, &never)
}

/// Packs what a sandbox changed, from the raw upper of its overlay. `id_base` is the host's number
/// of the sandbox's root. Nothing may write in the tree meanwhile; what changes under the walk is
/// an error, never a mix.
///
/// `below`: directories of layers, bottom first, that become part of the new one, as if all had
/// been changed by this sandbox.
///
/// Ends soon, with [`Error::Stopped`], when `stop` is set.
pub fn pack_upper(
    upper: BorrowedFd<'_>,
    id_base: u32,
    below: &[PathBuf],
    out: &Path,
    bounds: &Bounds,
    stop: &AtomicBool,
) -> Result<Packed, Error> {
    let opened = |path: &PathBuf| {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = nix::fcntl::open(path, flags, Mode::empty());
        opened.map_err(Error::errno("open", path.as_os_str().as_encoded_bytes()))
    };
    let lowers = below.iter().map(opened).collect::<Result<Vec<_>, _>>()?;
    let mut sources = vec![Source { root: upper, owners: Owners::Above(id_base) }];
    sources.extend(lowers.iter().rev().map(|fd| Source { root: fd.as_fd(), owners: Owners::Above(0) }));
    pack(&sources, b"", out, *bounds, stop)
}

fn pack(
    sources: &[Source<'_>],
    prefix: &[u8],
    out: &Path,
    bounds: Bounds,
    stop: &AtomicBool,
) -> Result<Packed, Error> {
    let packed = write(sources, prefix, out, bounds, stop);
    if packed.is_err() {
        // What was written of it is of no use; that it was never made is no error here.
        let _ = std::fs::remove_file(out);
    }
    packed
}

fn write(
    sources: &[Source<'_>],
    prefix: &[u8],
    out: &Path,
    bounds: Bounds,
    stop: &AtomicBool,
) -> Result<Packed, Error> {
    let shown = out.as_os_str().as_encoded_bytes();
    let file = File::create(out).map_err(Error::io("create", shown))?;
    let output = Hashed { inner: BufWriter::with_capacity(WRITE_BYTES, file), hash: Sha256::new(), bytes: 0 };
    let encoder = zstd::Encoder::new(output, ZSTD_LEVEL).and_then(|mut encoder| {
        // Times are not part of the id: a flipped bit of one would be seen by nobody else here.
        encoder.include_checksum(true)?;
        Ok(encoder)
    });
    let encoder = encoder.map_err(Error::io("write", shown))?;
    let mut writer = Writer { builder: Builder::new(encoder), manifest: Manifest::new(), out: shown, stop };
    for (end, _) in
        prefix.iter().enumerate().filter(|(_, byte)| **byte == b'/').chain([(prefix.len(), &b'/')])
    {
        if let Some(source) = sources.first().filter(|_| end > 0) {
            let opaque = end == prefix.len();
            writer.take(&directory(&prefix[..end], source, opaque)?, None)?;
        }
    }
    let mut walk = Walk::new(sources, bounds, stop);
    walk.run(prefix, &mut writer)?;
    let dropped = walk.dropped;
    let Writer { builder, manifest, .. } = writer;
    let finished = builder.into_inner().and_then(zstd::Encoder::finish).and_then(|mut output| {
        output.flush()?;
        Ok(output)
    });
    let output = finished.map_err(Error::io("write", shown))?;
    let (content, entries) = (Bytes(manifest.content), manifest.entries);
    let layer = Layer {
        id: manifest.id(),
        blob: hex::encode(output.hash.finalize()),
        packed: Bytes(output.bytes),
        content,
        entries,
    };
    Ok(Packed { layer, file: out.to_owned(), dropped })
}

/// A directory of the prefix: as the root of the tree that lies in it.
fn directory(path: &[u8], source: &Source<'_>, opaque: bool) -> Result<Entry, Error> {
    let found = fstat(source.root).map_err(Error::errno("look at", path))?;
    let kind = Kind::Directory { opaque };
    let mode = kept_mode(&kind, found.st_mode);
    let mtime =
        Mtime { seconds: found.st_mtime, nanos: u32::try_from(found.st_mtime_nsec).unwrap_or_default() };
    Ok(Entry { path: path.to_vec(), kind, mode, uid: 0, gid: 0, mtime, attributes: Vec::new() })
}

struct Writer<'a, W: Write> {
    builder: Builder<W>,
    manifest: Manifest,
    out: &'a [u8],
    stop: &'a AtomicBool,
}

impl<W: Write> Sink for Writer<'_, W> {
    fn take(&mut self, entry: &Entry, file: Option<&File>) -> Result<(), Error> {
        let mut go_on = || {
            if self.stop.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        };
        let (Kind::File { runs, .. }, Some(file)) = (&entry.kind, file) else {
            archive::write(&mut self.builder, entry, io::empty()).map_err(Error::io("write", self.out))?;
            self.manifest.add(entry, None);
            return Ok(());
        };
        let reader = RunsReader::new(file, runs, &mut go_on);
        let mut data = Data { reader, hash: Sha256::new(), failed: None };
        let written = archive::write(&mut self.builder, entry, &mut data);
        if let Some(error) = data.failed {
            return Err(read_failed(&entry.path, error));
        }
        written.map_err(Error::io("write", self.out))?;
        self.manifest.add(entry, Some(data.hash.finalize().into()));
        Ok(())
    }
}

/// The data of a file on its way: hashed, and its own failures told from those of the output.
struct Data<'a> {
    reader: RunsReader<'a>,
    hash: Sha256,
    failed: Option<io::Error>,
}

impl Read for Data<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.reader.read(into) {
            Ok(count) => {
                self.hash.update(&into[..count]);
                Ok(count)
            }
            Err(error) => {
                self.failed = Some(error);
                Err(io::Error::other("the file cannot be read"))
            }
        }
    }
}

/// An output whose digest and length are known at its end.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
