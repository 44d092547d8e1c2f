//! A folder for `datasets.load_from_disk`: Arrow streams, the features, and the state file that
//! names the streams. Read by datasets 3.6 to 5.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use arrow::array::{Array as _, ArrayData};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::place::Target;
use super::{Error, Sink, arrow_failed};
use crate::schema::Table;
use crate::shard;

/// Bytes of one stream before the next begins; a batch may pass them.
const STREAM_BYTES_MAX: u64 = 512 << 20;
/// The most streams of a folder.
const STREAMS_MAX: usize = 100_000;

pub(super) struct FolderSink {
    dir: PathBuf,
    table: Table,
    schema: SchemaRef,
    failed: Box<dyn Fn(arrow::error::ArrowError) -> Error>,
    /// Finished streams.
    streams: usize,
    writer: Option<StreamWriter<File>>,
    /// Bytes of the batches in the open stream.
    bytes: u64,
    /// Over the rows' bytes: equal copies have equal fingerprints.
    fingerprint: Sha256,
}

impl FolderSink {
    pub(super) fn create(target: &Target, table: Table, schema: &SchemaRef) -> Result<Self, Error> {
        Ok(Self {
            dir: target.path().to_owned(),
            table,
            schema: schema.clone(),
            failed: Box::new(arrow_failed(target)),
            streams: 0,
            writer: None,
            bytes: 0,
            fingerprint: Sha256::new(),
        })
    }

    fn stream(&self, at: usize) -> PathBuf {
        self.dir.join(format!("{at}.tmp"))
    }

    fn open(&mut self) -> Result<(), Error> {
        let path = self.stream(self.streams);
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let options = IpcWriteOptions::try_new(shard::ALIGNMENT, false, MetadataVersion::V5);
        let options = options.map_err(&self.failed)?;
        let writer = StreamWriter::try_new_with_options(file, &self.schema, options);
        self.writer = Some(writer.map_err(&self.failed)?);
        self.bytes = 0;
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.finish().map_err(&self.failed)?;
        let file = writer.into_inner().map_err(&self.failed)?;
        let path = self.stream(self.streams);
        file.sync_all().map_err(Error::io("sync", &path))?;
        self.streams += 1;
        Ok(())
    }
}

impl Sink for FolderSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        if self.writer.is_some() && self.bytes >= STREAM_BYTES_MAX {
            self.close()?;
            if self.streams == STREAMS_MAX {
                let full = std::io::Error::other(format!("more than {STREAMS_MAX} files (STREAMS_MAX)"));
                return Err(Error::io("write more to", &self.dir)(full));
            }
        }
        if self.writer.is_none() {
            self.open()?;
        }
        self.bytes += batch.get_array_memory_size() as u64;
        batch.columns().iter().for_each(|column| take(&mut self.fingerprint, &column.to_data()));
        match &mut self.writer {
            Some(writer) => writer.write(batch).map_err(&self.failed),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        // A table without a row still has its columns.
        if self.writer.is_none() && self.streams == 0 {
            self.open()?;
        }
        self.close()?;
        let mut names = Vec::with_capacity(self.streams);
        for at in 0..self.streams {
            let name = format!("data-{at:05}-of-{:05}.arrow", self.streams);
            let from = self.stream(at);
            fs::rename(&from, self.dir.join(&name)).map_err(Error::io("rename", &from))?;
            names.push(json!({ "filename": name }));
        }
        let fingerprint = hex::encode(self.fingerprint.clone().finalize())[..16].to_owned();
        let state = json!({
            "_data_files": names,
            "_fingerprint": fingerprint,
            "_format_columns": null,
            "_format_kwargs": {},
            "_format_type": null,
            "_output_all_columns": false,
            "_split": null,
        });
        let info = json!({
            "citation": "",
            "description": format!("Rollyard table {}", self.table.version()),
            "features": features(&self.schema),
            "homepage": "",
            "license": "",
        });
        write_json(&self.dir.join("state.json"), &state)?;
        write_json(&self.dir.join("dataset_info.json"), &info)?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", &self.dir))
    }
}

/// The values of a column, those inside lists and structs too.
fn take(fingerprint: &mut Sha256, data: &ArrayData) {
    fingerprint.update((data.len() as u64).to_le_bytes());
    if let Some(nulls) = data.nulls() {
        fingerprint.update(nulls.validity());
    }
    data.buffers().iter().for_each(|buffer| fingerprint.update(buffer.as_slice()));
    data.child_data().iter().for_each(|child| take(fingerprint, child));
}

fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(format!("{value:#}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(Error::io("write", path))
}

/// The columns in the words of `datasets`, and only such as both 3.6 and 5 know: lists of plain
/// values are `Sequence`, lists of structs a JSON list of one.
fn features(schema: &SchemaRef) -> Value {
    let named = |field: &std::sync::Arc<Field>| (field.name().clone(), feature(field.data_type()));
    Value::Object(schema.fields().iter().map(named).collect::<Map<_, _>>())
}

fn feature(kind: &DataType) -> Value {
    let value = |dtype: &str| json!({ "dtype": dtype, "_type": "Value" });
    match kind {
        DataType::Boolean => value("bool"),
        DataType::UInt8 => value("uint8"),
        DataType::Int16 => value("int16"),
        DataType::Int32 => value("int32"),
        DataType::Int64 => value("int64"),
        DataType::Float32 => value("float32"),
        DataType::Float64 => value("float64"),
        DataType::Binary => value("binary"),
        DataType::Timestamp(_, _) => value("timestamp[us, tz=UTC]"),
        DataType::Struct(fields) => {
            let named = |field: &std::sync::Arc<Field>| (field.name().clone(), feature(field.data_type()));
            Value::Object(fields.iter().map(named).collect::<Map<_, _>>())
        }
        DataType::List(item) => match item.data_type() {
            DataType::Struct(_) => json!([feature(item.data_type())]),
            _ => json!({ "feature": feature(item.data_type()), "_type": "Sequence" }),
        },
        // Every other kind of `schema::Kind` is text once dictionaries are decoded.
        _ => value("string"),
    }
}
