//! What is packed comes back, and the id is the tree's own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt as _, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use proptest::prelude::*;
use xattr::FileExt;

use super::{BASE, Scratch, bounds, facts, is_root};
use crate::layers::{LayerStore, pack_directory, pack_upper};

#[derive(Debug, Clone)]
enum Node {
    Dir,
    File { size: u64, parts: Vec<(u64, Vec<u8>)> },
    Symlink(Vec<u8>),
    Link(prop::sample::Index),
    Fifo,
    Whiteout,
}

#[derive(Debug, Clone)]
struct Planned {
    parent: prop::sample::Index,
    name: Vec<u8>,
    node: Node,
    mode: u32,
    ids: (u32, u32),
    mtime: (i64, u32),
    attribute: Option<(Vec<u8>, Vec<u8>)>,
    opaque: bool,
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    // Few letters, so that names meet; bytes around the slash, controls, and no UTF-8 at all.
    let byte = prop::sample::select(b"ab.-! \x1b\n\xff=%".to_vec());
    prop_oneof![
        8 => prop::collection::vec(byte, 1..6),
        1 => prop::collection::vec(Just(b'n'), 90..255),
    ]
    .prop_filter("a name", |name| name != b"." && name != b"..")
}

fn nodes() -> impl Strategy<Value = Node> {
    let part = (0u64..300_000, prop::collection::vec(any::<u8>(), 0..9000));
    prop_oneof![
        4 => Just(Node::Dir),
        5 => (0u64..400_000, prop::collection::vec(part, 0..4))
            .prop_map(|(size, parts)| Node::File { size, parts }),
        1 => prop::collection::vec(1u8.., 1..200).prop_map(Node::Symlink),
        2 => any::<prop::sample::Index>().prop_map(Node::Link),
        1 => Just(Node::Fifo),
        1 => Just(Node::Whiteout),
    ]
}

prop_compose! {
    fn planned()(
        parent in any::<prop::sample::Index>(),
        name in names(),
        node in nodes(),
        mode in 0u32..0o2000,
        ids in (0u32..=65_535, 0u32..=65_535),
        mtime in (-2_000_000_000i64..4_000_000_000, 0u32..1_000_000_000),
        attribute in proptest::option::weighted(
            0.2,
            (prop::collection::vec(prop::sample::select(b"ax=%.\xff".to_vec()), 1..8), prop::collection::vec(any::<u8>(), 0..50)),
        ),
        opaque in prop::bool::weighted(0.2),
    ) -> Planned {
        Planned { parent, name, node, mode, ids, mtime, attribute, opaque }
    }
}

