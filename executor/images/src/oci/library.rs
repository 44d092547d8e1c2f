//! The images of a data directory: an OCI layout that several processes use, one writer at a time.
//!
//! Who starts sandboxes from one [holds](hold) it; what is held is not removed.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rollout::image::{Digest, ImageRef, Pick};
use serde_json::{Value, json};

use super::layout::{BLOBS_DIR, INDEX_FILE, LAYOUT_FILE, Layout};
use super::manifest::REF_NAME;
use super::{Error, Image, Platform, Source, resolve};

const LOCK_FILE: &str = "lock";
const HELD_DIR: &str = "held";
const MARKER: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// A library, locked for this process. Blocks on the disk.
#[derive(Debug)]
pub struct Library {
    root: PathBuf,
    layout: Layout,
    _lock: File,
}

/// An image of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// As it was pulled, imported or built.
    pub name: String,
    /// Of what the name means: a manifest or an index.
    pub digest: Digest,
    /// The image for this machine; none if it is not whole.
    pub image: Option<Image>,
}

impl Kept {
    /// Of its layers as they are stored; what it shares with others counts here too.
    pub fn bytes(&self) -> u64 {
        self.image.as_ref().map_or(0, |image| image.layers.iter().map(|layer| layer.size).sum())
    }
}

/// A library's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub images: usize,
    pub blobs: u64,
    pub bytes: u64,
}

/// While it lives, the image is not removed from its library.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "its lock is what counts")] File);

/// Holds an image of the library at `root`, with the library as a source of it. None: there is no such
/// library, or it does not have the image. Blocks on the disk.
///
/// # Errors
/// The library cannot be read.
pub fn hold(root: &Path, manifest: &Digest) -> Result<Option<Hold>, Error> {
    let held = root.join(HELD_DIR);
    if !held.is_dir() {
        return Ok(None);
    }
    let path = held.join(manifest.hex());
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(Error::io("open", &path))?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(Hold(file))),
        // It is being removed.
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(Error::io("lock", &path)(source)),
    }
}

