//! Task rows from a Parquet file.
//!
//! Opening reads the footer only. A row is decoded when it is asked for, with its neighbours: a
//! chunk of a row group of about [`CHUNK_BYTES`], and a few of those are kept. Going through the
//! rows in order so decodes each once; rows in a shuffled order cost a chunk each, and finding it
//! is quicker the smaller the row groups are.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::StructArray;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    RowSelection, RowSelector,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::reader::{ChunkReader, Length};
use serde_json::{Map, Value};

use super::{ROW_BYTES_MAX, ROWS_MAX, RowError, Stamp, cell};

/// About how many bytes of columns are decoded at once.
const CHUNK_BYTES: u64 = 4 << 20;
const CHUNK_ROWS: Range<u64> = 16..4_097;
/// Decoded chunks that are kept, in number and in bytes.
const CHUNKS_MAX: usize = 8;
const CHUNKS_BYTES_MAX: usize = 64 << 20;
/// The most bytes a page of a row group may claim to hold once decompressed: more than any row
/// group has whose rows are within their bound.
const ROW_GROUP_BYTES_MAX: u64 = 4 << 30;

/// An open file. Nothing of its rows is in memory but the chunks decoded last.
#[derive(Debug)]
pub struct ParquetFile {
    path: PathBuf,
    file: Positional,
    stamp: Stamp,
    metadata: ArrowReaderMetadata,
    columns: ProjectionMask,
    groups: Vec<RowGroup>,
    rows: usize,
    chunks: Mutex<VecDeque<Chunk>>,
}

#[derive(Debug, Clone, Copy)]
struct RowGroup {
    /// Of its first row in the file.
    start: usize,
    rows: usize,
    /// Rows decoded at once.
    chunk: usize,
}

#[derive(Debug)]
struct Chunk {
    /// Row of the file that it starts with.
    start: usize,
    rows: StructArray,
}

