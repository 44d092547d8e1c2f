//! The Arrow file format: what `pandas.read_feather`, `pyarrow.dataset` and `polars.scan_ipc` read.

use std::fs::File;
use std::path::PathBuf;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow::record_batch::RecordBatch;

use super::place::Target;
use super::{Error, Sink, arrow_failed};
use crate::shard;

pub(super) struct IpcFileSink {
    path: PathBuf,
    failed: Box<dyn Fn(ArrowError) -> Error>,
    writer: FileWriter<File>,
}

impl IpcFileSink {
    pub(super) fn create(target: &Target, schema: &SchemaRef) -> Result<Self, Error> {
        let failed = arrow_failed(target);
        let options = IpcWriteOptions::try_new(shard::ALIGNMENT, false, MetadataVersion::V5);
        let writer = FileWriter::try_new_with_options(target.file()?, schema, options.map_err(&failed)?);
        let writer = writer.map_err(&failed)?;
        Ok(Self { path: target.path().to_owned(), failed: Box::new(failed), writer })
    }
}

impl Sink for IpcFileSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.writer.write(batch).map_err(&self.failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Self { path, failed, mut writer } = *self;
        writer.finish().map_err(&failed)?;
        let file = writer.into_inner().map_err(&failed)?;
        file.sync_all().map_err(Error::io("sync", &path))
    }
}
