//! Layers made to get out, to bend an overlay or to fill a disk: each is refused by what is wrong
//! with it, and nothing is left.

use std::fs::{self, File};

use rollout::Bytes;
use tar::EntryType;

use super::{Stored, Tar, is_root, layer_of, stored};
use crate::layers::Bounds;
use crate::oci::{Error, ImageLayer, digest_of, unpack_layer};

fn refused(blob: &[u8], layer: &ImageLayer, bounds: Bounds) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("blob"), blob).unwrap();
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let tree = inside.join("tree");
    let error = unpack_layer(File::open(dir.path().join("blob")).unwrap(), &tree, layer, &bounds);
    let error = error.expect_err("refused");
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0, "left after {error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "written beside: {error}");
    assert!(!error.is_passing(), "{error:?}");
    match &error {
        Error::Layer { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

fn refused_tar(tar: &[u8], bounds: Bounds) -> String {
    let blob = stored(tar, Stored::Gzip);
    refused(&blob, &layer_of(tar, &blob), bounds)
}

#[test]
fn what_no_layer_may_hold_is_refused_by_name() {
    if !is_root() {
        return;
    }
    let long = "d/".repeat(45);
    let table: Vec<(&str, Tar)> = vec![
        ("`.` or `..`", Tar::new().file("../out", b"x")),
        ("`.` or `..`", Tar::new().dir("a").file("a/../../out", b"x")),
        ("absolute", Tar::new().file("/etc/passwd", b"x")),
        ("in no directory", Tar::new().link("out", "/").file("out/x", b"x")),
        ("in no directory", Tar::new().link("out", "..").file("out/a/x", b"x")),
        ("in no directory", Tar::new().file("f", b"").file("f/x", b"x")),
        ("there twice", Tar::new().link("a", "/etc/shadow").file("a", b"x")),
        ("there twice", Tar::new().file("a", b"1").file("./a", b"2")),
        ("there twice", Tar::new().file("a", b"1").dir("a")),
        ("hard link out of", Tar::new().add(EntryType::Link, "a", "../../etc/shadow", b"")),
        ("hard link out of", Tar::new().add(EntryType::Link, "a", "/etc/shadow", b"")),
        ("to nothing that comes before", Tar::new().add(EntryType::Link, "a", "etc/shadow", b"")),
        (
            "to nothing that comes before",
            Tar::new().link("e", "/etc").add(EntryType::Link, "a", "e/shadow", b""),
        ),
        ("to what is no file", Tar::new().dir("d").add(EntryType::Link, "a", "d", b"")),
        ("a device outside of /dev", Tar::new().add(EntryType::Char, "null", "", b"")),
        ("a device outside of /dev", Tar::new().add(EntryType::Block, "etc/sda", "", b"")),
        (
            "attribute `trusted.overlay.opaque`",
            Tar::new().record("SCHILY.xattr.trusted.overlay.opaque", "y").dir("d"),
        ),
        (
            "attribute `trusted.overlay.redirect`",
            Tar::new().record("SCHILY.xattr.trusted.overlay.redirect", "/etc").dir("d"),
        ),
        (
            "attribute `user.overlay.opaque`",
            Tar::new().record("SCHILY.xattr.user.overlay.opaque", "y").dir("d"),
        ),
        ("attribute `trusted.x`", Tar::new().record("SCHILY.xattr.trusted.x", "y").file("f", b"")),
        ("neither file nor directory", Tar::new().record("SCHILY.xattr.user.x", "y").link("l", "x")),
        ("storage driver's", Tar::new().file(".wh..wh.plnk", b"")),
        ("`.` or `..`", Tar::new().file("a/.wh...", b"")),
        ("outside of a sandbox's range", Tar::new().owned("f", 70_000)),
        ("another size", Tar::new().record("size", "99").file("f", b"x")),
        ("sparse", Tar::new().record("GNU.sparse.major", "1").file("f", b"x")),
        ("tar type 'S'", Tar::new().add(EntryType::GNUSparse, "s", "", b"")),
        ("has content and is no file", Tar::new().add(EntryType::Directory, "d", "", b"x")),
        ("records follow records", Tar::new().record("a", "b").record("a", "b").file("f", b"")),
        ("records without an entry", Tar::new().file("f", b"").record("a", "b")),
        ("no PAX records", Tar::new().add(EntryType::XHeader, "pax", "", b"nonsense").file("f", b"")),
        ("255 bytes of one name", Tar::new().record("path", &"n".repeat(256)).file("f", b"")),
        ("4095 bytes of one path", Tar::new().record("path", &long.repeat(46)).file("f", b"")),
        ("symlink whose target cannot", Tar::new().link("l", "")),
    ];
    for (words, tar) in table {
        let said = refused_tar(&tar.done(), Bounds::new(Bytes(1 << 20)));
        assert!(said.contains(words), "{words}: {said}");
        assert!(!said.chars().any(char::is_control), "{said:?}");
    }
}

#[test]
fn bombs_stop_at_their_bound() {
    if !is_root() {
        return;
    }
    let zeros = Tar::new().file("zeros", &vec![0; 3 << 20]).done();
    assert!(refused_tar(&zeros, Bounds::new(Bytes(1 << 20))).contains("bytes of content"));
    let many = (0..6).fold(Tar::new(), |tar, n| tar.file(&format!("a/b{n}"), b"")).done();
    let few = Bounds { entries: 5, content: Bytes(1 << 20) };
    assert!(refused_tar(&many, few).contains("5 entries"));
    // The header of a record says how much memory it wants.
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(1 << 40);
    header.set_cksum();
    let lying = header.as_bytes().to_vec();
    assert!(refused_tar(&lying, Bounds::new(Bytes(1 << 20))).contains("bytes of records"));
}

#[test]
fn bytes_that_are_cut_flipped_or_another_tar_are_refused() {
    if !is_root() {
        return;
    }
    let tar = Tar::new().file("a", &[7; 5000]).done();
    let blob = stored(&tar, Stored::Gzip);
    let layer = layer_of(&tar, &blob);
    let bounds = Bounds::new(Bytes(1 << 20));
    refused(&blob[..blob.len() / 2], &layer, bounds);
    let mut flipped = blob;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    refused(&flipped, &layer, bounds);
    refused(b"\x28\xb5\x2f\xfdnot zstd", &layer, bounds);
    // Well-formed, but not the tar of the configuration; also what follows its end counts.
    let other = Tar::new().file("a", &[8; 5000]).done();
    let said = refused(&stored(&other, Stored::Zstd), &layer, bounds);
    assert!(
        said.contains(&layer.diff_id.to_string()) && said.contains(&digest_of(&other).to_string()),
        "{said}"
    );
    let longer = [tar.as_slice(), b"tail"].concat();
    assert!(refused(&longer, &layer, bounds).contains("unpacks to the bytes of"));
}
