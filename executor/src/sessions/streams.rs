//! The executor's ends of a process's streams: read as far as there is something, and no further than
//! somebody takes it.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use nix::fcntl::OFlag;
use tokio::io::unix::AsyncFd;

use crate::broker::client::watched;
use crate::ceilings::descriptors::{self, Held};

/// The most that is read at once, and of one message to a client.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Both ends of a pipe: the near one is here until its process has it.
const FILES_PER_PIPE: u32 = 2;

/// One stream, until its end.
#[derive(Debug)]
pub(super) struct Stream(Option<Arc<Watched>>);

/// A descriptor, with its share of those there may be.
#[derive(Debug)]
struct Watched {
    fd: AsyncFd<OwnedFd>,
    _held: Held,
}

impl Watched {
    fn new(fd: OwnedFd, held: Held) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { fd: watched(fd)?, _held: held }))
    }
}

impl Stream {
    /// A pipe that a process writes to: this end, and the process's.
    ///
    /// # Errors
    /// There are no more descriptors for it, which is told as `QuotaExceeded`.
    pub fn from_process() -> io::Result<(Self, OwnedFd)> {
        let held = descriptors::take(FILES_PER_PIPE)?;
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        Ok((Self(Some(Watched::new(read, held)?)), write))
    }

    /// A pipe that a process reads from.
    ///
    /// # Errors
    /// As of [`from_process`](Self::from_process).
    pub fn to_process() -> io::Result<(Self, OwnedFd)> {
        let held = descriptors::take(FILES_PER_PIPE)?;
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        Ok((Self(Some(Watched::new(write, held)?)), read))
    }

    /// The far end of a terminal: to write to, and to read from.
    ///
    /// # Errors
    /// As of [`from_process`](Self::from_process).
    pub fn terminal(fd: OwnedFd) -> io::Result<(Self, Self)> {
        let fd = Watched::new(fd, descriptors::take(1)?)?;
        Ok((Self(Some(Arc::clone(&fd))), Self(Some(fd))))
    }

    pub fn none() -> Self {
        Self(None)
    }

    pub fn is_over(&self) -> bool {
        self.0.is_none()
    }

    pub fn close(&mut self) {
        self.0 = None;
    }

    /// The next bytes, at most as many as `buffer` has. 0: it is over. Never, of one that was over
    /// before. Nothing is lost if this is dropped.
    pub async fn read(&mut self, buffer: &mut [u8]) -> usize {
        let Some(Watched { fd, .. }) = self.0.as_deref() else { return std::future::pending().await };
        let read = loop {
            let Ok(mut ready) = fd.readable().await else { break 0 };
            match ready.try_io(|fd| raw_read(fd.as_raw_fd(), buffer)) {
                Ok(read) => break read.unwrap_or(0),
                Err(_would_block) => {}
            }
        };
        if read == 0 {
            self.0 = None;
        }
        read
    }

    /// What is there now, without waiting. None: nothing is.
    pub fn read_now(&mut self, buffer: &mut [u8]) -> Option<usize> {
        // Of the descriptor itself: what a process wrote before it ended is there, whether or not the
        // runtime has heard of it.
        let Watched { fd, .. } = self.0.as_deref()?;
        match raw_read(fd.as_raw_fd(), buffer) {
            Ok(read @ 1..) => Some(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(0) | Err(_) => {
                self.0 = None;
                None
            }
        }
    }

    /// Writes some of `bytes`, when there is room; gives how many. Never, of one that is closed.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(Watched { fd, .. }) = self.0.as_deref() else { return std::future::pending().await };
        loop {
            let mut ready = fd.writable().await?;
            let written = ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?));
            match written {
                Ok(written) => return written,
                Err(_would_block) => {}
            }
        }
    }

    /// Of a terminal.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let Some(Watched { fd, .. }) = self.0.as_deref() else { return Ok(()) };
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointer is to a local that outlives the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Takes what comes and drops it, until the end.
    pub async fn drain(&mut self) {
        let mut buffer = vec![0; 4096];
        while !self.is_over() {
            self.read(&mut buffer).await;
        }
    }
}

fn raw_read(fd: i32, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: pointer and length are of `buffer`.
        let read = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(read) {
            Ok(read) => return Ok(read),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// What was written to one stream: the first bytes are kept, the rest is counted.
#[derive(Debug)]
pub(super) struct Kept {
    pub bytes: Vec<u8>,
    pub written: u64,
    max: usize,
}

impl Kept {
    pub fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), written: 0, max }
    }

    pub fn take(&mut self, bytes: &[u8]) {
        let room = self.max - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.written += bytes.len() as u64;
    }

    pub fn is_truncated(&self) -> bool {
        self.written > self.bytes.len() as u64
    }

    /// Everything that is there now.
    pub fn take_now(&mut self, from: &mut Stream, buffer: &mut [u8]) {
        // A process in the background that writes for ever does not keep us.
        const ROUNDS_MAX: usize = 64;
        for _ in 0..ROUNDS_MAX {
            let Some(read) = from.read_now(buffer) else { return };
            self.take(&buffer[..read]);
        }
    }
}
