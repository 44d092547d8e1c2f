//! The store from outside: round trips, refusals, damage, kills.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use blobs::{BlobStore, Digest, Error};
use bytes::Bytes;

fn open(dir: &Path) -> BlobStore {
    BlobStore::open(&format!("file://{}", dir.display())).unwrap()
}

fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// All but the lock.
fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("sweep.lock") {
            continue;
        }
        if path.is_dir() { found.extend(files_under(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn blobs_of_every_size_around_the_buffer_come_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for len in [0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20] {
        let bytes = pattern(len, len as u64);
        let put = store.put(Bytes::from(bytes.clone())).await.unwrap();
        assert_eq!((put.size, put.sha256.as_str()), (len as u64, Digest::of(&bytes).as_str()));

        let mut writer = store.writer();
        for piece in bytes.chunks(70_001) {
            writer.write(piece).await.unwrap();
        }
        assert_eq!(writer.finish().await.unwrap(), put, "{len}");

        assert_eq!(store.get(&put.sha256, len as u64).await.unwrap(), bytes);
        assert_eq!(store.size(&put.sha256).await.unwrap(), Some(len as u64));
        assert_eq!(fs::read(store.local_path(&put.sha256).unwrap().unwrap()).unwrap(), bytes);
        let mut reader = store.open_reader(&put.sha256).await.unwrap();
        let mut read = Vec::new();
        while let Some(part) = reader.next().await.unwrap() {
            read.extend_from_slice(&part);
        }
        assert_eq!((reader.size(), read), (len as u64, bytes));
    }
    assert_eq!(files_under(&dir.path().join("staged")), Vec::<PathBuf>::new());
    assert_eq!(files_under(&dir.path().join("sha256")).len(), 7);
}

#[tokio::test]
async fn what_is_not_there_or_not_a_digest_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let absent = "0".repeat(64);
    assert!(matches!(store.get(&absent, 10).await, Err(Error::NotFound { sha256 }) if sha256 == absent));
    assert!(matches!(store.open_reader(&absent).await, Err(Error::NotFound { .. })));
    assert_eq!(store.local_path(&absent).unwrap(), None);
    assert!(!store.contains(&absent).await.unwrap());
    for bad in ["", "../../etc/passwd", &"A".repeat(64), &"0".repeat(63)] {
        assert!(matches!(store.get(bad, 10).await, Err(Error::BadDigest { .. })));
        assert!(matches!(store.open_reader(bad).await, Err(Error::BadDigest { .. })));
        assert!(matches!(store.contains(bad).await, Err(Error::BadDigest { .. })));
        assert!(matches!(store.local_path(bad), Err(Error::BadDigest { .. })));
    }
    let blob = store.put(Bytes::from_static(b"twelve bytes")).await.unwrap();
    let refused = store.get(&blob.sha256, 11).await;
    assert!(matches!(refused, Err(Error::TooLarge { size: 12, bytes_max: 11, .. })));
}

#[tokio::test]
async fn damage_is_named_and_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(100_000, 7);
    let blob = store.put(Bytes::from(bytes.clone())).await.unwrap();
    let path = store.local_path(&blob.sha256).unwrap().unwrap();
    let mut flipped = bytes.clone();
    flipped[99_999] ^= 1;
    let longer = [bytes.as_slice(), b"x"].concat();
    for damaged in [&flipped, &bytes[..50_000].to_vec(), &Vec::new(), &longer] {
        fs::write(&path, damaged).unwrap();
        let got = store.get(&blob.sha256, 1 << 20).await;
        assert!(matches!(&got, Err(Error::ChunkCorrupt { sha256, .. }) if *sha256 == blob.sha256), "{got:?}");
        let opened = store.open_reader(&blob.sha256).await;
        assert!(matches!(opened, Err(Error::ChunkCorrupt { .. })));
    }
    // Damage that shows in the size is repaired by storing the bytes again.
    store.put(Bytes::from(bytes.clone())).await.unwrap();
    assert_eq!(store.get(&blob.sha256, 1 << 20).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_blob_that_changes_under_its_reader_ends_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let blob = store.put(Bytes::from(pattern(50_000, 3))).await.unwrap();
    let mut reader = store.open_reader(&blob.sha256).await.unwrap();
    let path = store.local_path(&blob.sha256).unwrap().unwrap();
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all(b"overwritten").unwrap();
    let end = loop {
        match reader.next().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Err(Error::ChunkCorrupt { .. })), "{end:?}");
}

#[tokio::test]
async fn a_dropped_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut writer = store.writer();
    writer.write(&pattern(3 << 20, 1)).await.unwrap();
    assert_eq!(files_under(&dir.path().join("staged")).len(), 1);
    drop(writer);
    assert_eq!(files_under(dir.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn many_writers_of_the_same_bytes_make_one_blob() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let puts = (0..16).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.put(Bytes::from(pattern(2 << 20, 5))).await.unwrap() })
    });
    for put in puts.collect::<Vec<_>>() {
        let blob = put.await.unwrap();
        assert_eq!(store.get(&blob.sha256, 2 << 20).await.unwrap().len(), 2 << 20);
    }
    assert_eq!(files_under(dir.path()).len(), 1);
}

const STORE_ENV: &str = "BLOBS_TEST_KILLED_WRITER";

