//! Task rows from a file: JSONL, which is UTF-8 with one JSON object a line, or Parquet.

mod cell;
mod parquet;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

pub use self::cell::DEPTH_MAX;
pub use self::parquet::ParquetFile;

/// The longest row, in bytes, without its newline.
pub const ROW_BYTES_MAX: usize = 1 << 20;
/// The most rows of a task set.
pub const ROWS_MAX: usize = 10_000_000;

/// Lines count from 1, row indexes from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    #[error("cannot {action} task file {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("line {line} is longer than {bytes_max} bytes")]
    TooLong { line: u64, bytes_max: usize },
    #[error("there are more than {rows_max} rows")]
    TooMany { rows_max: usize },
    #[error("line {line} is blank; only the last line may be")]
    Blank { line: u64 },
    #[error("line {line} is not UTF-8")]
    NotUtf8 { line: u64 },
    #[error("line {line} is {found}, not a JSON object")]
    NotAnObject { line: u64, found: &'static str },
    /// Also a key that an object has twice.
    #[error("line {line} is not a row")]
    Json {
        line: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error("there is no row {index}: the task file has {rows}")]
    NoSuchRow { index: usize, rows: usize },
    #[error("task file {} changed after it was checked", path.display())]
    Changed { path: PathBuf },
    #[error("cannot read {} as Parquet", path.display())]
    Parquet {
        path: PathBuf,
        #[source]
        source: ::parquet::errors::ParquetError,
    },
    #[error("{} has no column `{}`; its columns: {}", path.display(), shown(column), columns.join(", "))]
    NoColumn { path: PathBuf, column: String, columns: Vec<String> },
    #[error("column `{}` of {} is {kind}, which has no place in a task row", shown(column), path.display())]
    ColumnKind { path: PathBuf, column: String, kind: String },
    #[error("row {index}: column `{}` holds {problem}", shown(column))]
    Cell { index: usize, column: String, problem: String },
    #[error("row {index} has {bytes} bytes as JSON; the limit is {bytes_max} bytes (ROW_BYTES_MAX)")]
    RowTooLong { index: usize, bytes: usize, bytes_max: usize },
}

fn shown(text: &str) -> String {
    rollout::text::shown(text, 80)
}

/// How rows are written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format<'a> {
    Jsonl,
    /// With the columns to read; none: all of them.
    Parquet {
        columns: Option<&'a [String]>,
    },
}

/// A checked file of task rows.
#[derive(Debug)]
pub enum TaskFile {
    Jsonl(JsonlFile),
    Parquet(ParquetFile),
}

impl TaskFile {
    /// Blocks on the disk.
    pub fn open(path: &Path, format: Format<'_>) -> Result<Self, RowError> {
        match format {
            Format::Jsonl => JsonlFile::open(path).map(Self::Jsonl),
            Format::Parquet { columns } => ParquetFile::open(path, columns).map(Self::Parquet),
        }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Jsonl(file) => file.len(),
            Self::Parquet(file) => file.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at `index`, from 0.
    pub fn row(&self, index: usize) -> Result<Map<String, Value>, RowError> {
        match self {
            Self::Jsonl(file) => file.row(index),
            Self::Parquet(file) => file.row(index),
        }
    }
}

/// A checked file. Rows stay on disk; their offsets are in memory, 8 bytes a row.
#[derive(Debug)]
pub struct JsonlFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    /// Where each line starts, and where the last one ends.
    offsets: Vec<u64>,
}

/// What changes when a file is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { len: found.len(), modified: (found.mtime(), found.mtime_nsec()) })
    }
}

