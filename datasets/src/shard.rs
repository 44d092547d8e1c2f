//! A shard: an Arrow IPC stream of whole groups, one record batch each, uncompressed and aligned
//! to 64 bytes so that readers map it. The stream format, not the file format: a cut stream still
//! yields the batches before the cut, and every loader takes it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Cursor, Read as _};
use std::path::Path;

use arrow::array::AsArray as _;
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use sha2::Digest as _;

use crate::Error;
use crate::manifest::ShardLine;
use crate::schema::{META_JOB, META_REPLACES, META_SCHEMA, META_SEQS, META_SPEC_HASH, META_WRITER, Table};
use crate::seqs::SeqSet;
use crate::table::TableMeta;

/// Of a sealed shard.
pub(crate) const SUFFIX: &str = ".arrows";
/// Of a shard being written; never read.
pub(crate) const SUFFIX_UNFINISHED: &str = ".arrows.tmp";
/// Of a file that looked like a shard and was none; see `recovery.rs`.
pub(crate) const SUFFIX_ASIDE: &str = ".arrows.aside";
/// The largest shard file read, in bytes.
pub(crate) const SHARD_BYTES_MAX: u64 = 2 << 30;

/// The most files in the folder of a table.
pub(crate) const FILES_MAX: usize = 1 << 22;

pub(crate) const ALIGNMENT: usize = 64;
/// Continuation marker and a length of 0.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// `<counter>-<first seq>`: in order of sealing, and never given twice.
pub(crate) fn name(counter: u32, seq_min: i64) -> String {
    format!("{counter:08}-{seq_min:012}")
}

/// The counter of a shard name; none if it is no shard name.
pub(crate) fn counter(name: &str) -> Option<u32> {
    let (counter, seq) = name.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (digits(counter) && digits(seq)).then(|| counter.parse().ok())?
}

pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) line: ShardLine,
    pub(crate) seqs: SeqSet,
}

/// The groups in order of their seq. None if there are none.
pub(crate) fn encode(
    table: Table,
    meta: &TableMeta,
    counter: u32,
    groups: &BTreeMap<i64, RecordBatch>,
    replaces: &SeqSet,
) -> Result<Option<Encoded>, Error> {
    let seqs: SeqSet = groups.keys().copied().collect();
    let (Some(seq_min), Some(seq_max)) = (seqs.first(), seqs.last()) else { return Ok(None) };
    let mut entries = vec![
        (META_JOB, meta.job.to_string()),
        (META_WRITER, meta.writer.clone()),
        (META_SPEC_HASH, meta.spec_hash.clone()),
        (META_SEQS, seqs.to_string()),
    ];
    if !replaces.is_empty() {
        entries.push((META_REPLACES, replaces.to_string()));
    }
    let schema = table.schema_with(entries);
    let write = || -> Result<Vec<u8>, ArrowError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options)?;
        for batch in groups.values() {
            writer.write(&RecordBatch::try_new(schema.clone(), batch.columns().to_vec())?)?;
        }
        writer.finish()?;
        writer.into_inner()
    };
    let bytes = write().map_err(|source| Error::Build { table, source })?;
    let rows = groups.values().map(|batch| batch.num_rows() as u64).sum();
    let sha256 = hex::encode(sha2::Sha256::digest(&bytes));
    let line = ShardLine::new(name(counter, seq_min), rows, (seq_min, seq_max), sha256, &seqs, replaces);
    Ok(Some(Encoded { bytes, line, seqs }))
}

pub(crate) struct Decoded {
    pub(crate) job: String,
    pub(crate) seqs: SeqSet,
    pub(crate) replaces: SeqSet,
    pub(crate) batches: Vec<RecordBatch>,
}

/// Reads a whole stream: every batch, the end mark, and nothing behind it.
pub(crate) fn decode(path: &Path, table: Table, bytes: &[u8]) -> Result<Decoded, Error> {
    let corrupt = |what: &str| Error::ShardCorrupt { path: path.to_owned(), what: what.to_owned() };
    let arrow = |source| Error::Decode { path: path.to_owned(), source };
    if !bytes.ends_with(&END_OF_STREAM) {
        return Err(corrupt("its end is missing"));
    }
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None).map_err(arrow)?;
    let schema = reader.schema();
    let meta = |key: &str| schema.metadata().get(key).cloned().unwrap_or_default();
    if meta(META_SCHEMA) != table.version() {
        let (found, expected) = (meta(META_SCHEMA), table.version());
        return Err(Error::SchemaVersion { path: path.to_owned(), found, expected });
    }
    let batches = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(arrow)?;
    if reader.get_ref().position() != bytes.len() as u64 {
        return Err(corrupt("it goes on after its end"));
    }
    let seqs: SeqSet =
        meta(META_SEQS).parse().map_err(|_| corrupt("it does not say which groups it holds"))?;
    if seqs.len() != batches.len() as u64 {
        return Err(corrupt("it does not hold the groups it names"));
    }
    let replaces =
        meta(META_REPLACES).parse().map_err(|_| corrupt("what it replaces is no set of groups"))?;
    Ok(Decoded { job: meta(META_JOB), seqs, replaces, batches })
}

/// The bytes of a shard file, with the size checked before anything is allocated.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let found = file.metadata().map_err(Error::io("read the metadata of", path))?.len();
    if found > SHARD_BYTES_MAX {
        return Err(Error::FileTooLarge { path: path.to_owned(), found, max: SHARD_BYTES_MAX });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found).unwrap_or(0));
    file.take(SHARD_BYTES_MAX).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    Ok(bytes)
}

/// The names in a directory; those that are not UTF-8 are none of ours.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        if names.len() == FILES_MAX {
            return Err(Error::TooManyFiles { path: dir.to_owned(), max: FILES_MAX });
        }
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Whether each batch holds rows of the group whose turn it is, or none.
pub(crate) fn holds(decoded: &Decoded) -> bool {
    decoded.batches.iter().zip(decoded.seqs.iter()).all(|(batch, seq)| {
        let seqs = batch.column_by_name("seq").and_then(|column| column.as_primitive_opt::<Int64Type>());
        seqs.is_some_and(|seqs| seqs.values().iter().all(|&found| found == seq))
    })
}
