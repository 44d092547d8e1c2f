//! Tables written and read back through the public API, the golden files, and the documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringDictionaryBuilder};
use arrow::datatypes::{DataType, Field, Int8Type, Schema};
use arrow::ipc::writer::StreamWriter;
use datasets::Error;
use datasets::read::{self, TableReader, texts};
use datasets::record::GroupRecord;
use datasets::recorder::{self, no_inline};
use datasets::schema::{META_SCHEMA, META_SEQS, Table};
use datasets::seqs::SeqSet;
use datasets::table::{Pending, TableWriter, job_dir, superseded_dir, table_dir};
use rollout::plan::ShardPlan;
use rollout::{Bytes, JobId};

#[path = "support/sample.rs"]
mod sample;

fn open(root: &Path, plan: ShardPlan) -> TableWriter {
    TableWriter::open(root, sample::meta(), plan).unwrap().0
}

fn append(writer: &mut TableWriter, seq: i64) -> Result<(), Error> {
    let mut blobs = sample::Blobs::default();
    let group = sample::group(seq, &mut blobs);
    writer.append(&group, &|digest, bytes_max| blobs.fetch(digest, bytes_max))
}

fn trajectories(root: &Path) -> PathBuf {
    table_dir(&job_dir(root, sample::JOB), Table::Trajectories)
}

#[test]
fn rows_come_back_as_they_were_recorded() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    for seq in [1, 2, 4] {
        append(&mut writer, seq).unwrap();
    }
    let sealed = writer.seal().unwrap();
    assert_eq!(sealed.len(), 4);
    for shard in &sealed {
        assert!(root.path().join(shard.path(sample::JOB)).is_file());
        assert_eq!((shard.seq_min, shard.seq_max), (1, 4));
    }
    for table in Table::WRITTEN {
        let reader = TableReader::open(&table_dir(&job_dir(root.path(), sample::JOB), table)).unwrap();
        let read: Vec<RecordBatch> = reader.batches().collect::<Result<_, _>>().unwrap();
        assert_eq!(read.len(), 3);
        for (batch, seq) in read.iter().zip([1, 2, 4]) {
            let mut blobs = sample::Blobs::default();
            let group = sample::group(seq, &mut blobs);
            let recorded = recorder::batches(&group, &|digest, max| blobs.fetch(digest, max)).unwrap();
            assert_eq!(batch.columns(), recorded.of(table).unwrap().columns(), "{table} {seq}");
        }
        assert_eq!(reader.rows(), read.iter().map(|batch| batch.num_rows() as u64).sum::<u64>());
        assert_eq!(reader.shards()[0].seqs.as_deref(), Some("1-2,4"));
    }
}

#[test]
fn rows_of_replaced_rollouts_lie_in_shards_that_are_not_told_of() {
    let root = tempfile::tempdir().unwrap();
    let mut refilled = sample::group(2, &mut sample::Blobs::default());
    refilled.members[2].superseded = true;
    let mut writer = open(root.path(), ShardPlan::default());
    append(&mut writer, 1).unwrap();
    let dir = superseded_dir(&job_dir(root.path(), sample::JOB));
    assert!(!dir.exists(), "not before there are some");
    writer.append(&refilled, &no_inline).unwrap();
    let told = writer.seal().unwrap();
    assert_eq!(told.len(), Table::WRITTEN.len());
    assert!(told.iter().all(|shard| root.path().join(shard.path(sample::JOB)).is_file()));
    let rows = |dir: &Path| TableReader::open(&table_dir(dir, Table::Trajectories)).unwrap().rows();
    assert_eq!((rows(&job_dir(root.path(), sample::JOB)), rows(&dir)), (7, 1));
    // After a crash the group is appended again, and is there already.
    drop(writer);
    let mut writer = open(root.path(), ShardPlan::default());
    writer.append(&refilled, &no_inline).unwrap();
    assert_eq!(writer.seal().unwrap(), []);
    // One whose other rows were lost has these once.
    let lost = trajectories(root.path());
    drop(writer);
    fs::remove_dir_all(&lost).unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    writer.append(&refilled, &no_inline).unwrap();
    assert_eq!(writer.seal().unwrap().len(), 1);
    assert_eq!((rows(&job_dir(root.path(), sample::JOB)), rows(&dir)), (3, 1));
}

