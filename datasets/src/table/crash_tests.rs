//! Kills and failures at every step of sealing, and files cut at every byte.

use std::collections::BTreeMap;

use arrow::array::AsArray as _;
use arrow::datatypes::Int64Type;
use rollout::plan::ShardPlan;

use super::*;
use crate::disk::faulty::{Fault, FaultyDisk};
use crate::read::TableReader;
use crate::sample;
use crate::seqs::SeqSet;

/// Notes which directories were synced.
#[derive(Debug, Clone, Default)]
struct NotingDisk(std::sync::Arc<std::sync::Mutex<std::collections::BTreeSet<PathBuf>>>);

impl Disk for NotingDisk {
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        LocalDisk.write_synced(path, bytes)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        LocalDisk.rename(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        self.0.lock().unwrap().insert(dir.to_owned());
        LocalDisk.sync_dir(dir)
    }
    fn append_synced(&self, path: &Path, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        LocalDisk.append_synced(path, at, bytes)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        LocalDisk.remove(path)
    }
}

#[test]
fn the_name_of_every_directory_made_is_synced_in_its_parent() {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().join("a").join("b");
    let disk = NotingDisk::default();
    TableWriter::open_on(Box::new(disk.clone()), &root, sample::meta(), ShardPlan::default()).unwrap();
    let synced = disk.0.lock().unwrap();
    let job_dir = job_dir(&root, sample::JOB);
    for dir in [top.path(), &top.path().join("a"), &root, &job_dir] {
        assert!(synced.contains(dir), "{} holds a new name: {synced:?}", dir.display());
    }
}

fn open(root: &Path) -> (TableWriter, Recovery) {
    TableWriter::open(root, sample::meta(), ShardPlan::default()).unwrap()
}

fn append(writer: &mut TableWriter, seqs: impl IntoIterator<Item = i64>) {
    for seq in seqs {
        let mut blobs = sample::Blobs::default();
        let group = sample::group(seq, &mut blobs);
        writer.append(&group, &|digest, bytes_max| blobs.fetch(digest, bytes_max)).unwrap();
    }
}

fn dir(root: &Path, table: Table) -> PathBuf {
    table_dir(&job_dir(root, sample::JOB), table)
}

/// How often each seq is sealed in a table, with every shard read and checked.
fn sealed(root: &Path, table: Table) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    let reader = match TableReader::open(&dir(root, table)) {
        Err(Error::NotATable { .. }) => return counts,
        reader => reader.unwrap(),
    };
    for line in reader.shards() {
        let seqs = line.seq_set().unwrap();
        assert_eq!(seqs.len(), reader.read(line).unwrap().len() as u64);
        seqs.iter().for_each(|seq| *counts.entry(seq).or_default() += 1);
    }
    counts
}

fn check_complete(root: &Path, last: i64, context: &str) {
    for table in Table::WRITTEN {
        let once: BTreeMap<i64, usize> = (1..=last).map(|seq| (seq, 1)).collect();
        assert_eq!(sealed(root, table), once, "{context}: {table}");
        let names = shard::names(&dir(root, table)).unwrap();
        assert!(!names.iter().any(|name| name.ends_with(".tmp")), "{context}: {names:?}");
        let counters: Vec<_> = names.iter().filter_map(|n| shard::counter(n.split('.').next()?)).collect();
        let mut distinct = counters.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), counters.len(), "{context}: a name was given twice: {names:?}");
    }
    // And the rows are those that were recorded.
    let reader = TableReader::open(&dir(root, Table::Trajectories)).unwrap();
    for batch in reader.batches() {
        let batch = batch.unwrap();
        let seq = batch.column_by_name("seq").unwrap().as_primitive::<Int64Type>().value(0);
        let group = sample::group(seq, &mut sample::Blobs::default());
        let expected = recorder::batches(&group, &recorder::no_inline).unwrap().trajectories;
        assert_eq!(batch.columns(), expected.columns(), "{context}: seq {seq}");
    }
}

/// Runs `body` with a fault at operation 0, 1, 2, ... until it needs no more operations.
fn at_every_operation(kill: bool, mut body: impl FnMut(&FaultyDisk, &str)) {
    for fault in [Fault::Before, Fault::Half, Fault::After] {
        for operation in 0.. {
            let disk = FaultyDisk::failing(operation, fault, kill);
            body(&disk, &format!("{fault:?} at operation {operation}"));
            if disk.script().asked <= operation {
                assert!(operation > 15, "sealing four tables takes more than {operation} operations");
                break;
            }
        }
    }
}

