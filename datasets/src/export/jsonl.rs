//! JSON lines: every column of every row, nulls too. Times are RFC 3339 in UTC, bytes base64,
//! columns that hold JSON stay text. A number read as a double is the number that was stored,
//! also where the column has 32 bits; what JSON has no number for is "NaN", "Infinity" or
//! "-Infinity".

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, AsArray as _, BinaryArray, PrimitiveArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, Writer};
use arrow::record_batch::RecordBatch;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::place::Target;
use super::{Error, Sink, arrow_failed};

pub(super) struct JsonlSink {
    path: PathBuf,
    failed: Box<dyn Fn(ArrowError) -> Error>,
    writer: Writer<BufWriter<File>, LineDelimited>,
}

impl JsonlSink {
    pub(super) fn create(target: &Target) -> Result<Self, Error> {
        let writer = WriterBuilder::new()
            .with_explicit_nulls(true)
            .with_encoder_factory(Arc::new(Exact))
            .build(BufWriter::new(target.file()?));
        Ok(Self { path: target.path().to_owned(), failed: Box::new(arrow_failed(target)), writer })
    }
}

impl Sink for JsonlSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.writer.write(batch).map_err(&self.failed)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Self { path, failed, mut writer } = *self;
        writer.finish().map_err(&failed)?;
        let mut buffered = writer.into_inner();
        buffered.flush().map_err(Error::io("write", &path))?;
        buffered.get_ref().sync_all().map_err(Error::io("sync", &path))
    }
}

#[derive(Debug)]
struct Exact;

impl EncoderFactory for Exact {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float32 => Box::new(Float(array.as_primitive::<Float32Type>())),
            DataType::Float64 => Box::new(Float(array.as_primitive::<Float64Type>())),
            DataType::Binary => Box::new(Base64(array.as_binary::<i32>())),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

struct Float<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>);

impl<T: ArrowPrimitiveType<Native: Into<f64>>> Encoder for Float<'_, T> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        let value: f64 = self.0.value(index).into();
        let text = match value {
            v if v.is_nan() => "\"NaN\"".to_owned(),
            f64::INFINITY => "\"Infinity\"".to_owned(),
            f64::NEG_INFINITY => "\"-Infinity\"".to_owned(),
            // The fewest digits that read back as this number.
            v => format!("{v:?}"),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

struct Base64<'a>(&'a BinaryArray);

impl Encoder for Base64<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(BASE64.encode(self.0.value(index)).as_bytes());
        out.push(b'"');
    }
}
