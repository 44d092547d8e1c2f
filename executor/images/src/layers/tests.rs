//! Trees against this kernel, as root: owners, marks and nodes of the kernel need it. Not root:
//! each test says that it was skipped.

mod hostile;
mod listing;
mod refused;
mod round_trip;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rollout::Bytes;
use xattr::FileExt;

use super::{Bounds, Error, Packed, pack_upper, unpack};

const BASE: u32 = 1_000_000;

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

fn bounds() -> Bounds {
    Bounds::new(Bytes(1 << 30))
}

/// A scratch directory with a tree in it.
struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        let scratch = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scratch.tree()).unwrap();
        scratch
    }

    fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pack_from(&self, base: u32, bounds: Bounds) -> Result<Packed, Error> {
        let root = File::open(self.tree()).unwrap();
        pack_upper(root.as_fd(), base, &[], &self.path("packed"), &bounds, &AtomicBool::new(false))
    }

    fn pack(&self) -> Result<Packed, Error> {
        self.pack_from(0, bounds())
    }

    fn unpack(&self, packed: &Packed, into: &str) -> Result<PathBuf, Error> {
        let into = self.path(into);
        unpack(File::open(&packed.file).unwrap(), &into, &packed.layer, &bounds())?;
        Ok(into)
    }
}

/// Everything there is to see of a tree, path by path. `base` is taken off the owners.
fn facts(root: &Path, base: u32) -> BTreeMap<PathBuf, String> {
    let mut facts = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let kind = found.file_type();
            let relative = path.strip_prefix(root).unwrap().to_owned();
            let mut text = format!(
                "{:o} {} {}",
                found.mode(),
                found.uid().wrapping_sub(base),
                found.gid().wrapping_sub(base)
            );
            if kind.is_char_device() {
                facts.insert(relative, format!("device {}", found.rdev()));
                continue;
            }
            text += &format!(" {}.{}", found.mtime(), found.mtime_nsec());
            if kind.is_symlink() {
                text += &format!(" -> {:?}", fs::read_link(&path).unwrap());
            } else if kind.is_file() || kind.is_dir() {
                let file = File::open(&path).unwrap();
                let mut attributes: Vec<_> = file.list_xattr().unwrap().collect();
                attributes.sort();
                for name in attributes {
                    let value = file.get_xattr(&name).unwrap().unwrap();
                    text += &format!(" {}={}", name.as_bytes().escape_ascii(), value.escape_ascii());
                }
                if kind.is_file() {
                    use sha2::Digest;
                    let content = fs::read(&path).unwrap();
                    text += &format!(" {} {}", content.len(), hex::encode(sha2::Sha256::digest(&content)));
                    let first = inodes.entry(found.ino()).or_insert_with(|| relative.clone()).clone();
                    text += &format!(" links {} first {}", found.nlink(), first.display());
                } else {
                    pending.push(path.clone());
                }
            }
            assert!(facts.insert(relative, text).is_none());
        }
    }
    facts
}
