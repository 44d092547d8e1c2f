//! The layers of a node: directories that overlays are mounted over, within a bound of bytes.
//!
//! A layer is here whole or not at all: it is made beside its place and moved there. Nothing here
//! is synced, since the packed form in the blob store is the durable one; so what another boot of
//! the machine left is removed at the start, and what this boot made is as its page cache has it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout::checkpoint::{Layer, LayerId};

use super::Error;

/// What a directory, a name and an inode cost on disk, about, in bytes.
const ENTRY_BYTES: u64 = 4096;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_FILE: &str = "boot";
/// In a store: layers that are being made or removed.
pub const STAGED_DIR: &str = "staged";
/// In the directory of a layer: its tree, and its text.
const TREE_DIR: &str = "tree";
const LAYER_FILE: &str = "layer";

/// The store. The least recently used layers go when a new one needs their room; those that a
/// sandbox uses never do.
#[derive(Debug)]
pub struct LayerStore {
    root: PathBuf,
    bytes_max: u64,
    state: Mutex<State>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    kept: BTreeMap<LayerId, Kept>,
    used: u64,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    used_at: u64,
    /// Shared with each [`Pinned`].
    pin: Arc<()>,
}

impl Kept {
    fn in_use(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

/// A layer that stays as long as this does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Its tree, as overlayfs takes it.
    pub path: PathBuf,
    _pin: Arc<()>,
}

/// A place where a layer is being made; removed when it is dropped.
#[derive(Debug)]
pub struct Staged {
    dir: PathBuf,
    is_committed: bool,
}

impl Staged {
    /// Where its tree is to be made; it is not there yet.
    pub fn tree(&self) -> PathBuf {
        self.dir.join(TREE_DIR)
    }

    /// A name beside the tree, for its packed form.
    pub fn packed(&self) -> PathBuf {
        self.dir.join("packed")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_committed {
            remove(&self.dir);
        }
    }
}

fn remove(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!(path = %dir.display(), %error, "a layer was not removed; the next start tries again");
        }
        _ => {}
    }
}

/// What a layer counts for.
fn charge(layer: &Layer) -> u64 {
    layer.content.0.saturating_add(layer.entries.saturating_mul(ENTRY_BYTES))
}

impl LayerStore {
    /// Opens the store in the directory `root`, which is made if it is missing; nobody else may
    /// use it. What is half made, or of another boot, is removed. Blocks on the disk.
    pub fn open(root: &Path, bytes_max: u64) -> Result<Self, Error> {
        let at = |action| Error::io(action, root.as_os_str().as_encoded_bytes());
        fs::create_dir_all(root).map_err(at("make"))?;
        remove(&root.join(STAGED_DIR));
        let boot = fs::read(BOOT_ID).map_err(Error::io("read", BOOT_ID.as_bytes()))?;
        let is_same_boot = fs::read(root.join(BOOT_FILE)).is_ok_and(|found| found == boot);
        let mut state = State::default();
        for entry in fs::read_dir(root).map_err(at("list"))? {
            let entry = entry.map_err(at("list"))?;
            if !entry.file_type().map_err(at("list"))?.is_dir() {
                continue;
            }
            let text = fs::read_to_string(entry.path().join(LAYER_FILE)).unwrap_or_default();
            match text.parse::<Layer>() {
                Ok(layer) if is_same_boot && entry.file_name() == *layer.id.hex() => {
                    let bytes = charge(&layer);
                    state.used += bytes;
                    state.kept.insert(layer.id, Kept { bytes, used_at: 0, pin: Arc::default() });
                }
                _ => remove(&entry.path()),
            }
        }
        fs::write(root.join(BOOT_FILE), boot).map_err(at("write in"))?;
        fs::create_dir(root.join(STAGED_DIR)).map_err(at("make in"))?;
        Ok(Self { root: root.to_owned(), bytes_max, state: Mutex::new(state), next: AtomicU64::new(0) })
    }