impl Library {
    /// Opens the library at `root`, which is made if it is missing, and waits until no other process
    /// has it.
    ///
    /// # Errors
    /// The disk fails, or what is there is no library.
    pub fn open(root: &Path) -> Result<Self, Error> {
        for dir in [BLOBS_DIR, HELD_DIR] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(root.join(dir));
            made.map_err(Error::io("make", root))?;
        }
        let path = root.join(LOCK_FILE);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(Error::io("open", &path))?;
        lock.lock().map_err(Error::io("lock", &path))?;
        if !root.join(LAYOUT_FILE).exists() {
            replace(&root.join(INDEX_FILE), index([]))?;
            replace(&root.join(LAYOUT_FILE), MARKER)?;
        }
        Ok(Self { root: root.to_owned(), layout: Layout::open(root)?, _lock: lock })
    }

    /// What a spec writes to use an image of it.
    pub fn reference(&self, name: &str) -> String {
        let kept = self.layout.images().ok();
        let digest = kept.and_then(|kept| {
            kept.into_iter().find(|(known, _)| known.as_deref() == Some(name)).map(|(_, image)| image.digest)
        });
        let path = self.root.display().to_string();
        let pick = digest.map_or_else(|| Pick::Tag(name.to_owned()), Pick::Digest);
        ImageRef::Layout { path, pick }.to_string()
    }

    /// Copies the image `digest` of `source` here under `name`; an older one of that name goes.
    ///
    /// # Errors
    /// The source does not have all of it as it says. Nothing is named then.
    pub async fn add<S: Source>(&self, source: &S, digest: &Digest, name: &str) -> Result<Kept, Error> {
        let image = resolve(source, digest, &Platform::here()).await?;
        for layer in &image.layers {
            let place = self.layout.blob(&layer.blob);
            if self.layout.check(&layer.blob).is_ok_and(|size| size == layer.size) {
                continue;
            }
            let staged = self.root.join("staged");
            source.layer(layer, &staged).await?;
            let synced = File::open(&staged).and_then(|file| file.sync_all());
            synced.map_err(Error::io("sync", &staged))?;
            fs::rename(&staged, &place).map_err(Error::io("move", &staged))?;
        }
        for (digest, bytes) in &image.documents {
            replace(&self.layout.blob(digest), bytes)?;
        }
        let entries = self.layout.images()?.into_iter().filter_map(|(known, found)| {
            Some((known?, found.digest, found.size, found.media_type)).filter(|(known, ..)| known != name)
        });
        let size = image.documents.first().map_or(0, |(_, bytes)| bytes.len() as u64);
        let media_type = media_type(&image);
        let all: Vec<_> = entries.chain([(name.to_owned(), *digest, size, media_type)]).collect();
        self.write_index(&all)?;
        self.sweep().await?;
        Ok(Kept { name: name.to_owned(), digest: *digest, image: Some(image) })
    }

    /// All of them, by name.
    ///
    /// # Errors
    /// The index cannot be read.
    pub async fn list(&self) -> Result<Vec<Kept>, Error> {
        let mut kept = Vec::new();
        for (name, found) in self.layout.images()? {
            let Some(name) = name else { continue };
            let image = resolve(&self.layout, &found.digest, &Platform::here()).await.ok();
            kept.push(Kept { name, digest: found.digest, image });
        }
        kept.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(kept)
    }

    /// Removes the image of that name or digest and what no other needs; the bytes that went.
    ///
    /// # Errors
    /// There is none, or somebody [holds](hold) it.
    pub async fn remove(&self, name: &str) -> Result<u64, Error> {
        let kept = self.list().await?;
        let is_meant = |kept: &&Kept| kept.name == name || kept.digest.to_string() == name;
        let Some(gone) = kept.iter().find(is_meant) else {
            let place = self.root.display().to_string();
            return Err(Error::NotFound {
                what: format!("an image named `{}`", rollout::text::shown(name, 120)),
                place,
            });
        };
        let manifest = gone.image.as_ref().map_or(gone.digest, |image| image.digest);
        let is_shared = kept.iter().any(|other| {
            other.name != gone.name && other.image.as_ref().is_some_and(|image| image.digest == manifest)
        });
        let path = self.root.join(HELD_DIR).join(manifest.hex());
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(Error::io("open", &path))?;
        if !is_shared {
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::InUse { image: gone.name.clone() }),
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
        }
        let before = self.usage()?.bytes;
        let left = self.layout.images()?.into_iter().filter_map(|(known, found)| {
            Some((known?, found.digest, found.size, found.media_type))
                .filter(|(known, ..)| *known != gone.name)
        });
        self.write_index(&left.collect::<Vec<_>>())?;
        self.sweep().await?;
        Ok(before.saturating_sub(self.usage()?.bytes))
    }

    /// # Errors
    /// The disk fails.
    pub fn usage(&self) -> Result<Usage, Error> {
        let dir = self.root.join(BLOBS_DIR);
        let mut usage = Usage { images: self.layout.images()?.len(), ..Usage::default() };
        for entry in fs::read_dir(&dir).map_err(Error::io("list", &dir))? {
            let found = entry.and_then(|entry| entry.metadata()).map_err(Error::io("list", &dir))?;
            usage.blobs += 1;
            usage.bytes += found.len();
        }
        Ok(usage)
    }

    /// Removes blobs that no image of the index needs. An index entry whose documents cannot be read
    /// keeps everything: better too much than half an image.
    async fn sweep(&self) -> Result<(), Error> {
        let mut needed = BTreeSet::new();
        for kept in self.list().await? {
            let Some(image) = kept.image else { return Ok(()) };
            needed.extend(image.documents.iter().map(|(digest, _)| digest.hex()));
            needed.extend(image.layers.iter().map(|layer| layer.blob.hex()));
        }
        let dir = self.root.join(BLOBS_DIR);
        for entry in fs::read_dir(&dir).map_err(Error::io("list", &dir))? {
            let entry = entry.map_err(Error::io("list", &dir))?;
            if entry.file_name().to_str().is_none_or(|name| !needed.contains(name)) {
                fs::remove_file(entry.path()).map_err(Error::io("remove", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn write_index(&self, entries: &[(String, Digest, u64, String)]) -> Result<(), Error> {
        let entry = |(name, digest, size, media_type): &(String, Digest, u64, String)| json!({"mediaType": media_type, "digest": digest, "size": size, "annotations": {REF_NAME: name}});
        replace(&self.root.join(INDEX_FILE), index(entries.iter().map(entry)))
    }
}

/// As its first document says, else what it looks like.
fn media_type(image: &Image) -> String {
    let first = image.documents.first();
    let document: Option<Value> = first.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok());
    let said = document.as_ref().and_then(|document| document["mediaType"].as_str());
    let is_index = document.as_ref().is_some_and(|document| document["manifests"].is_array());
    let looks = if is_index { "index" } else { "manifest" };
    said.map_or_else(|| format!("application/vnd.oci.image.{looks}.v1+json"), str::to_owned)
}

fn index(entries: impl IntoIterator<Item = Value>) -> String {
    json!({"schemaVersion": 2, "manifests": entries.into_iter().collect::<Vec<_>>()}).to_string()
}

/// Whole or as it was.
fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    let new = path.with_extension("new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes.as_ref())?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    written.map_err(|source: io::Error| Error::Io {
        action: "write",
        path: path.display().to_string(),
        source,
    })
}
