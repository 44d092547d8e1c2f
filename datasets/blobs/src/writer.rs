use std::fs::File;
use std::mem;

use sha2::Digest as _;
use tokio::task::spawn_blocking;

use crate::bucket::{Content, Written, spill};
use crate::staging::StagedFile;
use crate::store::{Place, has_durably};
use crate::{BlobRef, BlobStore, Digest, Error};

/// The largest blob, in bytes: 1 TiB.
pub const BLOB_BYTES_MAX: u64 = 1 << 40;
/// Bytes gathered before they go to the disk. A smaller blob that the store already has is never
/// written at all.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes one blob of unknown length. Dropped before [`BlobWriter::finish`], it leaves nothing.
#[derive(Debug)]
pub struct BlobWriter {
    store: BlobStore,
    buffer: Vec<u8>,
    size: u64,
    /// Not here while a blocking thread has it; lost for good if that thread failed.
    state: Option<State>,
}

#[derive(Debug, Default)]
struct State {
    hasher: sha2::Sha256,
    /// In a local store.
    staged: Option<StagedFile>,
    /// What waits to be put into a bucket.
    spilled: Option<File>,
}

impl BlobWriter {
    pub(crate) fn new(store: BlobStore) -> Self {
        Self { store, buffer: Vec::new(), size: 0, state: Some(State::default()) }
    }

    /// Takes `bytes`. After an error, or a call that was cancelled half way, every later call
    /// answers [`Error::WriterFailed`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let size = self.size.saturating_add(bytes.len() as u64);
        if size > BLOB_BYTES_MAX {
            self.state = None;
            return Err(Error::BlobTooLarge { bytes_max: BLOB_BYTES_MAX });
        }
        self.size = size;
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(BUFFER_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            if self.buffer.len() < BUFFER_BYTES {
                return if self.state.is_some() { Ok(()) } else { Err(Error::WriterFailed) };
            }
            self.spill().await?;
            rest = later;
        }
    }

    async fn spill(&mut self) -> Result<(), Error> {
        let mut state = self.state.take().ok_or(Error::WriterFailed)?;
        let mut buffer = mem::take(&mut self.buffer);
        let place = self.store.place.clone();
        let task = spawn_blocking(move || {
            state.hasher.update(&buffer);
            match &place {
                Place::Local(root) => {
                    let mut staged = match state.staged.take() {
                        Some(staged) => staged,
                        None => StagedFile::create(root)?,
                    };
                    staged.write(&buffer)?;
                    state.staged = Some(staged);
                }
                Place::Bucket { .. } => state.spilled = Some(spill(state.spilled.take(), &buffer)?),
            }
            buffer.clear();
            Ok((state, buffer))
        });
        let (state, buffer) = task.await.map_err(Error::Runtime)??;
        self.buffer = buffer;
        self.state = Some(state);
        Ok(())
    }

    /// Makes what was written a blob: durable when this returns.
    pub async fn finish(self) -> Result<BlobRef, Error> {
        self.finished(None).await
    }

    /// As [`BlobWriter::finish`], if what was written is the blob `sha256`; else nothing of it is
    /// kept and the answer is [`Error::OtherBytes`].
    pub async fn finish_as(self, sha256: &str) -> Result<BlobRef, Error> {
        let expected: Digest = sha256.parse()?;
        self.finished(Some(expected)).await
    }

    async fn finished(mut self, expected: Option<Digest>) -> Result<BlobRef, Error> {
        let State { mut hasher, staged, spilled } = self.state.take().ok_or(Error::WriterFailed)?;
        let (buffer, size) = (mem::take(&mut self.buffer), self.size);
        let named = move |buffer: &[u8]| {
            hasher.update(buffer);
            let digest = Digest::finished(hasher);
            match expected.filter(|expected| *expected != digest) {
                Some(expected) => {
                    Err(Error::OtherBytes { expected: expected.to_string(), found: digest.to_string() })
                }
                None => Ok(digest),
            }
        };
        match self.store.place.clone() {
            Place::Local(root) => {
                let task = spawn_blocking(move || {
                    let digest = named(&buffer)?;
                    if !has_durably(&root, &digest, size)? {
                        let mut staged = match staged {
                            Some(staged) => staged,
                            None => StagedFile::create(&root)?,
                        };
                        staged.write(&buffer)?;
                        staged.publish(&root, &digest)?;
                    }
                    Ok(BlobRef { sha256: digest.to_string(), size })
                });
                task.await.map_err(Error::Runtime)?
            }
            Place::Bucket { bucket, .. } => {
                let task = spawn_blocking(move || {
                    let digest = named(&buffer)?;
                    let bytes = match spilled {
                        Some(file) => Content::File(spill(Some(file), &buffer)?),
                        None => Content::Memory(buffer.into()),
                    };
                    Ok::<_, Error>(Written { digest, size, bytes })
                });
                let written = task.await.map_err(Error::Runtime)??;
                let sha256 = written.digest.to_string();
                bucket.put(written).await?;
                Ok(BlobRef { sha256, size })
            }
        }
    }
}
