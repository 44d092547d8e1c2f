//! The tables of one job, written: groups wait in memory until they are sealed into one shard of
//! every table.
//!
//! Sealing a table: write `<shard>.arrows.tmp` with its end mark, sync it, rename it to
//! `<shard>.arrows`, sync the directory, append its manifest line, sync that. `trajectories` is
//! sealed last, so whoever sees a trajectory finds its steps and artifacts. A crash between any
//! two of these steps is repaired when the tables are opened again; see [`Recovery`]. An error at
//! any of them leaves the groups pending, and sealing again goes on where it stopped.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::mem;
use std::path::{Path, PathBuf};

use arrow::array::Array as _;
use arrow::record_batch::RecordBatch;
use rollout::plan::ShardPlan;
use rollout::{GroupId, JobId};

use crate::disk::{Disk, LocalDisk};
use crate::manifest::{self, ShardLine};
use crate::record::GroupRecord;
use crate::recorder::{self, Fetch};
use crate::recovery::{Recovered, recover};
use crate::schema::Table;
use crate::seqs::SeqSet;
use crate::{Error, shard};

pub use crate::recovery::Recovery;

#[cfg(test)]
mod crash_tests;

/// The most groups that wait to be sealed.
pub const PENDING_GROUPS_MAX: usize = 1 << 16;
/// Bytes waiting to be sealed after which the next group is refused: a quarter of the largest
/// shard that is read back.
pub const PENDING_BYTES_MAX: u64 = 512 << 20;

const LOCK_FILE: &str = ".lock";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMeta {
    pub job: JobId,
    pub spec_hash: String,
    /// Program and version, such as `rollyard/0.1.0`.
    pub writer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SealedShard {
    pub table: Table,
    /// File name without `.arrows`; unique in its table.
    pub shard: String,
    pub rows: u64,
    pub seq_min: i64,
    pub seq_max: i64,
    /// Of the file, hex.
    pub sha256: String,
}

impl SealedShard {
    pub(crate) fn new(table: Table, line: &ShardLine) -> Self {
        let ShardLine { shard, rows, seq_min, seq_max, sha256, .. } = line.clone();
        Self { table, shard, rows, seq_min, seq_max, sha256 }
    }

    /// Relative to the table root.
    pub fn path(&self, job: JobId) -> PathBuf {
        table_dir(&job_dir(Path::new(""), job), self.table).join(format!("{}{}", self.shard, shard::SUFFIX))
    }
}

/// What waits to be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pending {
    pub groups: usize,
    /// Of table `trajectories`.
    pub rows: u64,
    /// In memory, of all tables.
    pub bytes: u64,
}

/// `<root>/<job>`
pub fn job_dir(root: &Path, job: JobId) -> PathBuf {
    root.join(job.to_string())
}

/// `<root>/<job>/<table>`
pub fn table_dir(job_dir: &Path, table: Table) -> PathBuf {
    job_dir.join(table.as_str())
}

/// `<job dir>/superseded`, with tables of its own: rows of rollouts that a refill replaced.
pub fn superseded_dir(job_dir: &Path) -> PathBuf {
    job_dir.join("superseded")
}

/// Writes the tables of one job. There is one at a time: the directory is locked while it lives.
#[derive(Debug)]
pub struct TableWriter {
    meta: TableMeta,
    plan: ShardPlan,
    disk: Box<dyn Disk>,
    artifacts: bool,
    sealers: Vec<Sealer>,
    /// Of the rows that nobody is to train on; none until there are some.
    superseded: Vec<Sealer>,
    job_dir: PathBuf,
    /// Not sealed in every table yet.
    pending: BTreeMap<i64, GroupId>,
    /// Sealed, but not yet told: a later table failed.
    untold: Vec<SealedShard>,
    /// Holds the lock.
    _lock: File,
}

impl TableWriter {
    /// Opens the tables of `meta.job` under `root`, creating what is missing and repairing what a
    /// crash left. Blocks on the disk.
    pub fn open(root: &Path, meta: TableMeta, plan: ShardPlan) -> Result<(Self, Recovery), Error> {
        Self::open_on(Box::new(LocalDisk), root, meta, plan)
    }

