//! Parquet: for Ray, Spark and everything else that reads no Arrow stream.

use std::fs::File;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::place::Target;
use super::{Error, Sink};

/// Rows of one row group at most.
const GROUP_ROWS_MAX: usize = 65_536;
/// Bytes of a row group before it is written out; a batch may pass them.
const GROUP_BYTES_MAX: usize = 64 << 20;

pub(super) struct ParquetSink {
    path: std::path::PathBuf,
    writer: ArrowWriter<File>,
}

impl ParquetSink {
    pub(super) fn create(target: &Target, schema: &SchemaRef) -> Result<Self, Error> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP_ROWS_MAX))
            .build();
        let path = target.path().to_owned();
        let writer = ArrowWriter::try_new(target.file()?, schema.clone(), Some(properties));
        Ok(Self { writer: writer.map_err(|source| encode(&path, source))?, path })
    }
}

fn encode(path: &std::path::Path, source: ParquetError) -> Error {
    Error::Encode { path: path.to_owned(), source: Box::new(source) }
}

impl Sink for ParquetSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.writer.write(batch).map_err(|source| encode(&self.path, source))?;
        if self.writer.in_progress_size() >= GROUP_BYTES_MAX {
            self.writer.flush().map_err(|source| encode(&self.path, source))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let file = self.writer.into_inner().map_err(|source| encode(&self.path, source))?;
        file.sync_all().map_err(Error::io("sync", &self.path))
    }
}