impl JsonlFile {
    /// Reads and checks every row. Blocks on the disk.
    pub fn open(path: &Path) -> Result<Self, RowError> {
        let io = |action| move |source| RowError::Io { action, path: path.to_owned(), source };
        let file = File::open(path).map_err(io("open"))?;
        let stamp = Stamp::of(&file).map_err(io("read"))?;
        let mut offsets = vec![0];
        read_lines(path, &file, |_, end, row| {
            row?;
            offsets.push(end);
            Ok(())
        })?;
        let opened = Self { path: path.to_owned(), file, stamp, offsets };
        opened.check_unchanged()?;
        Ok(opened)
    }
    /// How many rows.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at `index`, from 0.
    pub fn row(&self, index: usize) -> Result<Map<String, Value>, RowError> {
        let no_such = || RowError::NoSuchRow { index, rows: self.len() };
        let &[start, end] = self.offsets.get(index..index.saturating_add(2)).ok_or_else(no_such)? else {
            return Err(no_such());
        };
        self.check_unchanged()?;
        let mut line = vec![0; usize::try_from(end - start).map_err(|_| no_such())?];
        let io = |source| RowError::Io { action: "read", path: self.path.clone(), source };
        self.file.read_exact_at(&mut line, start).map_err(io)?;
        parse(&line, index as u64 + 1)
    }

    fn check_unchanged(&self) -> Result<(), RowError> {
        let io = |source| RowError::Io { action: "read", path: self.path.clone(), source };
        if Stamp::of(&self.file).map_err(io)? == self.stamp {
            return Ok(());
        }
        Err(RowError::Changed { path: self.path.clone() })
    }
}

/// Reads a task file once, from start to end, and keeps nothing of it: `visit` gets the number of
/// each line, or Parquet row, from 1, with its row or what is wrong with it. Blocks on the disk.
///
/// # Errors
/// The file cannot be read, or has more than [`ROWS_MAX`] rows.
pub fn scan(
    path: &Path,
    format: Format<'_>,
    mut visit: impl FnMut(u64, Result<Map<String, Value>, RowError>),
) -> Result<(), RowError> {
    if let Format::Parquet { columns } = format {
        return ParquetFile::open(path, columns)?.each(|index, row| visit(index as u64 + 1, row));
    }
    let file =
        File::open(path).map_err(|source| RowError::Io { action: "open", path: path.to_owned(), source })?;
    read_lines(path, &file, |line, _, row| {
        visit(line, row);
        Ok(())
    })
}

/// `visit` gets number, end offset and row of each line; the first error it returns ends the reading.
fn read_lines(
    path: &Path,
    file: &File,
    mut visit: impl FnMut(u64, u64, Result<Map<String, Value>, RowError>) -> Result<(), RowError>,
) -> Result<(), RowError> {
    let io = |source| RowError::Io { action: "read", path: path.to_owned(), source };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut number, mut end, mut line, mut blank) = (0, 0, Vec::new(), None);
    loop {
        line.clear();
        // One byte more than a row and its newline: enough to know that it is too long.
        let most = ROW_BYTES_MAX as u64 + 2;
        let read = reader.by_ref().take(most).read_until(b'\n', &mut line).map_err(io)? as u64;
        if read == 0 {
            return Ok(());
        }
        if let Some((line, end)) = blank.take() {
            visit(line, end, Err(RowError::Blank { line }))?;
        }
        number += 1;
        end += read;
        if is_blank(&line) {
            blank = Some((number, end));
            continue;
        }
        if number > ROWS_MAX as u64 {
            return Err(RowError::TooMany { rows_max: ROWS_MAX });
        }
        visit(number, end, parse(&line, number))?;
        if read == most && line.last() != Some(&b'\n') {
            end += reader.skip_until(b'\n').map_err(io)? as u64;
        }
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.len() <= ROW_BYTES_MAX && line.iter().all(u8::is_ascii_whitespace)
}

fn parse(line: &[u8], number: u64) -> Result<Map<String, Value>, RowError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > ROW_BYTES_MAX {
        return Err(RowError::TooLong { line: number, bytes_max: ROW_BYTES_MAX });
    }
    let text = str::from_utf8(line).map_err(|_| RowError::NotUtf8 { line: number })?;
    let Unique(value) =
        serde_json::from_str(text).map_err(|source| RowError::Json { line: number, source })?;
    let found = match value {
        Value::Object(row) => return Ok(row),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    Err(RowError::NotAnObject { line: number, found })
}

/// JSON in which no object has a key twice: readers disagree on which one counts.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown = rollout::text::shown(&key, 80);
                return Err(A::Error::custom(format_args!("key `{shown}` is there twice")));
            }
            let Unique(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