    pub(crate) fn open_on(
        disk: Box<dyn Disk>,
        root: &Path,
        meta: TableMeta,
        plan: ShardPlan,
    ) -> Result<(Self, Recovery), Error> {
        let job_dir = job_dir(root, meta.job);
        make_dir(&*disk, &job_dir)?;
        for table in Table::WRITTEN {
            let dir = table_dir(&job_dir, table);
            fs::create_dir_all(&dir).map_err(Error::io("create the directory", &dir))?;
        }
        let lock = lock(&job_dir.join(LOCK_FILE))?;
        for dir in [&*job_dir, root] {
            disk.sync_dir(dir).map_err(Error::io("sync the directory", dir))?;
        }
        let mut report = Recovery::default();
        let mut sealers = Vec::with_capacity(Table::WRITTEN.len());
        for table in Table::WRITTEN {
            let dir = table_dir(&job_dir, table);
            let on_disk = recover(&dir, table, meta.job, &*disk, &mut report)?;
            sealers.push(Sealer::new(table, dir, on_disk));
        }
        let mut everywhere = sealers.iter().map(|sealer| &sealer.on_disk.seqs);
        let first = everywhere.next().cloned().unwrap_or_default();
        report.seqs = everywhere.fold(first, |both, seqs| both.intersection(seqs));
        let mut writer = Self {
            meta,
            plan,
            disk,
            artifacts: true,
            sealers,
            superseded: Vec::new(),
            job_dir: job_dir.clone(),
            pending: BTreeMap::new(),
            untold: Vec::new(),
            _lock: lock,
        };
        if superseded_dir(&job_dir).is_dir() {
            writer.open_superseded()?;
        }
        Ok((writer, report))
    }

    /// The tables of replaced rollouts are beside the others: whoever reads those never meets them.
    fn open_superseded(&mut self) -> Result<(), Error> {
        let dir = superseded_dir(&self.job_dir);
        make_dir(&*self.disk, &dir)?;
        let mut sealers = Vec::with_capacity(Table::WRITTEN.len());
        for table in Table::WRITTEN {
            let dir = table_dir(&dir, table);
            make_dir(&*self.disk, &dir)?;
            // Whatever a crash left is known by its group, which is not sealed then.
            let on_disk = recover(&dir, table, self.meta.job, &*self.disk, &mut Recovery::default())?;
            sealers.push(Sealer::new(table, dir, on_disk));
        }
        self.superseded = sealers;
        Ok(())
    }

    /// Whether groups appended from now on have rows in table `artifacts`; they do unless this is
    /// called.
    pub fn set_artifacts(&mut self, written: bool) {
        self.artifacts = written;
    }

    /// Adds a closed group to what waits, in the tables that lack its seq. A group that all of
    /// them have is skipped: appending again after a crash is harmless. After an error nothing of
    /// the group waits.
    pub fn append(&mut self, group: &GroupRecord, fetch: &Fetch<'_>) -> Result<(), Error> {
        let (seq, id) = (group.seq, group.group);
        if id.job != self.meta.job {
            return Err(Error::OtherJob { group: id.to_string(), job: self.meta.job });
        }
        if let Some(first) = self.pending.get(&seq).filter(|first| **first != id) {
            return Err(Error::SeqReused { seq, first: first.to_string(), second: id.to_string() });
        }
        if self.sealers.iter().all(|sealer| sealer.has(seq)) {
            return Ok(());
        }
        let waiting = self.pending();
        if waiting.groups >= PENDING_GROUPS_MAX || waiting.bytes >= PENDING_BYTES_MAX {
            return Err(Error::PendingFull { groups: waiting.groups, bytes: waiting.bytes });
        }
        let fetch = if self.artifacts { fetch } else { &recorder::no_inline };
        let mut made = recorder::batches(group, fetch)?;
        let mut replaced = recorder::superseded_batches(group, fetch)?;
        if !self.artifacts {
            for made in [Some(&mut made), replaced.as_mut()].into_iter().flatten() {
                made.artifacts = RecordBatch::new_empty(Table::Artifacts.schema());
            }
        }
        if let Some(replaced) = replaced {
            if self.superseded.is_empty() {
                self.open_superseded()?;
            }
            for sealer in self.superseded.iter_mut().filter(|sealer| !sealer.has(seq)) {
                if let Some(batch) = replaced.of(sealer.table).filter(|batch| batch.num_rows() > 0) {
                    sealer.add(seq, group.replaces, batch);
                }
            }
        }
        for sealer in self.sealers.iter_mut().filter(|sealer| !sealer.has(seq)) {
            if let Some(batch) = made.of(sealer.table) {
                sealer.add(seq, group.replaces, batch);
            }
        }
        self.pending.insert(seq, id);
        Ok(())
    }

    pub fn pending(&self) -> Pending {
        let trajectories = self.sealers.iter().find(|sealer| sealer.table == Table::Trajectories);
        Pending {
            groups: self.pending.len(),
            rows: trajectories.map_or(0, |sealer| sealer.rows),
            bytes: self.sealers.iter().chain(&self.superseded).map(|sealer| sealer.bytes).sum(),
        }
    }

    /// Whether the plan's rows or bytes are reached. The time is for the caller to watch.
    pub fn should_seal(&self) -> bool {
        let waiting = self.pending();
        waiting.groups > 0
            && (waiting.rows >= u64::from(self.plan.rows) || waiting.bytes >= self.plan.bytes.0)
    }

