//! Uploads that break off, stall, drip or lie: each ends by a code and leaves nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rollout_wire::v1;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::yard::{HANG, Yard, code};

/// The most uploads at once.
const UPLOADS_MAX: usize = 64;

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn first(sha256: &str, data: &[u8], size: Option<u64>) -> v1::BlobChunk {
    v1::BlobChunk { sha256: sha256.to_owned(), data: data.to_vec(), size }
}

fn more(data: &[u8]) -> v1::BlobChunk {
    first("", data, None)
}

async fn put(yard: &Yard, chunks: Vec<v1::BlobChunk>) -> Result<v1::PutBlobReply, Status> {
    let reply = yard.client().await.put_blob(tokio_stream::iter(chunks)).await;
    reply.map(tonic::Response::into_inner)
}

/// Every file of the blob store but its folders.
fn stored(yard: &Yard) -> Vec<PathBuf> {
    let mut folders = vec![yard.dir.join("data/blobs")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    // Of the store itself, not of a blob.
    files.retain(|path| !path.ends_with("owner") && !path.ends_with("sweep.lock"));
    files
}

async fn nothing_stored(yard: &Yard) {
    let empty = async {
        while !stored(yard).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(HANG, empty).await;
    assert!(waited.is_ok(), "{:?}", stored(yard));
}

#[tokio::test]
async fn bytes_that_are_not_those_named_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let large = vec![7; 3 << 20];
    let named = digest(&large);
    let cases = [
        ("wrong hash", vec![first(&named, b"other", None)], "blob_mismatch"),
        ("wrong hash of much", vec![first(&named, &large, None), more(b"x")], "blob_mismatch"),
        ("more than declared", vec![first(&named, &large, Some(10)), more(&large)], "blob_mismatch"),
        ("less than declared", vec![first(&digest(b"a"), b"a", Some(2))], "blob_mismatch"),
        ("declared too large", vec![first(&named, b"", Some(u64::MAX))], "bad_request"),
        ("named twice", vec![first(&named, &large, None), first(&named, b"", None)], "bad_request"),
        ("a chunk too large", vec![first(&named, &vec![0; (4 << 20) + 1], None)], "bad_request"),
        ("nothing at all", Vec::new(), "bad_request"),
        ("no hash", vec![more(b"x")], "bad_request"),
    ];
    for (what, chunks, expected) in cases {
        let status = put(&yard, chunks).await.unwrap_err();
        assert_eq!(code(&status), expected, "{what}: {status:?}");
        nothing_stored(&yard).await;
    }
    // What is as it was named is taken, and of no length too.
    assert_eq!(put(&yard, vec![first(&digest(b""), b"", Some(0))]).await.unwrap().size, 0);
    let whole = vec![first(&named, &large[..1 << 20], Some(3 << 20)), more(&large[1 << 20..])];
    assert_eq!(put(&yard, whole).await.unwrap().size, 3 << 20);
    assert_eq!(stored(&yard).len(), 2);
    running.stop().await;
}

#[tokio::test]
async fn an_upload_that_stalls_or_drips_ends_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.client_stall = Duration::from_millis(500);
    let running = yard.start().await;
    let data = vec![1; 2 << 20];

    let (sender, chunks) = mpsc::channel(4);
    sender.send(first(&digest(b"never"), &data, None)).await.unwrap();
    let began_at = Instant::now();
    let status = yard.client().await.put_blob(ReceiverStream::new(chunks)).await.unwrap_err();
    assert_eq!(code(&status), "client_too_slow", "{status:?}");
    assert!(began_at.elapsed() < HANG / 2);

    // A byte now and then is no progress.
    let (sender, chunks) = mpsc::channel(4);
    let drip = tokio::spawn(async move {
        let mut next = first(&digest(b"never"), b"x", None);
        while sender.send(std::mem::replace(&mut next, more(b"x"))).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let status = yard.client().await.put_blob(ReceiverStream::new(chunks)).await.unwrap_err();
    assert_eq!(code(&status), "client_too_slow", "{status:?}");
    tokio::time::timeout(HANG, drip).await.unwrap().unwrap();
    nothing_stored(&yard).await;
    running.stop().await;
}

#[tokio::test]
async fn a_thousand_half_open_uploads_are_a_bounded_number_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut yard = Yard::new(dir.path());
    yard.client_stall = Duration::from_secs(5);
    let running = yard.start().await;
    let before = resident_bytes();
    let mut uploads = JoinSet::new();
    let mut senders = Vec::new();
    let data = vec![1; 1 << 20];
    for connection in 0..5 {
        let client = yard.client().await;
        for index in 0..200 {
            let (sender, chunks) = mpsc::channel(2);
            let name = digest(format!("{connection}.{index}").as_bytes());
            sender.send(first(&name, &data, None)).await.unwrap();
            senders.push(sender);
            let mut client = client.clone();
            uploads.spawn(async move { client.put_blob(ReceiverStream::new(chunks)).await.unwrap_err() });
        }
    }
    let (mut refused, mut slow) = (0, 0);
    let mut looked = false;
    while let Some(status) = uploads.join_next().await {
        let status = status.unwrap();
        match code(&status) {
            "too_many_uploads" => refused += 1,
            "client_too_slow" => slow += 1,
            other => panic!("{other}: {status:?}"),
        }
        if !looked && refused > 900 {
            looked = true;
            assert!(stored(&yard).len() <= UPLOADS_MAX, "{}", stored(&yard).len());
            yard.client().await.list_nodes(v1::ListNodesRequest {}).await.unwrap();
        }
    }
    assert_eq!((refused, slow), (1_000 - UPLOADS_MAX, UPLOADS_MAX));
    assert!(looked);
    // The test's own half of every connection is counted too.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 3 << 30, "{grown} bytes more");
    nothing_stored(&yard).await;
    drop(senders);
    assert_eq!(put(&yard, vec![first(&digest(b"a"), b"a", None)]).await.unwrap().size, 1);
    running.stop().await;
}

#[tokio::test]
async fn an_open_upload_keeps_no_scheduler_from_stopping_and_the_next_one_starts_clean() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let (sender, chunks) = mpsc::channel(4);
    sender.send(first(&digest(b"never"), &vec![1; 2 << 20], None)).await.unwrap();
    let mut client = yard.client().await;
    let upload = tokio::spawn(async move { client.put_blob(ReceiverStream::new(chunks)).await });
    let staged = async {
        while stored(&yard).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, staged).await.unwrap();
    let asked_at = Instant::now();
    running.stop().await;
    assert!(asked_at.elapsed() < Duration::from_secs(4), "{:?}", asked_at.elapsed());
    upload.await.unwrap().unwrap_err();
    nothing_stored(&yard).await;
    // What a killed scheduler left is swept by the next.
    std::fs::write(yard.dir.join("data/blobs/staged/1-0.staged"), b"half").unwrap();
    let running = yard.start().await;
    nothing_stored(&yard).await;
    running.stop().await;
}

pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}