fn build(root: &Path, plan: &[Planned], base: u32) {
    let mut dirs = vec![root.to_owned()];
    let mut files: Vec<std::path::PathBuf> = Vec::new();
    let mut made = Vec::new();
    for planned in plan {
        let path = planned.parent.get(&dirs).join(OsStr::from_bytes(&planned.name));
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        match &planned.node {
            Node::Dir => {
                fs::create_dir(&path).unwrap();
                if planned.opaque {
                    File::open(&path).unwrap().set_xattr("trusted.overlay.opaque", b"y").unwrap();
                }
                dirs.push(path.clone());
            }
            Node::File { size, parts } => {
                let file = File::create(&path).unwrap();
                for (at, bytes) in parts {
                    file.write_all_at(bytes, *at).unwrap();
                }
                file.set_len(*size).unwrap();
                files.push(path.clone());
            }
            Node::Symlink(target) => symlink(OsStr::from_bytes(target), &path).unwrap(),
            Node::Link(_) if files.is_empty() => continue,
            Node::Link(to) => {
                fs::hard_link(to.get(&files), &path).unwrap();
                continue;
            }
            Node::Fifo => mknod(&path, SFlag::S_IFIFO, Mode::empty(), 0).unwrap(),
            Node::Whiteout => {
                mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0)).unwrap();
                continue;
            }
        }
        made.push((path, planned));
    }
    for (path, planned) in made.iter().rev() {
        let (uid, gid) = (base + planned.ids.0, base + planned.ids.1);
        let time = nix::sys::time::TimeSpec::new(planned.mtime.0, planned.mtime.1.into());
        let no_follow = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        if matches!(planned.node, Node::Symlink(_)) {
            lchown(path, Some(uid), Some(gid)).unwrap();
        } else {
            chown(path, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(planned.mode)).unwrap();
        }
        if let (Node::Dir | Node::File { .. }, Some((name, value))) = (&planned.node, &planned.attribute) {
            let name = [b"user.", name.as_slice()].concat();
            File::open(path).unwrap().set_xattr(OsStr::from_bytes(&name), value).unwrap();
        }
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, no_follow).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back_with_its_id_and_its_bytes(plan in prop::collection::vec(planned(), 0..40)) {
        if !is_root() {
            return Ok(());
        }
        let scratch = Scratch::new();
        build(&scratch.tree(), &plan, BASE);
        let first = scratch.pack_from(BASE, bounds()).unwrap();
        let layer = first.layer.clone();
        prop_assert_eq!(layer.packed.0, fs::metadata(&first.file).unwrap().len());
        let out = scratch.unpack(&first, "out").unwrap();
        prop_assert_eq!(facts(&out, 0), facts(&scratch.tree(), BASE));
        // The directory form has the id of the packed one, and packs to the same bytes.
        let root = File::open(&out).unwrap();
        let again = scratch.path("again");
        let again = pack_upper(root.as_fd(), 0, &[], &again, &bounds(), &AtomicBool::new(false)).unwrap();
        prop_assert_eq!(&again.layer, &layer);
        prop_assert_eq!(fs::read(&again.file).unwrap(), fs::read(&first.file).unwrap());
    }
}

#[test]
fn an_id_follows_the_tree_and_not_its_times() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.tree().join("f");
    fs::write(&file, "text").unwrap();
    let id = || scratch.pack().unwrap().layer.id;
    let first = id();
    File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(id(), first);
    let mut seen = vec![first];
    let mut changed = |what: &str| {
        let now = id();
        assert!(!seen.contains(&now), "{what}");
        seen.push(now);
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    changed("mode");
    chown(&file, Some(5), Some(0)).unwrap();
    changed("owner");
    File::open(&file).unwrap().set_xattr("user.a", b"1").unwrap();
    changed("attribute");
    fs::write(&file, "texT").unwrap();
    changed("content");
    File::options().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    changed("size");
    fs::hard_link(&file, scratch.tree().join("g")).unwrap();
    changed("link");
    fs::remove_file(scratch.tree().join("g")).unwrap();
    fs::copy(&file, scratch.tree().join("g")).unwrap();
    changed("a copy is no link");
}

