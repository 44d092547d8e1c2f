//! Rows as exports hold them: the documented columns, dictionaries decoded to text.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::Error;
use crate::schema::{META_SCHEMA, Table};

#[derive(Debug)]
pub(super) struct Plain {
    table: Table,
    schema: SchemaRef,
}

impl Plain {
    /// `loose`: every column may be null as far as the schema says.
    pub(super) fn new(
        table: Table,
        loose: bool,
        metadata: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        let field = |field: &Arc<Field>| {
            let nullable = field.is_nullable() || loose;
            match field.data_type() {
                DataType::Dictionary(_, values) => Field::new(field.name(), (**values).clone(), nullable),
                other => Field::new(field.name(), other.clone(), nullable),
            }
        };
        let fields: Vec<Field> = table.schema().fields().iter().map(field).collect();
        let mut all = HashMap::from([(META_SCHEMA.to_owned(), table.version())]);
        all.extend(metadata.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Self { table, schema: Arc::new(Schema::new_with_metadata(fields, all)) }
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let decode = || -> Result<RecordBatch, ArrowError> {
            let decoded = self.schema.fields().iter().zip(batch.columns());
            let arrays: Vec<ArrayRef> =
                decoded.map(|(field, array)| cast(array, field.data_type())).collect::<Result<_, _>>()?;
            // A value of a later version that this one reads as null may stand in a required column.
            let loose = self.schema.fields().iter().map(|field| (**field).clone());
            let nulls = arrays
                .iter()
                .zip(self.schema.fields())
                .any(|(array, field)| array.null_count() > 0 && !field.is_nullable());
            let schema = if nulls {
                let fields: Vec<Field> = loose.map(|field| field.with_nullable(true)).collect();
                Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()))
            } else {
                self.schema.clone()
            };
            RecordBatch::try_new(schema, arrays)
        };
        decode()
            .map_err(|source| Error::CannotRead { source: crate::Error::Build { table: self.table, source } })
    }
}
