//! One-shot copies of sealed tables for programs that do not read shards: Parquet, Arrow files,
//! JSON lines, and a folder for `datasets.load_from_disk`.
//!
//! A copy is made shard by shard, so that memory holds one shard and not the table, under a
//! temporary name beside its place, and appears there whole or not at all. Dictionary columns
//! become plain text: the Arrow file format takes one dictionary per column only, and no reader
//! has to know what changes from batch to batch.

mod error;
mod hugging_face;
mod ipc_file;
mod jsonl;
mod parquet;
mod place;
mod plain;
mod selection;

use std::path::{Path, PathBuf};

use ::arrow::record_batch::RecordBatch;

pub use error::Error;
pub use selection::Selection;

use crate::manifest;
use crate::read::TableReader;
use crate::schema::{META_JOB, Table};
use crate::table::superseded_dir;
use place::{Place, Target};
use plain::Plain;
use selection::Selector;

/// What a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `<table>.parquet`, compressed with zstd.
    Parquet,
    /// `<table>.arrow`: the Arrow file format, uncompressed.
    IpcFile,
    /// `<table>.jsonl`: one object a row.
    Jsonl,
    /// `<table>/`: a folder for `datasets.load_from_disk`.
    HuggingFace,
}

impl Format {
    /// The name of a table's copy in the output folder.
    pub fn name_of(self, table: Table) -> String {
        match self {
            Self::Parquet => format!("{table}.parquet"),
            Self::IpcFile => format!("{table}.arrow"),
            Self::Jsonl => format!("{table}.jsonl"),
            Self::HuggingFace => table.to_string(),
        }
    }
}

/// What to copy, and where.
#[derive(Debug, Clone)]
pub struct Request {
    /// A job's folder (`<root>/<job>`: all its tables) or one table's (`<root>/<job>/<table>`).
    pub source: PathBuf,
    /// The folder of the copies; made if missing.
    pub out: PathBuf,
    pub format: Format,
    pub selection: Selection,
    /// Replace copies that are there.
    pub overwrite: bool,
}

/// One copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub table: Table,
    pub path: PathBuf,
    /// In the copy.
    pub rows: u64,
    /// Of the file, or of all files of the folder.
    pub bytes: u64,
}

/// Takes the rows of one table, in order. Memory stays bounded whatever the number of batches.
trait Sink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error>;
    /// Ends the copy; its bytes are durable when this returns.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// Copies the tables. Those that were finished before an error stay.
///
/// # Errors
/// See [`Error::CODES`]; nothing is left half-written under a final name.
pub fn export(request: &Request) -> Result<Vec<Exported>, Error> {
    let (job_dir, tables) = find(&request.source)?;
    let place = Place::open(&request.out)?;
    // Refused before anything is written.
    for &table in &tables {
        place.check(&request.format.name_of(table), request.overwrite)?;
    }
    let mut parts =
        vec![Part { selector: Selector::open(&job_dir, request.selection)?, dir: job_dir.clone() }];
    let replaced = superseded_dir(&job_dir);
    if request.selection.superseded && is_sealed(&replaced.join(Table::Trajectories.as_str())) {
        parts.push(Part { selector: Selector::open(&replaced, request.selection)?, dir: replaced });
    }
    let job = job_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut exported = Vec::with_capacity(tables.len());
    for table in tables {
        exported.push(copy(request, &place, &parts, table, &job)?);
    }
    Ok(exported)
}

/// Tables that are copied one after the other into one.
struct Part {
    dir: PathBuf,
    selector: Selector,
}

fn is_sealed(dir: &Path) -> bool {
    dir.join(manifest::FILE).is_file()
}

/// The folder of the job, and the tables asked for.
fn find(source: &Path) -> Result<(PathBuf, Vec<Table>), Error> {
    let read = |source| Error::CannotRead { source };
    let whole = std::path::absolute(source).map_err(crate::Error::io("resolve", source)).map_err(read)?;
    let named = whole.file_name().and_then(|name| name.to_str()).and_then(Table::named);
    if let (Some(table), Some(job_dir), true) = (named, whole.parent(), is_sealed(&whole)) {
        return Ok((job_dir.to_owned(), vec![table]));
    }
    let tables: Vec<Table> =
        Table::ALL.into_iter().filter(|table| is_sealed(&whole.join(table.as_str()))).collect();
    if tables.is_empty() {
        return Err(Error::NoTables { path: source.to_owned() });
    }
    Ok((whole, tables))
}

fn copy(
    request: &Request,
    place: &Place,
    parts: &[Part],
    table: Table,
    job: &str,
) -> Result<Exported, Error> {
    let read = |source| Error::CannotRead { source };
    // `datasets` keeps no nullability: a schema that says less saves it a cast, and so a copy.
    let loose = request.format == Format::HuggingFace;
    let plain = Plain::new(table, loose, [(META_JOB, job.to_owned())]);
    let name = request.format.name_of(table);
    let target = place.target(&name, request.format == Format::HuggingFace)?;
    let mut sink: Box<dyn Sink> = match request.format {
        Format::Parquet => Box::new(parquet::ParquetSink::create(&target, plain.schema())?),
        Format::IpcFile => Box::new(ipc_file::IpcFileSink::create(&target, plain.schema())?),
        Format::Jsonl => Box::new(jsonl::JsonlSink::create(&target)?),
        Format::HuggingFace => Box::new(hugging_face::FolderSink::create(&target, table, plain.schema())?),
    };
    let mut rows = 0;
    for Part { dir, selector } in parts {
        let reader = TableReader::open(&dir.join(table.as_str())).map_err(read)?;
        for line in reader.shards() {
            for batch in reader.read(line).map_err(read)? {
                let selected = selector.select(table, &batch)?;
                if selected.num_rows() > 0 {
                    rows += selected.num_rows() as u64;
                    sink.write(&plain.of(&selected)?)?;
                }
            }
        }
    }
    sink.finish()?;
    let (path, bytes) = place.put(target, &name, request.overwrite)?;
    Ok(Exported { table, path, rows, bytes })
}

/// Where a sink fails to write.
fn arrow_failed(target: &Target) -> impl Fn(::arrow::error::ArrowError) -> Error + use<> {
    let path = target.path().to_owned();
    move |error| match error {
        ::arrow::error::ArrowError::IoError(_, source) => Error::io("write", &path)(source),
        error => Error::Encode { path: path.clone(), source: Box::new(error) },
    }
}
