//! Several paths of a sandbox as one artifact, and back: a tar of regular files and directories.
//!
//! A path in the artifact is its path in the sandbox. Nothing but files and directories is handed
//! on: a symlink that an agent leaves could point a grader at its own tests.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
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
/// Of all paths that were seen and not packed yet.
const WAITING_PATH_BYTES_MAX: usize = 16 << 20;
const DIRECTORY_MODE: u32 = 0o755;

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

/// Packs what is at `paths` (absolute) into a file at `out`, in place of what an executor that was killed
/// left there. Paths where nothing is are left
/// out, unless that is true of all. Every process of the sandbox is dead.
pub(crate) async fn pack(
    sandbox: &dyn Sandbox,
    paths: &[String],
    out: &Path,
    max: Bytes,
) -> Result<File, TreeError> {
    let failed = |source| TreeError::Storage(file_failed("write", out, source));
    let file = File::create(out).map_err(failed)?;
    let builder = Some(Builder::new(file));
    let mut packing = Packing { sandbox, builder, out, max, entries: 0, bytes: 0, path_bytes: 0 };
    for path in outermost(paths) {
        packing.take(path).await?;
    }
    if packing.entries == 0 {
        let shown: Vec<String> = paths.iter().take(8).map(|path| rollout::text::shown(path, 80)).collect();
        return Err(missing(format!("nothing at {}", shown.join(", "))));
    }
    packing.written(|builder| builder.finish()).await?;
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
    /// None while it is written to.
    builder: Option<Builder<File>>,
    out: &'a Path,
    max: Bytes,
    entries: usize,
    bytes: u64,
    /// Of the paths seen and not packed yet.
    path_bytes: usize,
}

impl Packing<'_> {
    /// Everything at `path`, depth first, names in order.
    async fn take(&mut self, path: String) -> Result<(), TreeError> {
        let mut waiting = vec![(path, true)];
        while let Some((path, declared)) = waiting.pop() {
            self.path_bytes = self.path_bytes.saturating_sub(path.len());
            match self.sandbox.list(&path, ENTRIES_MAX).await {
                Ok(Some(Listing::Directory(names))) => {
                    self.directory(&path).await?;
                    let below: usize = names.iter().map(|name| path.len() + 1 + name.len()).sum();
                    self.path_bytes += below;
                    if self.path_bytes > WAITING_PATH_BYTES_MAX {
                        let limit = "WAITING_PATH_BYTES_MAX";
                        return Err(missing(format!(
                            "its paths are longer than {WAITING_PATH_BYTES_MAX} bytes together ({limit})"
                        )));
                    }
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
        self.count()?;
        let path = path.trim_start_matches('/').to_owned();
        self.written(move |builder| {
            let mode = file.metadata()?.permissions().mode() & 0o777;
            let mut header = header(EntryType::Regular, size.0, mode);
            builder.append_data(&mut header, path, file.take(size.0))
        })
        .await
    }

    async fn directory(&mut self, path: &str) -> Result<(), TreeError> {
        self.count()?;
        let path = path.trim_start_matches('/').to_owned();
        self.written(move |builder| {
            builder.append_data(&mut header(EntryType::Directory, 0, DIRECTORY_MODE), path, io::empty())
        })
        .await
    }

    fn count(&mut self) -> Result<(), TreeError> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(missing(format!("more than {ENTRIES_MAX} files and directories (ENTRIES_MAX)")));
        }
        Ok(())
    }

    /// Where blocking is allowed.
    async fn written(
        &mut self,
        write: impl FnOnce(&mut Builder<File>) -> io::Result<()> + Send + 'static,
    ) -> Result<(), TreeError> {
        let failed = |source| TreeError::Storage(file_failed("write", self.out, source));
        let Some(mut builder) = self.builder.take() else {
            return Err(failed(io::Error::other("an earlier write failed")));
        };
        let done = tokio::task::spawn_blocking(move || (write(&mut builder), builder)).await;
        let (written, builder) = done.map_err(|error| failed(io::Error::other(error)))?;
        self.builder = Some(builder);
        written.map_err(failed)
    }
}

fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header
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

/// Places what is in `packed` below `prefix` (absolute; `/`: where it was), owned by `owner`. Files
/// have the modes they had.
pub(crate) async fn unpack(
    sandbox: &dyn Sandbox,
    packed: File,
    prefix: &str,
    owner: &str,
) -> Result<(), PlaceError> {
    let bad = |error: io::Error| PlaceError::Bad(error.to_string());
    let archive = packed.try_clone().map_err(bad)?;
    let prefix = prefix.to_owned();
    // Headers first: an archive is not read while the sandbox is waited for.
    let listed = tokio::task::spawn_blocking(move || entries(archive, &prefix)).await;
    for Entry { path, file } in listed.map_err(|error| bad(io::Error::other(error)))?? {
        let Some(Part { offset, size, mode }) = file else {
            sandbox.make_dir(&path, owner).await?;
            continue;
        };
        let file = packed.try_clone().map_err(bad)?;
        sandbox.write_file(&path, FileSource::Part { file, offset, size }, mode, owner).await?;
    }
    Ok(())
}

struct Entry {
    /// In the sandbox.
    path: String,
    /// None of a directory.
    file: Option<Part>,
}

/// Where a file lies in the artifact.
struct Part {
    offset: u64,
    size: u64,
    mode: u32,
}

fn entries(packed: File, prefix: &str) -> Result<Vec<Entry>, PlaceError> {
    let bad = |error: io::Error| PlaceError::Bad(error.to_string());
    let whole = packed.metadata().map_err(bad)?.len();
    let mut archive = Archive::new(io::BufReader::new(packed));
    let mut found = Vec::new();
    for entry in archive.entries().map_err(bad)? {
        let entry = entry.map_err(bad)?;
        if found.len() == ENTRIES_MAX {
            return Err(PlaceError::Bad(format!("more than {ENTRIES_MAX} entries (ENTRIES_MAX)")));
        }
        let path = placed(&entry.path_bytes(), prefix)?;
        let (offset, size) = (entry.raw_file_position(), entry.size());
        let file = match entry.header().entry_type() {
            EntryType::Directory => None,
            EntryType::Regular if offset.checked_add(size).is_none_or(|end| end > whole) => {
                return Err(PlaceError::Bad("a file is longer than the artifact".to_owned()));
            }
            EntryType::Regular => {
                Some(Part { offset, size, mode: entry.header().mode().map_err(bad)? & 0o777 })
            }
            other => return Err(PlaceError::Bad(format!("an entry of kind {other:?}"))),
        };
        found.push(Entry { path, file });
    }
    Ok(found)
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
