//! `PutBlob`: client files, by content; and how a blob is sent to a client.
//!
//! An upload holds a place, ends when its client stalls or drips, and leaves nothing unless its
//! bytes are those it named.

use bytes::Bytes;
use rollout_wire::v1;
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

use super::limits::{UPLOADS_MAX, more_until};
use super::outlet::{Gone, Outlet};
use super::{ApiCode, ApiError, JobsService};
use crate::health::chain;

/// The largest client file, in bytes.
pub const CLIENT_FILE_BYTES_MAX: u64 = 4 << 30;
/// Bytes of one chunk.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Bytes of one chunk of a blob that is read.
pub(super) const READ_CHUNK_BYTES_MAX: usize = 64 << 10;

// What waits in memory for the disk.
const _: () = assert!(UPLOADS_MAX * CHUNK_BYTES_MAX <= 256 << 20);

pub(super) async fn put(
    service: &JobsService,
    chunks: Streaming<v1::BlobChunk>,
) -> Result<v1::PutBlobReply, ApiError> {
    let _place = service.limits.upload()?;
    tokio::select! {
        reply = store(service, chunks) => reply,
        () = service.stop.cancelled() => Err(ApiError::from(crate::inbox::Stopping)),
    }
}

async fn store(
    service: &JobsService,
    chunks: Streaming<v1::BlobChunk>,
) -> Result<v1::PutBlobReply, ApiError> {
    let mut chunks = Chunks { service, chunks, began_at: Instant::now(), received: 0 };
    let first = chunks.next().await?;
    let first = first.ok_or_else(|| ApiError::bad_request("sha256", "the stream is empty"))?;
    let (sha256, declared) = (first.sha256, first.size);
    if declared.is_some_and(|size| size > CLIENT_FILE_BYTES_MAX) {
        return Err(too_large());
    }
    if let Some(size) = service.blobs.renew(&sha256).await.map_err(failed)? {
        return Ok(v1::PutBlobReply { size, existed: true });
    }
    let mut writer = service.blobs.writer();
    let mut chunk = Some(first.data);
    while let Some(data) = chunk {
        if declared.is_some_and(|size| chunks.received > size) {
            let message = format!("more bytes than the {} declared", declared.unwrap_or_default());
            return Err(mismatch(message));
        }
        writer.write(&data).await.map_err(failed)?;
        chunk = match chunks.next().await? {
            Some(next) if !next.sha256.is_empty() || next.size.is_some() => {
                return Err(ApiError::bad_request("sha256", "only the first chunk names the blob"));
            }
            next => next.map(|chunk| chunk.data),
        };
    }
    if let Some(size) = declared.filter(|size| *size != chunks.received) {
        return Err(mismatch(format!("{} bytes were sent, {size} were declared", chunks.received)));
    }
    let size = chunks.received;
    match writer.finish_as(&sha256).await {
        Ok(stored) => Ok(v1::PutBlobReply { size: stored.size, existed: false }),
        Err(blobs::Error::OtherBytes { found, .. }) => {
            Err(mismatch(format!("the {size} bytes sent have sha256 {found}, not {sha256}")))
        }
        Err(error) => Err(failed(error)),
    }
}

/// What is sent, as long as it comes fast enough.
struct Chunks<'a> {
    service: &'a JobsService,
    chunks: Streaming<v1::BlobChunk>,
    began_at: Instant,
    received: u64,
}

impl Chunks<'_> {
    async fn next(&mut self) -> Result<Option<v1::BlobChunk>, ApiError> {
        let limits = &self.service.limits;
        let until = more_until(Instant::now(), self.began_at, self.received, limits.client_stall);
        let too_slow = |_| limits.too_slow();
        let next = timeout_at(until, self.chunks.message()).await.map_err(too_slow)?;
        let Some(chunk) = next.map_err(|status| ApiError::bad_request("data", shown(&status)))? else {
            return Ok(None);
        };
        if chunk.data.len() > CHUNK_BYTES_MAX {
            let problem = format!("{} bytes in one chunk, at most {CHUNK_BYTES_MAX}", chunk.data.len());
            return Err(ApiError::bad_request("data", problem));
        }
        self.received = self.received.saturating_add(chunk.data.len() as u64);
        if self.received > CLIENT_FILE_BYTES_MAX {
            return Err(too_large());
        }
        Ok(Some(chunk))
    }
}

/// Sends the blob from `offset` on, in the messages that `message` makes of its pieces.
pub(super) async fn send<T: Send + 'static>(
    service: &JobsService,
    outlet: &Outlet<T>,
    sha256: &str,
    offset: u64,
    message: impl Fn(Bytes) -> T,
) -> Result<Result<(), ApiError>, Gone> {
    let mut reader = match service.blobs.open_reader(sha256).await {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(failed(error))),
    };
    let mut skip = offset;
    loop {
        let mut part = match reader.next().await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(failed(error))),
        };
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(part.len());
        skip -= skipped as u64;
        let mut part: Bytes = part.split_off(skipped);
        while !part.is_empty() {
            let chunk = part.split_to(part.len().min(READ_CHUNK_BYTES_MAX));
            outlet.send(message(chunk)).await?;
        }
    }
}

fn shown(status: &tonic::Status) -> String {
    rollout::text::shown(status.message(), 200)
}

fn too_large() -> ApiError {
    ApiError::bad_request("data", format!("a client file holds at most {CLIENT_FILE_BYTES_MAX} bytes"))
}

fn mismatch(message: String) -> ApiError {
    ApiError::new(ApiCode::BlobMismatch, message).hint("the file changed while it was sent")
}

pub(super) fn failed(error: blobs::Error) -> ApiError {
    match error {
        blobs::Error::BadDigest { .. } => ApiError::bad_request("sha256", error),
        blobs::Error::NotFound { .. } => ApiError::new(ApiCode::BlobMissing, error.to_string()),
        error => ApiError::new(ApiCode::StoreFailed, chain(&error)),
    }
}
