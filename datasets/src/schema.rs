//! The tables, as Arrow schemas. The columns stand in `columns.rs`, once: schemas, checks and
//! docs/tables.md all come from there.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::columns;

/// Column `schema_version`; a change that is not additive raises it.
pub const SCHEMA_VERSION: i16 = 1;

/// Keys of the schema metadata of every shard.
pub const META_SCHEMA: &str = "rollyard.schema";
pub const META_JOB: &str = "rollyard.job";
pub const META_WRITER: &str = "rollyard.writer";
pub const META_SPEC_HASH: &str = "rollyard.spec_hash";
/// The seqs of the shard's groups, such as `1-256,300`: a table without a row for a group still
/// says that it has the group.
pub const META_SEQS: &str = "rollyard.seqs";
/// Seqs that its groups closed under before, in the same form; missing if there are none.
pub const META_REPLACES: &str = "rollyard.replaces";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Trajectories,
    Turns,
    Steps,
    Artifacts,
    Events,
    Tensors,
}

impl Table {
    pub const ALL: [Self; 6] =
        [Self::Trajectories, Self::Turns, Self::Steps, Self::Artifacts, Self::Events, Self::Tensors];
    /// The tables this version writes, in the order they are sealed: a trajectory that can be
    /// read has all its other rows already.
    pub const WRITTEN: [Self; 4] = [Self::Artifacts, Self::Steps, Self::Turns, Self::Trajectories];

    /// Also the name of its folder.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trajectories => "trajectories",
            Self::Turns => "turns",
            Self::Steps => "steps",
            Self::Artifacts => "artifacts",
            Self::Events => "events",
            Self::Tensors => "tensors",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    pub const fn columns(self) -> &'static [Column] {
        match self {
            Self::Trajectories => columns::TRAJECTORIES,
            Self::Turns => columns::TURNS,
            Self::Steps => columns::STEPS,
            Self::Artifacts => columns::ARTIFACTS,
            Self::Events => columns::EVENTS,
            Self::Tensors => columns::TENSORS,
        }
    }

    pub fn column(self, name: &str) -> Option<&'static Column> {
        self.columns().iter().find(|column| column.name == name)
    }

    /// `trajectories/1`: the value of [`META_SCHEMA`].
    pub fn version(self) -> String {
        format!("{self}/{SCHEMA_VERSION}")
    }

    /// The schema without the metadata of a shard.
    pub fn schema(self) -> SchemaRef {
        static SCHEMAS: LazyLock<[SchemaRef; Table::ALL.len()]> = LazyLock::new(|| {
            Table::ALL.map(|table| {
                let fields: Fields = table.columns().iter().map(Column::field).collect();
                let metadata = HashMap::from([(META_SCHEMA.to_owned(), table.version())]);
                Arc::new(Schema::new_with_metadata(fields, metadata))
            })
        });
        // In the order of `ALL`.
        Arc::clone(&SCHEMAS[self as usize])
    }

    pub fn schema_with(self, metadata: impl IntoIterator<Item = (&'static str, String)>) -> SchemaRef {
        let plain = self.schema();
        let mut all = plain.metadata().clone();
        all.extend(metadata.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Arc::new(Schema::new_with_metadata(plain.fields().clone(), all))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One column: its place in the file is its place in [`Table::columns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub nullable: bool,
    /// Every value this version writes, for small enums; empty if any text goes.
    pub values: &'static [&'static str],
    pub doc: &'static str,
}

impl Column {
    pub(crate) const fn required(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self { name, kind, nullable: false, values: &[], doc }
    }
    pub(crate) const fn nullable(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self { name, kind, nullable: true, values: &[], doc }
    }
    pub(crate) const fn one_of(mut self, values: &'static [&'static str]) -> Self {
        self.values = values;
        self
    }
    pub fn field(&self) -> Field {
        Field::new(self.name, self.kind.data_type(), self.nullable)
    }
}

/// The column types in use. Fewer would read worse, more would lose readers: see the table of
/// loaders in docs/tables.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    /// Microseconds, UTC.
    Time,
    Text,
    /// JSON as plain text: the Arrow JSON type is not read everywhere.
    Json,
    /// A small enum.
    Dict8,
    /// Text that repeats.
    Dict16,
    Binary,
    Int32List,
    Int64List,
    /// Masks are bytes: bit-packed lists cannot become arrays without a copy.
    Uint8List,
    Float32List,
    PolicySpans,
    RewardComponents,
    Metrics,
    Messages,
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

fn struct_of<const N: usize>(fields: [(&str, DataType); N]) -> DataType {
    DataType::Struct(fields.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect())
}

fn dictionary(key: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8))
}

impl Kind {
    pub fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Text | Self::Json => DataType::Utf8,
            Self::Dict8 => dictionary(DataType::Int8),
            Self::Dict16 => dictionary(DataType::Int16),
            Self::Binary => DataType::Binary,
            Self::Int32List => list_of(DataType::Int32),
            Self::Int64List => list_of(DataType::Int64),
            Self::Uint8List => list_of(DataType::UInt8),
            Self::Float32List => list_of(DataType::Float32),
            Self::PolicySpans => list_of(struct_of([
                ("start", DataType::Int32),
                ("len", DataType::Int32),
                ("version", DataType::Int64),
            ])),
            Self::RewardComponents => list_of(struct_of([
                ("name", DataType::Utf8),
                ("value", DataType::Float64),
                ("weight", DataType::Float64),
            ])),
            Self::Metrics => list_of(struct_of([("name", DataType::Utf8), ("value", DataType::Float64)])),
            Self::Messages => {
                let function = struct_of([("name", DataType::Utf8), ("arguments", DataType::Utf8)]);
                let call =
                    struct_of([("id", DataType::Utf8), ("type", DataType::Utf8), ("function", function)]);
                list_of(struct_of([
                    ("role", DataType::Utf8),
                    ("content", DataType::Utf8),
                    ("reasoning_content", DataType::Utf8),
                    ("name", DataType::Utf8),
                    ("tool_call_id", DataType::Utf8),
                    ("tool_calls", list_of(call)),
                ]))
            }
        }
    }

    /// As docs/tables.md shows it.
    pub const fn shown(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Time => "timestamp[us, UTC]",
            Self::Text => "utf8",
            Self::Json => "utf8 (JSON)",
            Self::Dict8 => "dictionary<int8, utf8>",
            Self::Dict16 => "dictionary<int16, utf8>",
            Self::Binary => "binary",
            Self::Int32List => "list<int32>",
            Self::Int64List => "list<int64>",
            Self::Uint8List => "list<uint8>",
            Self::Float32List => "list<float32>",
            Self::PolicySpans => "list<struct<start int32, len int32, version int64>>",
            Self::RewardComponents => "list<struct<name utf8, value float64, weight float64>>",
            Self::Metrics => "list<struct<name utf8, value float64>>",
            Self::Messages => {
                "list<struct<role utf8, content utf8, reasoning_content utf8, name utf8, tool_call_id utf8, \
                 tool_calls list<struct<id utf8, type utf8, function struct<name utf8, arguments utf8>>>>>"
            }
        }
    }
}
