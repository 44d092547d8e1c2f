//! Live reads of captured output, by offset, while the attempt is held.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rollout_wire::v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::messages::{self, LogRequest};

/// Reads at once; one more is answered with no data, and asks again.
pub(crate) const LOG_READS_MAX: usize = 32;
/// Bytes of one answer.
pub(crate) const LOG_READ_BYTES_MAX: u32 = 256 << 10;

/// Reads and reports. A queue that is full or closed loses the answer with its link, and the
/// reader's request with it.
pub(crate) async fn answer(
    request: LogRequest,
    path: PathBuf,
    reports: mpsc::Sender<v1::Report>,
    permit: OwnedSemaphorePermit,
) {
    let (offset, bytes_max) = (request.offset, request.bytes_max.min(LOG_READ_BYTES_MAX));
    let read = tokio::task::spawn_blocking(move || read(&path, offset, bytes_max)).await;
    drop(permit);
    let (data, gone) = match read.map_err(io::Error::other).and_then(|read| read) {
        Ok(data) => (data, false),
        // Nothing captured yet, or just discarded: the next request finds out which.
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), false),
        Err(error) => {
            tracing::warn!(attempt = %request.attempt, %error, "captured output not read");
            (Vec::new(), true)
        }
    };
    let _closed = reports.try_send(messages::log_data(request.request, data, gone));
}

fn read(path: &Path, offset: u64, bytes_max: u32) -> io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    let left = file.metadata()?.len().saturating_sub(offset).min(u64::from(bytes_max));
    let mut data = vec![0; usize::try_from(left).map_err(io::Error::other)?];
    let read = file.read_at(&mut data, offset)?;
    data.truncate(read);
    Ok(data)
}