#[test]
fn a_plain_tree_lies_under_its_prefix_and_belongs_to_root() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.tree().join("inner")).unwrap();
    fs::write(scratch.tree().join("inner/run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(scratch.tree().join("inner/run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
    chown(scratch.tree().join("inner"), Some(1234), Some(99)).unwrap();
    let packed = pack_directory(&scratch.tree(), "tests/deep", &scratch.path("packed"), &bounds()).unwrap();
    assert_eq!((packed.layer.entries, packed.layer.content.0), (4, 10));
    let out = scratch.unpack(&packed, "out").unwrap();
    let facts = facts(&out, 0);
    let script = &facts[Path::new("tests/deep/inner/run.sh")];
    assert!(script.starts_with("100755 0 0 "), "set-id bits stay behind: {script}");
    assert!(facts[Path::new("tests/deep/inner")].starts_with("40755 0 0 "));
    for bad in ["/tests", "a/../b", "tests/"] {
        assert!(pack_directory(&scratch.tree(), bad, &scratch.path("bad"), &bounds()).is_err(), "{bad}");
        assert!(!scratch.path("bad").exists());
    }
}

#[test]
fn layers_below_become_part_of_a_collapsed_one() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let at = |layer: &str, path: &str| scratch.path(layer).join(path);
    let dir = |layer: &str, path: &str| fs::create_dir_all(at(layer, path)).unwrap();
    let file = |layer: &str, path: &str| fs::write(at(layer, path), format!("{layer}:{path}")).unwrap();
    let whiteout =
        |layer: &str, path: &str| mknod(&at(layer, path), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
    let opaque = |layer: &str, path: &str| {
        File::open(at(layer, path)).unwrap().set_xattr("trusted.overlay.opaque", b"y").unwrap();
    };
    // Bottom.
    dir("one", "kept");
    dir("one", "hidden");
    dir("one", "cut");
    dir("one", "was");
    for path in ["kept/a", "kept/b", "hidden/a", "cut/a", "was/a", "gone", "below"] {
        file("one", path);
    }
    // Middle.
    dir("two", "kept");
    dir("two", "hidden");
    opaque("two", "hidden");
    file("two", "kept/b");
    file("two", "hidden/b");
    file("two", "cut");
    whiteout("two", "was");
    whiteout("two", "gone");
    // Top: directories again where there was a file and a whiteout in between.
    dir("tree", "cut");
    dir("tree", "was");
    dir("tree", "kept");
    file("tree", "cut/c");
    file("tree", "kept/c");
    whiteout("tree", "kept/a");
    let below = [scratch.path("one"), scratch.path("two")];
    let root = File::open(scratch.tree()).unwrap();
    let out = scratch.path("packed");
    let packed = pack_upper(root.as_fd(), 0, &below, &out, &bounds(), &AtomicBool::new(false)).unwrap();
    let out = scratch.unpack(&packed, "out").unwrap();
    let text = |path: &str| fs::read_to_string(out.join(path)).unwrap();
    let mut paths: Vec<_> = facts(&out, 0).into_keys().map(|path| path.display().to_string()).collect();
    paths.sort();
    assert_eq!(
        paths,
        ["below", "cut", "cut/c", "gone", "hidden", "hidden/b", "kept", "kept/a", "kept/b", "kept/c", "was"]
    );
    assert_eq!((text("kept/b").as_str(), text("kept/c").as_str()), ("two:kept/b", "tree:kept/c"));
    let is_opaque =
        |path: &str| File::open(out.join(path)).unwrap().get_xattr("trusted.overlay.opaque").unwrap();
    for path in ["cut", "was", "hidden"] {
        assert_eq!(is_opaque(path).as_deref(), Some(&b"y"[..]), "{path}");
    }
    assert_eq!(is_opaque("kept"), None);
    let facts = facts(&out, 0);
    assert_eq!(
        (facts[Path::new("kept/a")].as_str(), facts[Path::new("gone")].as_str()),
        ("device 0", "device 0")
    );
}

#[test]
fn an_access_list_and_a_store_keep_what_they_are_given() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.tree().join("f"), "x").unwrap();
    chown(scratch.tree().join("f"), Some(BASE), Some(BASE)).unwrap();
    let list = |id: u32| {
        let entry =
            |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let entries = [entry(1, none), entry(2, id), entry(4, none), entry(0x10, none), entry(0x20, none)];
        [&[2, 0, 0, 0][..], &entries.concat()].concat()
    };
    let file = File::open(scratch.tree().join("f")).unwrap();
    file.set_xattr("system.posix_acl_access", &list(BASE + 7)).unwrap();
    let packed = scratch.pack_from(BASE, bounds()).unwrap();
    let store = LayerStore::open(&scratch.path("store"), 1 << 20).unwrap();
    let staged = store.stage().unwrap();
    let opened = File::open(&packed.file).unwrap();
    crate::layers::unpack(opened, &staged.tree(), &packed.layer, &bounds()).unwrap();
    let kept = store.commit(staged, &packed.layer).unwrap();
    let found = File::open(kept.path.join("f")).unwrap().get_xattr("system.posix_acl_access").unwrap();
    assert_eq!(found.unwrap(), list(7));
    file.set_xattr("system.posix_acl_access", &list(7)).unwrap();
    let refused = scratch.pack_from(BASE, bounds()).unwrap_err().to_string();
    assert!(refused.contains("access list"), "{refused}");
}