#[test]
fn a_group_that_closes_anew_is_read_under_its_new_seq_alone_also_after_a_crash() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    for seq in 1..=2 {
        append(&mut writer, seq).unwrap();
    }
    writer.seal().unwrap();
    let seqs = || {
        let reader = TableReader::open(&trajectories(root.path())).unwrap();
        let batches = reader.batches().map(Result::unwrap).filter(|batch| batch.num_rows() > 0);
        batches.map(|batch| texts(&batch, "group_id")[0].unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(seqs().len(), 2);
    let again = |seq| {
        let first = sample::group(1, &mut sample::Blobs::default());
        GroupRecord { seq, replaces: Some(if seq == 3 { 1 } else { 3 }), ..first }
    };
    writer.append(&again(3), &no_inline).unwrap();
    assert_eq!(seqs().len(), 2, "the old rows count until the new ones are sealed");
    writer.seal().unwrap();
    writer.append(&again(4), &no_inline).unwrap();
    writer.seal().unwrap();
    let mut groups = seqs();
    groups.sort();
    groups.dedup();
    assert_eq!((groups.len(), seqs().len()), (2, 2));
    assert_eq!(read::summary(&job_dir(root.path(), sample::JOB)).unwrap().groups, 2);
    // A crash between the shard and its line: the shard itself says what it replaces.
    drop(writer);
    let manifest = trajectories(root.path()).join("manifest.jsonl");
    let text = fs::read_to_string(&manifest).unwrap();
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    assert!(text[last..].contains("\"replaces\":\"3\""), "{text}");
    fs::write(&manifest, &text[..last]).unwrap();
    assert_eq!(seqs().len(), 2);
    drop(open(root.path(), ShardPlan::default()));
    assert_eq!(fs::read_to_string(&manifest).unwrap(), text);
}

#[test]
fn a_shard_is_due_at_its_rows_or_its_bytes() {
    let root = tempfile::tempdir().unwrap();
    let by_rows = ShardPlan { rows: 8, ..ShardPlan::default() };
    let mut writer = open(root.path(), by_rows);
    assert!(!writer.should_seal());
    append(&mut writer, 1).unwrap();
    assert_eq!((writer.pending().rows, writer.should_seal()), (4, false));
    append(&mut writer, 2).unwrap();
    assert_eq!((writer.pending().rows, writer.should_seal()), (8, true));
    let bytes = writer.pending().bytes;
    writer.seal().unwrap();
    assert_eq!((writer.pending(), writer.should_seal()), (Pending::default(), false));
    assert_eq!(writer.seal().unwrap(), []);
    drop(writer);

    let by_bytes = ShardPlan { bytes: Bytes(bytes), ..ShardPlan::default() };
    let mut writer = open(root.path(), by_bytes);
    append(&mut writer, 4).unwrap();
    assert!(!writer.should_seal());
    append(&mut writer, 5).unwrap();
    assert!(writer.should_seal(), "{:?} of {bytes}", writer.pending());
}

#[test]
fn a_group_is_taken_once_and_a_seq_means_one_group() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    append(&mut writer, 1).unwrap();
    append(&mut writer, 1).unwrap();
    assert_eq!(writer.pending().groups, 1);
    let mut other = sample::group(2, &mut sample::Blobs::default());
    other.seq = 1;
    assert!(matches!(writer.append(&other, &no_inline), Err(Error::SeqReused { seq: 1, .. })));
    writer.seal().unwrap();
    append(&mut writer, 1).unwrap();
    assert_eq!(writer.pending().groups, 0);
    let mut strange = sample::group(2, &mut sample::Blobs::default());
    strange.group.job = JobId::from_bits(8);
    assert!(matches!(writer.append(&strange, &no_inline), Err(Error::OtherJob { .. })));
}

#[test]
fn a_refused_group_leaves_the_writer_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    let mut bad = sample::group(1, &mut sample::Blobs::default());
    bad.group_valid = 9;
    assert!(matches!(writer.append(&bad, &no_inline), Err(Error::Contradiction { .. })));
    assert_eq!(writer.pending(), Pending::default());
    append(&mut writer, 1).unwrap();
    assert_eq!(writer.seal().unwrap().len(), 4);
}

