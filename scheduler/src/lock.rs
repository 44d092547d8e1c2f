//! One scheduler per data directory: an advisory lock held as long as the process lives.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;

/// The file in the data directory; it holds the pid of the owner.
pub const LOCK_FILE: &str = "scheduler.lock";

/// Bytes read of the lock file to name its holder.
const HOLDER_BYTES_MAX: u64 = 32;

#[derive(Debug)]
pub struct DataDirLock {
    _held: Flock<File>,
}

impl DataDirLock {
    pub fn take(data_dir: &Path) -> Result<Self, Error> {
        let failed = |source| Error::DataDir { path: data_dir.to_owned(), source };
        let path = data_dir.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let mut held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => held,
            Err((file, Errno::EWOULDBLOCK)) => {
                return Err(Error::DataDirLocked { path: data_dir.to_owned(), holder: holder(&file) });
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        held.set_len(0).map_err(failed)?;
        held.rewind().map_err(failed)?;
        write!(held, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _held: held })
    }
}

fn holder(file: &File) -> String {
    let mut text = String::new();
    match file.take(HOLDER_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => text,
        _ => "unknown".to_owned(),
    }
}
