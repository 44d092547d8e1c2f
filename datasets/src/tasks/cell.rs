//! A cell of an Arrow array as the JSON value that lookups see.
//!
//! | Arrow | JSON |
//! |---|---|
//! | null | null |
//! | boolean, integers, finite floats, text | as they are |
//! | decimal | text in plain decimals, such as `12.50` |
//! | date, time | text, `2026-01-31`, `10:00:00` |
//! | timestamp | text, `2026-01-31T10:00:00`; in UTC with a `Z` where the column has a time zone |
//! | list | a list |
//! | struct, map with text keys | an object |
//!
//! Anything else has no JSON form and is refused by the name of its column.

use arrow::array::{Array, ArrayRef, AsArray as _, StructArray};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Fields,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use serde_json::{Map, Number, Value};

/// The most levels of lists and structs in one column.
pub const DEPTH_MAX: usize = 32;

/// Why a column has no JSON form: what is in it, in words.
pub(super) fn refusal(of: &DataType) -> Option<String> {
    refused(of, 0)
}

fn refused(of: &DataType, depth: usize) -> Option<String> {
    if depth > DEPTH_MAX {
        return Some(format!("nested more than {DEPTH_MAX} levels (DEPTH_MAX)"));
    }
    match of {
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..) => None,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Some("binary".to_owned())
        }
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            refused(field.data_type(), depth + 1).map(|what| format!("a list of {what}"))
        }
        DataType::Struct(fields) => fields.iter().find_map(|field| {
            let what = refused(field.data_type(), depth + 1)?;
            Some(format!("a struct whose field `{}` is {what}", rollout::text::shown(field.name(), 64)))
        }),
        DataType::Map(field, _) => match field.data_type() {
            DataType::Struct(entries) => match entries.as_ref() {
                [key, _] if !is_text(key.data_type()) => {
                    Some(format!("a map with keys of {}", key.data_type()))
                }
                [_, value] => refused(value.data_type(), depth + 1).map(|what| format!("a map of {what}")),
                _ => Some("a map that is none".to_owned()),
            },
            _ => Some("a map that is none".to_owned()),
        },
        other => Some(format!("{other}")),
    }
}

fn is_text(of: &DataType) -> bool {
    matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Row `at` of the columns. The error names the column and says what is wrong with its value.
pub(super) fn row(columns: &StructArray, at: usize) -> Result<Map<String, Value>, (String, String)> {
    object(columns.fields(), columns.columns(), at)
}

fn object(fields: &Fields, columns: &[ArrayRef], at: usize) -> Result<Map<String, Value>, (String, String)> {
    let mut object = Map::new();
    for (field, column) in fields.iter().zip(columns) {
        let value = value(column.as_ref(), at).map_err(|problem| (field.name().clone(), problem))?;
        object.insert(field.name().clone(), value);
    }
    Ok(object)
}

macro_rules! number {
    ($array:expr, $kind:ty, $at:expr) => {
        Value::from($array.as_primitive::<$kind>().value($at))
    };
}

macro_rules! decimal {
    ($array:expr, $kind:ty, $at:expr) => {
        Value::String($array.as_primitive::<$kind>().value_as_string($at))
    };
}

/// `$method` of the chrono value behind a cell; none if it is out of chrono's range.
macro_rules! clock {
    ($array:expr, $kind:ty, $method:ident, $at:expr) => {
        match $array.as_primitive::<$kind>().$method($at) {
            Some(found) => Value::String(format!("{found:?}")),
            None => return Err("a time that no calendar has".to_owned()),
        }
    };
}

fn value(array: &dyn Array, at: usize) -> Result<Value, String> {
    if array.is_null(at) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(at)),
        DataType::Int8 => number!(array, Int8Type, at),
        DataType::Int16 => number!(array, Int16Type, at),
        DataType::Int32 => number!(array, Int32Type, at),
        DataType::Int64 => number!(array, Int64Type, at),
        DataType::UInt8 => number!(array, UInt8Type, at),
        DataType::UInt16 => number!(array, UInt16Type, at),
        DataType::UInt32 => number!(array, UInt32Type, at),
        DataType::UInt64 => number!(array, UInt64Type, at),
        DataType::Float16 => float(f64::from(array.as_primitive::<Float16Type>().value(at).to_f32()))?,
        // By way of its shortest text: 0.1 stays 0.1.
        DataType::Float32 => {
            let short = array.as_primitive::<Float32Type>().value(at).to_string();
            float(short.parse().map_err(|_| "not a number".to_owned())?)?
        }
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at))?,
        DataType::Utf8 => array.as_string::<i32>().value(at).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(at).into(),
        DataType::Utf8View => array.as_string_view().value(at).into(),
        DataType::Decimal32(..) => decimal!(array, Decimal32Type, at),
        DataType::Decimal64(..) => decimal!(array, Decimal64Type, at),
        DataType::Decimal128(..) => decimal!(array, Decimal128Type, at),
        DataType::Decimal256(..) => decimal!(array, Decimal256Type, at),
        DataType::Date32 => clock!(array, Date32Type, value_as_date, at),
        DataType::Date64 => clock!(array, Date64Type, value_as_date, at),
        DataType::Time32(TimeUnit::Second) => clock!(array, Time32SecondType, value_as_time, at),
        DataType::Time32(_) => clock!(array, Time32MillisecondType, value_as_time, at),
        DataType::Time64(TimeUnit::Microsecond) => clock!(array, Time64MicrosecondType, value_as_time, at),
        DataType::Time64(_) => clock!(array, Time64NanosecondType, value_as_time, at),
        DataType::Timestamp(unit, zone) => {
            let text = timestamp(array, *unit, at)?;
            Value::String(if zone.is_some() { text + "Z" } else { text })
        }
        DataType::List(_) => list(&array.as_list::<i32>().value(at))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(at))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(at))?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let object = object(fields, columns, at);
            Value::Object(object.map_err(|(field, problem)| format!("field `{field}` holds {problem}"))?)
        }
        DataType::Map(..) => map(&array.as_map().value(at))?,
        other => return Err(format!("{other}, which has no JSON form")),
    })
}

fn float(number: f64) -> Result<Value, String> {
    Number::from_f64(number).map(Value::Number).ok_or_else(|| format!("{number}, which is no finite number"))
}

fn timestamp(array: &dyn Array, unit: TimeUnit, at: usize) -> Result<String, String> {
    let found = match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().value_as_datetime(at),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().value_as_datetime(at),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().value_as_datetime(at),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().value_as_datetime(at),
    };
    found.map(|at| format!("{at:?}")).ok_or_else(|| "a time that no calendar has".to_owned())
}

fn list(items: &ArrayRef) -> Result<Value, String> {
    (0..items.len()).map(|at| value(items.as_ref(), at)).collect::<Result<_, _>>().map(Value::Array)
}

fn map(entries: &StructArray) -> Result<Value, String> {
    let [keys, values] = entries.columns() else { return Err("a map that is none".to_owned()) };
    let mut object = Map::new();
    for at in 0..entries.len() {
        let Value::String(key) = value(keys.as_ref(), at)? else {
            return Err("a map with a key that is no text".to_owned());
        };
        let shown = rollout::text::shown(&key, 64);
        if object.insert(key, value(values.as_ref(), at)?).is_some() {
            return Err(format!("a map with the key `{shown}` twice"));
        }
    }
    Ok(Value::Object(object))
}
