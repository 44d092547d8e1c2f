//! Into a sandbox.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rollout_wire::v1::{MakeDirRequest, WriteFileChunk, WriteFileStart, write_file_chunk};

use super::{Remote, Sum, deeper, join, last_name};
use crate::error::Error;

const CHUNK_BYTES: u64 = 256 << 10;
const MODE_BITS: u32 = 0o777;

/// Returns where the copy is.
pub async fn copy(remote: &Remote, from: &Path, to: &str, sum: &mut Sum) -> Result<String, Error> {
    // The tree that is named may be a link; what is in it is not followed.
    let metadata = fs::metadata(from).map_err(|source| unreadable(from, source))?;
    let there = remote.stat_if_there(to).await?;
    let in_directory = there.as_ref().is_some_and(|info| info.kind == "directory");
    let exists = || Error::CopyExists { path: format!("{}:{to}", remote.sandbox).into() };
    let to = match (in_directory, name(from)) {
        (false, _) => to.to_owned(),
        (true, Some(name)) => join(to, &name),
        (true, None) => return Err(exists()),
    };
    if metadata.is_file() {
        file(remote, from, &metadata, &to, sum).await?;
        return Ok(to);
    }
    if !metadata.is_dir() {
        sum.leave_out(from.display().to_string(), "neither a file nor a directory");
        return Ok(to);
    }
    let taken = if in_directory { remote.stat_if_there(&to).await?.is_some() } else { there.is_some() };
    if taken {
        return Err(Error::CopyExists { path: format!("{}:{to}", remote.sandbox).into() });
    }
    make_dir(remote, &to, sum).await?;
    let mut open = vec![(from.to_owned(), to.clone(), 0)];
    while let Some((from, at, depth)) = open.pop() {
        let entries = fs::read_dir(&from).map_err(|source| unreadable(&from, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| unreadable(&from, source))?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                sum.entry()?;
                sum.leave_out(path.display().to_string(), "its name is not UTF-8");
                continue;
            };
            let metadata = entry.metadata().map_err(|source| unreadable(&path, source))?;
            let to = join(&at, &name);
            if metadata.is_dir() {
                make_dir(remote, &to, sum).await?;
                open.push((path, to, deeper(depth)?));
            } else if metadata.is_file() {
                file(remote, &path, &metadata, &to, sum).await?;
            } else {
                sum.entry()?;
                let why = if metadata.is_symlink() { "symlink" } else { "neither a file nor a directory" };
                sum.leave_out(path.display().to_string(), why);
            }
        }
    }
    Ok(to)
}

/// What it is called, also where it is written as `.` or `..`.
fn name(from: &Path) -> Option<String> {
    let written = from.to_str().and_then(last_name).map(str::to_owned);
    written.or_else(|| from.canonicalize().ok()?.to_str().and_then(last_name).map(str::to_owned))
}

fn unreadable(path: &Path, source: std::io::Error) -> Error {
    Error::ReadFile { path: path.to_owned(), source }
}

async fn make_dir(remote: &Remote, path: &str, sum: &mut Sum) -> Result<(), Error> {
    sum.entry()?;
    let request = MakeDirRequest {
        sandbox: remote.sandbox.clone(),
        claim: String::new(),
        path: path.to_owned(),
        user: String::new(),
    };
    remote.client.done(remote.client.sandboxes().make_dir(request).await)?;
    sum.copied.directories += 1;
    Ok(())
}

/// Exactly as many bytes as it has now: if it shrinks meanwhile, the yard refuses it.
async fn file(
    remote: &Remote,
    from: &Path,
    metadata: &Metadata,
    to: &str,
    sum: &mut Sum,
) -> Result<(), Error> {
    let size = metadata.len();
    sum.file(size)?;
    let source = File::open(from).map_err(|source| unreadable(from, source))?;
    let start = WriteFileStart {
        sandbox: remote.sandbox.clone(),
        claim: String::new(),
        path: to.to_owned(),
        mode: Some(metadata.permissions().mode() & MODE_BITS),
        user: String::new(),
        size,
    };
    let start = WriteFileChunk { chunk: Some(write_file_chunk::Chunk::Start(start)) };
    let chunks = std::iter::once(start).chain(Chunks { source, left: size });
    let written = remote.client.sandboxes().write_file(tokio_stream::iter(chunks)).await;
    remote.client.done(written)?;
    Ok(())
}

/// A file, cut. It ends early where it cannot be read or has less than it had.
struct Chunks {
    source: File,
    left: u64,
}

impl Iterator for Chunks {
    type Item = WriteFileChunk;

    fn next(&mut self) -> Option<WriteFileChunk> {
        let mut data = Vec::new();
        let size = self.source.by_ref().take(self.left.min(CHUNK_BYTES)).read_to_end(&mut data).ok()?;
        self.left -= size as u64;
        (size > 0).then_some(WriteFileChunk { chunk: Some(write_file_chunk::Chunk::Data(data)) })
    }
}
