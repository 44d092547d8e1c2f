use super::*;
use crate::layers::{ListedKind, list};

#[test]
fn a_packed_layer_says_what_is_in_it_and_nothing_else_is_believed() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.tree();
    fs::create_dir(tree.join("d")).unwrap();
    fs::write(tree.join("d/a"), b"same").unwrap();
    fs::write(tree.join("d/b"), b"same").unwrap();
    fs::write(tree.join("other"), b"else").unwrap();
    fs::hard_link(tree.join("other"), tree.join("second")).unwrap();
    std::os::unix::fs::symlink("d/a", tree.join("to")).unwrap();
    let packed = scratch.pack().unwrap();
    let open = || File::open(&packed.file).unwrap();
    let listed = list(open(), &packed.layer, &bounds()).unwrap();
    let seen: Vec<_> = listed.iter().map(|entry| (entry.path.as_slice(), entry.kind)).collect();
    assert_eq!(
        seen,
        [
            (b"d".as_slice(), ListedKind::Directory { opaque: false }),
            (b"d/a", ListedKind::File { size: 4 }),
            (b"d/b", ListedKind::File { size: 4 }),
            (b"other", ListedKind::File { size: 4 }),
            (b"second", ListedKind::Link),
            (b"to", ListedKind::Symlink),
        ]
    );
    let mut other = packed.layer.clone();
    other.id = rollout::checkpoint::LayerId::from_bytes([7; 32]);
    assert!(matches!(list(open(), &other, &bounds()), Err(Error::OtherTree { .. })));
    let few = Bounds { entries: 5, ..bounds() };
    assert!(matches!(list(open(), &packed.layer, &few), Err(Error::Bound { what: "entries", .. })));
}
