//! Out of a sandbox.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rollout_wire::v1::{FileInfo, ListFilesRequest, ReadFileRequest};

use super::{Remote, Sum, deeper, destination, is_name, join, last_name};
use crate::error::Error;

/// Of a mode that is kept: what the owner, the group and others may.
const MODE_BITS: u32 = 0o777;
const PAGE_FILES: u32 = 1000;

/// Returns where the copy is.
pub async fn copy(remote: &Remote, path: &str, to: &Path, sum: &mut Sum) -> Result<PathBuf, Error> {
    let info = remote.stat(path).await?;
    let to = destination(to, last_name(path))?;
    if info.kind != "directory" {
        entry(remote, path, &info, &to, sum).await?;
        return Ok(to);
    }
    // Directories that are made are new, so that nothing in them leads elsewhere.
    let mut open = vec![(path.to_owned(), to.clone(), info.mode, 0)];
    make_dir(&to, sum)?;
    let mut made = Vec::new();
    while let Some((from, at, mode, depth)) = open.pop() {
        made.push((at.clone(), mode));
        let mut after = String::new();
        loop {
            let (files, more) = list(remote, &from, &after).await?;
            let Some(last) = files.last().map(|(name, _)| name.clone()) else { break };
            for (name, info) in files {
                let (from, at) = (join(&from, &name), at.join(&name));
                if info.kind == "directory" {
                    make_dir(&at, sum)?;
                    open.push((from, at, info.mode, deeper(depth)?));
                } else {
                    entry(remote, &from, &info, &at, sum).await?;
                }
            }
            if !more {
                break;
            }
            if last <= after {
                return Err(Error::BadAnswer { problem: format!("the list of `{from}` does not go on") });
            }
            after = last;
        }
    }
    // Last and from below: a directory that may not be written to takes no entry.
    for (at, mode) in made.into_iter().rev() {
        let set = fs::set_permissions(&at, Permissions::from_mode(mode & MODE_BITS));
        set.map_err(|source| Error::WriteFile { path: at, source })?;
    }
    Ok(to)
}

/// A page of a directory, by name.
async fn list(remote: &Remote, path: &str, after: &str) -> Result<(Vec<(String, FileInfo)>, bool), Error> {
    let request = ListFilesRequest {
        sandbox: remote.sandbox.clone(),
        claim: String::new(),
        path: path.to_owned(),
        page_size: PAGE_FILES,
        after: after.to_owned(),
    };
    let reply = remote.client.done(remote.client.sandboxes().list_files(request).await)?;
    let named = |info: FileInfo| {
        let name = info.path.rsplit('/').next().unwrap_or_default().to_owned();
        if is_name(&name) {
            Ok((name, info))
        } else {
            Err(Error::BadAnswer { problem: format!("`{path}` is said to hold `{}`", info.path) })
        }
    };
    Ok((reply.files.into_iter().map(named).collect::<Result<_, _>>()?, reply.more))
}

fn make_dir(at: &Path, sum: &mut Sum) -> Result<(), Error> {
    sum.entry()?;
    fs::create_dir(at).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => Error::CopyExists { path: at.to_owned() },
        _ => Error::WriteFile { path: at.to_owned(), source },
    })?;
    sum.copied.directories += 1;
    Ok(())
}

/// What is no directory.
async fn entry(remote: &Remote, from: &str, info: &FileInfo, at: &Path, sum: &mut Sum) -> Result<(), Error> {
    match info.kind.as_str() {
        "file" => file(remote, from, info, at, sum).await,
        "symlink" => {
            sum.entry()?;
            symlink(&info.symlink_target, at).map_err(|source| match source.kind() {
                std::io::ErrorKind::AlreadyExists => Error::CopyExists { path: at.to_owned() },
                _ => Error::WriteFile { path: at.to_owned(), source },
            })?;
            sum.copied.symlinks += 1;
            Ok(())
        }
        kind => {
            sum.entry()?;
            sum.leave_out(from.to_owned(), kind);
            Ok(())
        }
    }
}

/// The version that was listed, whole or not at all.
async fn file(remote: &Remote, from: &str, info: &FileInfo, at: &Path, sum: &mut Sum) -> Result<(), Error> {
    sum.file(info.size)?;
    let failed = |source| Error::WriteFile { path: at.to_owned(), source };
    let directory = at.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut partial = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    let request = ReadFileRequest {
        sandbox: remote.sandbox.clone(),
        claim: String::new(),
        path: from.to_owned(),
        offset: 0,
        size: None,
        version: info.version.clone(),
    };
    let mut chunks = remote.client.done(remote.client.sandboxes().read_file(request).await)?;
    let mut left = info.size;
    let wrong = |problem| Error::BadAnswer { problem: format!("`{from}` {problem} than it is said to have") };
    while let Some(chunk) = chunks.message().await.map_err(|status| remote.client.failed(status))? {
        left = left.checked_sub(chunk.data.len() as u64).ok_or_else(|| wrong("has more bytes"))?;
        partial.write_all(&chunk.data).map_err(failed)?;
    }
    if left > 0 {
        return Err(wrong("has fewer bytes"));
    }
    partial.as_file().set_permissions(Permissions::from_mode(info.mode & MODE_BITS)).map_err(failed)?;
    partial.persist(at).map_err(|error| failed(error.error))?;
    Ok(())
}