#[test]
fn a_process_killed_at_any_step_loses_no_group_and_seals_none_twice() {
    at_every_operation(true, |disk, context| {
        let root = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(root.path());
        append(&mut writer, 1..=1);
        writer.seal().unwrap();
        drop(writer);

        let opened =
            TableWriter::open_on(Box::new(disk.clone()), root.path(), sample::meta(), ShardPlan::default());
        let mut told = Vec::new();
        if let Ok((mut writer, recovery)) = opened {
            assert_eq!(recovery.seqs, [1].into_iter().collect());
            append(&mut writer, 2..=3);
            told = writer.seal().unwrap_or_default();
        }
        for table in Table::WRITTEN {
            assert!(sealed(root.path(), table).values().all(|&times| times == 1), "{context}: {table}");
        }

        let (mut writer, recovery) = open(root.path());
        let complete = recovery.seqs.clone();
        for shard in &told {
            assert!(recovery.sealed.contains(shard), "{context}: {shard:?} was told and is gone");
        }
        // The caller does not know which groups are sealed where, and appends all that closed.
        append(&mut writer, 1..=3);
        assert_eq!(writer.pending().groups as u64, 3 - complete.len(), "{context}");
        writer.seal().unwrap();
        check_complete(root.path(), 3, context);
    });
}

#[test]
fn a_failed_seal_keeps_its_groups_and_can_be_tried_again() {
    at_every_operation(false, |disk, context| {
        let root = tempfile::tempdir().unwrap();
        drop(open(root.path()));
        let opened =
            TableWriter::open_on(Box::new(disk.clone()), root.path(), sample::meta(), ShardPlan::default());
        let Ok((mut writer, _)) = opened else {
            // Opening failed: nothing was appended, and opening again works.
            drop(open(root.path()));
            return;
        };
        let mut told = Vec::new();
        for (first, last) in [(1, 2), (3, 4)] {
            append(&mut writer, first..=last);
            let waiting = writer.pending();
            told.extend(writer.seal().unwrap_or_else(|error| {
                assert!(matches!(error, Error::DiskFull { .. }), "{context}: {error:?}");
                assert_eq!(writer.pending().groups, waiting.groups, "{context}");
                // Groups go on closing meanwhile; those that wait are not taken twice.
                append(&mut writer, first..=last + 1);
                assert_eq!(writer.pending().groups, 3, "{context}");
                writer.seal().unwrap()
            }));
            assert_eq!(writer.pending(), Pending::default(), "{context}");
        }
        disk.heal();
        append(&mut writer, 5..=5);
        told.extend(writer.seal().unwrap());
        drop(writer);
        check_complete(root.path(), 5, context);
        let (_, mut recovery) = open(root.path());
        assert!(recovery.adopted.is_empty() && recovery.set_aside.is_empty(), "{context}: {recovery:?}");
        // Every shard was told of exactly once.
        recovery.sealed.sort();
        told.sort();
        assert_eq!(told, recovery.sealed, "{context}");
    });
}

#[test]
fn a_manifest_cut_at_any_byte_is_repaired_from_the_shards() {
    for table in [Table::Trajectories, Table::Turns] {
        let root = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(root.path());
        for seqs in [vec![1], vec![4, 2]] {
            append(&mut writer, seqs);
            writer.seal().unwrap();
        }
        drop(writer);
        let path = dir(root.path(), table).join(manifest::FILE);
        let whole = fs::read(&path).unwrap();
        let ends: Vec<_> = (0..whole.len()).filter(|&at| whole[at] == b'\n').map(|at| at + 1).collect();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let visible = ends.iter().filter(|&&end| end <= cut).count();
            assert_eq!(
                TableReader::open(&dir(root.path(), table)).unwrap().shards().len(),
                visible,
                "cut {cut}"
            );
            let (_, recovery) = open(root.path());
            assert_eq!(recovery.seqs, [1, 2, 4].into_iter().collect(), "cut {cut}");
            assert_eq!(recovery.adopted.len(), 2 - visible, "cut {cut}");
            let torn = cut > 0 && !ends.contains(&cut);
            assert_eq!(recovery.manifests_torn, if torn { vec![table] } else { vec![] }, "cut {cut}");
            assert_eq!(fs::read(&path).unwrap(), whole, "cut {cut}");
        }
    }
}

