//! What a process writes, taken by the executor through a pipe: the first bytes are kept in a
//! file, the rest is counted and dropped. The pipe is read until its last writer is gone, so a
//! process never gets SIGPIPE and never blocks on a full pipe for long.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use rollout::Bytes;
use rollout::outcome::Captured;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::ceilings::{FILES_PER_CAPTURE, descriptors};
use crate::storage::{Storage, StorageError};

const READ_BYTES: usize = 64 << 10;
/// How long a pipe may stay open after every process of its sandbox is gone.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream being captured.
#[derive(Debug)]
pub(crate) struct Capture {
    path: PathBuf,
    task: JoinHandle<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    written: u64,
    /// The first failure to read or to store; reading went on.
    failure: Option<io::Error>,
}

impl Capture {
    /// Captures into a new file at `path`, once there are descriptors for it. The answered end is for
    /// the process alone: no copy may stay in the executor.
    pub(crate) async fn start(path: PathBuf, bytes_max: Bytes) -> io::Result<(OwnedFd, Self)> {
        let held = descriptors::wait_for(FILES_PER_CAPTURE).await?;
        Self::start_with(path, bytes_max, Arc::new(held)).await
    }

    /// The same, with the descriptors it takes, beside those of others perhaps.
    pub(crate) async fn start_with(
        path: PathBuf,
        bytes_max: Bytes,
        held: Arc<descriptors::Held>,
    ) -> io::Result<(OwnedFd, Self)> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let reader = pipe::Receiver::from_owned_fd(read)?;
        let file = tokio::fs::File::create(&path).await?;
        let task = tokio::spawn(async move {
            let tally = copy(reader, file, bytes_max.0).await;
            drop(held);
            tally
        });
        Ok((write, Self { path, task }))
    }

    /// Waits for the end of the stream. Call it when every process of the sandbox is gone.
    pub(crate) async fn finish(self) -> Result<Recorded, StorageError> {
        self.finish_within(DRAIN_TIMEOUT).await
    }

    /// As [`finish`](Self::finish), for a shorter time.
    pub(crate) async fn finish_within(self, drain_timeout: Duration) -> Result<Recorded, StorageError> {
        let Self { path, task } = self;
        let abort = task.abort_handle();
        let tally = match tokio::time::timeout(drain_timeout, task).await {
            Ok(Ok(tally)) => tally,
            Ok(Err(failed)) => return Err(StorageError::capture(&path, io::Error::other(failed))),
            Err(_) => {
                abort.abort();
                let held = "something outside of the sandbox holds its output open";
                return Err(StorageError::capture(&path, io::Error::new(io::ErrorKind::TimedOut, held)));
            }
        };
        match tally.failure {
            Some(failure) => Err(StorageError::capture(&path, failure)),
            None => Ok(Recorded { path, stored: Bytes(tally.stored), written: Bytes(tally.written) }),
        }
    }
}

/// A stream that ended, in a file of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub path: PathBuf,
    pub stored: Bytes,
    pub written: Bytes,
}

impl Recorded {
    pub(crate) async fn store(&self, storage: &Storage) -> Result<Captured, StorageError> {
        let sha256 = match self.stored.0 {
            0 => None,
            _ => Some(storage.put_file(&self.path).await?.sha256),
        };
        let truncated = self.written > self.stored;
        Ok(Captured { sha256, stored: self.stored, written: self.written, truncated })
    }
}

async fn copy(mut from: pipe::Receiver, mut to: tokio::fs::File, bytes_max: u64) -> Tally {
    let mut tally = Tally::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) => break,
            Ok(read) => read,
            Err(failure) => {
                tally.failure.get_or_insert(failure);
                break;
            }
        };
        tally.written += as_u64(read);
        let room = usize::try_from(bytes_max - tally.stored).unwrap_or(usize::MAX);
        let kept = read.min(room);
        if kept == 0 || tally.failure.is_some() {
            continue;
        }
        match to.write_all(&buffer[..kept]).await {
            Ok(()) => tally.stored += as_u64(kept),
            Err(failure) => tally.failure = Some(failure),
        }
    }
    if let Err(failure) = to.flush().await {
        tally.failure.get_or_insert(failure);
    }
    tally
}

fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Where the capture of a stream lies.
pub(crate) fn path(attempt_dir: &Path, stream: Stream) -> PathBuf {
    attempt_dir.join(stream.as_str())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Stdout, Self::Stderr].into_iter().find(|stream| stream.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Writes on a thread of its own, as a process would, and gives what was captured.
    async fn captured(
        bytes_max: u64,
        write: impl FnOnce(std::fs::File) + Send + 'static,
    ) -> (Recorded, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let (fd, capture) = Capture::start(dir.path().join("stdout"), Bytes(bytes_max)).await.unwrap();
        let writer = std::thread::spawn(move || write(fd.into()));
        let recorded = capture.finish().await.unwrap();
        writer.join().unwrap();
        let bytes = std::fs::read(&recorded.path).unwrap();
        (recorded, bytes)
    }

    #[tokio::test]
    async fn output_past_the_cap_is_counted_and_dropped_while_the_writer_goes_on() {
        let (recorded, bytes) = captured(1000, |mut pipe| {
            for _ in 0..512 {
                pipe.write_all(&[b'y'; 4096]).unwrap();
            }
        })
        .await;
        assert_eq!((recorded.stored, recorded.written), (Bytes(1000), Bytes(512 * 4096)));
        assert_eq!(bytes, vec![b'y'; 1000]);
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_kept_as_they_are() {
        let (recorded, bytes) =
            captured(1000, |mut pipe| pipe.write_all(b"\xff\xfe\x1b[31m\0").unwrap()).await;
        assert_eq!((recorded.stored, recorded.written), (Bytes(8), Bytes(8)));
        assert_eq!(bytes, b"\xff\xfe\x1b[31m\0");
    }

    #[tokio::test]
    async fn a_stream_closed_at_once_is_empty() {
        let (recorded, bytes) = captured(1000, drop).await;
        assert_eq!((recorded.written, bytes.len()), (Bytes(0), 0));
    }

    #[tokio::test]
    async fn a_pipe_that_stays_open_is_given_up_and_said_so() {
        let dir = tempfile::tempdir().unwrap();
        let (fd, capture) = Capture::start(dir.path().join("stdout"), Bytes(10)).await.unwrap();
        let failure = capture.finish_within(Duration::from_millis(1)).await.unwrap_err();
        assert!(failure.to_string().contains("stdout"), "{failure}");
        drop(fd);
    }
}
