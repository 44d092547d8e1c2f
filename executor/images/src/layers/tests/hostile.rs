//! Packed layers made by somebody else: each is refused by what is wrong with it, and nothing is
//! left where it would have been.

use std::fs::{self, File};
use std::io::Write;

use rollout::Bytes;
use rollout::checkpoint::{Layer, LayerId};
use tar::{Builder, EntryType, Header};

use super::{Scratch, bounds, facts, is_root};
use crate::layers::{Bounds, Error, unpack};

struct Forged {
    tar: Builder<Vec<u8>>,
}

impl Forged {
    fn new() -> Self {
        Self { tar: Builder::new(Vec::new()) }
    }

    fn add(mut self, kind: EntryType, name: &str, target: &str, data: &[u8]) -> Self {
        self.push(kind, name, target, data, data.len() as u64);
        self
    }

    fn push(&mut self, kind: EntryType, name: &str, target: &str, data: &[u8], size: u64) {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o4755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.tar.append(&header, data).unwrap();
    }

    fn records(self, text: &[u8]) -> Self {
        self.add(EntryType::XHeader, "pax", "", text)
    }

    fn file(self, name: &str) -> Self {
        self.add(EntryType::Regular, name, "", b"content")
    }

    fn dir(self, name: &str) -> Self {
        self.add(EntryType::Directory, name, "", b"")
    }

    fn packed(self) -> Vec<u8> {
        zstd::encode_all(self.tar.into_inner().unwrap().as_slice(), 1).unwrap()
    }
}

fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
    format!("{length} {key}={value}\n").into_bytes()
}

/// What somebody claims of these bytes.
fn claim(packed: &[u8], entries: u64, content: u64) -> Layer {
    let id = LayerId::from_bytes([0; 32]);
    Layer { id, blob: "00".repeat(32), packed: Bytes(packed.len() as u64), content: Bytes(content), entries }
}

fn refused(packed: &[u8], layer: &Layer, bounds: Bounds) -> Error {
    let scratch = Scratch::new();
    let into = scratch.path("out");
    let error = unpack(packed, &into, layer, &bounds).unwrap_err();
    assert!(!into.exists(), "left after {error}");
    assert_eq!(fs::read_dir(scratch.tree()).unwrap().count(), 0, "written beside: {error}");
    assert!(error.of_the_packed(), "{error:?}");
    error
}

