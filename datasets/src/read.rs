//! Reading tables back: sealed shards only, each checked against its digest, every row against the
//! rules of its table.
//!
//! A reader ignores columns it does not know, takes nullable columns that a shard lacks as null,
//! and turns dictionary values it does not know into null with a warning; so it reads tables of
//! later minor versions. It needs no lock and may run while the table is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, DictionaryArray, PrimitiveArray, RecordBatchOptions, new_null_array,
};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType as _, Float32Type, Int8Type, Int16Type, Schema,
};
use arrow::record_batch::RecordBatch;
use sha2::Digest as _;

use crate::manifest::{self, ShardLine};
use crate::schema::{Column, Kind, Table};
use crate::seqs::SeqSet;
use crate::{Error, rules, shard};

pub use crate::manifest::ShardLine as Shard;

/// The sealed shards of one table at one moment.
#[derive(Debug, Clone)]
pub struct TableReader {
    table: Table,
    dir: PathBuf,
    shards: Vec<ShardLine>,
    /// Groups that closed anew: their rows under these seqs are no rows any more.
    replaced: SeqSet,
}

impl TableReader {
    /// Opens `<root>/<job>/<table>`; the folder's name says which table it is.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let not_a_table = || Error::NotATable { path: dir.to_owned() };
        let table = dir.file_name().and_then(|name| name.to_str()).and_then(Table::named);
        let table = table.ok_or_else(not_a_table)?;
        let manifest = manifest::read(&dir.join(manifest::FILE))?.ok_or_else(not_a_table)?;
        let mut replaced = SeqSet::new();
        manifest.lines.iter().filter_map(|(line, _)| line.replaced()).for_each(|old| replaced.extend(&old));
        let shards = manifest.lines.into_iter().map(|(line, _)| line).collect();
        Ok(Self { table, dir: dir.to_owned(), shards, replaced })
    }

    pub fn table(&self) -> Table {
        self.table
    }

    /// In order of sealing.
    pub fn shards(&self) -> &[ShardLine] {
        &self.shards
    }

    /// Of all sealed shards, those of replaced seqs too.
    pub fn rows(&self) -> u64 {
        self.shards.iter().map(|line| line.rows).sum()
    }

    /// The batches of one shard: one group each, of this version's columns. That of a group that closed
    /// anew since is empty.
    pub fn read(&self, line: &ShardLine) -> Result<Vec<RecordBatch>, Error> {
        let path = self.dir.join(format!("{}{}", line.shard, shard::SUFFIX));
        let bytes = shard::read(&path)?;
        let corrupt = |what: String| Error::ShardCorrupt { path: path.clone(), what };
        let found = hex::encode(sha2::Sha256::digest(&bytes));
        if found != line.sha256 {
            return Err(corrupt(format!("its sha256 is {found}, not {}", line.sha256)));
        }
        let decoded = shard::decode(&path, self.table, &bytes)?;
        let rows: u64 = decoded.batches.iter().map(|batch| batch.num_rows() as u64).sum();
        if rows != line.rows || !shard::holds(&decoded) {
            return Err(corrupt("it does not hold the rows its manifest line names".to_owned()));
        }
        let kept = decoded.batches.iter().zip(decoded.seqs.iter()).map(|(batch, seq)| {
            let rows = if self.replaced.contains(seq) { 0 } else { batch.num_rows() };
            conform(self.table, &path, &batch.slice(0, rows))
        });
        kept.collect()
    }

    /// All batches, shard by shard.
    pub fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        self.shards.iter().flat_map(|line| match self.read(line) {
            Ok(batches) => batches.into_iter().map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }
}

/// The columns of this version, checked.
fn conform(table: Table, path: &Path, batch: &RecordBatch) -> Result<RecordBatch, Error> {
    let build = |source| Error::Decode { path: path.to_owned(), source };
    let with = |arrays: Vec<ArrayRef>, loose: bool| {
        let field = |column: &Column| column.field().with_nullable(column.nullable || loose);
        let fields: Vec<_> = table.columns().iter().map(field).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options).map_err(build)
    };
    let mut arrays = Vec::with_capacity(table.columns().len());
    for column in table.columns() {
        arrays.push(match batch.column_by_name(column.name) {
            Some(array) if *array.data_type() == column.kind.data_type() => array.clone(),
            Some(array) => {
                let what = format!("column {} is {}", column.name, array.data_type());
                return Err(Error::ShardCorrupt { path: path.to_owned(), what });
            }
            None if column.nullable => new_null_array(&column.kind.data_type(), batch.num_rows()),
            None => {
                let what = format!("column {} is missing", column.name);
                return Err(Error::ShardCorrupt { path: path.to_owned(), what });
            }
        });
    }
    rules::check(table, &with(arrays.clone(), false)?)?;
    let (mut known, mut unknown) = (Vec::with_capacity(arrays.len()), BTreeSet::new());
    for (column, array) in table.columns().iter().zip(arrays) {
        known.push(match column.kind {
            Kind::Dict8 if !column.values.is_empty() => known_values::<Int8Type>(column, array, &mut unknown),
            Kind::Dict16 if !column.values.is_empty() => {
                known_values::<Int16Type>(column, array, &mut unknown)
            }
            _ => array,
        });
    }
    for (column, value) in &unknown {
        tracing::warn!(%table, column, value, shard = %path.display(), "unknown value read as null");
    }
    with(known, !unknown.is_empty())
}

