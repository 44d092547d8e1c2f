//! Sealed tables, exported and read back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use arrow::ipc::reader::{FileReader, StreamReader};
use base64::Engine as _;
use datasets::export::{Error, Exported, Format, Request, Selection, export};
use datasets::read::texts;
use datasets::schema::Table;
use datasets::table::{TableWriter, job_dir};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollout::plan::{ShardPlan, Split};
use serde_json::Value;

#[path = "support/sample.rs"]
mod sample;

const FORMATS: [Format; 4] = [Format::Parquet, Format::IpcFile, Format::Jsonl, Format::HuggingFace];

/// Six groups in three shards; `change` may alter them.
fn tables(root: &Path, change: impl Fn(&mut datasets::record::GroupRecord)) -> PathBuf {
    let mut writer = TableWriter::open(root, sample::meta(), ShardPlan::default()).unwrap().0;
    let mut blobs = sample::Blobs::default();
    for seq in 1..=6 {
        let mut group = sample::group(seq, &mut blobs);
        change(&mut group);
        writer.append(&group, &|digest, max| blobs.fetch(digest, max)).unwrap();
        if seq % 2 == 0 {
            writer.seal().unwrap();
        }
    }
    job_dir(root, sample::JOB)
}

fn request(source: &Path, out: &Path, format: Format) -> Request {
    let selection = Selection::default();
    Request { source: source.to_owned(), out: out.to_owned(), format, selection, overwrite: false }
}

/// The copied rows as batches; not of JSON.
fn batches(copy: &Exported, format: Format) -> Vec<RecordBatch> {
    match format {
        Format::Parquet => ParquetRecordBatchReaderBuilder::try_new(File::open(&copy.path).unwrap())
            .unwrap()
            .build()
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap(),
        Format::IpcFile => {
            let file = File::open(&copy.path).unwrap();
            FileReader::try_new(file, None).unwrap().collect::<Result<_, _>>().unwrap()
        }
        Format::HuggingFace => {
            let state: Value =
                serde_json::from_slice(&fs::read(copy.path.join("state.json")).unwrap()).unwrap();
            let files = state["_data_files"].as_array().unwrap().iter();
            let open = |file: &Value| File::open(copy.path.join(file["filename"].as_str().unwrap())).unwrap();
            files
                .flat_map(|file| StreamReader::try_new(open(file), None).unwrap())
                .map(Result::unwrap)
                .collect()
        }
        Format::Jsonl => panic!("no batches"),
    }
}

fn lines(copy: &Exported) -> Vec<Value> {
    fs::read_to_string(&copy.path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(copies: &[Exported], format: Format, table: Table, column: &str) -> Vec<String> {
    let copy = copies.iter().find(|copy| copy.table == table).unwrap();
    let ids: Vec<String> = if format == Format::Jsonl {
        lines(copy).iter().map(|row| row[column].as_str().unwrap_or("null").to_owned()).collect()
    } else {
        let text = |id: Option<&str>| id.unwrap_or("null").to_owned();
        batches(copy, format)
            .iter()
            .flat_map(|batch| texts(batch, column).into_iter().map(text).collect::<Vec<_>>())
            .collect()
    };
    assert_eq!(ids.len() as u64, copy.rows, "the rows that are told");
    ids
}

#[test]
fn every_format_has_every_row_of_every_table() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    for format in FORMATS {
        let out = dir.path().join(format!("{format:?}"));
        let copies = export(&request(&job, &out, format)).unwrap();
        let rows: BTreeMap<Table, u64> = copies.iter().map(|copy| (copy.table, copy.rows)).collect();
        let expected =
            [(Table::Trajectories, 20), (Table::Turns, 0), (Table::Steps, 26), (Table::Artifacts, 8)];
        assert_eq!(rows, BTreeMap::from(expected), "{format:?}");
        for copy in &copies {
            assert_eq!(copy.path, out.join(format.name_of(copy.table)));
            assert!(copy.bytes > 0 || (format, copy.rows) == (Format::Jsonl, 0), "{copy:?}");
        }
        let trajectories = ids(&copies, format, Table::Trajectories, "trajectory_id");
        assert_eq!(trajectories[..2], ["j0000000000007-g1-s0", "j0000000000007-g1-s1"]);
        assert_eq!(
            ids(&copies, format, Table::Steps, "node_id")[..2],
            ["node-gone", "node-odd"],
            "{format:?}"
        );
        let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), copies.len(), "nothing but the copies: {left:?}");
    }
}

#[test]
fn dictionaries_become_text_in_every_arrow_form() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    for format in [Format::Parquet, Format::IpcFile, Format::HuggingFace] {
        let copies = export(&request(&job, &dir.path().join(format!("{format:?}")), format)).unwrap();
        for batch in batches(&copies[0], format) {
            let schema = batch.schema();
            assert_eq!(schema.fields().len(), Table::Trajectories.columns().len());
            for (field, column) in schema.fields().iter().zip(Table::Trajectories.columns()) {
                let expected = match column.kind.data_type() {
                    DataType::Dictionary(_, values) => *values,
                    other => other,
                };
                assert_eq!((field.name().as_str(), field.data_type()), (column.name, &expected));
            }
        }
    }
}

