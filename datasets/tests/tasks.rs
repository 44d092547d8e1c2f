//! JSONL task files, good and hostile.

use std::fs;
use std::path::PathBuf;

use datasets::tasks::{JsonlFile, ROW_BYTES_MAX, RowError};
use proptest::prelude::*;
use serde_json::json;

struct Written {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn write(bytes: impl AsRef<[u8]>) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tasks.jsonl");
    fs::write(&path, bytes).unwrap();
    Written { _dir: dir, path }
}

#[test]
fn rows_are_found_by_index() {
    for end in ["", "\n", "\r\n", "\n\n", "\n  \t\r\n"] {
        let written = write(format!("{{\"a\":1}}\n {{\"b\":[1,2.5,null,true,\"\\u00e9\"]}} \r\n{{}}{end}"));
        let file = JsonlFile::open(&written.path).unwrap();
        assert_eq!((file.len(), file.is_empty()), (3, false), "{end:?}");
        let rows: Vec<_> = (0..3).map(|index| serde_json::Value::Object(file.row(index).unwrap())).collect();
        assert_eq!(rows, [json!({"a": 1}), json!({"b": [1, 2.5, null, true, "é"]}), json!({})]);
        for index in [3, usize::MAX] {
            assert!(matches!(file.row(index), Err(RowError::NoSuchRow { rows: 3, .. })));
        }
    }
    assert!(JsonlFile::open(&write("").path).unwrap().is_empty());
    assert!(matches!(JsonlFile::open("/nowhere/tasks.jsonl".as_ref()), Err(RowError::Io { .. })));
}

#[test]
fn bad_rows_are_refused_with_their_line() {
    type Check = fn(&RowError) -> bool;
    let deep = "[".repeat(100_000);
    let cases: [(&[u8], Check); 15] = [
        (b"[1]", |e| matches!(e, RowError::NotAnObject { line: 2, found: "an array" })),
        (b"null", |e| matches!(e, RowError::NotAnObject { line: 2, found: "null" })),
        (b"3", |e| matches!(e, RowError::NotAnObject { line: 2, .. })),
        (b"\"x\"", |e| matches!(e, RowError::NotAnObject { line: 2, .. })),
        (b"{\"a\":1", |e| matches!(e, RowError::Json { line: 2, .. })),
        (b"{} {}", |e| matches!(e, RowError::Json { line: 2, .. })),
        (b"{\"a\":NaN}", |e| matches!(e, RowError::Json { line: 2, .. })),
        (b"{\"a\":1e999}", |e| matches!(e, RowError::Json { line: 2, .. })),
        (b"{\"a\":\"\xff\"}", |e| matches!(e, RowError::NotUtf8 { line: 2 })),
        (b"\xef\xbb\xbf{}", |e| matches!(e, RowError::Json { line: 2, .. })),
        (b"{\"a\":1,\"b\":2,\"a\":1}", |e| twice(e, "a")),
        (b"{\"a\":{\"x\":1,\"x\":2}}", |e| twice(e, "x")),
        (b"{\"a\":[{\"x\":1,\"\\u0078\":2}]}", |e| twice(e, "x")),
        (b"\n{}", |e| matches!(e, RowError::Blank { line: 2 })),
        (deep.as_bytes(), |e| matches!(e, RowError::Json { line: 2, .. })),
    ];
    for (line, check) in cases {
        let written = write([b"{}\n", line, b"\n{}\n"].concat());
        let error = JsonlFile::open(&written.path).unwrap_err();
        assert!(check(&error), "{}: {error:?}", line[..line.len().min(40)].escape_ascii());
    }
}

fn twice(error: &RowError, key: &str) -> bool {
    matches!(error, RowError::Json { line: 2, source }
        if source.to_string().starts_with(&format!("key `{key}` is there twice")))
}

#[test]
fn the_longest_row_passes_and_one_byte_more_does_not() {
    let row = |len: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(len - 8));
    for end in ["", "\n", "\n{}\n"] {
        let written = write(row(ROW_BYTES_MAX) + end);
        let file = JsonlFile::open(&written.path).unwrap();
        assert_eq!(file.row(0).unwrap()["a"].as_str().unwrap().len(), ROW_BYTES_MAX - 8);
        let written = write(row(ROW_BYTES_MAX + 1) + end);
        assert!(matches!(JsonlFile::open(&written.path), Err(RowError::TooLong { line: 1, .. })), "{end:?}");
    }
    let blank = write(" ".repeat(3 * ROW_BYTES_MAX));
    assert!(matches!(JsonlFile::open(&blank.path), Err(RowError::TooLong { line: 1, .. })));
}

#[test]
fn a_file_that_changes_after_the_check_gives_no_row() {
    let written = write("{\"a\":1}\n");
    let file = JsonlFile::open(&written.path).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&written.path)
        .and_then(|mut f| {
            use std::io::Write as _;
            f.write_all(b"{}\n")
        })
        .unwrap();
    assert!(matches!(file.row(0), Err(RowError::Changed { .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_as_line_by_line_json_would(lines in prop::collection::vec("\\PC{0,20}|\\{\"[ab]\":[0-9]\\}", 0..6)) {
        let text = lines.join("\n");
        let written = write(&text);
        let naive: Option<Vec<serde_json::Map<String, serde_json::Value>>> = {
            let mut split: Vec<&str> = text.split('\n').collect();
            // What follows the last newline is no line; and the last line may be blank.
            if split.last() == Some(&"") { split.pop(); }
            if split.last().is_some_and(|last| last.trim_ascii().is_empty()) { split.pop(); }
            split.iter().map(|line| serde_json::from_str(line).ok()).collect()
        };
        let opened = JsonlFile::open(&written.path).ok();
        let rows = opened.as_ref().map(|file| (0..file.len()).map(|index| file.row(index).unwrap()).collect::<Vec<_>>());
        prop_assert_eq!(rows, naive);
    }
}
