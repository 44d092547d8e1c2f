//! The store in a bucket of a real S3 server, which each test starts for itself.

#[path = "support/s3.rs"]
mod s3;

use std::time::{Duration, SystemTime};

use blobs::{BlobStore, Digest, Error};
use bytes::Bytes;
use s3::Server;

struct Yard {
    server: Server,
    store: BlobStore,
    _dir: tempfile::TempDir,
}

/// Tests run one to a process, so the environment is theirs.
async fn yard() -> Yard {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    for (name, value) in server.environment() {
        // SAFETY: each test is a process of its own with a current-thread runtime, and nothing
        // reads the environment beside it.
        unsafe { std::env::set_var(name, value) };
    }
    let store = BlobStore::open("s3://yard/deep/prefix").unwrap();
    store.claim("yard-1").await.unwrap();
    Yard { server, store, _dir: dir }
}

fn key(sha256: &str) -> String {
    format!("deep/prefix/sha256/{}/{}", &sha256[..2], &sha256[2..])
}

fn ago(seconds: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(seconds)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + i / 257) % 251).unwrap()).collect()
}

#[tokio::test]
async fn blobs_come_back_whole_in_one_request_and_in_parts() {
    let yard = yard().await;
    let none = yard.store.local_copy(Digest::of(b"none").as_str()).await.unwrap();
    assert!(none.is_none());
    for len in [0, 1, (1 << 20) + 1, (8 << 20) - 1, (17 << 20) + 3] {
        let bytes = pattern(len);
        let mut writer = yard.store.writer();
        for piece in bytes.chunks(700_001) {
            writer.write(piece).await.unwrap();
        }
        let put = writer.finish().await.unwrap();
        assert_eq!((put.size, put.sha256.as_str()), (len as u64, Digest::of(&bytes).as_str()));
        assert_eq!(yard.store.size(&put.sha256).await.unwrap(), Some(len as u64));
        assert_eq!(yard.store.get(&put.sha256, len as u64).await.unwrap(), bytes);
        let mut reader = yard.store.open_reader(&put.sha256).await.unwrap();
        let mut read = Vec::new();
        while let Some(part) = reader.next().await.unwrap() {
            read.extend_from_slice(&part);
        }
        assert_eq!(read, bytes);
        let copy = yard.store.local_copy(&put.sha256).await.unwrap().unwrap();
        assert_eq!(std::fs::read(copy.path()).unwrap(), bytes);
        assert!(yard.server.file(&key(&put.sha256)).is_file());
    }
}

#[tokio::test]
async fn other_bytes_than_named_leave_nothing() {
    let yard = yard().await;
    let mut writer = yard.store.writer();
    writer.write(b"these").await.unwrap();
    let other = Digest::of(b"those");
    let refused = writer.finish_as(other.as_str()).await;
    assert!(matches!(refused, Err(Error::OtherBytes { .. })), "{refused:?}");
    for digest in [other, Digest::of(b"these")] {
        assert!(!yard.store.contains(digest.as_str()).await.unwrap());
    }
}

#[tokio::test]
async fn damage_is_told_by_name() {
    let yard = yard().await;
    let put = yard.store.put(Bytes::from_static(b"sound")).await.unwrap();
    std::fs::write(yard.server.file(&key(&put.sha256)), b"faulty").unwrap();
    let read = yard.store.open_reader(&put.sha256).await;
    assert!(matches!(read, Err(Error::ChunkCorrupt { .. })), "{read:?}");
    // Another size is damage: what is put again replaces it.
    assert_eq!(yard.store.put(Bytes::from_static(b"sound")).await.unwrap(), put);
    assert_eq!(yard.store.get(&put.sha256, 100).await.unwrap(), "sound");
}

#[tokio::test]
async fn a_sweep_takes_old_blobs_and_one_that_is_put_again_is_young() {
    let yard = yard().await;
    let put = async |text: &'static str| yard.store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
    let (old, young, again) = (put("old").await, put("young").await, put("again").await);
    for blob in [&old, &again] {
        yard.server.backdate(&key(&blob.sha256), ago(7_200));
    }
    assert_eq!(yard.store.renew(&old.sha256).await.unwrap(), None, "it has to be put again");
    assert_eq!(yard.store.renew(&young.sha256).await.unwrap(), Some(5));
    assert_eq!(put("again").await, again);

    let mut listed = Vec::new();
    for shelf in 0..=u8::MAX {
        listed.extend(yard.store.list(shelf).await.unwrap());
    }
    assert_eq!(listed.iter().map(|blob| blob.size).sum::<u64>(), 3 + 5 + 5);
    let all: Vec<Digest> = listed.into_iter().map(|blob| blob.digest).collect();
    let removed = yard.store.remove(all, ago(3_600)).await.unwrap();
    assert_eq!(removed.iter().map(Digest::as_str).collect::<Vec<_>>(), [old.sha256.as_str()]);
    for (blob, is_there) in [(&old, false), (&young, true), (&again, true)] {
        assert_eq!(yard.store.contains(&blob.sha256).await.unwrap(), is_there);
    }
    assert!(!yard.server.file("deep/prefix/sweeping").exists());
}

#[tokio::test]
async fn a_writer_waits_for_the_sweep_that_has_announced_its_blob() {
    let yard = yard().await;
    let digest = Digest::of(b"contested");
    let sweeping = yard.server.file("deep/prefix/sweeping");
    std::fs::write(&sweeping, format!("{digest}\n")).unwrap();
    let store = yard.store.clone();
    let writer = tokio::spawn(async move { store.put(Bytes::from_static(b"contested")).await });
    let blob = yard.server.file(&key(digest.as_str()));
    while !blob.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The sweep looked before the writer put, and removes what it found then.
    std::fs::remove_file(&blob).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!writer.is_finished(), "nothing says yet that the sweep is over");
    std::fs::remove_file(&sweeping).unwrap();
    writer.await.unwrap().unwrap();
    assert!(blob.exists(), "put again");
}

#[tokio::test]
async fn a_store_has_one_owner_and_a_killed_sweep_of_it_is_withdrawn_at_its_start() {
    let yard = yard().await;
    let sweeping = yard.server.file("deep/prefix/sweeping");
    std::fs::write(&sweeping, "whatever\n").unwrap();
    let claimed = yard.store.claim("yard-2").await;
    assert!(matches!(&claimed, Err(Error::Claimed { owner }) if owner == "yard-1"), "{claimed:?}");
    assert!(sweeping.exists(), "it may be a sweep of the owner");
    yard.store.claim("yard-1").await.unwrap();
    assert!(!sweeping.exists());
}

#[tokio::test]
async fn a_place_without_a_store_and_wrong_keys_are_told() {
    let yard = yard().await;
    yard.store.check().await.unwrap();
    let elsewhere = BlobStore::open("s3://yard/elsewhere").unwrap();
    assert!(matches!(elsewhere.check().await, Err(Error::NoStore { .. })));
    // SAFETY: as in `yard`.
    unsafe { std::env::set_var("AWS_SECRET_ACCESS_KEY", "wrong") };
    let refused = BlobStore::open("s3://yard/deep/prefix").unwrap().check().await;
    assert!(matches!(refused, Err(Error::Bucket { .. })), "{refused:?}");
}
