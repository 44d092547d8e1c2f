//! A record batch built column by column from a slice of rows.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BinaryBuilder, BooleanArray, PrimitiveArray, StringArray,
    StringDictionaryBuilder, TimestampMicrosecondArray, new_null_array,
};
use arrow::datatypes::{ArrowDictionaryKeyType, Float32Type, Int8Type, Int16Type, Int64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use rollout::Timestamp;

use crate::Error;
use crate::schema::{Kind, SCHEMA_VERSION, Table};

/// Distinct values a dictionary starts with room for.
const DICTIONARY_VALUES: usize = 8;

pub(crate) struct Frame<'r, R> {
    table: Table,
    rows: &'r [R],
    arrays: BTreeMap<&'static str, ArrayRef>,
}

impl<'r, R> Frame<'r, R> {
    /// Sets the two columns that every table begins with.
    pub(crate) fn new(table: Table, rows: &'r [R], seq: i64) -> Result<Self, Error> {
        let mut frame = Self { table, rows, arrays: BTreeMap::new() };
        frame.int::<Int16Type, _>("schema_version", |_| Some(SCHEMA_VERSION))?;
        frame.int::<Int64Type, _>("seq", |_| Some(seq))?;
        Ok(frame)
    }

    pub(crate) fn array(&mut self, name: &'static str, array: ArrayRef) {
        let replaced = self.arrays.insert(name, array);
        debug_assert!(replaced.is_none(), "column {name} is set twice");
    }

    /// A text or dictionary column. Values outside a closed enum are refused.
    pub(crate) fn text<V: AsRef<str>>(
        &mut self,
        name: &'static str,
        value: impl Fn(&'r R) -> Option<V>,
    ) -> Result<(), Error> {
        let table = self.table;
        let Some(column) = table.column(name) else { return self.no_such(name) };
        let values = self.rows.iter().map(&value);
        for text in self.rows.iter().filter_map(&value) {
            if !column.values.is_empty() && !column.values.contains(&text.as_ref()) {
                let value = rollout::text::shown(text.as_ref(), 80);
                return Err(Error::UnknownValue { table, column: name, value });
            }
        }
        let built = match column.kind {
            Kind::Dict8 => dictionary::<Int8Type, V>(values, self.rows.len()),
            Kind::Dict16 => dictionary::<Int16Type, V>(values, self.rows.len()),
            _ => Ok(Arc::new(StringArray::from_iter(values)) as ArrayRef),
        };
        self.array(name, built.map_err(|source| Error::Build { table, source })?);
        Ok(())
    }

    /// An integer column, from any integer that fits it.
    pub(crate) fn int<T, V>(
        &mut self,
        name: &'static str,
        value: impl Fn(&'r R) -> Option<V>,
    ) -> Result<(), Error>
    where
        T: ArrowPrimitiveType,
        V: TryInto<T::Native> + Copy + Display,
    {
        let table = self.table;
        let fit = |wide: V| {
            let out_of_range = |_| Error::OutOfRange { table, column: name, value: wide.to_string() };
            wide.try_into().map_err(out_of_range)
        };
        let values: Result<Vec<Option<T::Native>>, Error> =
            self.rows.iter().map(|row| value(row).map(fit).transpose()).collect();
        self.array(name, Arc::new(PrimitiveArray::<T>::from_iter(values?)));
        Ok(())
    }

    pub(crate) fn float32(&mut self, name: &'static str, value: impl Fn(&'r R) -> Option<f32>) {
        self.array(name, Arc::new(self.rows.iter().map(value).collect::<PrimitiveArray<Float32Type>>()));
    }

    pub(crate) fn flag(&mut self, name: &'static str, value: impl Fn(&'r R) -> bool) {
        let values = self.rows.iter().map(|row| Some(value(row)));
        self.array(name, Arc::new(values.collect::<BooleanArray>()));
    }

    pub(crate) fn time(&mut self, name: &'static str, value: impl Fn(&'r R) -> Timestamp) {
        let values = TimestampMicrosecondArray::from_iter_values(self.rows.iter().map(|row| value(row).0));
        self.array(name, Arc::new(values.with_timezone("UTC")));
    }

    pub(crate) fn binary(&mut self, name: &'static str, value: impl Fn(&'r R) -> Option<&'r [u8]>) {
        let mut builder = BinaryBuilder::new();
        self.rows.iter().for_each(|row| builder.append_option(value(row)));
        self.array(name, Arc::new(builder.finish()));
    }

    /// Columns that were not set are null. A column that must not be, or a value of the wrong
    /// type, is refused.
    pub(crate) fn finish(mut self, schema: &SchemaRef) -> Result<RecordBatch, Error> {
        let take = |column: &crate::schema::Column| {
            let unset = || new_null_array(&column.kind.data_type(), self.rows.len());
            self.arrays.remove(column.name).unwrap_or_else(unset)
        };
        let arrays: Vec<ArrayRef> = self.table.columns().iter().map(take).collect();
        if let Some(name) = self.arrays.keys().next() {
            return self.no_such(name);
        }
        RecordBatch::try_new(schema.clone(), arrays)
            .map_err(|source| Error::Build { table: self.table, source })
    }

    fn no_such<T>(&self, name: &str) -> Result<T, Error> {
        let source = ArrowError::SchemaError(format!("no column `{name}`"));
        Err(Error::Build { table: self.table, source })
    }
}

fn dictionary<K: ArrowDictionaryKeyType, V: AsRef<str>>(
    values: impl Iterator<Item = Option<V>>,
    rows: usize,
) -> Result<ArrayRef, ArrowError> {
    let mut builder = StringDictionaryBuilder::<K>::with_capacity(rows, DICTIONARY_VALUES, 64);
    for value in values {
        match value {
            Some(text) => drop(builder.append(text)?),
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}
