//! What good images come to.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rollout::Bytes;
use rollout::image::Pick;
use xattr::FileExt;

use super::{Made, Stored, Tar, is_root, layer_of, put, stored};
use crate::layers::Bounds;
use crate::oci::layout::Layout;
use crate::oci::{Error, Platform, extract, resolve, unpack_layer};

fn bounds() -> Bounds {
    Bounds::new(Bytes(1 << 30))
}

fn sample() -> Vec<u8> {
    Tar::new()
        .dir("./")
        .dir("./etc/")
        .file("./etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        .file("implied/by/file", b"deep")
        .record("SCHILY.xattr.user.note", "kept")
        .record_of("mtime", "5.25")
        .done()
}

impl Tar {
    /// The file that the last records are of.
    fn record_of(self, _key: &str, _value: &str) -> Self {
        self.file("noted", b"12345")
            .add(tar::EntryType::Link, "./hard", "./noted", b"")
            .link("lib", "usr/lib")
            .add(tar::EntryType::Char, "dev/console", "", b"")
            .record("SCHILY.xattr.security.capability", "x")
            .file("ping", b"p")
            .dir("gone")
            .file("gone/.wh.old", b"")
            .file(".wh.etc2", b"")
            .file("fresh/.wh..wh..opq", b"")
            .dir("again")
            .file(".wh.again", b"")
            .dir("again")
    }
}

#[test]
fn a_layer_unpacks_with_overlay_marks_however_it_is_stored() {
    if !is_root() {
        return;
    }
    let tar = sample();
    for how in [Stored::Plain, Stored::Gzip, Stored::Zstd] {
        let dir = tempfile::tempdir().unwrap();
        let blob = stored(&tar, how);
        fs::write(dir.path().join("blob"), &blob).unwrap();
        let layer = layer_of(&tar, &blob);
        let tree = dir.path().join("tree");
        let made =
            unpack_layer(File::open(dir.path().join("blob")).unwrap(), &tree, &layer, &bounds()).unwrap();
        assert_eq!((made.id, made.blob.as_str()), (layer.id(), layer.blob.hex().as_str()), "{how:?}");
        let meta = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap();
        let noted = meta("noted");
        assert_eq!((noted.uid(), noted.gid(), noted.mode() & 0o7777), (7, 8, 0o755), "no set-id bit");
        assert_eq!((noted.nlink(), noted.mtime()), (2, 1_000_000_000));
        let file = File::open(tree.join("noted")).unwrap();
        assert_eq!(file.get_xattr("user.note").unwrap().unwrap(), b"kept");
        assert_eq!(File::open(tree.join("ping")).unwrap().get_xattr("security.capability").unwrap(), None);
        assert_eq!(fs::read_link(tree.join("lib")).unwrap().to_str(), Some("usr/lib"));
        assert_eq!((meta("implied").uid(), meta("implied").mode() & 0o7777), (0, 0o755));
        assert!(!tree.join("dev/console").exists(), "/dev is each sandbox's own");
        for deleted in ["gone/old", "etc2"] {
            let found = meta(deleted);
            assert!(found.file_type().is_char_device() && found.rdev() == 0, "{deleted}");
        }
        for opaque in ["fresh", "again"] {
            let mark = File::open(tree.join(opaque)).unwrap().get_xattr("trusted.overlay.opaque").unwrap();
            assert_eq!(mark.as_deref(), Some(&b"y"[..]), "{opaque}");
        }
        assert_eq!(File::open(tree.join("gone")).unwrap().get_xattr("trusted.overlay.opaque").unwrap(), None);
    }
}

#[tokio::test]
async fn an_image_is_found_by_tag_by_digest_and_when_it_is_the_only_one() {
    let made = Made::new(&[Tar::new().file("a", b"1").done(), Tar::new().file("b", b"2").done()]);
    let layout = Layout::open(made.path()).unwrap();
    for pick in [Pick::Only, Pick::Tag("one".to_owned()), Pick::Digest(made.manifest)] {
        assert_eq!(layout.pick(&pick).unwrap(), made.manifest);
    }
    let image = resolve(&layout, &made.manifest, &Platform::here()).await.unwrap();
    assert_eq!((image.digest, image.layers.len(), image.documents.len()), (made.manifest, 2, 2));
    let env: Vec<_> = image.config.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(env, [("PATH", "/bin"), ("A", "b=c")]);
    assert!(matches!(layout.pick(&Pick::Tag("two".to_owned())), Err(Error::NotFound { .. })));
    made.index(&[("one", made.manifest), ("two", image.config_digest)]);
    let refused = layout.pick(&Pick::Only).unwrap_err().to_string();
    assert!(refused.contains("one, two"), "{refused}");
}

#[tokio::test]
async fn an_index_leads_to_the_image_of_this_machine() {
    let made = Made::new(&[Tar::new().file("a", b"1").done()]);
    let here = Platform::here();
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [
        {"digest": format!("sha256:{}", "0".repeat(64)), "platform": {"os": "linux", "architecture": "mips"}},
        {"digest": made.manifest, "platform": {"os": here.os, "architecture": here.architecture}},
    ]});
    let index = put(made.path(), index.to_string().as_bytes());
    let layout = Layout::open(made.path()).unwrap();
    let image = resolve(&layout, &index, &here).await.unwrap();
    assert_eq!((image.digest, image.documents[0].0), (made.manifest, index));
}

#[tokio::test]
async fn documents_with_other_bytes_are_refused() {
    let made = Made::new(&[Tar::new().file("a", b"1").done()]);
    fs::write(made.blob(&made.manifest), "{}").unwrap();
    let layout = Layout::open(made.path()).unwrap();
    let refused = resolve(&layout, &made.manifest, &Platform::here()).await.unwrap_err();
    assert!(matches!(refused, Error::WrongDigest { expected, .. } if expected == made.manifest), "{refused}");
    assert!(matches!(layout.check(&made.manifest), Err(Error::WrongDigest { .. })));
}

#[test]
fn an_archive_is_a_layout_and_what_is_none_is_refused() {
    let made = Made::new(&[Tar::new().file("a", b"1").done()]);
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    let mut builder = tar::Builder::new(File::create(&archive).unwrap());
    builder.append_dir_all(".", made.path()).unwrap();
    let mut extra = tar::Header::new_ustar();
    extra.set_size(1);
    extra.set_entry_type(tar::EntryType::Regular);
    extra.as_old_mut().name[..9].copy_from_slice(b"../escape");
    extra.set_cksum();
    builder.append(&extra, &b"x"[..]).unwrap();
    builder.finish().unwrap();
    let into = dir.path().join("in/to");
    fs::create_dir_all(&into).unwrap();
    let layout = extract(&archive, &into).unwrap();
    assert_eq!(layout.pick(&Pick::Only).unwrap(), made.manifest);
    assert!(!dir.path().join("in/escape").exists());
    let none = dir.path().join("none.tar");
    tar::Builder::new(File::create(&none).unwrap()).finish().unwrap();
    let refused = extract(&none, &dir.path().join("out")).unwrap_err().to_string();
    assert!(refused.contains("no OCI archive"), "{refused}");
}