#[test]
fn each_hostile_entry_is_refused_by_its_kind() {
    if !is_root() {
        return;
    }
    use EntryType::{Block, Char, Continuous, Fifo, GNULongName, Link, Regular, Symlink, XGlobalHeader};
    let new = Forged::new;
    let cases: Vec<(&str, Forged)> = vec![
        ("`..`", new().file("../tree/x")),
        ("`..`", new().dir("a").file("a/../../tree/x")),
        ("absolute", new().file("/tmp/x")),
        ("lies in no directory", new().add(Symlink, "a", "../tree", b"").file("a/x")),
        ("lies in no directory", new().file("a").file("a/x")),
        ("lies in no directory", new().file("a/x")),
        ("a hard link out of the layer", new().add(Link, "a", "../tree", b"")),
        ("a hard link out of the layer", new().add(Link, "a", "/etc/passwd", b"")),
        ("a hard link to nothing", new().add(Link, "b", "a", b"")),
        (
            "a hard link to what is no file",
            new().add(Symlink, "a", "/etc/passwd", b"").add(Link, "b", "a", b""),
        ),
        ("a hard link to what does not come before", new().add(Link, "a", "b", b"").file("b")),
        ("a character device", new().add(Char, "a", "", b"")),
        ("a block device", new().add(Block, "a", "", b"")),
        ("of the tar type 'g'", new().add(XGlobalHeader, "a", "", b"")),
        ("of the tar type 'L'", new().add(GNULongName, "a", "", b"name")),
        ("of the tar type '7'", new().add(Continuous, "a", "", b"")),
        ("there twice", new().file("a").file("a")),
        ("there twice", new().dir("a").add(Symlink, "a", "/tmp", b"")),
        ("out of order", new().file("b").file("a")),
        ("empty part", new().dir("a").file("a//b")),
        ("`.`", new().file("./a")),
        ("NUL", new().records(&record("path", "a\0b")).file("x")),
        ("`/\\x1b[31m/x` cannot", new().file("\u{1b}[31m/x")),
        ("`user.overlay.opaque`", new().records(&record("SCHILY.xattr.user.overlay.opaque", "y")).file("a")),
        (
            "`trusted.overlay.opaque`",
            new().records(&record("SCHILY.xattr.trusted.overlay.opaque", "y")).file("a"),
        ),
        ("`security.capability`", new().records(&record("SCHILY.xattr.security.capability", "x")).file("a")),
        (
            "has attributes and is neither",
            new().records(&record("SCHILY.xattr.user.a", "y")).add(Fifo, "a", "", b""),
        ),
        ("its records are not", new().records(&record("SCHILY.unknown", "y")).file("a")),
        ("its records are not", new().records(b"7 path=a\n").file("a")),
        (
            "records follow records",
            new().records(&record("path", "a")).records(&record("path", "b")).file("x"),
        ),
        ("records without an entry", new().records(&record("path", "a"))),
        (
            "its data is 7 bytes, its runs say 8",
            new()
                .records(&[record("GNU.sparse.map", "0,8"), record("GNU.sparse.size", "9")].concat())
                .file("a"),
        ),
        (
            "out of order",
            new()
                .records(
                    &[record("GNU.sparse.map", "4096,3,0,4"), record("GNU.sparse.size", "9000")].concat(),
                )
                .file("a"),
        ),
        (
            "out of order",
            new()
                .records(&[record("GNU.sparse.map", "0,7"), record("GNU.sparse.size", "5")].concat())
                .file("a"),
        ),
        ("symlink whose target", new().add(Symlink, "a", "", b"")),
        ("has content and is no file", new().add(Symlink, "a", "b", b"content")),
        ("2 entries it claims", new().file("a").file("b").file("c")),
        ("20 bytes of content it claims", new().add(Regular, "a", "", &[b'x'; 21])),
    ];
    for (words, forged) in cases {
        let packed = forged.packed();
        let error = refused(&packed, &claim(&packed, 2, 20), bounds()).to_string();
        assert!(error.contains(words), "expected {words}: {error}");
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
}

#[test]
fn a_forged_layer_that_is_well_made_is_refused_by_its_id_alone() {
    if !is_root() {
        return;
    }
    let packed = Forged::new().dir("a").file("a/b").packed();
    let error = refused(&packed, &claim(&packed, 2, 7), bounds());
    let Error::OtherTree { found, .. } = error else { panic!("{error}") };
    // With the id it has it is taken, without its set-id bits.
    let scratch = Scratch::new();
    let layer = Layer { id: found, ..claim(&packed, 2, 7) };
    unpack(packed.as_slice(), &scratch.path("out"), &layer, &bounds()).unwrap();
    let facts = facts(&scratch.path("out"), 0);
    assert!(facts.values().all(|fact| fact.contains("0755 0 0 ")), "{facts:?}");
    for (what, layer) in [
        ("entries", Layer { entries: 3, ..layer.clone() }),
        ("bytes of content", Layer { content: Bytes(8), ..layer }),
    ] {
        let error = refused(&packed, &layer, bounds());
        assert!(matches!(error, Error::OtherCount { what: found, .. } if found == what), "{error}");
    }
}

#[test]
fn cut_short_added_to_or_changed_bytes_are_refused_everywhere() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    for index in 0..30 {
        fs::write(scratch.tree().join(format!("f{index}")), format!("content {index}")).unwrap();
    }
    let packed = scratch.pack().unwrap();
    let bytes = fs::read(&packed.file).unwrap();
    let layer = &packed.layer;
    for length in (0..bytes.len()).step_by(7) {
        refused(&bytes[..length], layer, bounds());
    }
    for at in (0..bytes.len()).step_by(5) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        // A bit of the frame's own that says nothing of its content changes nothing.
        let into = scratch.path("flipped");
        match unpack(flipped.as_slice(), &into, layer, &bounds()) {
            Ok(()) => {
                assert_eq!(facts(&into, 0), facts(&scratch.tree(), 0), "at {at}");
                fs::remove_dir_all(&into).unwrap();
            }
            Err(error) => assert!(error.of_the_packed() && !into.exists(), "at {at}: {error:?}"),
        }
    }
    let more = [bytes.clone(), zstd::encode_all(&b"more"[..], 1).unwrap()].concat();
    assert!(refused(&more, layer, bounds()).to_string().contains("does not end as a layer"));
    refused(&[bytes.as_slice(), b"x"].concat(), layer, bounds());
}

#[test]
fn bombs_end_at_the_cap() {
    if !is_root() {
        return;
    }
    // A lying claim: four gibibytes of zeros behind a few hundred kibibytes.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let mut forged = Forged::new();
    forged.push(EntryType::Regular, "a", "", b"", 4 << 30);
    let start = forged.tar.into_inner().unwrap();
    encoder.write_all(&start[..512]).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..4096 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.write_all(&[0; 1024]).unwrap();
    let bomb = encoder.finish().unwrap();
    let claimed = refused(&bomb, &claim(&bomb, 1, 1000), bounds()).to_string();
    assert!(claimed.contains("1000 bytes of content it claims"), "{claimed}");
    // Honest claims are measured before a byte is read.
    let claimed = refused(&bomb, &claim(&bomb, 1, 4 << 30), bounds()).to_string();
    assert!(claimed.contains("1073741824 bytes of content"), "{claimed}");
    let wide = Bounds::new(Bytes(u64::MAX));
    let ratio = refused(&bomb[..1000], &claim(&bomb[..1000], 1, 100 << 30), wide).to_string();
    assert!(ratio.contains("32768 times its packed bytes"), "{ratio}");
    let many = refused(&bomb, &claim(&bomb, 1_000_001, 1), bounds()).to_string();
    assert!(many.contains("1000000 entries"), "{many}");
    // Records without end, and an entry that is all records.
    let records = Forged::new().records(&record("path", &"x".repeat(3 << 20))).file("a").packed();
    let error = refused(&records, &claim(&records, 1, 7), bounds()).to_string();
    assert!(error.contains("bytes of records"), "{error}");
    // A window of 128 MiB is not granted.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.write_all(&vec![7; 64 << 20]).unwrap();
    let window = encoder.finish().unwrap();
    refused(&window, &claim(&window, 1, 1000), bounds());
    // A packed layer within a layer is just a file.
    let scratch = Scratch::new();
    fs::write(scratch.tree().join("inner.tar.zst"), &bomb).unwrap();
    let packed = scratch.pack().unwrap();
    let out = scratch.unpack(&packed, "out").unwrap();
    assert_eq!(File::open(out.join("inner.tar.zst")).unwrap().metadata().unwrap().len(), bomb.len() as u64);
}
