//! The one owner of deletion: checkpoints whose time is over, then blobs that nobody names.
//!
//! Mark and sweep. A blob goes if it was put before a time and the books, read as of one moment
//! after that time, do not name it. The time is the earliest of
//!
//! - the start of the sweep less the grace that uploads have until their job is submitted, and
//! - the placement of the oldest attempt that has not ended: what it stored is named when it ends,
//!   however long its report is under way.
//!
//! Whoever names a blob that was there already renews it first, and the store takes no blob that
//! was put or renewed since that time, in one step with the look at it. So a blob that comes into
//! use while it is swept survives, and nothing has to stand still.

mod candidates;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blobs::BlobStore;
use rollout::{JobId, ScheduleId, Timestamp};
use scheduler_core::Record;
use tokio::sync::{Mutex, RwLock, RwLockReadGuard, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error::Error;
use crate::health::chain;
use crate::inbox::{Inbox, Input, Stopping};
use crate::jobs::{JobFacts, Jobs};
use crate::schedules::scheduled_job;
use crate::store::{Root, ScheduleRow, Taken};
use candidates::Candidates;

/// Blobs looked at before the books are read; a larger store is swept part by part.
const PART_BLOBS: usize = 250_000;
/// Checkpoints removed in one commit.
const EXPIRED_AT_ONCE: u32 = 1_000;
/// Blobs removed in one call of the store.
const REMOVED_AT_ONCE: usize = 1_000;
/// How far the clocks of nodes and of the blob store may be from the scheduler's.
const CLOCK_MARGIN: Duration = Duration::from_secs(60);
/// The largest manifest or index of an image.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// First bytes of digests.
const SHELVES: std::ops::RangeInclusive<u8> = 0..=u8::MAX;

/// Why a checkpoint was removed, as in `removed_why`.
const EXPIRED: &str = "expired";

#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error("a collection is under way")]
    Busy,
    #[error("the books cannot be read")]
    Books(#[from] Error),
    #[error("the blob store cannot be swept")]
    Blobs(#[from] blobs::Error),
    /// Until it is seen what it names, nothing is removed.
    #[error("what schedule {schedule} names cannot be seen: {problem}; remove it, or submit its spec again")]
    Schedule { schedule: ScheduleId, problem: String },
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

/// What went, or would go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Checkpoints whose time was over.
    pub expired: u64,
    /// Blobs that were layers of checkpoints.
    pub layers: Sum,
    /// Blobs that nobody ever named, or whose task rows are of no use any more.
    pub unnamed: Sum,
    /// Blobs that stay.
    pub kept: Sum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub blobs: u64,
    pub bytes: u64,
}

impl Sum {
    pub(crate) const fn add(&mut self, bytes: u64) {
        self.blobs += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Collector(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    jobs: Jobs,
    blobs: BlobStore,
    inbox: Inbox,
    grace: Duration,
    /// Held by submits from the look for their files until they are stored.
    submits: RwLock<()>,
    turn: Mutex<()>,
}

impl Collector {
    pub(crate) fn new(jobs: Jobs, blobs: BlobStore, inbox: Inbox, grace: Duration) -> Self {
        let (submits, turn) = (RwLock::default(), Mutex::default());
        Self(Arc::new(Inner { jobs, blobs, inbox, grace, submits, turn }))
    }

    /// Held while a job is submitted whose files are in the store: none of them goes.
    pub(crate) async fn submitting(&self) -> RwLockReadGuard<'_, ()> {
        self.0.submits.read().await
    }

    /// Collects every `every` until `stop`.
    pub(crate) async fn run(self, every: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let collected = tokio::select! {
                () = stop.cancelled() => return,
                collected = self.collect(false, None) => collected,
            };
            match collected {
                Ok(Collected { expired, layers, unnamed, .. }) => {
                    let (blobs, bytes) = (layers.blobs + unnamed.blobs, layers.bytes + unnamed.bytes);
                    if expired + blobs > 0 {
                        tracing::info!(expired, blobs, bytes, "collected what is not needed any more");
                    }
                }
                Err(CollectError::Busy | CollectError::Stopping(_)) => {}
                Err(error) => {
                    tracing::warn!(error = chain(&error), "nothing could be collected; tried again")
                }
            }
        }
    }

    /// Removes what nobody needs; with `dry_run` nothing, and says what would go. `grace`: how long
    /// ago a blob must have been put that nobody names; none: as configured.
    pub(crate) async fn collect(
        &self,
        dry_run: bool,
        grace: Option<Duration>,
    ) -> Result<Collected, CollectError> {
        let Ok(_turn) = self.0.turn.try_lock() else { return Err(CollectError::Busy) };
        let now = clock::wall();
        let mut collected = Collected { expired: self.expire(now, dry_run).await?, ..Collected::default() };
        let grace = grace.unwrap_or(self.0.grace).max(self.0.blobs.grace_min());
        let before = instant(now).checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
        // Submits that looked for their files earlier are in the books after this.
        drop(self.0.submits.write().await);
        let mut candidates = Candidates::default();
        for shelf in SHELVES {
            for listed in self.0.blobs.list(shelf).await? {
                if listed.put_at < before {
                    candidates.add(listed);
                } else {
                    collected.kept.add(listed.size);
                }
            }
            if candidates.len() >= PART_BLOBS || shelf == *SHELVES.end() {
                self.sweep(now, before, std::mem::take(&mut candidates), dry_run, &mut collected).await?;
            }
        }
        Ok(collected)
    }

    /// Takes checkpoints whose time is over out of the books; how many.
    async fn expire(&self, now: Timestamp, dry_run: bool) -> Result<u64, CollectError> {
        let reads = self.0.jobs.reads();
        if dry_run {
            return Ok(reads.count_expired_checkpoints(now).await?);
        }
        let mut expired = 0;
        loop {
            let some = reads.expired_checkpoints(now, EXPIRED_AT_ONCE).await?;
            if some.is_empty() {
                return Ok(expired);
            }
            expired += some.len() as u64;
            self.remove_checkpoints(&some, EXPIRED).await?;
        }
    }

    /// Takes checkpoints out of the books, in one commit. Only such that no open group has: the core
    /// knows nothing of them any more.
    pub(crate) async fn remove_checkpoints(&self, some: &[Taken], why: &str) -> Result<(), Stopping> {
        let record = |taken: &Taken| Record::CheckpointRemoved {
            attempt: taken.attempt,
            ordinal: taken.ordinal,
            why: why.to_owned(),
        };
        let (done, removed) = oneshot::channel();
        let records = some.iter().map(record).collect();
        self.0.inbox.send(Input::RemoveCheckpoints { records, done }).await?;
        removed.await.map_err(|_| Stopping)
    }

    async fn sweep(
        &self,
        now: Timestamp,
        before: SystemTime,
        candidates: Candidates,
        dry_run: bool,
        collected: &mut Collected,
    ) -> Result<(), CollectError> {
        if candidates.len() == 0 {
            return Ok(());
        }
        let mut candidates = candidates;
        let marked = self.0.jobs.reads().mark(now, |blob, root| match root {
            Root::Former => candidates.was_layer(blob),
            Root::Stored | Root::Checkpoint => collected.kept.add_some(candidates.keep(blob)),
        });
        let marked = marked.await?;
        for job in marked.jobs {
            candidates = self.keep_named_by_rows(job, candidates, collected).await?;
        }
        for row in self.0.jobs.reads().schedules().await? {
            candidates = self.keep_scheduled(&row, candidates, collected).await?;
        }
        let margin = self.0.blobs.grace_min() + CLOCK_MARGIN;
        let oldest =
            marked.oldest_open_at.map(|at| instant(at).checked_sub(margin).unwrap_or(SystemTime::UNIX_EPOCH));
        let before = oldest.map_or(before, |oldest| oldest.min(before));
        let mut doomed = Vec::new();
        for (digest, candidate) in candidates.into_iter() {
            if candidate.put_at < before {
                doomed.push((digest, candidate));
            } else {
                collected.kept.add(candidate.size);
            }
        }
        doomed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for some in doomed.chunks(REMOVED_AT_ONCE) {
            let removed = match dry_run {
                true => some.iter().map(|(digest, _)| digest.clone()).collect(),
                false => {
                    let digests = some.iter().map(|(digest, _)| digest.clone()).collect();
                    self.0.blobs.remove(digests, before).await?
                }
            };
            let removed: BTreeSet<_> = removed.into_iter().collect();
            for (digest, candidate) in some {
                let sum = match (removed.contains(digest), candidate.was_layer) {
                    (false, _) => &mut collected.kept,
                    (true, true) => &mut collected.layers,
                    (true, false) => &mut collected.unnamed,
                };
                sum.add(candidate.size);
            }
        }
        Ok(())
    }

    /// Keeps the trees that the spec and the task rows of a job name.
    async fn keep_named_by_rows(
        &self,
        job: JobId,
        candidates: Candidates,
        collected: &mut Collected,
    ) -> Result<Candidates, CollectError> {
        let facts = match self.0.jobs.get(job).await {
            Ok(Some(facts)) => facts,
            Ok(None) => return Ok(candidates),
            // It can never run again, and would stop every sweep.
            Err(error) if error.is_permanent() => {
                tracing::warn!(%job, error = chain(&error), "cannot see which trees the task rows name");
                return Ok(candidates);
            }
            Err(error) => return Err(error.into()),
        };
        let document = self.0.jobs.reads().document(job).await?.map(|(document, _)| document);
        self.keep_named_in(&document.unwrap_or_default(), facts, candidates, collected).await
    }

    /// Keeps what a fire of a schedule would name.
    async fn keep_scheduled(
        &self,
        row: &ScheduleRow,
        candidates: Candidates,
        collected: &mut Collected,
    ) -> Result<Candidates, CollectError> {
        let job = scheduled_job(self.0.jobs.reads(), &self.0.blobs, row, String::new()).await;
        let (job, facts) =
            job.map_err(|error| CollectError::Schedule { schedule: row.schedule, problem: error.message })?;
        self.keep_named_in(&job.document, facts, candidates, collected).await
    }

    async fn keep_named_in(
        &self,
        document: &str,
        facts: Arc<JobFacts>,
        mut candidates: Candidates,
        collected: &mut Collected,
    ) -> Result<Candidates, CollectError> {
        let mut kept = Sum::default();
        for blob in candidates::digests_in(document) {
            kept.add_some(candidates.keep(blob));
        }
        let mut images: BTreeSet<String> = candidates::images_in(document).collect();
        images.extend(facts.images.values().flat_map(|pinned| candidates::images_in(pinned)));
        let job = facts.job;
        let scan = move || {
            facts.each_row_with_blobs(|row| {
                let texts = row.values().filter_map(serde_json::Value::as_str);
                images.extend(texts.flat_map(candidates::images_in));
                row.values().for_each(|value| candidates.keep_named_in(value, &mut kept));
            })?;
            Ok((candidates, kept, images))
        };
        let scanned = tokio::task::spawn_blocking(scan).await;
        let scanned = scanned.map_err(|error| Error::Panicked { task: error.to_string() })?;
        let (mut candidates, mut kept, images) =
            scanned.map_err(|source| Error::Rows { job, source: Box::new(source) })?;
        for image in images {
            self.keep_image(&image, &mut candidates, &mut kept).await?;
        }
        collected.kept.blobs += kept.blobs;
        collected.kept.bytes += kept.bytes;
        Ok(candidates)
    }
}

impl Collector {
    /// Keeps an image in the blob store: its documents, and what they name.
    async fn keep_image(
        &self,
        digest: &str,
        candidates: &mut Candidates,
        kept: &mut Sum,
    ) -> Result<(), CollectError> {
        let mut documents = vec![digest.to_owned()];
        // An index may name indexes; nobody nests them deeper.
        for _ in 0..3 {
            let mut below = Vec::new();
            for document in std::mem::take(&mut documents) {
                kept.add_some(candidates.keep(&document));
                let bytes = match self.0.blobs.get(&document, DOCUMENT_BYTES_MAX).await {
                    Ok(bytes) => bytes,
                    // Its job fails by that; there is nothing left of it to keep.
                    Err(blobs::Error::NotFound { .. }) => continue,
                    Err(error) => return Err(error.into()),
                };
                let Ok(value) = serde_json::from_slice::<serde_json::Value>(&bytes) else { continue };
                candidates.keep_named_in(&value, kept);
                let manifests = value["manifests"].as_array().into_iter().flatten();
                let digests = manifests.filter_map(|manifest| manifest["digest"].as_str());
                below.extend(digests.flat_map(candidates::digests_in).map(str::to_owned));
            }
            documents = below;
        }
        Ok(())
    }
}

impl Sum {
    fn add_some(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.add(bytes);
        }
    }
}

fn instant(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(at.0).unwrap_or(0))
}
