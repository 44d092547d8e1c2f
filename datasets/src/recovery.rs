//! What a crash left of one table, and what becomes of it.
//!
//! A torn last manifest line is dropped. A complete shard that the manifest lacks is verified and
//! adopted. An unfinished shard (`.arrows.tmp`) is removed: its groups were never sealed, so they
//! are written again under the same seq. What is left and looks like a shard, but is damaged or
//! holds groups that are sealed elsewhere, is renamed to `.arrows.aside`, never deleted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout::JobId;
use sha2::Digest as _;

use crate::disk::Disk;
use crate::manifest::{self, ShardLine};
use crate::schema::Table;
use crate::seqs::SeqSet;
use crate::table::SealedShard;
use crate::{Error, rules, shard};

/// What [`crate::table::TableWriter::open`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Every sealed shard, table by table, in order of sealing.
    pub sealed: Vec<SealedShard>,
    /// The groups sealed in every table. All others that have closed are to be appended (again),
    /// under the same seq; the tables that have one already skip it.
    pub seqs: SeqSet,
    /// Of `sealed`: shards that the manifest lacked.
    pub adopted: Vec<SealedShard>,
    /// Files that are no shards of this table; kept under these names.
    pub set_aside: Vec<PathBuf>,
    /// Unfinished shards that were removed.
    pub unfinished_removed: usize,
    /// Tables whose manifest ended in a torn line.
    pub manifests_torn: Vec<Table>,
}

/// One table as it stands on disk.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) seqs: SeqSet,
    pub(crate) manifest_bytes: u64,
    pub(crate) next_counter: u32,
}

pub(crate) fn recover(
    dir: &Path,
    table: Table,
    job: JobId,
    disk: &dyn Disk,
    report: &mut Recovery,
) -> Result<Recovered, Error> {
    let manifest_path = dir.join(manifest::FILE);
    let append = |at: u64, bytes: &[u8]| {
        disk.append_synced(&manifest_path, at, bytes).map_err(Error::io("append to", &manifest_path))
    };
    let sync = || disk.sync_dir(dir).map_err(Error::io("sync the directory", dir));
    let found = if let Some(manifest) = manifest::read(&manifest_path)? {
        manifest
    } else {
        append(0, b"")?;
        sync()?;
        manifest::Manifest::default()
    };
    if found.torn_bytes > 0 {
        append(found.whole_bytes, b"")?;
        report.manifests_torn.push(table);
    }

    let mut state = Recovered { manifest_bytes: found.whole_bytes, ..Recovered::default() };
    let mut listed = BTreeSet::new();
    for (index, (line, seqs)) in found.lines.into_iter().enumerate() {
        let path = dir.join(format!("{}{}", line.shard, shard::SUFFIX));
        if !path.is_file() {
            return Err(Error::ShardMissing { path });
        }
        if !state.seqs.intersection(&seqs).is_empty() {
            let what = "its groups are sealed by an earlier line".to_owned();
            return Err(Error::ManifestCorrupt { path: manifest_path, line: index + 1, what });
        }
        state.seqs.extend(&seqs);
        report.sealed.push(SealedShard::new(table, &line));
        listed.insert(line.shard);
    }

    let mut names = shard::names(dir)?;
    names.sort_unstable();
    for file in names {
        let Some((stem, rest)) = file.split_once('.') else { continue };
        let Some(counter) = shard::counter(stem) else { continue };
        state.next_counter = state.next_counter.max(counter.saturating_add(1));
        let path = dir.join(&file);
        match format!(".{rest}").as_str() {
            shard::SUFFIX_UNFINISHED => {
                disk.remove(&path).map_err(Error::io("remove", &path))?;
                report.unfinished_removed += 1;
            }
            shard::SUFFIX if !listed.contains(stem) => match verify(&path, stem, table, job)? {
                Some((line, seqs)) if state.seqs.intersection(&seqs).is_empty() => {
                    sync()?;
                    let json = line.to_json();
                    append(state.manifest_bytes, json.as_bytes())?;
                    state.manifest_bytes += json.len() as u64;
                    state.seqs.extend(&seqs);
                    let adopted = SealedShard::new(table, &line);
                    tracing::info!(%table, shard = %adopted.shard, "adopted a sealed shard that the manifest lacked");
                    report.sealed.push(adopted.clone());
                    report.adopted.push(adopted);
                }
                _ => {
                    let aside = dir.join(format!("{stem}{}", shard::SUFFIX_ASIDE));
                    disk.rename(&path, &aside).map_err(Error::io("rename", &path))?;
                    sync()?;
                    tracing::warn!(%table, file = %aside.display(), "set aside a file that is no shard of this table");
                    report.set_aside.push(aside);
                }
            },
            _ => {}
        }
    }
    Ok(state)
}

/// The manifest line of a whole and sound shard; none if it is damaged or not of this table.
fn verify(path: &Path, stem: &str, table: Table, job: JobId) -> Result<Option<(ShardLine, SeqSet)>, Error> {
    let bytes = shard::read(path)?;
    let Ok(decoded) = shard::decode(path, table, &bytes) else { return Ok(None) };
    let sound = decoded.batches.iter().all(|batch| rules::check(table, batch).is_ok());
    let (Some(seq_min), Some(seq_max)) = (decoded.seqs.first(), decoded.seqs.last()) else { return Ok(None) };
    if !sound || decoded.job != job.to_string() || !shard::holds(&decoded) {
        return Ok(None);
    }
    let rows = decoded.batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let sha256 = hex::encode(sha2::Sha256::digest(&bytes));
    let line =
        ShardLine::new(stem.to_owned(), rows, (seq_min, seq_max), sha256, &decoded.seqs, &decoded.replaces);
    Ok(Some((line, decoded.seqs)))
}
