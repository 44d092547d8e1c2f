//! The content-addressed blob store: captured output, artifacts and uploads, by the sha256 of
//! their bytes, at `sha256/ab/cdef...`.
//!
//! A blob is immutable. It is absent or whole, whenever the writer was killed, and its bytes are
//! checked against its digest before any of them are served. This crate never decides what to
//! keep: its owner lists and removes, and no blob leaves that was put since a time the owner names.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let dir = tempfile::tempdir().unwrap();
//! let store = blobs::BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
//! let blob = store.put(bytes::Bytes::from_static(b"hello")).await.unwrap();
//! assert_eq!(store.get(&blob.sha256, 1024).await.unwrap(), "hello");
//! # });
//! ```

mod bucket;
mod digest;
mod error;
mod reader;
mod shelves;
mod staging;
mod store;
mod writer;

pub use digest::Digest;
pub use error::Error;
pub use reader::BlobReader;
pub use shelves::{Listed, SHELF_BLOBS_MAX};
pub use store::{BlobRef, BlobStore, LocalCopy, URL_BYTES_MAX};
pub use writer::{BLOB_BYTES_MAX, BlobWriter};
