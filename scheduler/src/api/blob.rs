//! `PutBlob`: client files, by content.

use rollout_wire::v1;
use tonic::Streaming;

use super::{ApiCode, ApiError, JobsService};
use crate::health::chain;

/// The largest client file, in bytes.
pub const CLIENT_FILE_BYTES_MAX: u64 = 4 << 30;

pub(super) async fn put(
    service: &JobsService,
    mut chunks: Streaming<v1::BlobChunk>,
) -> Result<v1::PutBlobReply, ApiError> {
    let cut = |status: tonic::Status| ApiError::bad_request("data", status.message());
    let first = chunks.message().await.map_err(cut)?;
    let first = first.ok_or_else(|| ApiError::bad_request("sha256", "the stream is empty"))?;
    let sha256 = first.sha256;
    if let Some(size) = service.blobs.size(&sha256).await.map_err(failed)? {
        return Ok(v1::PutBlobReply { size, existed: true });
    }
    let mut writer = service.blobs.writer();
    let mut size = 0u64;
    let mut chunk = Some(first.data);
    while let Some(data) = chunk {
        size = size.saturating_add(data.len() as u64);
        if size > CLIENT_FILE_BYTES_MAX {
            let problem = format!("a client file holds at most {CLIENT_FILE_BYTES_MAX} bytes");
            return Err(ApiError::bad_request("data", problem));
        }
        writer.write(&data).await.map_err(failed)?;
        chunk = chunks.message().await.map_err(cut)?.map(|chunk| chunk.data);
    }
    let stored = writer.finish().await.map_err(failed)?;
    if stored.sha256 != sha256 {
        let message = format!("the bytes sent have sha256 {}, not {sha256}", stored.sha256);
        return Err(ApiError::new(ApiCode::BlobMismatch, message).hint("the file changed while it was sent"));
    }
    Ok(v1::PutBlobReply { size: stored.size, existed: false })
}

pub(super) fn failed(error: blobs::Error) -> ApiError {
    match error {
        blobs::Error::BadDigest { .. } => ApiError::bad_request("sha256", error),
        blobs::Error::NotFound { .. } => ApiError::new(ApiCode::BlobMissing, error.to_string()),
        error => ApiError::new(ApiCode::StoreFailed, chain(&error)),
    }
}