#[test]
fn without_artifacts_the_table_is_there_and_empty() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    writer.set_artifacts(false);
    let group = sample::group(1, &mut sample::Blobs::default());
    writer.append(&group, &|digest, _| panic!("{digest} is fetched for no row")).unwrap();
    let sealed = writer.seal().unwrap();
    let rows: Vec<_> = sealed.iter().map(|shard| (shard.table, shard.rows)).collect();
    assert_eq!(rows, [(Table::Artifacts, 0), (Table::Steps, 6), (Table::Turns, 0), (Table::Trajectories, 4)]);
}

#[test]
fn a_second_writer_of_a_job_is_refused_while_the_first_lives() {
    let root = tempfile::tempdir().unwrap();
    let writer = open(root.path(), ShardPlan::default());
    let second = || TableWriter::open(root.path(), sample::meta(), ShardPlan::default()).map(|_| ());
    assert!(matches!(second(), Err(Error::Locked { .. })));
    let other_job = datasets::table::TableMeta { job: JobId::from_bits(8), ..sample::meta() };
    TableWriter::open(root.path(), other_job, ShardPlan::default()).unwrap();
    drop(writer);
    second().unwrap();
}

#[test]
fn a_summary_counts_invalid_rewards_as_missing_not_as_zero() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    (1..=3).for_each(|seq| append(&mut writer, seq).unwrap());
    writer.seal().unwrap();
    let summary = read::summary(&job_dir(root.path(), sample::JOB)).unwrap();
    assert_eq!((summary.groups, summary.trajectories), (3, 10));
    let count = |of: &std::collections::BTreeMap<String, u64>, key: &str| of.get(key).copied().unwrap_or(0);
    assert_eq!((count(&summary.closed_as, "short"), count(&summary.closed_as, "dropped")), (2, 1));
    assert_eq!((count(&summary.statuses, "completed"), count(&summary.statuses, "failed")), (2, 3));
    assert_eq!(summary.failures[&("node".to_owned(), "node_lost".to_owned())], 3);
    assert_eq!((summary.rewards.valid, summary.rewards.invalid), (4, 6));
    assert_eq!(summary.rewards.mean(), Some(0.75));
    assert_eq!((summary.rewards.min, summary.rewards.max), (Some(0.5), Some(1.0)));
}

#[test]
fn a_changed_shard_is_never_read() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = open(root.path(), ShardPlan::default());
    append(&mut writer, 1).unwrap();
    writer.seal().unwrap();
    let reader = TableReader::open(&trajectories(root.path())).unwrap();
    let path = trajectories(root.path()).join(format!("{}.arrows", reader.shards()[0].shard));
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(997) {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&path, changed).unwrap();
        let read = reader.batches().collect::<Result<Vec<_>, _>>();
        assert!(matches!(read, Err(Error::ShardCorrupt { .. })), "byte {at}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(reader.batches().count(), 1);
}

/// A table as a later version of this one may write it: `change` sees the columns of one group.
fn written_later(root: &Path, change: impl FnOnce(&mut Vec<(Field, ArrayRef)>)) -> TableReader {
    let batch = recorder::batches(&sample::group(1, &mut sample::Blobs::default()), &no_inline).unwrap();
    let batch = batch.trajectories;
    let fields = batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect::<Vec<_>>();
    let mut columns: Vec<_> = fields.into_iter().zip(batch.columns().to_vec()).collect();
    change(&mut columns);
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let metadata = [(META_SCHEMA, "trajectories/1"), (META_SEQS, "1"), ("rollyard.new", "x")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&RecordBatch::try_new(schema, arrays).unwrap()).unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner().unwrap();
    let dir = trajectories(root);
    fs::create_dir_all(&dir).unwrap();
    let line = serde_json::json!({
        "shard": "00000000-000000000001", "rows": 4, "seq_min": 1, "seq_max": 1,
        "sha256": sample::sha256(&bytes), "new_key": true,
    });
    fs::write(dir.join("manifest.jsonl"), format!("{line}\n")).unwrap();
    fs::write(dir.join("00000000-000000000001.arrows"), bytes).unwrap();
    TableReader::open(&dir).unwrap()
}

