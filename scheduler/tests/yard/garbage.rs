//! Collections beside a yard at work, and what clients see of checkpoints.

use std::fs::{FileTimes, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use blobs::{BlobStore, Digest};
use bytes::Bytes;
use rollout_wire::v1;

use crate::executor::{Behaviour, Executor};
use crate::yard::{Yard, code, finished};

/// One set-up that is forked, work from it, and a grader from the work.
const FORKS: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: forks
tasks: {from: {inline: [{n: "1"}, {n: "2"}, {n: "3"}]}}
group: {size: 4, on_incomplete: deliver}
defaults: {image: host, timeout: 30s}
steps:
  - {name: setup, per: group, run: "true"}
  - {name: work, needs: [setup], from: setup, run: "true", checkpoint: {after: true}}
  - {name: grade, needs: [work], from: work, run: "true", grader: {exit: {0: 1}}, checkpoint: {after: true}}
output: {retain: {checkpoints: RETAIN, failed_workspaces: RETAIN}}
"#;

fn forks(yard: &Yard, key: &str, retain: &str) -> v1::SubmitRequest {
    v1::SubmitRequest {
        document: FORKS.replace("RETAIN", retain),
        source_name: "forks.yaml".to_owned(),
        table_root: yard.tables().display().to_string(),
        idempotency_key: key.to_owned(),
        ..v1::SubmitRequest::default()
    }
}

pub fn blobs(yard: &Yard) -> BlobStore {
    BlobStore::open_existing(&format!("file://{}/data/blobs", yard.dir.display())).unwrap()
}

/// As if everything had been stored hours ago.
pub async fn age(store: &BlobStore) {
    for shelf in 0..=u8::MAX {
        for blob in store.list(shelf).await.unwrap() {
            backdate(store, blob.digest.as_str());
        }
    }
}

fn backdate(store: &BlobStore, sha256: &str) {
    let path = store.local_path(sha256).unwrap();
    if let Some(file) = path.and_then(|path| OpenOptions::new().append(true).open(path).ok()) {
        let then = SystemTime::now() - Duration::from_secs(7_200);
        file.set_times(FileTimes::new().set_modified(then).set_accessed(then)).unwrap();
    }
}

pub fn collect(dry_run: bool) -> v1::CollectGarbageRequest {
    v1::CollectGarbageRequest { dry_run, grace_ms: Some(3_600_000) }
}

fn list(of: &str) -> v1::ListCheckpointsRequest {
    v1::ListCheckpointsRequest {
        of: of.to_owned(),
        page_size: 1_000,
        ..v1::ListCheckpointsRequest::default()
    }
}

/// Before a collection that frees nothing is a failure.
const JOBS_MAX: usize = 50;

#[tokio::test]
async fn collections_beside_forks_take_no_layer_that_a_step_starts_from() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour { sandboxes: 3, ..Behaviour::default() });
    let mut client = yard.client().await;
    let store = blobs(&yard);
    let mut jobs = Vec::new();
    for key in ["a", "b", "c"] {
        let job = client.submit(forks(&yard, key, "0s")).await.unwrap().into_inner().job.unwrap();
        jobs.push(job.id);
        store.put(Bytes::from(format!("nobody names this, {key}"))).await.unwrap();
    }
    let mut collector = yard.client().await;
    let (aging, freed) = (store.clone(), Arc::new(AtomicU64::new(0)));
    let counted = freed.clone();
    let collecting = tokio::spawn(async move {
        loop {
            // Hours go by for every layer that the books name.
            for row in collector.list_checkpoints(list("")).await.unwrap().into_inner().checkpoints {
                let request = v1::GetCheckpointRequest { id: row.id };
                let shown = collector.get_checkpoint(request).await.unwrap().into_inner();
                shown
                    .checkpoint
                    .unwrap()
                    .layers
                    .iter()
                    .for_each(|layer| backdate(&aging, &layer.blob_sha256));
            }
            let reply = collector.collect_garbage(collect(false)).await.unwrap().into_inner();
            counted.fetch_add(reply.layers.unwrap().blobs, Ordering::Relaxed);
        }
    });
    let mut over = 0;
    while over < jobs.len() {
        let ended = finished(&yard, &jobs[over]).await;
        assert_eq!((ended.state.as_str(), ended.counts.unwrap().rollouts_valid), ("finished", 12));
        over += 1;
        // On a busy machine no collection may have come behind the end of a job yet.
        if over == jobs.len() && over < JOBS_MAX && freed.load(Ordering::Relaxed) == 0 {
            let more = forks(&yard, &format!("more-{over}"), "0s");
            jobs.push(client.submit(more).await.unwrap().into_inner().job.unwrap().id);
        }
    }
    assert!(!collecting.is_finished());
    collecting.abort();
    assert_eq!(executor.seen.lock().unwrap().missing, Vec::<String>::new());

    // All is over: hours later nothing is left of the checkpoints, and all of the outputs.
    let names = |reply: v1::ListCheckpointsReply| reply.checkpoints.len();
    let kept = store.put(Bytes::from_static(b"young")).await.unwrap();
    age(&store).await;
    store.renew(&kept.sha256).await.unwrap();
    let dry = client.collect_garbage(collect(true)).await.unwrap().into_inner();
    let done = client.collect_garbage(collect(false)).await.unwrap().into_inner();
    assert_eq!((dry.layers, dry.unnamed, dry.kept), (done.layers, done.unnamed, done.kept));
    assert_eq!(done.unnamed.unwrap().blobs, 3);
    assert!(freed.load(Ordering::Relaxed) > 0, "collected while jobs ran");
    assert_eq!(names(client.list_checkpoints(list("")).await.unwrap().into_inner()), 0);
    let all = v1::ListCheckpointsRequest { removed_too: true, ..list(&jobs[0]) };
    let all = client.list_checkpoints(all).await.unwrap().into_inner().checkpoints;
    assert!(all.iter().all(|checkpoint| checkpoint.state == "removed"), "{all:?}");
    assert!(all.iter().any(|checkpoint| checkpoint.removed_why == "expired"), "{all:?}");
    assert!(store.contains(&kept.sha256).await.unwrap());
    let artifact = v1::LogsRequest {
        rollout: format!("{}-g0-s0", jobs[0]),
        step: "work".to_owned(),
        ..v1::LogsRequest::default()
    };
    let mut log = client.logs(artifact).await.unwrap().into_inner();
    assert!(log.message().await.unwrap().unwrap().data.starts_with(b"hello from work"));
    running.stop().await;
}