impl ParquetFile {
    /// Reads and checks the footer: the columns asked for are there and have a JSON form. All
    /// columns are read if none are named. Blocks on the disk.
    pub fn open(path: &Path, columns: Option<&[String]>) -> Result<Self, RowError> {
        let io = |action| move |source| RowError::Io { action, path: path.to_owned(), source };
        let file = File::open(path).map_err(io("open"))?;
        let stamp = Stamp::of(&file).map_err(io("read"))?;
        let file = Positional { file: Arc::new(file), len: stamp.len };
        // Parquet's own types say all that a row needs; the schema that Arrow writers add does not count.
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            .with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = contained(path, || {
            let read = ArrowReaderMetadata::load(&file, options.clone())?;
            let schema = Arc::new(in_views(read.schema()));
            ArrowReaderMetadata::try_new(read.metadata().clone(), options.with_schema(schema))
        })?;
        let columns = projection(path, &metadata, columns)?;
        let (groups, rows) = groups(path, &metadata)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            stamp,
            metadata,
            columns,
            groups,
            rows,
            chunks: Mutex::default(),
        })
    }

    /// How many rows.
    pub const fn len(&self) -> usize {
        self.rows
    }

    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The row at `index`, from 0.
    pub fn row(&self, index: usize) -> Result<Map<String, Value>, RowError> {
        if index >= self.rows {
            return Err(RowError::NoSuchRow { index, rows: self.rows });
        }
        self.check_unchanged()?;
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let known = chunks.iter().position(|chunk| (chunk.start..chunk.end()).contains(&index));
        let chunk = match known.and_then(|at| chunks.remove(at)) {
            Some(chunk) => chunk,
            None => self.decode(index)?,
        };
        let row = row(&chunk.rows, index - chunk.start, index);
        chunks.push_front(chunk);
        let mut bytes = 0;
        let kept = chunks.iter().take(CHUNKS_MAX).take_while(|chunk| {
            bytes += arrow::array::Array::get_array_memory_size(&chunk.rows);
            bytes <= CHUNKS_BYTES_MAX
        });
        let kept = kept.count().max(1);
        chunks.truncate(kept);
        row
    }

    /// Every row in order, read once, with its index: `visit` gets it or what is wrong with it.
    pub fn each(
        &self,
        mut visit: impl FnMut(usize, Result<Map<String, Value>, RowError>),
    ) -> Result<(), RowError> {
        for (number, group) in self.groups.iter().enumerate() {
            let mut next = group.start;
            let mut reader = self.reader(number, group.chunk, None)?;
            while let Some(rows) = self.next(&mut reader)? {
                for at in 0..arrow::array::Array::len(&rows) {
                    visit(next, row(&rows, at, next));
                    next += 1;
                }
            }
            self.check_count(number, group, next - group.start)?;
        }
        self.check_unchanged()
    }

    /// The chunk that holds row `index`.
    fn decode(&self, index: usize) -> Result<Chunk, RowError> {
        let number = self.groups.partition_point(|group| group.start + group.rows <= index);
        let group = &self.groups[number];
        let before = (index - group.start) / group.chunk * group.chunk;
        let rows = group.chunk.min(group.rows - before);
        let selection = RowSelection::from(vec![RowSelector::skip(before), RowSelector::select(rows)]);
        let mut reader = self.reader(number, rows, Some(selection))?;
        // A batch of this size is filled before the reader returns it.
        let found = self.next(&mut reader)?;
        let len = found.as_ref().map_or(0, arrow::array::Array::len);
        match found.filter(|_| len == rows) {
            Some(rows) => Ok(Chunk { start: group.start + before, rows }),
            None => Err(self.bad_count(number, rows, len)),
        }
    }

    fn reader(
        &self,
        group: usize,
        batch: usize,
        selection: Option<RowSelection>,
    ) -> Result<ParquetRecordBatchReader, RowError> {
        let builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.clone(), self.metadata.clone())
                .with_projection(self.columns.clone())
                .with_row_groups(vec![group])
                .with_batch_size(batch);
        let builder = match selection {
            None => builder,
            Some(selection) => builder.with_row_selection(selection),
        };
        contained(&self.path, || builder.build())
    }

    fn next(&self, reader: &mut ParquetRecordBatchReader) -> Result<Option<StructArray>, RowError> {
        let batch = contained(&self.path, || Ok(reader.next().transpose()?))?;
        Ok(batch.map(StructArray::from))
    }

    fn check_count(&self, number: usize, group: &RowGroup, found: usize) -> Result<(), RowError> {
        if found == group.rows { Ok(()) } else { Err(self.bad_count(number, group.rows, found)) }
    }

    fn bad_count(&self, group: usize, rows: usize, found: usize) -> RowError {
        let problem = format!("row group {group} holds {found} rows where its footer says {rows}");
        bad_file(&self.path, ParquetError::General(problem))
    }

    fn check_unchanged(&self) -> Result<(), RowError> {
        let io = |source| RowError::Io { action: "read", path: self.path.clone(), source };
        if Stamp::of(&self.file.file).map_err(io)? == self.stamp {
            return Ok(());
        }
        Err(RowError::Changed { path: self.path.clone() })
    }
}

impl Chunk {
    fn end(&self) -> usize {
        self.start + arrow::array::Array::len(&self.rows)
    }
}

/// The decoder panics on some damaged files: that is one more way to say that they are.
fn contained<T>(path: &Path, work: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, RowError> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(ParquetError::General(format!("the file is damaged: {text}")))
    })
    .map_err(|source| bad_file(path, source))
}

fn bad_file(path: &Path, source: ParquetError) -> RowError {
    RowError::Parquet { path: path.to_owned(), source }
}

fn row(rows: &StructArray, at: usize, index: usize) -> Result<Map<String, Value>, RowError> {
    let row = cell::row(rows, at).map_err(|(column, problem)| RowError::Cell { index, column, problem })?;
    let bytes = text_bytes(&row);
    if bytes > ROW_BYTES_MAX {
        return Err(RowError::RowTooLong { index, bytes, bytes_max: ROW_BYTES_MAX });
    }
    Ok(row)
}

/// Of the row as JSON text.
fn text_bytes(row: &Map<String, Value>) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, row) {
        Ok(()) => counter.0,
        // JSON values always have a text, and a counter takes all of it.
        Err(_) => usize::MAX,
    }
}

