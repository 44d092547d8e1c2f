//! What a process writes, taken by the executor through a pipe: the first bytes are kept in a
//! file, which is made when the first of them comes; the rest is counted and dropped. The pipe is read
//! until its last writer is gone, so a process never gets SIGPIPE and never blocks on a full pipe for long.
//!
//! The kernel moves the bytes from the pipe to the file in one call, which a kill does not tear: what has
//! left the pipe is in the file, and the length of the file says how much that is. So an executor that
//! takes a pipe over goes on where the file ends. Of what is dropped the count may be short by one read
//! for each executor that was killed; that something was dropped shows in the file, which has a byte
//! more than is kept until the end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use rollout::Bytes;
use rollout::outcome::Captured;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use crate::broker::client::watched;
use crate::ceilings::{FILES_PER_CAPTURE, descriptors};
use crate::storage::{Storage, StorageError};

const READ_BYTES: usize = 64 << 10;
/// Moves before another task has its turn on the thread.
const MOVES_MAX: usize = 64;
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
        let (write, _, capture) = Self::start_shared(path, bytes_max, held).await?;
        Ok((write, capture))
    }

    /// The same, with a copy of the end it reads from, for who goes on if this executor is killed.
    pub(crate) async fn start_shared(
        path: PathBuf,
        bytes_max: Bytes,
        held: Arc<descriptors::Held>,
    ) -> io::Result<(OwnedFd, OwnedFd, Self)> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let copy = read.try_clone()?;
        // Most often nothing is there: only the health checks of a step capture to one path again and again.
        if std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
            let path = path.clone();
            tokio::task::spawn_blocking(move || empty(&path)).await.map_err(io::Error::other)??;
        }
        let sink = Sink::new(&path, bytes_max.0);
        Ok((write, copy, Self::over(path, read, sink, held)?))
    }

    /// Goes on with the capture of an executor that was killed. Blocks for a moment.
    pub(crate) fn resume(
        path: PathBuf,
        bytes_max: Bytes,
        read: OwnedFd,
        held: Arc<descriptors::Held>,
    ) -> io::Result<Self> {
        let mut sink = Sink::new(&path, bytes_max.0);
        match File::options().write(true).open(&path) {
            Ok(file) => {
                sink.stored = file.metadata()?.len();
                sink.file = Some(file);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let stored = sink.stored;
        let mut count = [0; 9];
        match File::open(&sink.past_file).and_then(|file| file.read_exact_at(&mut count, 0)) {
            Ok(()) => {
                let [past @ .., is_whole] = count;
                sink.past = u64::from_le_bytes(past);
                // The byte too many is among those already, and may be gone from the file.
                if is_whole == 0 {
                    // Nothing is dropped before the file is full, unless it could not be written.
                    if sink.past > 0 && stored <= bytes_max.0 {
                        sink.failure = Some(io::Error::other("an earlier write failed"));
                    }
                } else {
                    sink.stored = stored.min(bytes_max.0);
                    sink.cut(sink.stored)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Self::over(path, read, sink, held)
    }

    fn over(path: PathBuf, read: OwnedFd, sink: Sink, held: Arc<descriptors::Held>) -> io::Result<Self> {
        let reader = Arc::new(watched(read)?);
        let task = tokio::spawn(async move {
            let tally = copy(reader, sink).await;
            drop(held);
            tally
        });
        Ok(Self { path, task })
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
    /// Its file, which is made if no byte came.
    pub(crate) fn open(&self) -> io::Result<File> {
        match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.stored.0 == 0 => {
                File::options().create(true).truncate(false).read(true).write(true).open(&self.path)
            }
            opened => opened,
        }
    }

    pub(crate) async fn store(&self, storage: &Storage) -> Result<Captured, StorageError> {
        let sha256 = match self.stored.0 {
            0 => None,
            _ => Some(storage.put_file(&self.path).await?.sha256),
        };
        let truncated = self.written > self.stored;
        Ok(Captured { sha256, stored: self.stored, written: self.written, truncated })
    }
}

/// Where the bytes go.
#[derive(Debug)]
struct Sink {
    path: PathBuf,
    /// None before the first byte.
    file: Option<File>,
    /// Has the count of what was dropped, once something was.
    past_file: PathBuf,
    max: u64,
    /// The length of the file: one more than `max` says that more came.
    stored: u64,
    /// Bytes that came behind those.
    past: u64,
    failure: Option<io::Error>,
}

/// What a look at the pipe found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    More,
    NothingNow,
    End,
}

async fn copy(from: Arc<AsyncFd<OwnedFd>>, mut sink: Sink) -> Tally {
    loop {
        let mut ready = match from.readable().await {
            Ok(ready) => ready,
            Err(failure) => {
                sink.failure.get_or_insert(failure);
                break;
            }
        };
        let found = if is_empty(from.get_ref()) {
            // Its end most likely, which is no work for another thread.
            sink.take(from.get_ref(), 1)
        } else {
            let (pipe, mut taking) = (Arc::clone(&from), sink);
            let taken = tokio::task::spawn_blocking(move || {
                let found = taking.take(pipe.get_ref(), MOVES_MAX);
                (taking, found)
            });
            let found;
            (sink, found) = match taken.await {
                Ok(taken) => taken,
                Err(error) => return Tally { failure: Some(io::Error::other(error)), ..Tally::default() },
            };
            found
        };
        match found {
            Found::More => {}
            Found::NothingNow => ready.clear_ready(),
            Found::End => break,
        }
    }
    sink.tally()
}

/// An empty file to write to. One that is there is not opened to be cut: ext4 writes such a file to the disk as
/// it is closed.
fn empty(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Whether the pipe holds nothing now. False if that cannot be told.
fn is_empty(pipe: &OwnedFd) -> bool {
    let mut held: libc::c_int = 0;
    // SAFETY: the descriptor is open; the kernel writes one int, which outlives the call.
    let told = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut held) };
    told == 0 && held == 0
}

/// Whether bytes can be taken from the pipe. False: they never will, the last writer is gone.
fn holds_bytes(pipe: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut polled, PollTimeout::ZERO)?;
    let [polled] = polled;
    match polled.revents() {
        Some(events) if events.contains(PollFlags::POLLIN) => Ok(true),
        Some(events) if events.contains(PollFlags::POLLHUP) => Ok(false),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Sink {
    fn new(path: &Path, max: u64) -> Self {
        let path = path.to_owned();
        Self { past_file: past_path(&path), path, file: None, max, stored: 0, past: 0, failure: None }
    }

    /// Takes what is there, in so many moves. Blocks on the disk.
    fn take(&mut self, pipe: &OwnedFd, moves_max: usize) -> Found {
        for _ in 0..moves_max {
            let room = (self.max + 1).saturating_sub(self.stored);
            let moved = match room {
                1.. if self.failure.is_none() => self.keep(pipe, room),
                _ => self.pass(pipe),
            };
            match moved {
                Ok(0) => return Found::End,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Found::NothingNow,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Reading goes on, so that the process does.
                    let is_first = self.failure.is_none();
                    self.failure.get_or_insert(error);
                    if !is_first {
                        return Found::End;
                    }
                }
            }
        }
        Found::More
    }

    fn keep(&mut self, pipe: &OwnedFd, room: u64) -> io::Result<u64> {
        let file = match &self.file {
            Some(file) => file,
            None if holds_bytes(pipe)? => self.file.insert(empty(&self.path)?),
            None => return Ok(0),
        };
        let len = usize::try_from(room).unwrap_or(usize::MAX).min(READ_BYTES);
        let mut offset = i64::try_from(self.stored).unwrap_or(i64::MAX);
        // SAFETY: both descriptors are open; the offset is a local that outlives the call.
        let moved = unsafe {
            libc::splice(
                pipe.as_raw_fd(),
                std::ptr::null_mut(),
                file.as_raw_fd(),
                &raw mut offset,
                len,
                libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
            )
        };
        let moved = u64::try_from(moved).map_err(|_| io::Error::last_os_error())?;
        self.stored += moved;
        Ok(moved)
    }

    fn pass(&mut self, pipe: &OwnedFd) -> io::Result<u64> {
        let mut buffer = [0; READ_BYTES];
        let read = nix::unistd::read(pipe, &mut buffer)?;
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        if read > 0 {
            self.past += read;
            if let Err(error) = self.count(false) {
                self.failure.get_or_insert(error);
            }
        }
        Ok(read)
    }

    /// Writes down how many bytes are past the cap; `is_whole`: the one in the file is among them.
    fn count(&self, is_whole: bool) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).open(&self.past_file)?;
        let mut count = [0; 9];
        count[..8].copy_from_slice(&self.past.to_le_bytes());
        count[8] = u8::from(is_whole);
        file.write_all_at(&count, 0)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.set_len(len))
    }

    fn tally(mut self) -> Tally {
        if self.stored > self.max {
            self.past += self.stored - self.max;
            self.stored = self.max;
            // In this order, should this executor be killed here.
            let cut = self.count(true).and_then(|()| self.cut(self.max));
            if let Err(error) = cut {
                self.failure.get_or_insert(error);
            }
        }
        Tally { stored: self.stored, written: self.stored + self.past, failure: self.failure }
    }
}

