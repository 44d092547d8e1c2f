//! Where the blobs of a data directory are: chosen once, by its first start.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::Error;
use crate::store::DATABASE_FILE;

/// Holds the URL, unless it is the default.
const PLACE_FILE: &str = "blobs.url";

/// The URL of the blobs. `asked`: what the caller wants.
///
/// # Errors
/// [`Error::BlobsElsewhere`] if another was chosen before.
pub(crate) fn blobs_url(data_dir: &Path, asked: Option<&str>) -> Result<String, Error> {
    let default = || format!("file://{}/blobs", data_dir.display());
    let kept = match std::fs::read_to_string(data_dir.join(PLACE_FILE)) {
        Ok(kept) => Some(kept),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            data_dir.join(DATABASE_FILE).exists().then(default)
        }
        Err(source) => return Err(Error::DataDir { path: data_dir.join(PLACE_FILE), source }),
    };
    match (kept, asked) {
        (Some(kept), Some(asked)) if kept != asked => {
            let (data_dir, asked) = (data_dir.to_owned(), asked.to_owned());
            Err(Error::BlobsElsewhere { data_dir, kept, asked })
        }
        (Some(kept), _) => Ok(kept),
        (None, asked) => Ok(asked.map_or_else(default, str::to_owned)),
    }
}

/// Keeps the choice. Before the database is there, so that no start finds one without the other.
pub(crate) fn keep(data_dir: &Path, url: &str) -> Result<(), Error> {
    if url == format!("file://{}/blobs", data_dir.display()) {
        return Ok(());
    }
    let path = data_dir.join(PLACE_FILE);
    let staged = data_dir.join("blobs.url.staged");
    let written = std::fs::write(&staged, url)
        .and_then(|()| std::fs::File::open(&staged)?.sync_all())
        .and_then(|()| std::fs::rename(&staged, &path))
        .and_then(|()| std::fs::File::open(data_dir)?.sync_all());
    written.map_err(|source| Error::DataDir { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_chosen_once() {
        let dir = tempfile::tempdir().unwrap();
        let url = |asked| blobs_url(dir.path(), asked);
        assert_eq!(url(Some("s3://bucket/a")).unwrap(), "s3://bucket/a");
        keep(dir.path(), "s3://bucket/a").unwrap();
        assert_eq!(url(None).unwrap(), "s3://bucket/a");
        assert!(matches!(url(Some("s3://bucket/b")), Err(Error::BlobsElsewhere { .. })));
    }

    #[test]
    fn a_directory_with_books_and_no_choice_has_its_blobs_in_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DATABASE_FILE), b"").unwrap();
        assert!(blobs_url(dir.path(), None).unwrap().ends_with("/blobs"));
        let moved = blobs_url(dir.path(), Some("s3://bucket/a"));
        assert!(matches!(moved, Err(Error::BlobsElsewhere { .. })), "{moved:?}");
    }
}
