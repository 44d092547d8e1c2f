//! Client files: hashed where they lie, stored by the yard under their hash.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rollout_wire::v1::{BlobChunk, ClientFile};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::Client;
use crate::error::Error;

/// Bytes of one chunk.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks read ahead of the connection.
const CHUNKS_AHEAD: usize = 4;

/// Uploads every file of `paths`, which are relative to `dir`.
pub async fn upload(client: &Client, dir: &Path, paths: &[String]) -> Result<Vec<ClientFile>, Error> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let on_disk = dir.join(path);
        let (sha256, size) = put_file(client, on_disk).await?;
        files.push(ClientFile { path: path.clone(), sha256, size });
    }
    Ok(files)
}

/// Uploads a file; its hash and size.
pub async fn put_file(client: &Client, path: PathBuf) -> Result<(String, u64), Error> {
    let (sha256, size) = blocking(path.clone(), hash).await?;
    put(client, path, &sha256, size).await?;
    Ok((sha256, size))
}

/// Uploads a file whose hash and size are known.
pub async fn put(client: &Client, path: PathBuf, sha256: &str, size: u64) -> Result<(), Error> {
    let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
    let sha256 = sha256.to_owned();
    let reading = path.clone();
    let reader = tokio::task::spawn_blocking(move || send(&reading, sha256, size, &sender));
    let reply = client.jobs().put_blob(ReceiverStream::new(chunks)).await;
    // What stopped the reader, if anything did, is why the yard saw a short or different file.
    match reader.await {
        Ok(read) => read.map_err(|source| Error::ReadFile { path: path.clone(), source })?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
    let stored = reply.map_err(|status| match client.failed(status) {
        Error::Refused { code, .. } if code == "blob_mismatch" => Error::FileChanged { path: path.clone() },
        error => error,
    })?;
    if stored.into_inner().size == size { Ok(()) } else { Err(Error::FileChanged { path }) }
}

/// Sends the file; a yard that hung up early says why in its reply.
fn send(path: &Path, sha256: String, size: u64, to: &mpsc::Sender<BlobChunk>) -> std::io::Result<()> {
    let mut file = open_plain(path)?;
    let mut next = BlobChunk { sha256, data: Vec::new(), size: Some(size) };
    loop {
        let mut data = vec![0; CHUNK_BYTES];
        let read = file.read(&mut data)?;
        data.truncate(read);
        next.data = data;
        if (read == 0 && next.sha256.is_empty()) || to.blocking_send(std::mem::take(&mut next)).is_err() {
            return Ok(());
        }
    }
}

fn hash(path: &Path) -> std::io::Result<(String, u64)> {
    let mut file = open_plain(path)?;
    let mut hasher = Sha256::new();
    let size = std::io::copy(&mut file, &mut hasher)?;
    Ok((hex::encode(hasher.finalize()), size))
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let name = path.clone();
    match tokio::task::spawn_blocking(move || work(&path)).await {
        Ok(done) => done.map_err(|source| Error::ReadFile { path: name, source }),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// A plain file: whoever opened a FIFO would wait for its writer.
fn open_plain(path: &Path) -> std::io::Result<File> {
    if std::fs::metadata(path)?.is_file() {
        return File::open(path);
    }
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no plain file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chunk_names_the_hash_even_of_an_empty_file() {
        let dir = tempfile::tempdir().expect("a directory");
        for (size, chunks) in [(0, 1), (1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2)] {
            let path = dir.path().join(size.to_string());
            std::fs::write(&path, vec![7; size]).expect("written");
            let (sha256, hashed) = hash(&path).expect("read");
            assert_eq!(hashed, size as u64);
            let (sender, mut receiver) = mpsc::channel(CHUNKS_AHEAD);
            send(&path, sha256.clone(), size as u64, &sender).expect("read");
            drop(sender);
            let mut got = Vec::new();
            while let Ok(chunk) = receiver.try_recv() {
                got.push(chunk);
            }
            assert_eq!(got.len(), chunks, "{size} bytes");
            assert_eq!(got[0].sha256, sha256);
            assert!(got[1..].iter().all(|chunk| chunk.sha256.is_empty()));
            assert_eq!(got.iter().map(|chunk| chunk.data.len()).sum::<usize>(), size);
        }
    }
}