#[test]
fn json_keeps_numbers_times_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |group| {
        if let Some(reward) = group.members.first_mut().and_then(|member| member.reward.as_mut()) {
            reward.value = 0.1;
        }
    });
    let copies = export(&request(&job, &dir.path().join("out"), Format::Jsonl)).unwrap();
    let rows = lines(&copies[0]);
    let first = &rows[0];
    assert_eq!(first["created_at"], "2026-01-01T00:00:00Z");
    assert_eq!(first["reward"].as_f64(), Some(f64::from(0.1_f32)));
    assert_eq!(first["reward_valid"], true);
    assert!(first["token_ids"].is_null() && first.as_object().unwrap().contains_key("token_ids"));
    assert_eq!(first["task_row"], r#"{"question":"1 + 1 = ?"}"#);
    assert_eq!(first["reward_components"][0]["name"], "tests_passed");
    assert_eq!(first.as_object().unwrap().len(), Table::Trajectories.columns().len());
    let artifacts = lines(copies.iter().find(|copy| copy.table == Table::Artifacts).unwrap());
    let patch = artifacts.iter().find(|row| row["name"] == "patch").unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(patch["inline"].as_str().unwrap()).unwrap();
    assert_eq!(sample::sha256(&bytes), patch["sha256"].as_str().unwrap());
}

#[test]
fn a_filter_takes_what_belongs_to_its_trajectories_along() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    for format in FORMATS {
        let mut request = request(&job, &dir.path().join(format!("{format:?}")), format);
        request.selection.valid = true;
        let copies = export(&request).unwrap();
        let kept = ids(&copies, format, Table::Trajectories, "trajectory_id");
        // Four of the six groups have two members with a reward.
        assert_eq!(kept.len(), 8, "{kept:?}");
        let mut of_steps = ids(&copies, format, Table::Steps, "trajectory_id");
        assert_eq!(of_steps.len(), 4 * (3 + 2));
        of_steps.dedup();
        assert_eq!(of_steps, kept);
        let mut of_artifacts = ids(&copies, format, Table::Artifacts, "trajectory_id");
        of_artifacts.dedup();
        assert!(!of_artifacts.is_empty() && of_artifacts.iter().all(|id| kept.contains(id)));
    }
}

#[test]
fn other_filters_take_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |group| {
        if group.seq == 2 {
            group.split = Split::Eval;
        }
    });
    let rows = |name: &str, selection: Selection| {
        let mut request = request(&job, &dir.path().join(name), Format::Jsonl);
        request.selection = selection;
        let copies = export(&request).unwrap();
        (copies[0].rows, copies.iter().find(|copy| copy.table == Table::Steps).unwrap().rows)
    };
    let selection = Selection::default();
    assert_eq!(rows("trainable", Selection { trainable: true, ..selection }), (0, 0));
    assert_eq!(rows("eval", Selection { split: Some(Split::Eval), ..selection }), (4, 6));
    assert_eq!(rows("train", Selection { split: Some(Split::Train), ..selection }), (16, 20));
}

#[test]
fn one_table_can_be_named() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    let out = dir.path().join("out");
    let copies = export(&request(&job.join("steps"), &out, Format::IpcFile)).unwrap();
    assert_eq!((copies.len(), copies[0].path.clone()), (1, out.join("steps.arrow")));
}

#[test]
fn a_fingerprint_is_of_the_values() {
    let dir = tempfile::tempdir().unwrap();
    let fingerprint = |name: &str, component: f64| {
        let job = tables(&dir.path().join(name), |group| {
            if let Some(reward) = group.members[0].reward.as_mut() {
                reward.components = vec![("inside_a_list".to_owned(), component)];
            }
        });
        let out = dir.path().join(format!("{name}-out"));
        export(&request(&job, &out, Format::HuggingFace)).unwrap();
        let state = fs::read(out.join("trajectories/state.json")).unwrap();
        serde_json::from_slice::<Value>(&state).unwrap()["_fingerprint"].clone()
    };
    let first = fingerprint("a", 0.5);
    assert_eq!(fingerprint("b", 0.5), first);
    assert_ne!(fingerprint("c", 0.25), first);
}

#[test]
fn what_is_there_is_replaced_only_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    for format in FORMATS {
        let out = dir.path().join(format!("{format:?}"));
        let mut request = request(&job, &out, format);
        let first = export(&request).unwrap();
        let before = fs::metadata(&first[0].path).unwrap().modified().unwrap();
        let refused = export(&request).unwrap_err();
        assert_eq!(refused.code(), "output_exists");
        assert_eq!(fs::metadata(&first[0].path).unwrap().modified().unwrap(), before);
        request.overwrite = true;
        request.selection.valid = true;
        let second = export(&request).unwrap();
        assert_eq!(ids(&second, format, Table::Trajectories, "trajectory_id").len(), 8, "{format:?}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), second.len());
    }
}

#[test]
fn a_damaged_shard_leaves_no_copy_behind() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    let shards = job.join("trajectories");
    let shard = fs::read_dir(&shards).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard.filter(|path| path.extension().is_some_and(|e| e == "arrows")).max().unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    for format in FORMATS {
        let out = dir.path().join(format!("{format:?}"));
        let error = export(&request(&job, &out, format)).unwrap_err();
        assert_eq!(error.code(), "table_unreadable");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{format:?}");
    }
}

#[test]
fn two_exports_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let job = tables(dir.path(), |_| {});
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let other = File::open(&out).unwrap();
    other.lock().unwrap();
    let error = export(&request(&job, &out, Format::Jsonl)).unwrap_err();
    assert_eq!(error.code(), "output_busy");
    drop(other);
    // What a killed export left does not stop the next one.
    fs::write(out.join(".trajectories.jsonl.tmp"), "half").unwrap();
    export(&request(&job, &out, Format::Jsonl)).unwrap();
    assert!(!out.join(".trajectories.jsonl.tmp").exists());
}

#[test]
fn a_folder_without_tables_is_refused_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let error = export(&request(dir.path(), &out, Format::Jsonl)).unwrap_err();
    assert!(matches!(&error, Error::NoTables { path } if path == dir.path()), "{error}");
    assert!(!out.exists());
    for code in [error.code(), "output_exists", "output_busy", "table_unreadable", "export_failed"] {
        assert!(Error::CODES.contains(&code));
    }
}
