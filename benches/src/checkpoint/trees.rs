//! The trees of this bench: files of 50 a folder, cut from real text and code at seeded places.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

const FILES_PER_FOLDER: usize = 50;
/// Sizes are uniform between 0.2 and 1.8 times this, in bytes.
const FILE_BYTES: usize = 10 * 1024;
const CORPUS_BYTES: usize = 16 << 20;
const CORPUS_FROM: [&str; 3] = ["/usr/include", "/usr/share/perl", "/usr/lib/python3"];
const SEED: u64 = 7;

/// Text and code to cut files from.
pub struct Corpus(Vec<u8>);

impl Corpus {
    pub fn read() -> Result<Self> {
        let mut pending: Vec<PathBuf> = CORPUS_FROM.iter().map(PathBuf::from).collect();
        let mut bytes = Vec::new();
        while let Some(path) = pending.pop().filter(|_| bytes.len() < CORPUS_BYTES) {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            if found.is_dir() {
                let mut below: Vec<_> = fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
                below.sort();
                pending.extend(below);
            } else if found.is_file() {
                bytes.extend(fs::read(&path)?);
            }
        }
        ensure!(bytes.len() > 1 << 20, "too little text under {CORPUS_FROM:?}");
        Ok(Self(bytes))
    }

    /// Files `from..to` of the tree.
    pub fn files(&self, root: &Path, from: usize, to: usize) -> Result<()> {
        for index in from..to {
            let mut random = StdRng::seed_from_u64(SEED + index as u64);
            let length = random.random_range(FILE_BYTES / 5..FILE_BYTES * 9 / 5);
            let start = random.random_range(0..self.0.len() - length);
            let folder = root.join(format!("workspace/d{}", index / FILES_PER_FOLDER));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(format!("f{index}")), &self.0[start..start + length])?;
        }
        Ok(())
    }
}

/// What a step changes: 20 files of the tree written anew, 20 of 5,000 random bytes.
pub fn changed(root: &Path, corpus: &Corpus) -> Result<()> {
    fs::create_dir_all(root)?;
    corpus.files(root, 0, 20)?;
    let mut random = StdRng::seed_from_u64(SEED);
    let mut bytes = [0; 5000];
    for index in 0..20 {
        random.fill_bytes(&mut bytes);
        fs::write(root.join(format!("workspace/new{index}")), bytes)?;
    }
    Ok(())
}
