//! Images made by hand: good ones unpack to what they hold, the others leave nothing.

mod hostile;
mod images;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rollout::image::Digest;
use tar::{Builder, EntryType, Header};

use super::layout::{BLOBS_DIR, INDEX_FILE, LAYOUT_FILE};
use super::{ImageLayer, digest_of};

/// False where tests of this kind cannot run.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        #[expect(clippy::print_stderr, reason = "a test says that it did not run")]
        {
            eprintln!("SKIPPED: needs root");
        }
    }
    is_root
}

/// A tar of a layer, entry by entry.
struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn add(mut self, kind: EntryType, name: &str, target: &str, data: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o4755);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000_000);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }

    fn owned(mut self, name: &str, uid: u64) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_path(name).unwrap();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(uid);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.0.append(&header, &b""[..]).unwrap();
        self
    }

    fn file(self, name: &str, data: &[u8]) -> Self {
        self.add(EntryType::Regular, name, "", data)
    }

    fn dir(self, name: &str) -> Self {
        self.add(EntryType::Directory, name, "", b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Symlink, name, target, b"")
    }

    fn record(self, key: &str, value: &str) -> Self {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
        let text = format!("{length} {key}={value}\n");
        self.add(EntryType::XHeader, "pax", "", text.as_bytes())
    }

    fn done(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

#[derive(Debug, Clone, Copy)]
enum Stored {
    Plain,
    Gzip,
    Zstd,
}

fn stored(tar: &[u8], how: Stored) -> Vec<u8> {
    match how {
        Stored::Plain => tar.to_vec(),
        Stored::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(tar).unwrap();
            encoder.finish().unwrap()
        }
        Stored::Zstd => zstd::encode_all(tar, 1).unwrap(),
    }
}

fn layer_of(tar: &[u8], blob: &[u8]) -> ImageLayer {
    ImageLayer { diff_id: digest_of(tar), blob: digest_of(blob), size: blob.len() as u64 }
}

/// A layout with one image.
struct Made {
    dir: tempfile::TempDir,
    manifest: Digest,
}

impl Made {
    fn new(tars: &[Vec<u8>]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(BLOBS_DIR)).unwrap();
        let put = |bytes: &[u8]| put(dir.path(), bytes);
        let diff_ids: Vec<_> = tars.iter().map(|tar| digest_of(tar)).collect();
        let layers: Vec<_> = tars
            .iter()
            .map(|tar| {
                let blob = stored(tar, Stored::Gzip);
                serde_json::json!({
                    "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                    "digest": put(&blob), "size": blob.len(),
                })
            })
            .collect();
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "config": {"Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/x"], "User": "me"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "layers": layers,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": put(config.as_bytes()), "size": config.len()},
        });
        let manifest = put(manifest.to_string().as_bytes());
        fs::write(dir.path().join(LAYOUT_FILE), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let made = Self { dir, manifest };
        made.index(&[("one", manifest)]);
        made
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.path().join(BLOBS_DIR).join(digest.hex())
    }

    fn index(&self, images: &[(&str, Digest)]) {
        let manifests: Vec<_> = images
            .iter()
            .map(|(name, digest)| {
                serde_json::json!({
                    "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1,
                    "annotations": {"org.opencontainers.image.ref.name": name},
                })
            })
            .collect();
        let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.path().join(INDEX_FILE), index.to_string()).unwrap();
    }
}

fn put(root: &Path, bytes: &[u8]) -> Digest {
    let digest = digest_of(bytes);
    fs::write(root.join(BLOBS_DIR).join(digest.hex()), bytes).unwrap();
    digest
}