#[tokio::test]
async fn checkpoints_are_listed_shown_read_and_removed_once_their_group_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let held = Executor::attach(&yard, Behaviour { hold_step: Some("grade"), ..Behaviour::default() });
    let mut client = yard.client().await;
    let job = client.submit(forks(&yard, "a", "7d")).await.unwrap().into_inner().job.unwrap().id;
    let needed = loop {
        let listed = client.list_checkpoints(list(&job)).await.unwrap().into_inner().checkpoints;
        if let Some(found) = listed.into_iter().find(|checkpoint| checkpoint.step == "work") {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((needed.state.as_str(), needed.depth, needed.expires_at_us), ("needed", 2, None));
    let remove = |id: &str| v1::RemoveCheckpointRequest { id: id.to_owned() };
    let refused = client.remove_checkpoint(remove(&needed.id)).await.unwrap_err();
    assert_eq!(code(&refused), "checkpoint_in_use");

    drop(held);
    let _executor = Executor::attach(&yard, Behaviour { node: "n2", ..Behaviour::default() });
    let request = v1::CancelRequest { job: job.clone(), reason: String::new() };
    let other = client.submit(forks(&yard, "b", "7d")).await.unwrap().into_inner().job.unwrap().id;
    finished(&yard, &other).await;
    client.cancel(request).await.unwrap();
    let page = v1::ListCheckpointsRequest { page_size: 5, ..list(&other) };
    let mut rows = Vec::new();
    let mut token = String::new();
    loop {
        let request = v1::ListCheckpointsRequest { page_token: token, ..page.clone() };
        let reply = client.list_checkpoints(request).await.unwrap().into_inner();
        rows.extend(reply.checkpoints);
        token = reply.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    // A set-up of each group, and two steps of each of its four rollouts.
    assert_eq!(rows.len(), 3 * (1 + 2 * 4));
    let row = rows.iter().find(|row| row.step == "work").unwrap();
    assert_eq!(row.state, "kept");
    assert!(row.expires_at_us.unwrap() > row.taken_at_us + 6 * 86_400 * 1_000_000);
    let shown = client.get_checkpoint(v1::GetCheckpointRequest { id: row.id.clone() }).await.unwrap();
    let shown = shown.into_inner();
    assert_eq!((shown.taken.len(), shown.users.len()), (1, 1));
    assert_eq!((shown.users[0].step.as_str(), shown.users[0].running), ("grade", false));
    let layer = &shown.checkpoint.unwrap().layers[1];
    let request = v1::ReadLayerRequest { checkpoint: row.id.clone(), blob_sha256: layer.blob_sha256.clone() };
    let mut chunks = client.read_layer(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend(chunk.data);
    }
    assert_eq!(Digest::of(&bytes).as_str(), layer.blob_sha256);
    let foreign = v1::ReadLayerRequest { checkpoint: row.id.clone(), blob_sha256: "0".repeat(64) };
    assert_eq!(code(&client.read_layer(foreign).await.unwrap_err()), "not_found");

    let removed = client.remove_checkpoint(remove(&row.id)).await.unwrap().into_inner().removed;
    assert_eq!((removed.len(), removed[0].removed_why.as_str()), (1, "removed by a user"));
    let left = client.list_checkpoints(list(&other)).await.unwrap().into_inner().checkpoints;
    assert_eq!(left.len(), rows.len() - 1);
    for id in ["sha256:00", &format!("sha256:{}", "0".repeat(64))] {
        assert_eq!(code(&client.remove_checkpoint(remove(id)).await.unwrap_err()), "not_found");
    }
    running.stop().await;
}

#[tokio::test]
async fn two_yards_do_not_share_their_blobs_and_one_does_not_move_them() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shared = tempfile::tempdir().unwrap();
    let url = |name: &str| Some(format!("file://{}/{name}", shared.path().display()));
    let mut yard = Yard { blobs: url("blobs"), ..Yard::new(first.path()) };
    yard.start().await.stop().await;
    let other = Yard { blobs: url("blobs"), ..Yard::new(second.path()) };
    let refused = other.try_start().await.err().unwrap();
    assert_eq!(refused.code(), "blobs_failed");
    assert!(refused.hint().unwrap().contains("owner"), "{refused:?}");
    yard.blobs = url("elsewhere");
    assert_eq!(yard.try_start().await.err().unwrap().code(), "blobs_elsewhere");
    // What was chosen holds where nothing is asked.
    yard.blobs = None;
    yard.start().await.stop().await;
    assert!(!first.path().join("data/blobs").exists());
}

/// A tree in the task rows of a schedule that has not fired, and an image of a job that has not begun.
#[tokio::test]
async fn what_schedules_and_jobs_will_need_stays() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let store = blobs(&yard);
    let put = async |content: &str| store.put(Bytes::from(content.to_owned())).await.unwrap().sha256;
    let tree = put("a packed tree").await;
    let layer = put("a layer, packed").await;
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let config = format!(
        r#"{{"architecture": "{arch}", "os": "linux", "rootfs": {{"type": "layers", "diff_ids": ["sha256:{layer}"]}}}}"#
    );
    let blob = |kind: &str, sha256: &str, size: usize| {
        let kind = format!("application/vnd.oci.image.{kind}");
        serde_json::json!({"mediaType": kind, "digest": format!("sha256:{sha256}"), "size": size})
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", &put(&config).await, config.len()),
        "layers": [blob("layer.v1.tar", &layer, "a layer, packed".len())],
    });
    let image = put(&manifest.to_string()).await;
    let unnamed = put("nobody names this").await;
    let spec = |name: &str, rows: &str, more: &str| {
        format!(
            "apiVersion: rollyard/v1\nkind: RolloutJob\nname: {name}\ntasks: {{from: {{inline: [{rows}]}}}}\n\
             defaults: {{timeout: 30s}}\n{more}\n"
        )
    };
    let claim = format!("layer:{}:{tree}:13:1:1", "ab".repeat(32));
    let scheduled = spec(
        "nightly",
        &format!("{{tree: '{claim}'}}"),
        "schedule: {cron: '0 2 * * *'}\nsteps:\n  - {name: work, image: host, layers: ['${row.tree}'], run: 'true'}",
    );
    let waiting = spec(
        "waiting",
        &format!("{{image: 'stored:sha256:{image}'}}"),
        "steps:\n  - {name: work, image: '${row.image}', run: 'true'}",
    );
    for (key, document) in [("s", scheduled), ("w", waiting)] {
        let request = v1::SubmitRequest { document, ..forks(&yard, key, "0s") };
        client.submit(request).await.unwrap();
    }
    age(&store).await;
    let collected = client.collect_garbage(collect(false)).await.unwrap().into_inner();
    assert_eq!(collected.unnamed.unwrap().blobs, 1);
    for (what, blob) in [("tree", &tree), ("layer", &layer), ("manifest", &image)] {
        assert!(store.contains(blob).await.unwrap(), "{what}");
    }
    assert!(!store.contains(&unnamed).await.unwrap());
    running.stop().await;
}