    /// The layer, if it is here.
    pub fn get(&self, id: &LayerId) -> Option<Pinned> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        let kept = state.kept.get_mut(id)?;
        kept.used_at = now;
        Some(Pinned { path: self.place(id).join(TREE_DIR), _pin: Arc::clone(&kept.pin) })
    }

    /// The layer whose tree is at this path, as [`Pinned`] names it, if it is here.
    pub fn get_at(&self, tree: &Path) -> Option<Pinned> {
        let found = self.lock().kept.keys().copied().find(|id| self.place(id).join(TREE_DIR) == tree)?;
        self.get(&found)
    }

    /// A place for a new layer. Blocks on the disk.
    pub fn stage(&self) -> Result<Staged, Error> {
        let name = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let dir = self.root.join(STAGED_DIR).join(name);
        fs::create_dir(&dir).map_err(Error::io("make", dir.as_os_str().as_encoded_bytes()))?;
        Ok(Staged { dir, is_committed: false })
    }

    /// Moves a layer whose tree is made to its place. Layers nobody uses make room for it; if they
    /// are not enough it is refused. If the layer is there already, that one is given.
    pub fn commit(&self, mut staged: Staged, layer: &Layer) -> Result<Pinned, Error> {
        let needed = charge(layer);
        let shown = staged.dir.clone();
        let at = |action| Error::io(action, shown.as_os_str().as_encoded_bytes());
        fs::write(staged.dir.join(LAYER_FILE), layer.to_string()).map_err(at("write in"))?;
        let mut state = self.lock();
        if !state.kept.contains_key(&layer.id) {
            let evicted = self.make_room(&mut state, needed)?;
            fs::rename(&staged.dir, self.place(&layer.id)).map_err(at("move"))?;
            staged.is_committed = true;
            state.used += needed;
            state.kept.insert(layer.id, Kept { bytes: needed, used_at: 0, pin: Arc::default() });
            let pinned = self.pin(&mut state, layer.id);
            drop(state);
            evicted.iter().for_each(|dir| remove(dir));
            return pinned;
        }
        let pinned = self.pin(&mut state, layer.id);
        drop(state);
        pinned
    }

    /// What these layers count for together.
    pub fn room_for(&self, layers: &[Layer]) -> u64 {
        layers.iter().map(charge).fold(0, u64::saturating_add)
    }

    /// Bytes that all layers here may have together.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of all layers here.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    fn pin(&self, state: &mut State, id: LayerId) -> Result<Pinned, Error> {
        state.clock += 1;
        let now = state.clock;
        let path = self.place(&id).join(TREE_DIR);
        let kept = state.kept.entry(id).or_insert_with(|| unreachable!("it was just seen"));
        kept.used_at = now;
        Ok(Pinned { path, _pin: Arc::clone(&kept.pin) })
    }

    /// Moves what has to go out of its place; the caller removes it when the lock is free.
    fn make_room(&self, state: &mut State, needed: u64) -> Result<Vec<PathBuf>, Error> {
        let fixed: u64 = state.kept.values().filter(|kept| kept.in_use()).map(|kept| kept.bytes).sum();
        if needed.saturating_add(fixed) > self.bytes_max {
            return Err(Error::Full { needed, used: fixed, bytes_max: self.bytes_max });
        }
        let mut evicted = Vec::new();
        while state.used.saturating_add(needed) > self.bytes_max {
            let idle = state.kept.iter().filter(|(_, kept)| !kept.in_use());
            let Some(id) = idle.min_by_key(|(_, kept)| kept.used_at).map(|(id, _)| *id) else { break };
            let name = format!("evicted-{}", self.next.fetch_add(1, Ordering::Relaxed));
            let (from, to) = (self.place(&id), self.root.join(STAGED_DIR).join(name));
            fs::rename(&from, &to).map_err(Error::io("move", from.as_os_str().as_encoded_bytes()))?;
            if let Some(kept) = state.kept.remove(&id) {
                state.used -= kept.bytes;
            }
            evicted.push(to);
        }
        Ok(evicted)
    }

    fn place(&self, id: &LayerId) -> PathBuf {
        self.root.join(id.hex())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rollout::Bytes;

    use super::*;

    fn layer(byte: u8, content: u64) -> Layer {
        let id = LayerId::from_bytes([byte; 32]);
        Layer { id, blob: "0f".repeat(32), packed: Bytes(1), content: Bytes(content), entries: 0 }
    }

    fn put(store: &LayerStore, layer: &Layer) -> Result<Pinned, Error> {
        let staged = store.stage().unwrap();
        fs::create_dir(staged.tree()).unwrap();
        fs::write(staged.tree().join("f"), layer.to_string()).unwrap();
        store.commit(staged, layer)
    }

    fn staged(root: &Path) -> usize {
        fs::read_dir(root.join(STAGED_DIR)).unwrap().count()
    }

    #[test]
    fn the_least_recently_used_go_and_those_in_use_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = LayerStore::open(dir.path(), 100).unwrap();
        let (one, two, three, four) = (layer(1, 40), layer(2, 40), layer(3, 40), layer(4, 61));
        let pin = put(&store, &one).unwrap();
        put(&store, &two).unwrap();
        store.get(&two.id).unwrap();
        put(&store, &three).unwrap();
        assert!(pin.path.join("f").exists() && store.get(&two.id).is_none());
        assert!(store.get(&three.id).is_some());
        let refused = put(&store, &four).unwrap_err().to_string();
        assert!(refused.contains("40 of 100"), "{refused}");
        drop(pin);
        assert!(put(&store, &four).unwrap().path.join("f").exists());
        assert_eq!((store.used(), staged(dir.path())), (61, 0));
        assert!(put(&store, &layer(5, 101)).is_err());
    }

    #[test]
    fn a_layer_that_comes_twice_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = LayerStore::open(dir.path(), 100).unwrap();
        let (first, second) = (put(&store, &layer(1, 60)).unwrap(), put(&store, &layer(1, 60)).unwrap());
        assert_eq!((first.path, store.used(), staged(dir.path())), (second.path, 60, 0));
    }

    #[test]
    fn a_start_keeps_what_this_boot_made_whole_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = LayerStore::open(dir.path(), 100).unwrap();
        put(&store, &layer(1, 10)).unwrap();
        // Killed: nothing was dropped.
        std::mem::forget(store.stage().unwrap());
        fs::create_dir(dir.path().join("ab".repeat(32))).unwrap();
        drop(store);
        let store = LayerStore::open(dir.path(), 100).unwrap();
        assert!(store.get(&layer(1, 10).id).is_some());
        assert_eq!((store.used(), staged(dir.path())), (10, 0));
        assert!(!dir.path().join("ab".repeat(32)).exists());
        drop(store);
        fs::write(dir.path().join(BOOT_FILE), "another boot").unwrap();
        let store = LayerStore::open(dir.path(), 100).unwrap();
        assert!(store.get(&layer(1, 10).id).is_none());
        assert_eq!(store.used(), 0);
    }
}
