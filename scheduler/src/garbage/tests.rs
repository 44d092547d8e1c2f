//! Random interleavings of submits, attempts, checkpoints, ends and time with collections, against
//! the plainest model there is: what is named must be there, and in the end nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{FileTimes, OpenOptions};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout::checkpoint::{Checkpoint, Layer, LayerId};
use rollout::failure::{Failure, Status};
use rollout::outcome::{Artifact, Outcome, Parked, StoredLog, Times};
use rollout::plan::RetainPlan;
use rollout::state::{GroupClosedAs, JobState};
use rollout::{
    AttemptId, Bytes, FailureCode, Generation, GroupId, IncarnationId, Millis, NodeId, RolloutId, StepIndex,
};
use scheduler_core::record::{CheckpointKind, RolloutEnd};
use tokio::sync::mpsc;

use super::{
    Arc, BlobStore, CollectError, Collected, Collector, Duration, Inbox, Input, JobId, Jobs, Mutex, Record,
    SHELVES, SystemTime, clock,
};
use crate::store::{self, Batch, NewJob, StoredFile, Writer};

const SPEC: &str = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: one\n\
    tasks: {from: {inline: [{n: \"1\"}]}}\ndefaults: {image: host, timeout: 30s}\n\
    steps:\n  - {name: grade, from: image, run: \"true\", grader: {exit: {0: 1}}}\n";
/// Different contents: few, so that what was garbage is put again.
const CONTENTS: u32 = 24;
const OPERATIONS: usize = 90;

struct Attempt {
    id: AttemptId,
    /// What it stored, and will name in part.
    stored: BTreeSet<String>,
    base: Option<Arc<Checkpoint>>,
}

struct Job {
    id: JobId,
    attempts: u32,
    open: Option<Attempt>,
    /// Of its session, when it was parked last.
    log: Option<String>,
    /// The last one, and those before it that a sandbox was started from.
    checkpoints: Vec<Taken>,
}

struct Taken {
    attempt: AttemptId,
    checkpoint: Arc<Checkpoint>,
    /// A sandbox was started from it.
    used: bool,
}

struct World {
    rng: StdRng,
    writer: Arc<Mutex<Writer>>,
    blobs: BlobStore,
    collector: Collector,
    jobs: Vec<Job>,
    next_job: u128,
    /// The model: blobs and how often they are named.
    named: BTreeMap<String, u32>,
}

impl World {
    async fn new(seed: u64, dir: &std::path::Path) -> Self {
        let (writer, reads, _) = store::open(dir, None).await.unwrap();
        let blobs = BlobStore::open(&format!("file://{}/blobs", dir.display())).unwrap();
        let (inbox, mut inputs) = Inbox::new();
        let writer = Arc::new(Mutex::new(writer));
        let driver = writer.clone();
        tokio::spawn(async move {
            while let Some(input) = next(&mut inputs).await {
                let Input::RemoveCheckpoints { records, done } = input else { panic!("{input:?}") };
                let batch = Batch { records, ..Batch::default() };
                driver.lock().await.commit(&batch, clock::wall()).await.unwrap();
                let _ = done.send(());
            }
        });
        let jobs = Jobs::new(reads, blobs.clone());
        let collector = Collector::new(jobs, blobs.clone(), inbox, Duration::ZERO);
        Self {
            rng: StdRng::seed_from_u64(seed),
            writer,
            blobs,
            collector,
            jobs: Vec::new(),
            next_job: 1,
            named: BTreeMap::new(),
        }
    }

    async fn commit(&self, batch: Batch) {
        self.writer.lock().await.commit(&batch, clock::wall()).await.unwrap();
    }

    async fn records(&self, records: Vec<Record>) {
        self.commit(Batch { records, ..Batch::default() }).await;
    }

    fn name(&mut self, blob: &str) {
        *self.named.entry(blob.to_owned()).or_default() += 1;
    }

    fn unname(&mut self, checkpoint: &Checkpoint) {
        checkpoint.layers.iter().for_each(|layer| self.unname_one(&layer.blob));
    }

    fn unname_one(&mut self, blob: &str) {
        let times = self.named.get_mut(blob).unwrap();
        *times -= 1;
        if *times == 0 {
            self.named.remove(blob);
        }
    }

    async fn put(&mut self) -> String {
        let content = format!("content {}", self.rng.random_range(0..CONTENTS));
        self.blobs.put(content.into()).await.unwrap().sha256
    }

    /// A file is sent; a while later its job is submitted.
    async fn submit(&mut self) {
        let blob = self.put().await;
        if self.rng.random_bool(0.2) {
            // The client goes away: nobody ever names it.
            return;
        }
        let collector = self.collector.clone();
        let _submitting = collector.submitting().await;
        if self.blobs.renew(&blob).await.unwrap().is_none() {
            // Refused as `blob_missing`: no upload was to be kept so short.
            return;
        }
        tokio::task::yield_now().await;
        let id = JobId::from_bits(self.next_job.try_into().unwrap());
        self.next_job += 1;
        let new_job = NewJob {
            job: id,
            name: "one".to_owned(),
            document: SPEC.to_owned(),
            source_name: "one.yaml".to_owned(),
            spec_hash: String::new(),
            table_root: "/tables".to_owned(),
            idempotency_key: id.to_string(),
            request_hash: String::new(),
            groups_total: 1,
            group_size: 1,
            created_at: clock::wall(),
            retain: RetainPlan {
                checkpoints: Millis(0),
                failed_workspaces: Millis(0),
                ..RetainPlan::default()
            },
            sandbox: None,
            images: Vec::new(),
            files: vec![StoredFile { path: "f".to_owned(), sha256: blob.clone(), size: 1 }],
        };
        let admitted = Record::GroupsAdmitted { job: id, first: 0, count: 1 };
        self.commit(Batch { new_jobs: vec![new_job], records: vec![admitted], ..Batch::default() }).await;
        self.name(&blob);
        self.jobs.push(Job { id, attempts: 0, open: None, log: None, checkpoints: Vec::new() });
    }

    fn rollout(job: JobId) -> RolloutId {
        RolloutId { group: GroupId { job, index: 0 }, sample: 0, refill: 0 }
    }

    async fn place(&mut self, at: usize) {
        let from_old = self.rng.random_bool(0.5);
        let job = &mut self.jobs[at];
        let id = AttemptId { rollout: Self::rollout(job.id), step: StepIndex(0), attempt: job.attempts };
        job.attempts += 1;
        let base = job.checkpoints.last_mut().filter(|_| from_old).map(|taken| {
            taken.used = true;
            taken.checkpoint.clone()
        });
        let placed = Record::AttemptPlaced {
            attempt: id,
            generation: Generation(1),
            node: NodeId("n1".parse().unwrap()),
            incarnation: IncarnationId::from_bits(1),
            continue_from: None,
            base: base.as_ref().map(|base| base.id()),
        };
        job.open = Some(Attempt { id, stored: BTreeSet::new(), base });
        self.records(vec![placed]).await;
    }

    async fn store(&mut self, at: usize) {
        let blob = self.put().await;
        if let Some(open) = &mut self.jobs[at].open {
            open.stored.insert(blob);
        }
    }

    /// Names some of what it stored as outputs, some as a layer over its base, and some never.
    async fn end(&mut self, at: usize) {
        let Some(Attempt { id, stored, base }) = self.jobs[at].open.take() else { return };
        let (mut log, mut artifacts, mut layers) =
            (None, Vec::new(), base.map_or_else(Vec::new, |base| base.layers.clone()));
        for blob in stored {
            match self.rng.random_range(0..4) {
                3 => log = Some(blob),
                0 => artifacts.push(blob),
                1 if layers.len() < 4 => layers.push(Layer {
                    id: LayerId::from_bytes([7; 32]),
                    blob,
                    packed: Bytes(1),
                    content: Bytes(1),
                    entries: 1,
                }),
                _ => {}
            }
        }
        let mut outcome = outcome();
        for blob in &artifacts {
            outcome.artifacts.push(Artifact {
                name: "a".to_owned(),
                media_type: "text/plain".to_owned(),
                size: Bytes(1),
                sha256: blob.clone(),
            });
        }
        if let Some(log) = log {
            self.name(&log);
            // A log goes on after the one before it, so that is named no more.
            if let Some(old) = self.jobs[at].log.replace(log.clone()) {
                self.unname_one(&old);
            }
            outcome.parked = Some(Box::new(Parked {
                log: Some(StoredLog { sha256: log, size: Bytes(1) }),
                claim: None,
                ran: Millis(0),
                time_left: Millis(1),
                idle_left: Millis(1),
                version: 1,
            }));
        }
        let mut records = vec![Record::AttemptEnded {
            attempt: id,
            generation: Generation(1),
            outcome: Box::new(outcome),
            kept: false,
        }];
        artifacts.iter().for_each(|blob| self.name(blob));
        if !layers.is_empty() {
            let checkpoint = Arc::new(Checkpoint { image: "host:1".to_owned(), layers });
            checkpoint.layers.iter().for_each(|layer| self.name(&layer.blob));
            records.push(Record::CheckpointTaken {
                attempt: id,
                ordinal: 0,
                kind: CheckpointKind::After,
                checkpoint: checkpoint.clone(),
            });
            // As the core does: one replaces the other.
            if let Some(old) = self.jobs[at].checkpoints.pop() {
                let why = "superseded".to_owned();
                records.push(Record::CheckpointRemoved { attempt: old.attempt, ordinal: 0, why });
                // What it was is below what the sandboxes over it save next.
                if old.used {
                    self.jobs[at].checkpoints.push(old);
                } else {
                    self.unname(&old.checkpoint);
                }
            }
            self.jobs[at].checkpoints.push(Taken { attempt: id, checkpoint, used: false });
        }
        self.records(records).await;
    }

    /// The rollout ends well or not, the group is in the tables, the job is over: with a retention of
    /// nothing its checkpoints are.
    async fn finish(&mut self, at: usize) {
        self.end(at).await;
        let job = self.jobs.swap_remove(at);
        let group = GroupId { job: job.id, index: 0 };
        let failed = self.rng.random_bool(0.5);
        let end = RolloutEnd {
            status: if failed { Status::Failed } else { Status::Completed },
            stop_reason: None,
            failure: failed.then(|| Failure::new(FailureCode::StepExit, "it failed")),
            reward: None,
        };
        let state = Record::JobState {
            job: job.id,
            state: JobState::Finished,
            reason: String::new(),
            hold: None,
            cancel_code: None,
            unrecorded: None,
        };
        let records = vec![
            Record::RolloutEnded { rollout: Self::rollout(job.id), end },
            Record::GroupClosed { group, seq: 0, closed_as: GroupClosedAs::Full, valid: 0 },
            state,
        ];
        self.commit(Batch { records, sealed: vec![group], ..Batch::default() }).await;
        for taken in &job.checkpoints {
            self.unname(&taken.checkpoint);
        }
        if let Some(log) = &job.log {
            self.unname_one(log);
        }
    }

    /// Hours go by for what no open attempt has stored. Not within one collection: what was renewed since
    /// it read the books cannot be hours old when it removes.
    async fn age(&mut self) {
        let collector = self.collector.clone();
        let _turn = collector.0.turn.lock().await;
        let held: BTreeSet<&String> =
            self.jobs.iter().filter_map(|job| job.open.as_ref()).flat_map(|open| &open.stored).collect();
        let old = SystemTime::now() - Duration::from_secs(7_200);
        for content in 0..CONTENTS {
            let digest = blobs::Digest::of(format!("content {content}").as_bytes()).to_string();
            if !held.contains(&digest)
                && let Some(path) = self.blobs.local_path(&digest).unwrap()
                && let Ok(file) = OpenOptions::new().append(true).open(path)
            {
                file.set_times(FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
            }
        }
    }

    async fn everything_named_is_there(&self) {
        for blob in self.named.keys() {
            assert!(self.blobs.contains(blob).await.unwrap(), "a blob that is named was taken: {blob}");
        }
    }

    async fn step(&mut self) {
        let at = self.rng.random_range(0..self.jobs.len().max(1));
        let is_open = self.jobs.get(at).map(|job| job.open.is_some());
        match (self.rng.random_range(0..10), is_open) {
            (0 | 1, _) | (_, None) => self.submit().await,
            (2, _) => self.age().await,
            (3, Some(_)) => self.finish(at).await,
            (_, Some(false)) => self.place(at).await,
            (4..=7, Some(true)) => self.store(at).await,
            (_, Some(true)) => self.end(at).await,
        }
    }
}

async fn next(inputs: &mut mpsc::Receiver<Input>) -> Option<Input> {
    inputs.recv().await
}

fn outcome() -> Outcome {
    Outcome::unmeasured(Failure::new(FailureCode::StepExit, "it ended"), Times::at(clock::wall()))
}

async fn interleave(seed: u64) -> Collected {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(seed, dir.path()).await;
    let collector = world.collector.clone();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let collecting = tokio::spawn(async move {
        let mut sum = Collected::default();
        loop {
            let one = match collector.collect(false, None).await {
                Err(CollectError::Busy) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                one => one.unwrap(),
            };
            sum.expired += one.expired;
            sum.layers.blobs += one.layers.blobs;
            sum.unnamed.blobs += one.unnamed.blobs;
            if *stopped.borrow_and_update() {
                return sum;
            }
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..OPERATIONS {
        world.step().await;
        world.everything_named_is_there().await;
    }
    while !world.jobs.is_empty() {
        world.finish(0).await;
    }
    stop.send_replace(true);
    let during = collecting.await.unwrap();
    world.everything_named_is_there().await;

    world.age().await;
    let dry = world.collector.collect(true, None).await.unwrap();
    let last = world.collector.collect(false, None).await.unwrap();
    assert_eq!((dry.layers, dry.unnamed), (last.layers, last.unnamed), "a dry run says what goes");
    let mut left = BTreeSet::new();
    for shelf in SHELVES {
        left.extend(world.blobs.list(shelf).await.unwrap().into_iter().map(|blob| blob.digest.to_string()));
    }
    assert_eq!(left, world.named.keys().cloned().collect(), "seed {seed}: garbage is left, or too little");
    during
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_interleaving_takes_what_is_named_or_leaves_what_is_not() {
    let mut sum = Collected::default();
    for seed in 0..12 {
        let during = interleave(seed).await;
        sum.expired += during.expired;
        sum.layers.blobs += during.layers.blobs;
        sum.unnamed.blobs += during.unnamed.blobs;
    }
    // The collections met the work.
    assert!(sum.expired > 0 && sum.layers.blobs > 0 && sum.unnamed.blobs > 0, "{sum:?}");
}