#[test]
fn tables_of_later_minor_versions_are_read() {
    let root = tempfile::tempdir().unwrap();
    let reader = written_later(root.path(), |columns| {
        columns.retain(|(field, _)| field.name() != "metrics");
        let added = Arc::new(Int64Array::from(vec![1; 4]));
        columns.insert(5, (Field::new("new_column", DataType::Int64, true), added));
        let mut status = StringDictionaryBuilder::<Int8Type>::new();
        for value in ["completed", "hibernated", "failed", "hibernated"] {
            status.append(value).unwrap();
        }
        let at = columns.iter().position(|(field, _)| field.name() == "status").unwrap();
        columns[at].1 = Arc::new(status.finish());
    });
    let batch = reader.batches().next().unwrap().unwrap();
    assert_eq!(batch.num_columns(), Table::Trajectories.columns().len());
    assert_eq!(texts(&batch, "status"), [Some("completed"), None, Some("failed"), None]);
    assert_eq!(batch.column_by_name("metrics").unwrap().null_count(), 4);
    let summary = read::summary(&job_dir(root.path(), sample::JOB)).unwrap();
    assert_eq!(summary.statuses["unknown"], 2);
}

#[test]
fn rows_that_break_a_rule_are_refused_by_the_reader() {
    let root = tempfile::tempdir().unwrap();
    let set = |columns: &mut Vec<(Field, ArrayRef)>, name: &str, array: ArrayRef| {
        let at = columns.iter().position(|(field, _)| field.name() == name).unwrap();
        columns[at] = (Field::new(name, array.data_type().clone(), true), array);
    };
    let null_job = written_later(root.path(), |columns| {
        set(columns, "job_id", Arc::new(StringArray::from(vec![Some("j"), None, Some("j"), Some("j")])));
    });
    let found = null_job.batches().next().unwrap();
    assert!(matches!(&found, Err(Error::Decode { .. } | Error::Rule { .. })), "{found:?}");
    let no_reward = written_later(root.path(), |columns| {
        let nulls: ArrayRef = Arc::new(arrow::array::Float32Array::from(vec![None; 4]));
        set(columns, "reward", nulls);
    });
    let found = no_reward.batches().next().unwrap();
    assert!(matches!(&found, Err(Error::Rule { row: 0, .. })), "{found:?}");
    let retyped = written_later(root.path(), |columns| {
        set(columns, "sample_index", Arc::new(Int64Array::from(vec![0, 1, 2, 3])));
    });
    assert!(matches!(retyped.batches().next(), Some(Err(Error::ShardCorrupt { .. }))));
}

#[test]
fn a_folder_that_is_no_table_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["steps", "stairs"] {
        let dir = root.path().join(name);
        fs::create_dir(&dir).unwrap();
        assert!(matches!(TableReader::open(&dir), Err(Error::NotATable { .. })), "{name}");
    }
}

#[test]
fn golden_tables_of_version_1_are_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/v1");
    for table in Table::WRITTEN {
        let reader = TableReader::open(&table_dir(&job_dir(&golden, sample::JOB), table)).unwrap();
        let batches: Vec<_> = reader.batches().collect::<Result<_, _>>().unwrap();
        assert_eq!(batches.len(), 6);
        for (batch, seq) in batches.iter().zip(1..) {
            let mut blobs = sample::Blobs::default();
            let group = sample::group(seq, &mut blobs);
            let recorded = recorder::batches(&group, &|digest, max| blobs.fetch(digest, max)).unwrap();
            assert_eq!(batch.columns(), recorded.of(table).unwrap().columns(), "{table} {seq}");
        }
    }
}

#[test]
fn a_writer_goes_on_with_golden_tables_of_version_1() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/v1");
    let root = tempfile::tempdir().unwrap();
    for table in Table::WRITTEN {
        let (from, to) =
            [golden.as_path(), root.path()].map(|r| table_dir(&job_dir(r, sample::JOB), table)).into();
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let (mut writer, recovery) =
        TableWriter::open(root.path(), sample::meta(), ShardPlan::default()).unwrap();
    assert_eq!(recovery.seqs, (1..=6).collect::<SeqSet>());
    assert!(recovery.adopted.is_empty() && recovery.set_aside.is_empty());
    append(&mut writer, 7).unwrap();
    assert_eq!(writer.seal().unwrap()[0].shard, "00000003-000000000007");
}

#[test]
fn the_documented_columns_are_the_columns() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables.md");
    let document = fs::read_to_string(path).unwrap();
    for table in Table::ALL {
        assert!(document.contains(&format!("<!-- columns of {table} -->")), "{table} is not documented");
    }
    assert!(
        document == datasets::reference::with_columns(&document),
        "docs/tables.md is stale: cargo run -p datasets --example table_reference"
    );
}
