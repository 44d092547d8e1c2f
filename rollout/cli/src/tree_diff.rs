//! How the trees of two checkpoints differ, from what their layers say.

use std::collections::BTreeMap;

use images::layers::{Listed, ListedKind};
use rollout::checkpoint::LayerId;

use crate::view::Change;

/// What layers say of a path: what is there, or that nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Present(ListedKind, LayerId),
    Gone,
}

/// What a stack of layers says, the upper ones last.
#[derive(Debug, Clone, Default)]
pub struct View(BTreeMap<Vec<u8>, Said>);

impl View {
    /// Lays one more layer on top.
    pub fn lay(&mut self, layer: Vec<Listed>) {
        for Listed { path, kind, id } in layer {
            // Only a directory that is not opaque shows what is below it.
            if kind != (ListedKind::Directory { opaque: false }) {
                self.clear_below(&path);
            }
            let said = match kind {
                ListedKind::Whiteout => Said::Gone,
                kind => Said::Present(kind, id),
            };
            self.0.insert(path, said);
        }
    }

    fn clear_below(&mut self, path: &[u8]) {
        let first = [path, b"/"].concat();
        let behind = [path, b"0"].concat();
        let below: Vec<Vec<u8>> = self.0.range(first..behind).map(|(path, _)| path.clone()).collect();
        for path in below {
            self.0.remove(&path);
        }
    }
}

#[derive(Debug)]
pub struct TreeDiff<'a> {
    pub before: &'a View,
    pub after: &'a View,
}

impl TreeDiff<'_> {
    /// By path. A path of the image that only one of the two says something of counts as added or
    /// removed there, as it is told.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut add = |path: &[u8], before: Option<&Said>, after: Option<&Said>| {
            let (change, kind) = match (before, after) {
                (Some(Said::Present(_, a)), Some(Said::Present(kind, b))) => {
                    if a == b {
                        return;
                    }
                    ("changed", Some(*kind))
                }
                (Some(Said::Present(kind, _)), _) => ("removed", Some(*kind)),
                (_, Some(Said::Present(kind, _))) => ("added", Some(*kind)),
                (Some(Said::Gone), None) => ("added", None),
                (None, Some(Said::Gone)) => ("removed", None),
                (Some(Said::Gone), Some(Said::Gone)) | (None, None) => return,
            };
            let text = std::str::from_utf8(path);
            changes.push(Change {
                change,
                kind: kind.map_or("of the image", word),
                from_bytes: before.and_then(bytes),
                to_bytes: after.and_then(bytes),
                path: String::from_utf8_lossy(path).into_owned(),
                path_hex: text.is_err().then(|| hex::encode(path)),
            });
        };
        for (path, before) in &self.before.0 {
            add(path, Some(before), self.after.0.get(path));
        }
        for (path, after) in self.after.0.iter().filter(|(path, _)| !self.before.0.contains_key(*path)) {
            add(path, None, Some(after));
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes
    }
}

const fn word(kind: ListedKind) -> &'static str {
    match kind {
        ListedKind::Directory { .. } => "directory",
        ListedKind::File { .. } => "file",
        ListedKind::Symlink => "symlink",
        ListedKind::Link => "hard link",
        ListedKind::Fifo => "fifo",
        ListedKind::Whiteout => "nothing",
    }
}

const fn bytes(said: &Said) -> Option<u64> {
    match said {
        Said::Present(ListedKind::File { size }, _) => Some(*size),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(path: &str, kind: ListedKind, id: u8) -> Listed {
        Listed { path: path.into(), kind, id: LayerId::from_bytes([id; 32]) }
    }

    fn file(path: &str, size: u64, id: u8) -> Listed {
        listed(path, ListedKind::File { size }, id)
    }

    const DIRECTORY: ListedKind = ListedKind::Directory { opaque: false };

    fn told(before: &View, after: &View) -> Vec<(String, &'static str, &'static str)> {
        let changes = TreeDiff { before, after }.changes();
        changes.into_iter().map(|change| (change.path, change.change, change.kind)).collect()
    }

    #[test]
    fn added_changed_and_removed_are_told_and_what_is_the_same_is_not() {
        let mut before = View::default();
        before.lay(vec![listed("d", DIRECTORY, 1), file("d/a", 1, 2), file("d/b", 2, 3), file("same", 3, 4)]);
        let mut after = before.clone();
        after.lay(vec![
            file("d/a", 9, 5),
            listed("d/b", ListedKind::Whiteout, 0),
            file("d/c", 4, 6),
            listed("image-file", ListedKind::Whiteout, 0),
        ]);
        let of = |path: &str, change, kind| (path.to_owned(), change, kind);
        assert_eq!(
            told(&before, &after),
            [
                of("d/a", "changed", "file"),
                of("d/b", "removed", "file"),
                of("d/c", "added", "file"),
                of("image-file", "removed", "of the image"),
            ]
        );
        assert_eq!(told(&before, &before), []);
        assert_eq!(told(&after, &before).len(), 4);
    }

    #[test]
    fn what_was_below_a_deleted_or_replaced_directory_is_gone() {
        let mut before = View::default();
        before.lay(vec![listed("d", DIRECTORY, 1), file("d/a", 1, 2), file("d0", 1, 3), file("d-x", 1, 4)]);
        for kind in [ListedKind::Whiteout, ListedKind::Symlink, ListedKind::Directory { opaque: true }] {
            let mut after = before.clone();
            after.lay(vec![listed("d", kind, 9)]);
            let removed = told(&before, &after);
            assert!(removed.contains(&("d/a".to_owned(), "removed", "file")), "{kind:?}: {removed:?}");
            assert_eq!(removed.len(), 2, "{kind:?}: {removed:?}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_comes_with_its_bytes() {
        let mut after = View::default();
        after.lay(vec![Listed { path: vec![b'a', 0xff], ..file("", 1, 1) }]);
        let changes = TreeDiff { before: &View::default(), after: &after }.changes();
        assert_eq!(changes[0].path_hex.as_deref(), Some("61ff"));
    }
}
