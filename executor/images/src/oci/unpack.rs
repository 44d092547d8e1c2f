//! A layer as it is stored into the directory form.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use rollout::Bytes;
use rollout::checkpoint::Layer;
use rollout::image::Digest;
use sha2::{Digest as _, Sha256};

use super::{Error, ImageLayer};
use crate::layers::{self, Bounds, unpack_foreign};

/// The largest window of zstd that memory is given to, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;
/// A tar may be this many times as large as its stored form, beyond [`RATIO_FREE_BYTES`].
const RATIO_MAX: u64 = 128;
const RATIO_FREE_BYTES: u64 = 1 << 30;
/// Bytes of headers and padding, beside content.
const OVERHEAD_BYTES_MAX: u64 = 4 << 30;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const READ_BYTES: usize = 256 << 10;

/// Unpacks the stored layer in `file` into the directory `into`, which is made; what it is then in
/// a layer store. Gzip, zstd and plain tars are told apart by their first bytes. Needs root.
///
/// # Errors
/// The layer is refused, is past a bound or is not the tar its configuration names; nothing is left.
pub fn unpack_layer(file: File, into: &Path, layer: &ImageLayer, bounds: &Bounds) -> Result<Layer, Error> {
    let failed = |source| Error::Layer { layer: layer.blob, source: Box::new(source) };
    let mut file = BufReader::with_capacity(READ_BYTES, file);
    let start = file.fill_buf().map_err(layers::Error::stream).map_err(failed)?;
    let tar: Box<dyn Read> = if start.starts_with(GZIP_MAGIC) {
        Box::new(MultiGzDecoder::new(file))
    } else if start.starts_with(ZSTD_MAGIC) {
        let decoder = zstd::Decoder::with_buffer(file).and_then(|mut decoder| {
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            Ok(decoder)
        });
        Box::new(decoder.map_err(layers::Error::stream).map_err(failed)?)
    } else {
        Box::new(file)
    };
    let by_ratio = layer.size.saturating_mul(RATIO_MAX).saturating_add(RATIO_FREE_BYTES);
    let most = bounds.content.0.saturating_add(OVERHEAD_BYTES_MAX).min(by_ratio);
    let mut hashed = Hashed { inner: tar, hash: Sha256::new(), left: most, most };
    let found = unpack_foreign(&mut hashed, into, bounds).map_err(failed)?;
    let diff_id = Digest::from_bytes(hashed.hash.finalize().into());
    if diff_id != layer.diff_id {
        std::fs::remove_dir_all(into).map_err(Error::io("remove", into))?;
        return Err(Error::WrongDiffId { layer: layer.blob, expected: layer.diff_id, found: diff_id });
    }
    if found.devices_dropped > 0 || found.security_attributes_dropped > 0 {
        tracing::debug!(layer = %layer.blob, ?found, "left out of a layer");
    }
    Ok(Layer {
        id: layer.id(),
        blob: layer.blob.hex(),
        packed: Bytes(layer.size),
        content: Bytes(found.content),
        entries: found.entries,
    })
}

/// Hashes what is read, up to a bound.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
    left: u64,
    most: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(format!(
                "it unpacks to more than {} bytes, the most for its stored size (RATIO_MAX)",
                self.most
            ))
        })?;
        self.hash.update(&into[..count]);
        Ok(count)
    }
}