fn past_path(path: &Path) -> PathBuf {
    path.with_extension("past")
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
    use std::io::{Read as _, Write as _};

    use super::*;

    /// Writes on a thread of its own, as a process would, and gives what was captured.
    async fn captured(bytes_max: u64, write: impl FnOnce(File) + Send + 'static) -> (Recorded, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let (fd, capture) = Capture::start(dir.path().join("stdout"), Bytes(bytes_max)).await.unwrap();
        let writer = std::thread::spawn(move || write(fd.into()));
        let recorded = capture.finish().await.unwrap();
        writer.join().unwrap();
        assert_eq!(recorded.path.exists(), recorded.stored.0 > 0, "a file is made for bytes alone");
        let mut bytes = Vec::new();
        recorded.open().unwrap().read_to_end(&mut bytes).unwrap();
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
    async fn nothing_of_an_earlier_capture_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("health");
        std::fs::write(&path, "earlier").unwrap();
        let (fd, capture) = Capture::start(path.clone(), Bytes(10)).await.unwrap();
        drop(fd);
        assert_eq!(capture.finish().await.unwrap().stored, Bytes(0));
        assert_eq!(std::fs::read(path).unwrap(), b"");
    }

    /// The executor was killed before the first byte came.
    #[tokio::test]
    async fn a_stream_without_a_file_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout");
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let held = Arc::new(descriptors::wait_for(FILES_PER_CAPTURE).await.unwrap());
        let capture = Capture::resume(path.clone(), Bytes(4), read, held).unwrap();
        File::from(write).write_all(b"late").unwrap();
        assert_eq!(capture.finish().await.unwrap().stored, Bytes(4));
        assert_eq!(std::fs::read(path).unwrap(), b"late");
    }

    /// What the next executor makes of a file and a count that one which was killed left.
    async fn resumed(file: &[u8], past: u64, is_whole: u8) -> (Result<Recorded, StorageError>, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout");
        std::fs::write(&path, file).unwrap();
        let count: Vec<u8> = past.to_le_bytes().into_iter().chain([is_whole]).collect();
        std::fs::write(past_path(&path), count).unwrap();
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let held = Arc::new(descriptors::wait_for(FILES_PER_CAPTURE).await.unwrap());
        let capture = Capture::resume(path.clone(), Bytes(4), read, held).unwrap();
        drop(write);
        (capture.finish().await, std::fs::read(path).unwrap())
    }

    #[tokio::test]
    async fn a_file_that_was_counted_and_not_cut_is_cut() {
        let (recorded, bytes) = resumed(b"abcde", 7, 1).await;
        let recorded = recorded.unwrap();
        assert_eq!((recorded.stored, recorded.written, &bytes[..]), (Bytes(4), Bytes(11), &b"abcd"[..]));
    }

    #[tokio::test]
    async fn a_hole_that_a_failed_write_left_is_a_failure_for_the_next_executor_too() {
        let (recorded, _) = resumed(b"ab", 7, 0).await;
        assert!(recorded.unwrap_err().to_string().contains("stdout"));
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
