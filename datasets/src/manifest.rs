//! `manifest.jsonl`: one line per sealed shard of a table. A shard is sealed once its line is
//! whole.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::seqs::SeqSet;
use crate::{Error, shard};

pub(crate) const FILE: &str = "manifest.jsonl";
/// The largest manifest read, in bytes: some millions of shards.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardLine {
    /// File name without `.arrows`.
    pub shard: String,
    pub rows: u64,
    pub seq_min: i64,
    pub seq_max: i64,
    /// Of the file, hex.
    pub sha256: String,
    /// Which seqs, where they are not all of `seq_min..=seq_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seqs: Option<String>,
    /// Seqs of earlier shards that its groups closed under before; readers leave those rows out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

impl ShardLine {
    pub(crate) fn new(
        shard: String,
        rows: u64,
        (seq_min, seq_max): (i64, i64),
        sha256: String,
        seqs: &SeqSet,
        replaces: &SeqSet,
    ) -> Self {
        let holes = seqs.ranges().count() > 1;
        let seqs = holes.then(|| seqs.to_string());
        let replaces = (!replaces.is_empty()).then(|| replaces.to_string());
        Self { shard, rows, seq_min, seq_max, sha256, seqs, replaces }
    }

    /// None if the line contradicts itself.
    pub(crate) fn replaced(&self) -> Option<SeqSet> {
        self.replaces.as_deref().unwrap_or_default().parse().ok()
    }

    /// None if the line contradicts itself.
    pub(crate) fn seq_set(&self) -> Option<SeqSet> {
        let seqs = match &self.seqs {
            Some(text) => text.parse().ok()?,
            None => {
                let mut seqs = SeqSet::new();
                seqs.insert_range(self.seq_min, self.seq_max);
                seqs
            }
        };
        let ends = (seqs.first(), seqs.last()) == (Some(self.seq_min), Some(self.seq_max));
        (ends && self.seq_min >= 0).then_some(seqs)
    }

    pub(crate) fn to_json(&self) -> String {
        // Strings and numbers only: there is nothing in it that could fail to serialize.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) lines: Vec<(ShardLine, SeqSet)>,
    /// Where the whole lines end, in bytes.
    pub(crate) whole_bytes: u64,
    /// Bytes behind the last whole line: an append that a crash cut short.
    pub(crate) torn_bytes: u64,
}

/// None if there is no manifest.
pub(crate) fn read(path: &Path) -> Result<Option<Manifest>, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    let found = bytes.len() as u64;
    if found > MANIFEST_BYTES_MAX {
        return Err(Error::FileTooLarge { path: path.to_owned(), found, max: MANIFEST_BYTES_MAX });
    }
    let mut manifest = Manifest::default();
    let mut rest = bytes.as_slice();
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        match parse(line) {
            Ok(parsed) => manifest.lines.push(parsed),
            // Blocks of one write may reach the disk out of order: the last line may be damaged
            // although its newline is there. Its shard is adopted again.
            Err(_) if after.is_empty() => break,
            Err(what) => {
                let line = manifest.lines.len() + 1;
                return Err(Error::ManifestCorrupt { path: path.to_owned(), line, what });
            }
        }
        manifest.whole_bytes += end as u64 + 1;
        rest = after;
    }
    manifest.torn_bytes = rest.len() as u64;
    Ok(Some(manifest))
}

fn parse(line: &[u8]) -> Result<(ShardLine, SeqSet), String> {
    let line: ShardLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if shard::counter(&line.shard).is_none() {
        return Err(format!("`{}` is not the name of a shard", rollout::text::shown(&line.shard, 80)));
    }
    let seqs = line.seq_set().ok_or_else(|| "its seqs contradict each other".to_owned())?;
    line.replaced().ok_or_else(|| "what it replaces is no set of seqs".to_owned())?;
    Ok((line, seqs))
}
