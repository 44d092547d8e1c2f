//! What a sandbox offers to a driver outside: processes with streams and terminals, each with a tree that
//! ends as a whole; files looked at and pinned; its ports; standing still.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rollout::{Bytes, Timestamp};
use tokio::net::TcpStream;

use super::{FileError, Process, SpawnError};

/// A sandbox that somebody outside drives.
#[tonic::async_trait]
pub trait Driven: Send + Sync + fmt::Debug {
    /// Starts a process in a tree of its own. Exactly descriptors 0, 1 and 2 are open in it, and 3 if
    /// a report is declared.
    async fn open(&self, opening: Opening) -> Result<Opened, SpawnError>;

    /// What is at a path, beneath the root, no symlink followed. None if nothing is there.
    async fn stat(&self, path: &str) -> Result<Option<Entry>, FileError>;

    /// The entries of a directory behind `after` by name, `entries_max` at most. None if nothing is there.
    async fn list_page(&self, path: &str, after: &str, entries_max: usize)
    -> Result<Option<Page>, FileError>;

    /// Opens a regular file for reading, as [`open_file`](super::Sandbox::open_file) does, and says which
    /// version of it that is.
    async fn open_pinned(&self, path: &str) -> Result<Option<Pinned>, FileError>;

    /// Removes a file, or a directory with what it holds. False: nothing was there.
    async fn remove(&self, path: &str) -> Result<bool, FileError>;

    /// Connects to a TCP port of the sandbox's loopback, 127.0.0.1 first, then ::1.
    async fn connect(&self, port: u16) -> io::Result<TcpStream>;

    /// Stops every process, and waits until they stand still. On an error they go on.
    async fn freeze(&self, within: Duration) -> io::Result<()>;

    /// Lets them go on, after a [`freeze`](Self::freeze).
    fn thaw(&self) -> io::Result<()>;

    /// Takes from it what memory can be taken; gives the bytes that are really free again, net of what
    /// others share. If the future is dropped, it ends soon.
    async fn reclaim(&self) -> io::Result<Bytes>;
}

/// A process to start.
#[derive(Debug)]
pub struct Opening {
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
    pub streams: Streams,
    /// The near end of a pipe, at descriptor 3 of the process.
    pub report: Option<OwnedFd>,
}

/// The near ends, which are for the process alone.
#[derive(Debug)]
pub enum Streams {
    Pipes {
        /// None: /dev/null.
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// A terminal of the sandbox, which is the controlling one.
    Terminal { columns: u16, rows: u16 },
}

/// A process that runs.
#[derive(Debug)]
pub struct Opened {
    pub process: Box<dyn TreeProcess>,
    /// Its number in the sandbox.
    pub pid: i32,
    /// The other end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
}

/// A process and whatever it starts.
#[tonic::async_trait]
pub trait TreeProcess: Process {
    /// Kills the process and whatever it started, in the background or in sessions of their own too,
    /// and waits until they are gone.
    async fn kill_tree(&self) -> io::Result<()>;
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path that was asked for, or the name in the directory that was listed.
    pub path: String,
    pub kind: EntryKind,
    pub size: Bytes,
    /// Permission bits.
    pub mode: u32,
    /// As the sandbox numbers them.
    pub uid: u32,
    pub gid: u32,
    pub modified_at: Timestamp,
    pub version: Version,
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
    /// Its name is not UTF-8, and no path leads to it: what is told for its name has the bytes escaped.
    NotUtf8,
}

impl EntryKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::NotUtf8 => "not_utf8",
        }
    }
}

/// Changes when the file does: which one it is, its size, and when its content and its record changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

#[derive(Debug)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// Behind the last of them come others.
    pub more: bool,
}

/// An open file that is known again.
#[derive(Debug)]
pub struct Pinned {
    pub file: std::fs::File,
    pub entry: Entry,
}

impl Pinned {
    /// The version the open file has now.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn version_now(&self) -> io::Result<Version> {
        super::files::entries::version_of(&self.file)
    }
}