fn known_values<K: ArrowDictionaryKeyType>(
    column: &Column,
    array: ArrayRef,
    unknown: &mut BTreeSet<(&'static str, String)>,
) -> ArrayRef {
    let Some(dictionary) = array.as_dictionary_opt::<K>() else { return array };
    let Some(texts) = dictionary.values().as_string_opt::<i32>() else { return array };
    let is_known: Vec<bool> =
        texts.iter().map(|text| text.is_none_or(|t| column.values.contains(&t))).collect();
    let keep = |key: K::Native| is_known.get(key.as_usize()).copied().unwrap_or(false);
    let keys: PrimitiveArray<K> = dictionary.keys().iter().map(|key| key.filter(|&key| keep(key))).collect();
    if keys.null_count() == dictionary.keys().null_count() {
        return array;
    }
    let lost = dictionary.keys().iter().flatten().filter(|&key| !keep(key));
    unknown.extend(lost.map(|key| (column.name, rollout::text::shown(texts.value(key.as_usize()), 80))));
    match DictionaryArray::try_new(keys, dictionary.values().clone()) {
        Ok(dictionary) => Arc::new(dictionary),
        Err(_) => array,
    }
}

/// A text or dictionary column as texts; none where null, or where there is no such column.
pub fn texts<'b>(batch: &'b RecordBatch, column: &str) -> Vec<Option<&'b str>> {
    fn entries<K: ArrowDictionaryKeyType>(array: &ArrayRef) -> Option<Vec<Option<&str>>> {
        let dictionary = array.as_dictionary_opt::<K>()?;
        let values = dictionary.values().as_string_opt::<i32>()?;
        let text = |key: Option<K::Native>| key.map(|key| values.value(key.as_usize()));
        Some(dictionary.keys().iter().map(text).collect())
    }
    let found = batch.column_by_name(column).and_then(|array| {
        let plain = array.as_string_opt::<i32>().map(|texts| texts.iter().collect());
        plain.or_else(|| entries::<Int8Type>(array)).or_else(|| entries::<Int16Type>(array))
    });
    found.unwrap_or_else(|| vec![None; batch.num_rows()])
}

/// A job's trajectories in figures. A value this version does not know counts as `unknown`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    pub groups: u64,
    /// `group_closed_as` of each group.
    pub closed_as: BTreeMap<String, u64>,
    pub trajectories: u64,
    pub statuses: BTreeMap<String, u64>,
    /// Domain and code of each failure.
    pub failures: BTreeMap<(String, String), u64>,
    pub rewards: Rewards,
}

/// Over valid rewards only: an invalid one is no zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rewards {
    pub valid: u64,
    pub invalid: u64,
    pub sum: f64,
    pub min: Option<f32>,
    pub max: Option<f32>,
}

impl Rewards {
    /// None without a valid reward.
    pub fn mean(&self) -> Option<f64> {
        (self.valid > 0).then(|| self.sum / self.valid as f64)
    }
}

/// Reads all of table `trajectories` under `<root>/<job>`.
pub fn summary(job_dir: &Path) -> Result<Summary, Error> {
    let reader = TableReader::open(&job_dir.join(Table::Trajectories.as_str()))?;
    let mut summary = Summary::default();
    let known = |text: Option<&str>| text.unwrap_or("unknown").to_owned();
    for batch in reader.batches() {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        summary.groups += 1;
        if let Some(closed_as) = texts(&batch, "group_closed_as").first() {
            *summary.closed_as.entry(known(*closed_as)).or_default() += 1;
        }
        summary.trajectories += batch.num_rows() as u64;
        for status in texts(&batch, "status") {
            *summary.statuses.entry(known(status)).or_default() += 1;
        }
        for (code, domain) in texts(&batch, "failure_code").into_iter().zip(texts(&batch, "failure_domain")) {
            if let Some(code) = code {
                *summary.failures.entry((known(domain), code.to_owned())).or_default() += 1;
            }
        }
        let column = batch.column_by_name("reward").and_then(|array| array.as_primitive_opt::<Float32Type>());
        for reward in column.into_iter().flatten() {
            summary.rewards.take(reward);
        }
    }
    Ok(summary)
}

impl Rewards {
    fn take(&mut self, reward: Option<f32>) {
        let Some(value) = reward else {
            self.invalid += 1;
            return;
        };
        self.valid += 1;
        self.sum += f64::from(value);
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = Some(self.max.map_or(value, |max| max.max(value)));
    }
}
