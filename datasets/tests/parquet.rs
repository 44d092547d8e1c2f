//! Parquet task files, good and hostile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int32Array, Int64Array, ListArray, MapBuilder, RecordBatch, StringArray, StringBuilder,
    StructArray, TimestampMicrosecondArray, UInt8Array,
};
use arrow::datatypes::{DataType, Field, Int64Type};
use datasets::tasks::{Format, ParquetFile, ROW_BYTES_MAX, RowError, TaskFile, scan};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterVersion};
use serde_json::{Value, json};

struct Written {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn write(columns: Vec<(&str, ArrayRef)>, properties: WriterProperties) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.parquet");
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    Written { _dir: dir, path }
}

fn plain(columns: Vec<(&str, ArrayRef)>) -> Written {
    write(columns, WriterProperties::default())
}

fn numbered(rows: usize, properties: WriterProperties) -> Written {
    let n = Int64Array::from_iter_values(0..i64::try_from(rows).unwrap());
    let text = StringArray::from_iter_values((0..rows).map(|n| format!("task {n}")));
    let lists = (0..rows).map(|n| Some((0..n % 3).map(|n| Some(n as i64)).collect::<Vec<_>>()));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    write(vec![("n", Arc::new(n)), ("text", Arc::new(text)), ("lists", Arc::new(lists))], properties)
}

#[test]
fn every_kind_of_column_has_the_form_that_is_documented() {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("k");
    map.values().append_value("v");
    map.append(true).unwrap();
    map.append(false).unwrap();
    let inner = Field::new("x", DataType::UInt8, true);
    let object =
        StructArray::from(vec![(Arc::new(inner), Arc::new(UInt8Array::from(vec![3, 4])) as ArrayRef)]);
    let decimal = Decimal128Array::from(vec![1_250, -5]).with_precision_and_scale(10, 2).unwrap();
    let at = 1_790_000_000_123_000;
    let zoned = TimestampMicrosecondArray::from(vec![Some(at), None]).with_timezone("Europe/Berlin");
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("whole", Arc::new(Int64Array::from(vec![i64::MIN, 7]))),
        ("short", Arc::new(Float32Array::from(vec![0.1, 2.0]))),
        ("long", Arc::new(Float64Array::from(vec![0.1, 1e300]))),
        ("text", Arc::new(StringArray::from(vec!["é", ""]))),
        ("decimal", Arc::new(decimal)),
        ("day", Arc::new(Date32Array::from(vec![20_000, 0]))),
        ("local", Arc::new(TimestampMicrosecondArray::from(vec![at, 0]))),
        ("zoned", Arc::new(zoned)),
        ("list", Arc::new(list)),
        ("object", Arc::new(object)),
        ("map", Arc::new(map.finish())),
    ];
    let file = ParquetFile::open(&plain(columns).path, None).unwrap();
    let rows: Vec<Value> = (0..2).map(|index| Value::Object(file.row(index).unwrap())).collect();
    assert_eq!(
        rows[0],
        json!({
            "flag": true, "whole": i64::MIN, "short": 0.1, "long": 0.1, "text": "é", "decimal": "12.50",
            "day": "2024-10-04", "local": "2026-09-21T14:13:20.123", "zoned": "2026-09-21T14:13:20.123Z",
            "list": [1, null], "object": {"x": 3}, "map": {"k": "v"},
        })
    );
    assert_eq!(
        rows[1],
        json!({
            "flag": null, "whole": 7, "short": 2.0, "long": 1e300, "text": "", "decimal": "-0.05",
            "day": "1970-01-01", "local": "1970-01-01T00:00:00", "zoned": null,
            "list": null, "object": {"x": 4}, "map": null,
        })
    );
}

#[test]
fn rows_are_found_by_index_in_any_order_whatever_the_writer_did() {
    let variants = [
        WriterProperties::builder().build(),
        WriterProperties::builder().set_max_row_group_row_count(Some(700)).build(),
        WriterProperties::builder()
            .set_max_row_group_row_count(Some(100))
            .set_compression(Compression::SNAPPY)
            .set_data_page_row_count_limit(10)
            .set_write_batch_size(10)
            .build(),
        WriterProperties::builder()
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_compression(Compression::ZSTD(parquet::basic::ZstdLevel::default()))
            .build(),
    ];
    for (variant, properties) in variants.into_iter().enumerate() {
        let rows = 10_000;
        let written = numbered(rows, properties);
        let file = ParquetFile::open(&written.path, None).unwrap();
        assert_eq!(file.len(), rows);
        for step in [1, 4_999, 7_919] {
            for at in (0..if step == 1 { rows } else { 40 }).map(|n| n * step % rows) {
                let row = file.row(at).unwrap();
                assert_eq!(
                    (&row["n"], &row["text"]),
                    (&json!(at), &json!(format!("task {at}"))),
                    "{variant}"
                );
                assert_eq!(row["lists"].as_array().unwrap().len(), at % 3);
            }
        }
        assert!(matches!(file.row(rows), Err(RowError::NoSuchRow { rows: 10_000, .. })));
        let mut next = 0;
        scan(&written.path, Format::Parquet { columns: None }, |line, row| {
            assert_eq!((line, &row.unwrap()["n"]), (next + 1, &json!(next)));
            next += 1;
        })
        .unwrap();
        assert_eq!(next, 10_000);
    }
}