fn projection(
    path: &Path,
    metadata: &ArrowReaderMetadata,
    columns: Option<&[String]>,
) -> Result<ProjectionMask, RowError> {
    let fields = metadata.schema().fields();
    let names = || fields.iter().map(|field| field.name().as_str());
    let mut wanted = Vec::new();
    match columns {
        None => wanted.extend(0..fields.len()),
        Some(columns) => {
            for column in columns {
                wanted.push(names().position(|name| name == column).ok_or_else(|| RowError::NoColumn {
                    path: path.to_owned(),
                    column: column.clone(),
                    columns: names().take(COLUMNS_LISTED_MAX).map(str::to_owned).collect(),
                })?);
            }
        }
    }
    for &index in &wanted {
        let field = &fields[index];
        if let Some(kind) = cell::refusal(field.data_type()) {
            return Err(RowError::ColumnKind { path: path.to_owned(), column: field.name().clone(), kind });
        }
        if names().filter(|name| name == field.name()).count() > 1 {
            let kind = "there twice".to_owned();
            return Err(RowError::ColumnKind { path: path.to_owned(), column: field.name().clone(), kind });
        }
    }
    Ok(ProjectionMask::roots(metadata.parquet_schema(), wanted))
}

/// Text as views: rows that share a value of a dictionary share its bytes. Copied out, a page of one
/// long text would be as large as its rows are many.
fn in_views(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema.fields().iter().map(|field| in_view(field)).collect();
    Schema::new(fields)
}

fn in_view(field: &Field) -> Field {
    let kind = match field.data_type() {
        DataType::Utf8 => DataType::Utf8View,
        DataType::List(of) => DataType::List(Arc::new(in_view(of))),
        DataType::Struct(of) => DataType::Struct(of.iter().map(|field| Arc::new(in_view(field))).collect()),
        DataType::Map(of, sorted) => DataType::Map(Arc::new(in_view(of)), *sorted),
        other => other.clone(),
    };
    field.clone().with_data_type(kind)
}

/// Columns of the file that are named where one is missing.
const COLUMNS_LISTED_MAX: usize = 20;

fn groups(path: &Path, metadata: &ArrowReaderMetadata) -> Result<(Vec<RowGroup>, usize), RowError> {
    let mut groups = Vec::new();
    let mut start = 0usize;
    for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
        let bad = |what: &str| bad_file(path, ParquetError::General(format!("row group {number} {what}")));
        let rows = usize::try_from(group.num_rows()).map_err(|_| bad("has a negative number of rows"))?;
        let bytes = u64::try_from(group.total_byte_size()).map_err(|_| bad("has a negative size"))?;
        if bytes > ROW_GROUP_BYTES_MAX {
            return Err(bad(&format!("is over {ROW_GROUP_BYTES_MAX} bytes (ROW_GROUP_BYTES_MAX)")));
        }
        if rows == 0 {
            continue;
        }
        let average = (bytes / rows as u64).max(1);
        let chunk = (CHUNK_BYTES / average).clamp(CHUNK_ROWS.start, CHUNK_ROWS.end - 1);
        let chunk = usize::try_from(chunk).map_err(|_| bad("is too large"))?;
        groups.push(RowGroup { start, rows, chunk });
        start = start.saturating_add(rows);
        if start > ROWS_MAX {
            return Err(RowError::TooMany { rows_max: ROWS_MAX });
        }
    }
    Ok((groups, start))
}

/// A file read by position: readers of it do not move each other.
#[derive(Debug, Clone)]
struct Positional {
    file: Arc<File>,
    len: u64,
}

#[derive(Debug)]
struct At {
    file: Arc<File>,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for Positional {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Positional {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(At { file: self.file.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        // The footer of a file can claim any length: it is compared before it is allocated.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            let problem = format!("{length} bytes at {start} are past the end of the file");
            return Err(ParquetError::EOF(problem));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start).map_err(ParquetError::from)?;
        Ok(bytes.into())
    }
}
