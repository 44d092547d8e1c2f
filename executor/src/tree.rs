//! Several paths of a sandbox as one artifact, and back: a tar of regular files and directories.
//!
//! A path in the artifact is its path in the sandbox. Nothing but files and directories is handed
//! on: a symlink that an agent leaves could point a grader at its own tests.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rollout::Bytes;
use rollout::classify::OutputProblemKind;
use tar::{Archive, Builder, EntryType, Header};

use crate::sandbox::{FileError, FileSource, Listing, Sandbox};
use crate::storage::StorageError;

/// The most files and directories of one artifact.
pub(crate) const ENTRIES_MAX: usize = 65_536;
/// The longest path in one, in bytes.
const PATH_BYTES_MAX: usize = 4095;

/// Why there is no artifact.
#[derive(Debug)]
pub(crate) enum TreeError {
    /// The work left something that cannot be handed on, or nothing.
    Problem(OutputProblemKind),
    /// This machine's trouble.
    Storage(StorageError),
}

fn missing(why: impl Into<String>) -> TreeError {
    TreeError::Problem(OutputProblemKind::Missing { why: why.into() })
}

/// Packs what is at `paths` (absolute) into a new file at `out`. Paths where nothing is are left
/// out, unless that is true of all. Every process of the sandbox is dead.
pub(crate) async fn pack(
    sandbox: &dyn Sandbox,
    paths: &[String],
    out: &Path,
    max: Bytes,
) -> Result<File, TreeError> {
    let failed = |source| TreeError::Storage(file_failed("write", out, source));
    let file = File::create_new(out).map_err(failed)?;
    let mut packing = Packing { sandbox, builder: Builder::new(file), out, max, entries: 0, bytes: 0 };
    for path in outermost(paths) {
        packing.take(path).await?;
    }
    if packing.entries == 0 {
        let shown: Vec<String> = paths.iter().take(8).map(|path| rollout::text::shown(path, 80)).collect();
        return Err(missing(format!("nothing at {}", shown.join(", "))));
    }
    packing.builder.into_inner().map_err(failed)?;
    File::open(out).map_err(|source| TreeError::Storage(file_failed("open", out, source)))
}

fn file_failed(action: &'static str, path: &Path, source: io::Error) -> StorageError {
    StorageError::File { action, what: path.display().to_string(), source }
}

/// In order, without those inside another.
fn outermost(paths: &[String]) -> Vec<String> {
    let mut sorted: Vec<String> = paths.iter().map(|path| path.trim_end_matches('/').to_owned()).collect();
    sorted.sort_unstable();
    let mut kept: Vec<String> = Vec::new();
    for path in sorted {
        let inside = |outer: &String| {
            path == *outer || path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
        };
        if !kept.iter().any(inside) {
            kept.push(path);
        }
    }
    kept
}

struct Packing<'a> {
    sandbox: &'a dyn Sandbox,
    builder: Builder<File>,
    out: &'a Path,
    max: Bytes,
    entries: usize,
    bytes: u64,
}

impl Packing<'_> {
    /// Everything at `path`, depth first, names in order.
    async fn take(&mut self, path: String) -> Result<(), TreeError> {
        let mut waiting = vec![(path, true)];
        while let Some((path, declared)) = waiting.pop() {
            match self.sandbox.list(&path, ENTRIES_MAX).await {
                Ok(Some(Listing::Directory(names))) => {
                    self.add(&path, EntryType::Directory, 0, io::empty())?;
                    waiting.extend(names.into_iter().rev().map(|name| (format!("{path}/{name}"), false)));
                }
                Ok(Some(Listing::File)) => self.file(&path).await?,
                Ok(None) if declared => {}
                Ok(None) => return Err(missing(format!("`{}` went away", rollout::text::shown(&path, 200)))),
                Err(error) => return Err(refused(error)),
            }
            if waiting.len() > ENTRIES_MAX {
                return Err(missing(format!("more than {ENTRIES_MAX} files and directories (ENTRIES_MAX)")));
            }
        }
        Ok(())
    }

    async fn file(&mut self, path: &str) -> Result<(), TreeError> {
        let Some((file, size)) = self.sandbox.open_file(path).await.map_err(refused)? else {
            return Err(missing(format!("`{}` went away", rollout::text::shown(path, 200))));
        };
        self.bytes = self.bytes.saturating_add(size.0);
        if self.bytes > self.max.0 {
            return Err(TreeError::Problem(OutputProblemKind::TooLarge { bytes: None, max: self.max }));
        }
        self.add(path, EntryType::Regular, size.0, file.take(size.0))
    }

    fn add(&mut self, path: &str, kind: EntryType, size: u64, data: impl Read) -> Result<(), TreeError> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(missing(format!("more than {ENTRIES_MAX} files and directories (ENTRIES_MAX)")));
        }
        let failed = |source| TreeError::Storage(file_failed("write", self.out, source));
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_mtime(0);
        self.builder.append_data(&mut header, path.trim_start_matches('/'), data).map_err(failed)
    }
}