#[test]
fn a_shard_cut_at_any_byte_is_never_taken_for_a_whole_one() {
    let groups: BTreeMap<i64, RecordBatch> = [1, 2]
        .map(|seq| {
            let group = sample::group(seq, &mut sample::Blobs::default());
            (seq, recorder::batches(&group, &recorder::no_inline).unwrap().steps)
        })
        .into();
    let encoded = shard::encode(Table::Steps, &sample::meta(), 0, &groups, &SeqSet::new()).unwrap().unwrap();
    let path = Path::new("steps/shard");
    for cut in 0..encoded.bytes.len() {
        assert!(shard::decode(path, Table::Steps, &encoded.bytes[..cut]).is_err(), "cut {cut}");
    }
    let decoded = shard::decode(path, Table::Steps, &encoded.bytes).unwrap();
    assert_eq!(decoded.batches.len(), 2);
    let longer = [encoded.bytes.as_slice(), &encoded.bytes].concat();
    assert!(shard::decode(path, Table::Steps, &longer).is_err());

    // On disk: cut at the ends of its parts, where a cut is hardest to see.
    for cut in [0, 8, encoded.bytes.len() / 2, encoded.bytes.len() - 8, encoded.bytes.len() - 1] {
        let root = tempfile::tempdir().unwrap();
        drop(open(root.path()));
        let file = dir(root.path(), Table::Steps).join(format!("{}.arrows", encoded.line.shard));
        fs::write(&file, &encoded.bytes[..cut]).unwrap();
        let (mut writer, recovery) = open(root.path());
        assert_eq!((recovery.set_aside.len(), recovery.sealed.len()), (1, 0), "cut {cut}");
        append(&mut writer, 1..=2);
        writer.seal().unwrap();
        check_complete(root.path(), 2, "after a cut shard");
    }
}

#[test]
fn a_damaged_line_before_the_last_is_an_error_and_a_lost_shard_too() {
    let root = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(root.path());
    for seq in 1..=2 {
        append(&mut writer, [seq]);
        writer.seal().unwrap();
    }
    drop(writer);
    let table = dir(root.path(), Table::Steps);
    let path = table.join(manifest::FILE);
    let whole = fs::read_to_string(&path).unwrap();
    let reopen = || TableWriter::open(root.path(), sample::meta(), ShardPlan::default()).map(|_| ());
    for (from, to) in
        [("{\"shard\"", "{\"sh"), ("00000000-", "../00000-"), ("\"seq_min\":1", "\"seq_min\":9")]
    {
        fs::write(&path, whole.replacen(from, to, 1)).unwrap();
        let found = reopen();
        assert!(matches!(found, Err(Error::ManifestCorrupt { line: 1, .. })), "{to}: {found:?}");
    }
    // The same damage in the last line is what a crash may leave.
    let (first, last) = whole.split_at(whole.find('\n').unwrap() + 1);
    fs::write(&path, format!("{first}{}", last.replacen('{', "\0", 1))).unwrap();
    reopen().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);

    let first: ShardLine = serde_json::from_str(first).unwrap();
    fs::remove_file(table.join(format!("{}.arrows", first.shard))).unwrap();
    assert!(matches!(reopen(), Err(Error::ShardMissing { .. })));
}

#[test]
fn an_unfinished_shard_is_removed_and_its_name_not_given_again() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let left = dir(root.path(), Table::Turns).join(format!("{}.arrows.tmp", shard::name(6, 1)));
    fs::write(&left, b"half").unwrap();
    let (mut writer, recovery) = open(root.path());
    assert_eq!((recovery.unfinished_removed, left.exists()), (1, false));
    append(&mut writer, [1]);
    let turns = writer.seal().unwrap().into_iter().find(|shard| shard.table == Table::Turns);
    assert_eq!(turns.unwrap().shard, shard::name(7, 1));
}

#[test]
fn a_whole_shard_of_sealed_groups_or_of_another_job_is_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(root.path());
    append(&mut writer, 1..=2);
    writer.seal().unwrap();
    drop(writer);
    let table = dir(root.path(), Table::Steps);
    let twin = table.join(format!("{}.arrows", shard::name(1, 1)));
    fs::copy(table.join(format!("{}.arrows", shard::name(0, 1))), &twin).unwrap();
    let other = TableMeta { job: JobId::from_bits(8), ..sample::meta() };
    let group = sample::group(3, &mut sample::Blobs::default());
    let steps = recorder::batches(&group, &recorder::no_inline).unwrap().steps;
    let encoded =
        shard::encode(Table::Steps, &other, 2, &[(3, steps)].into(), &SeqSet::new()).unwrap().unwrap();
    fs::write(table.join(format!("{}.arrows", encoded.line.shard)), &encoded.bytes).unwrap();

    let (mut writer, recovery) = open(root.path());
    assert_eq!((recovery.set_aside.len(), recovery.adopted.len(), twin.exists()), (2, 0, false));
    append(&mut writer, 1..=3);
    writer.seal().unwrap();
    check_complete(root.path(), 3, "after strange shards");
}