/// 4,000 rows that share one text of 512 KiB are a small file; copied out they would be 2 GB.
#[test]
fn a_text_that_all_rows_share_is_in_memory_once() {
    let text = "x".repeat(512 << 10);
    let keys = Int32Array::from(vec![0; 4_000]);
    let shared = DictionaryArray::new(keys, Arc::new(StringArray::from(vec![text.as_str()])));
    let written = plain(vec![("prompt", Arc::new(shared) as ArrayRef)]);
    assert!(written.path.metadata().unwrap().len() < 1 << 20);
    let file = ParquetFile::open(&written.path, None).unwrap();
    for index in [0, 3_999] {
        assert_eq!(file.row(index).unwrap()["prompt"].as_str().map(str::len), Some(text.len()));
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 1 << 20, "{peak_kib} KiB");
}

#[test]
fn only_the_columns_asked_for_are_read() {
    let binary: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"\xff"]));
    let nan: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN]));
    let n: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let written = plain(vec![("n", n), ("picture", binary), ("score", nan)]);
    let open = |columns: &[&str]| {
        let columns: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
        ParquetFile::open(&written.path, Some(&columns))
    };
    assert_eq!(Value::Object(open(&["n"]).unwrap().row(0).unwrap()), json!({"n": 1}));

    let told = |error: RowError| error.to_string().replace(&written.path.display().to_string(), "FILE");
    assert_eq!(
        told(open(&["picture"]).unwrap_err()),
        "column `picture` of FILE is binary, which has no place in a task row"
    );
    assert_eq!(
        told(ParquetFile::open(&written.path, None).unwrap_err()),
        "column `picture` of FILE is binary, which has no place in a task row"
    );
    assert_eq!(
        told(open(&["n", "m"]).unwrap_err()),
        "FILE has no column `m`; its columns: n, picture, score"
    );
    let error = open(&["score"]).unwrap().row(0).unwrap_err();
    assert_eq!(error.to_string(), "row 0: column `score` holds NaN, which is no finite number");
}

#[test]
fn the_longest_row_passes_and_one_byte_more_does_not() {
    // {"a":"..."}
    for (len, passes) in [(ROW_BYTES_MAX - 8, true), (ROW_BYTES_MAX - 7, false)] {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(len)]));
        let row = ParquetFile::open(&plain(vec![("a", text)]).path, None).unwrap().row(0);
        match row {
            Ok(_) => assert!(passes),
            Err(error) => {
                assert!(!passes && matches!(error, RowError::RowTooLong { index: 0, .. }), "{error}")
            }
        }
    }
}

#[test]
fn a_file_that_changes_after_the_check_gives_no_row() {
    let written = numbered(10, WriterProperties::default());
    let file = TaskFile::open(&written.path, Format::Parquet { columns: None }).unwrap();
    assert!(file.row(1).is_ok());
    let mut bytes = fs::read(&written.path).unwrap();
    bytes.push(0);
    fs::write(&written.path, bytes).unwrap();
    assert!(matches!(file.row(1), Err(RowError::Changed { .. })));
}

#[test]
fn a_damaged_file_is_refused_or_read_and_never_breaks_the_reader() {
    let written = numbered(300, WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let good = fs::read(&written.path).unwrap();
    let mut state = 0x9e37_79b9_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    let mut refused = 0;
    for case in 0..400 {
        let mut bytes = good.clone();
        if case % 4 == 0 {
            bytes.truncate(random() % good.len());
        } else {
            for _ in 0..=case % 3 {
                let at = random() % bytes.len();
                bytes[at] ^= u8::try_from(1 + random() % 255).unwrap();
            }
        }
        fs::write(&written.path, bytes).unwrap();
        refused += u32::from(read_all(&written.path).is_err());
    }
    assert!(refused > 100, "only {refused} of 400 damaged files were refused");
}

fn read_all(path: &Path) -> Result<(), RowError> {
    let file = ParquetFile::open(path, None)?;
    for index in (0..file.len().min(300)).step_by(37) {
        file.row(index)?;
    }
    let mut first = Ok(());
    file.each(|_, row| {
        if let (Ok(()), Err(error)) = (&first, row) {
            first = Err(error);
        }
    })?;
    first
}