    /// Seals what waits: durable when it returns. After an error everything not sealed still
    /// waits; calling again goes on, and then tells of every shard sealed since the last success.
    pub fn seal(&mut self) -> Result<Vec<SealedShard>, Error> {
        // First what no catalogue names: once a group's other rows are sealed it is not looked at again.
        for sealer in &mut self.superseded {
            sealer.seal(&self.meta, &*self.disk, &mut Vec::new())?;
        }
        let mut sealers = self.sealers.iter_mut();
        let done = sealers.try_for_each(|sealer| sealer.seal(&self.meta, &*self.disk, &mut self.untold));
        let sealers = &self.sealers;
        self.pending.retain(|&seq, _| sealers.iter().any(|sealer| !sealer.on_disk.seqs.contains(seq)));
        done.map(|()| mem::take(&mut self.untold))
    }
}

/// One table of the writer.
#[derive(Debug)]
struct Sealer {
    table: Table,
    dir: PathBuf,
    on_disk: Recovered,
    pending: BTreeMap<i64, RecordBatch>,
    /// The seqs that those of `pending` closed under before.
    replaces: SeqSet,
    /// Of `pending`.
    rows: u64,
    /// Of `pending`, in memory.
    bytes: u64,
    /// In place under its final name, but not in the manifest yet.
    renamed: Option<(ShardLine, SeqSet)>,
}

impl Sealer {
    fn new(table: Table, dir: PathBuf, on_disk: Recovered) -> Self {
        Self {
            table,
            dir,
            on_disk,
            pending: BTreeMap::new(),
            replaces: SeqSet::new(),
            rows: 0,
            bytes: 0,
            renamed: None,
        }
    }

    fn add(&mut self, seq: i64, replaces: Option<i64>, batch: &RecordBatch) {
        replaces.into_iter().for_each(|old| self.replaces.insert(old));
        self.rows += batch.num_rows() as u64;
        self.bytes += memory(batch);
        self.pending.insert(seq, batch.clone());
    }

    fn has(&self, seq: i64) -> bool {
        self.on_disk.seqs.contains(seq)
            || self.pending.contains_key(&seq)
            || self.renamed.as_ref().is_some_and(|(_, seqs)| seqs.contains(seq))
    }

    fn seal(&mut self, meta: &TableMeta, disk: &dyn Disk, done: &mut Vec<SealedShard>) -> Result<(), Error> {
        self.enter(disk, done)?;
        let counter = self.on_disk.next_counter;
        let Some(encoded) = shard::encode(self.table, meta, counter, &self.pending, &self.replaces)? else {
            return Ok(());
        };
        // Counted up even if this fails: a name is given once.
        self.on_disk.next_counter = counter.saturating_add(1);
        let unfinished = self.dir.join(format!("{}{}", encoded.line.shard, shard::SUFFIX_UNFINISHED));
        let path = self.dir.join(format!("{}{}", encoded.line.shard, shard::SUFFIX));
        let placed = disk
            .write_synced(&unfinished, &encoded.bytes)
            .map_err(Error::io("write", &unfinished))
            .and_then(|()| disk.rename(&unfinished, &path).map_err(Error::io("rename", &unfinished)));
        if let Err(error) = placed {
            // Frees the space at once where it can. What stays is removed or set aside when the
            // tables are opened again; it is in no manifest, so no reader sees it.
            for leftover in [&unfinished, &path] {
                let _ = disk.remove(leftover);
            }
            return Err(error);
        }
        self.pending.clear();
        self.replaces = SeqSet::new();
        (self.rows, self.bytes) = (0, 0);
        self.renamed = Some((encoded.line, encoded.seqs));
        self.enter(disk, done)
    }

    /// Puts a shard that is in place into the manifest.
    fn enter(&mut self, disk: &dyn Disk, done: &mut Vec<SealedShard>) -> Result<(), Error> {
        let Some((line, seqs)) = &self.renamed else { return Ok(()) };
        disk.sync_dir(&self.dir).map_err(Error::io("sync the directory", &self.dir))?;
        let (manifest, json) = (self.dir.join(manifest::FILE), line.to_json());
        // At the known end: half a line that a failed try left is overwritten.
        disk.append_synced(&manifest, self.on_disk.manifest_bytes, json.as_bytes())
            .map_err(Error::io("append to", &manifest))?;
        self.on_disk.manifest_bytes += json.len() as u64;
        self.on_disk.seqs.extend(seqs);
        done.push(SealedShard::new(self.table, line));
        self.renamed = None;
        Ok(())
    }
}

/// Creates a directory and its missing parents, and makes the name of each durable before the next
/// one is made: a crash leaves at most one that is not.
fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
    let mut missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
    while let Some(dir) = missing.pop() {
        match fs::create_dir(dir) {
            Ok(()) => {}
            // Another process was faster; its name is synced here all the same.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            Err(error) => return Err(Error::io("create the directory", dir)(error)),
        }
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent).map_err(Error::io("sync the directory", parent))?;
        }
    }
    Ok(())
}

/// What the values take, without the spare room of their buffers.
fn memory(batch: &RecordBatch) -> u64 {
    let size = |column: &arrow::array::ArrayRef| {
        let data = column.to_data();
        data.get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()) as u64
    };
    batch.columns().iter().map(size).sum()
}

fn lock(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(Error::io("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Locked { path: path.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    }
}