fn refused(error: FileError) -> TreeError {
    match error {
        FileError::Io { path, source } => {
            TreeError::Storage(StorageError::File { action: "open", what: path, source })
        }
        error => missing(error.to_string()),
    }
}

/// Why an artifact could not be placed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("the artifact is no tree: {0}")]
    Bad(String),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Places what is in `packed` below `prefix` (absolute; `/`: where it was), owned by `owner`.
pub(crate) async fn unpack(
    sandbox: &dyn Sandbox,
    packed: File,
    prefix: &str,
    mode: u32,
    owner: &str,
) -> Result<(), PlaceError> {
    let bad = |error: io::Error| PlaceError::Bad(error.to_string());
    let mut archive = Archive::new(io::BufReader::new(packed.try_clone().map_err(bad)?));
    let mut files = Vec::new();
    // Headers first: an archive is not read while the sandbox is waited for.
    for entry in archive.entries().map_err(bad)? {
        let entry = entry.map_err(bad)?;
        if files.len() == ENTRIES_MAX {
            return Err(PlaceError::Bad(format!("more than {ENTRIES_MAX} entries (ENTRIES_MAX)")));
        }
        let path = placed(&entry.path_bytes(), prefix)?;
        match entry.header().entry_type() {
            EntryType::Directory => files.push((path, None)),
            EntryType::Regular => {
                files.push((path, Some((entry.raw_file_position(), entry.size()))));
            }
            other => return Err(PlaceError::Bad(format!("an entry of kind {other:?}"))),
        }
    }
    for (path, at) in files {
        let Some((offset, size)) = at else {
            sandbox.make_dir(&path, owner).await?;
            continue;
        };
        let bytes = read_at(&packed, offset, size).map_err(bad)?;
        sandbox.write_file(&path, FileSource::Bytes(bytes), mode, owner).await?;
    }
    Ok(())
}

/// The artifact is at most as large as its output may be, so is each file of it.
fn read_at(packed: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt as _;
    let whole = packed.metadata()?.len();
    if offset.checked_add(size).is_none_or(|end| end > whole) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file is longer than the artifact"));
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    packed.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn placed(path: &[u8], prefix: &str) -> Result<String, PlaceError> {
    let bad = |problem: &str| PlaceError::Bad(format!("a path that {problem}"));
    let text = str::from_utf8(path).map_err(|_| bad("is not UTF-8"))?.trim_end_matches('/');
    if text.is_empty() || text.len() > PATH_BYTES_MAX || text.contains('\0') {
        return Err(bad("cannot be one"));
    }
    if text.starts_with('/') || text.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(bad("leads elsewhere"));
    }
    let placed = PathBuf::from(prefix).join(text);
    Ok(placed.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_inside_others_are_packed_once() {
        let paths = ["/b/", "/a/x", "/a", "/a-b", "/a/x/y", "/b"].map(str::to_owned);
        assert_eq!(outermost(&paths), ["/a", "/a-b", "/b"]);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["", "/a", "../a", "a/../b", "a//b", "./a", "a/.", "a\0"] {
            assert!(placed(path.as_bytes(), "/").is_err(), "{path:?}");
        }
        assert!(placed(b"a\xff", "/").is_err());
        assert_eq!(placed(b"app/out/", "/").unwrap(), "/app/out");
        assert_eq!(placed(b"app/out", "/in").unwrap(), "/in/app/out");
    }
}