/// The program that the next test kills: writes blobs for ever and notes each digest once the
/// store has acknowledged it. Started by cargo it has no store to write to, and is done.
#[tokio::test]
async fn killed_writer() {
    let Some(dir) = std::env::var_os(STORE_ENV).map(PathBuf::from) else { return };
    let store = open(&dir.join("store"));
    let mut notes = fs::OpenOptions::new().append(true).create(true).open(dir.join("acknowledged")).unwrap();
    for salt in u64::from(std::process::id()) << 32.. {
        let len = usize::try_from(salt % 7).unwrap() * 400_000 + 1;
        let mut writer = store.writer();
        for piece in pattern(len, salt).chunks(100_000) {
            writer.write(piece).await.unwrap();
        }
        let blob = writer.finish().await.unwrap();
        writeln!(notes, "{}", blob.sha256).unwrap();
    }
}

struct Killed(Child);
impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_writer_killed_at_any_moment_leaves_each_blob_absent_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    let acknowledged = || fs::read_to_string(dir.path().join("acknowledged")).unwrap_or_default();
    for round in 0..12u32 {
        let before = acknowledged().len();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_writer"])
            .env(STORE_ENV, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let hang = Instant::now() + Duration::from_secs(60);
        while acknowledged().len() <= before {
            assert!(Instant::now() < hang, "round {round}: the writer acknowledges nothing");
            assert_eq!(child.0.try_wait().unwrap(), None, "round {round}: the writer ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Spread the kills over the life of a blob.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 1_700));
        drop(child);

        let store = open(&dir.path().join("store"));
        assert_eq!(files_under(&dir.path().join("store/staged")), Vec::<PathBuf>::new());
        for path in files_under(&dir.path().join("store/sha256")) {
            let name: Vec<_> = path.iter().rev().take(2).map(|part| part.to_str().unwrap()).collect();
            let digest = format!("{}{}", name[1], name[0]);
            assert_eq!(Digest::of(&fs::read(&path).unwrap()).as_str(), digest, "round {round}");
        }
        for digest in acknowledged().lines() {
            assert!(store.local_path(digest).unwrap().is_some(), "round {round}: {digest} was lost");
        }
    }
}

fn ago(seconds: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(seconds)
}

fn backdate(store: &BlobStore, sha256: &str, put_at: SystemTime) {
    let path = store.local_path(sha256).unwrap().unwrap();
    let times = fs::FileTimes::new().set_modified(put_at).set_accessed(put_at);
    fs::OpenOptions::new().append(true).open(path).unwrap().set_times(times).unwrap();
}

#[tokio::test]
async fn a_sweep_takes_old_blobs_and_one_that_is_put_or_renewed_again_is_young() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut blobs = Vec::new();
    for text in ["old", "young", "again", "renewed"] {
        blobs.push(store.put(Bytes::from_static(text.as_bytes())).await.unwrap());
    }
    for blob in [&blobs[0], &blobs[2], &blobs[3]] {
        backdate(&store, &blob.sha256, ago(7_200));
    }
    store.put(Bytes::from_static(b"again")).await.unwrap();
    let written_at = |sha256: &str| {
        let path = store.local_path(sha256).unwrap().unwrap();
        fs::metadata(path).unwrap().modified().unwrap()
    };
    let before = written_at(&blobs[3].sha256);
    assert_eq!(store.renew(&blobs[3].sha256).await.unwrap(), Some(7));
    assert_eq!(written_at(&blobs[3].sha256), before, "for its readers it is the same file");
    assert_eq!(store.renew(Digest::of(b"none").as_str()).await.unwrap(), None);
    let mut listed = Vec::new();
    for shelf in 0..=u8::MAX {
        listed.extend(store.list(shelf).await.unwrap());
    }
    assert_eq!(listed.len(), 4);
    let all: Vec<Digest> = listed.into_iter().map(|blob| blob.digest).collect();
    let removed = store.remove(all, ago(3_600)).await.unwrap();
    assert_eq!(removed.iter().map(Digest::as_str).collect::<Vec<_>>(), [blobs[0].sha256.as_str()]);
    assert!(!store.contains(&blobs[0].sha256).await.unwrap());
    for blob in &blobs[1..] {
        assert!(store.contains(&blob.sha256).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_blob_that_writers_put_again_and_again_is_never_swept_under_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let digest = Digest::of(b"contested");
    let writers = (0..4).map(|_| {
        let (store, digest) = (store.clone(), digest.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                let before = SystemTime::now();
                store.put(Bytes::from_static(b"contested")).await.unwrap();
                // No sweep that starts from here with a time before the put may take it.
                let swept = store.remove(vec![digest.clone()], before).await.unwrap();
                assert!(swept.is_empty());
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut taken = 0;
    for _ in 0..400 {
        // A sweep whose time is now takes it, whatever the writers do; they put it again.
        taken += store.remove(vec![digest.clone()], SystemTime::now()).await.unwrap().len();
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(taken > 0, "the sweeps met the writers");
    store.put(Bytes::from_static(b"contested")).await.unwrap();
    assert_eq!(store.get(digest.as_str(), 100).await.unwrap(), "contested");
}

#[tokio::test]
async fn a_store_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.claim("yard-1").await.unwrap();
    store.claim("yard-1").await.unwrap();
    let claimed = store.claim("yard-2").await;
    assert!(matches!(&claimed, Err(Error::Claimed { owner }) if owner == "yard-1"), "{claimed:?}");
}
