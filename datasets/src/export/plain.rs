//! Rows as exports hold them: the documented columns, dictionaries decoded to text.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::Error;
use crate::schema::{Column, META_SCHEMA, Table};

#[derive(Debug)]
pub(super) struct Plain {
    table: Table,
    schema: SchemaRef,
}

impl Plain {
    /// `loose`: every column may be null as far as the schema says; those of closed enums always
    /// may.
    pub(super) fn new(
        table: Table,
        loose: bool,
        metadata: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        let field = |column: &Column| {
            let kind = match column.kind.data_type() {
                DataType::Dictionary(_, values) => *values,
                other => other,
            };
            // A value of a later version is read as null, in a required column too.
            let closed = !column.values.is_empty();
            Field::new(column.name, kind, column.nullable || loose || closed)
        };
        let fields: Vec<Field> = table.columns().iter().map(field).collect();
        let mut all = HashMap::from([(META_SCHEMA.to_owned(), table.version())]);
        all.extend(metadata.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Self { table, schema: Arc::new(Schema::new_with_metadata(fields, all)) }
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let decode = || -> Result<RecordBatch, ArrowError> {
            let columns = self.schema.fields().iter().zip(batch.columns());
            let arrays = columns.map(|(field, array)| cast(array, field.data_type()));
            RecordBatch::try_new(self.schema.clone(), arrays.collect::<Result<Vec<ArrayRef>, _>>()?)
        };
        decode()
            .map_err(|source| Error::CannotRead { source: crate::Error::Build { table: self.table, source } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_closed_enums_have_room_for_values_of_later_versions() {
        let plain = Plain::new(Table::Steps, false, []);
        let kind = plain.schema().field_with_name("kind").unwrap();
        assert_eq!((kind.data_type(), kind.is_nullable()), (&DataType::Utf8, true));
        assert!(!plain.schema().field_with_name("step_name").unwrap().is_nullable());
    }
}
