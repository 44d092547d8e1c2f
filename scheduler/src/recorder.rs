//! The recorder: closed groups become rows, rows become sealed shards, shards become known.
//!
//! Its work list is the store: groups that are closed and not sealed. A wake-up only says that
//! there may be some, so nothing is lost by a crash, a full disk or a missed wake-up. A group is
//! sealed in the store only after its shard is sealed on disk; what a crash left in between is
//! found again when the tables are opened.

mod artifact;
mod group;
mod problem;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blobs::BlobStore;
use datasets::table::{Recovery, SealedShard, TableMeta, TableWriter};
use rollout::state::JobState;
use rollout::text::shown;
use rollout::{GroupId, JobId};
use scheduler_core::Event;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::health::{HealthBoard, Trouble, chain};
use crate::inbox::{Inbox, Input, Stopping};
use crate::jobs::{JobFacts, Jobs};
use crate::store::{ClosedGroup, NodeRow, ShardRow};
use artifact::Absent;
use problem::RecordError;

/// Groups read and appended together.
const APPEND_GROUPS_MAX: u32 = 64;
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The longest wait without a wake-up.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Characters of a problem in a job's reason.
const PROBLEM_CHARS_MAX: usize = 1024;
/// Column `rules_hash` of jobs without guard rules: sha256 of `{}`.
const EMPTY_RULES_HASH: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

pub(crate) struct Recorder {
    pub jobs: Jobs,
    pub blobs: BlobStore,
    pub inbox: Inbox,
    pub wake: Arc<Notify>,
    pub health: HealthBoard,
    pub yard_id: String,
    pub stop: CancellationToken,
}

/// The tables of one job, open.
struct Tables {
    facts: Arc<JobFacts>,
    root: PathBuf,
    /// Away while a blocking thread has it; not here after a panic.
    writer: Option<TableWriter>,
    /// Groups up to this seq are appended or sealed.
    appended: i64,
    /// Appended, not sealed.
    waiting: Vec<GroupId>,
    /// When the first of them was appended.
    waiting_since: Option<Instant>,
    /// Groups passed over: they cannot be recorded, however often it is tried.
    unrecorded: u64,
    /// Why the first of them cannot.
    first_problem: String,
    /// Blobs named in its rows and told to be gone.
    absent: Absent,
    /// What the job's reason says: how many groups, and that nothing else is left.
    told: (u64, bool),
}

/// What the recorder has at hand.
#[derive(Default)]
struct Books {
    open: BTreeMap<JobId, Tables>,
    /// Jobs whose tables cannot be written at all in this life of the scheduler.
    stuck: BTreeMap<JobId, Stuck>,
}

struct Stuck {
    problem: String,
    /// The job was told to be held.
    held: bool,
}

impl Recorder {
    pub(crate) async fn run(self) {
        let mut books = Books::default();
        let mut backoff = BACKOFF_FIRST;
        loop {
            let wait = match self.work(&mut books).await {
                Ok(next) => {
                    self.health.recorder(None);
                    backoff = BACKOFF_FIRST;
                    next.unwrap_or(IDLE_MAX).min(IDLE_MAX)
                }
                Err(RecordError::Stopping(_)) => return,
                Err(_) if self.stop.is_cancelled() => return,
                Err(error) => {
                    let problem = chain(&error);
                    // Once until it changes: a disk may stay full for hours.
                    if self.health.now().recorder.is_none_or(|trouble| trouble.problem != problem) {
                        tracing::warn!(problem, "cannot write rows of closed groups; it is tried again");
                    }
                    self.health.recorder(Some(Trouble { since: clock::wall(), problem }));
                    let wait = backoff;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                    wait
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        // Whoever stops a yard finds in the tables all that has ended, not what was due.
        if let Err(error) = self.work(&mut books).await {
            let problem = chain(&error);
            tracing::warn!(
                problem,
                "rows of closed groups are not in the tables; the next start writes them"
            );
        }
    }

    /// Writes what there is; says how long nothing is due. A job that fails does not hold up the
    /// others; the first error is told.
    async fn work(&self, books: &mut Books) -> Result<Option<Duration>, RecordError> {
        let mut next: Option<Duration> = None;
        let mut first_error = None;
        let jobs: BTreeSet<JobId> = self.jobs.reads().jobs_to_record().await?.into_iter().collect();
        self.close_final(books, &jobs).await;
        for job in jobs {
            let worked = match books.stuck.contains_key(&job) {
                true => Ok(None),
                false => self.work_on(&mut books.open, job).await,
            };
            match worked {
                Ok(due) => next = next.into_iter().chain(due).min(),
                Err(RecordError::Stopping(stopping)) => return Err(stopping.into()),
                Err(error) if error.is_permanent() => {
                    let problem = chain(&error);
                    tracing::warn!(%job, problem, "the rows of a job cannot be written");
                    books.open.remove(&job);
                    self.report(job, false, problem.clone()).await?;
                    books.stuck.insert(job, Stuck { problem, held: false });
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
            if let Some(stuck) = books.stuck.get_mut(&job).filter(|stuck| !stuck.held)
                // A row that cannot be read leaves the word as it is; other jobs go on.
                && matches!(self.all_closed(job).await, Ok(true))
            {
                self.report(job, true, stuck.problem.clone()).await?;
                stuck.held = true;
            }
        }
        first_error.map_or(Ok(next), Err)
    }

    /// Lets go of jobs that have ended: nothing of them is left to write.
    async fn close_final(&self, books: &mut Books, to_record: &BTreeSet<JobId>) {
        books.stuck.retain(|job, _| to_record.contains(job));
        let idle: Vec<JobId> = books.open.keys().filter(|job| !to_record.contains(job)).copied().collect();
        for job in idle {
            match self.jobs.reads().job_state(job).await {
                Ok(state) if state.is_none_or(JobState::is_final) => drop(books.open.remove(&job)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%job, problem = chain(&error), "kept the tables of a job open"),
            }
        }
    }

    /// Tells what cannot be recorded, and whether nothing else of the job is left.
    async fn report(&self, job: JobId, last: bool, problem: String) -> Result<(), RecordError> {
        Ok(self.inbox.send(Input::Event(Event::GroupsUnrecorded { job, problem, last })).await?)
    }

    async fn work_on(
        &self,
        open: &mut BTreeMap<JobId, Tables>,
        job: JobId,
    ) -> Result<Option<Duration>, RecordError> {
        let mut tables = match open.remove(&job).filter(|tables| tables.writer.is_some()) {
            Some(tables) => tables,
            None => self.open(job).await?,
        };
        let worked = self.write(job, &mut tables).await;
        // Kept after an error too: what was appended is in memory and is sealed later. Unless its
        // folders are gone: then they are made anew, and what is not sealed is appended again.
        let done = matches!(worked, Ok(true));
        let due = tables.due();
        if !done && tables.writer.is_some() && !worked.as_ref().is_err_and(folder_gone) {
            open.insert(job, tables);
        }
        worked.map(|_| due)
    }

    async fn open(&self, job: JobId) -> Result<Tables, RecordError> {
        let facts = self.jobs.get(job).await?.ok_or(RecordError::NoJob { job })?;
        let root = PathBuf::from(&facts.table_root);
        let meta = TableMeta {
            job,
            spec_hash: facts.plan.spec_hash.clone(),
            writer: concat!("rollyard/", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let (shard, artifacts) = (facts.plan.output.shard, facts.plan.output.artifacts);
        let open_root = root.clone();
        let opened = tokio::task::spawn_blocking(move || TableWriter::open(&open_root, meta, shard)).await?;
        let (mut writer, recovery) =
            opened.map_err(|source| RecordError::Tables { job, root: root.clone(), source })?;
        writer.set_artifacts(artifacts);
        self.adopt(job, &recovery).await?;
        Ok(Tables {
            facts,
            root,
            writer: Some(writer),
            appended: -1,
            waiting: Vec::new(),
            waiting_since: None,
            unrecorded: 0,
            first_problem: String::new(),
            absent: Absent::default(),
            told: (0, false),
        })
    }

    /// What is sealed on disk and not in the store: a crash came between the two.
    async fn adopt(&self, job: JobId, recovery: &Recovery) -> Result<(), RecordError> {
        let (mut after, mut groups) = (-1, Vec::new());
        loop {
            let closed = self.jobs.reads().closed_groups(job, after, APPEND_GROUPS_MAX).await?;
            let Some(last) = closed.last() else { break };
            after = last.seq;
            groups.extend(closed.iter().filter(|g| recovery.seqs.contains(g.seq)).map(|g| g.group));
        }
        if groups.is_empty() {
            return Ok(());
        }
        tracing::info!(%job, groups = groups.len(), "found groups that were sealed before a crash");
        self.tell(job, groups, &recovery.sealed).await
    }

    /// True once every group of the job is sealed. A group that cannot be recorded is passed over;
    /// an error that may pass ends the appending, and what was appended before is sealed in time.
    async fn write(&self, job: JobId, tables: &mut Tables) -> Result<bool, RecordError> {
        // What a full disk left waiting goes first: nothing is added to it meanwhile.
        if tables.writer.as_ref().is_some_and(TableWriter::should_seal) {
            self.seal(job, tables).await?;
        }
        // Asked first: a group that closes while others are appended is left for the next time.
        let ended = self.all_closed(job).await?;
        let appended = self.append_closed(job, tables).await;
        if tables.writer.is_none() {
            // A panic took it: opened anew at the next try.
            return appended.map(|()| false);
        }
        let due = ended || self.stop.is_cancelled() || tables.due() == Some(Duration::ZERO);
        if due && !tables.waiting.is_empty() {
            self.seal(job, tables).await?;
        }
        appended?;
        let done = ended && tables.waiting.is_empty();
        let told = (tables.unrecorded, done);
        if tables.unrecorded > 0 && tables.told != told {
            let more = match tables.unrecorded {
                1 => String::new(),
                count => format!(" (and {} more groups)", count - 1),
            };
            self.report(job, done, format!("{}{more}", tables.first_problem)).await?;
            tables.told = told;
        }
        Ok(done && tables.unrecorded == 0)
    }

    async fn append_closed(&self, job: JobId, tables: &mut Tables) -> Result<(), RecordError> {
        let nodes = Arc::new(self.jobs.reads().nodes().await?);
        loop {
            let closed = self.jobs.reads().closed_groups(job, tables.appended, APPEND_GROUPS_MAX).await?;
            let full = closed.len() == APPEND_GROUPS_MAX as usize;
            for group in closed {
                let mut appended = self.append(tables, group.clone(), nodes.clone()).await;
                if appended.as_ref().is_err_and(RecordError::is_full) {
                    self.seal(job, tables).await?;
                    appended = self.append(tables, group.clone(), nodes.clone()).await;
                }
                match appended {
                    Ok(()) => {}
                    Err(error) if error.is_permanent() => tables.pass_over(&group, &error),
                    Err(error) => return Err(error),
                }
                if tables.writer.as_ref().is_some_and(TableWriter::should_seal) {
                    self.seal(job, tables).await?;
                }
            }
            if !full {
                return Ok(());
            }
        }
    }

    /// No group of the job will close later.
    async fn all_closed(&self, job: JobId) -> Result<bool, RecordError> {
        use rollout::state::JobState::{Cancelled, Cancelling, Finished};
        let row = self.jobs.reads().job(job).await?.ok_or(RecordError::NoJob { job })?;
        let admitted_all =
            row.next_group == row.groups_total || matches!(row.state, Cancelling | Cancelled | Finished);
        let (closed, admitted) = self.jobs.reads().closed_of_admitted(row.job).await?;
        Ok(admitted_all && closed == admitted)
    }

    async fn append(
        &self,
        tables: &mut Tables,
        closed: ClosedGroup,
        nodes: Arc<Vec<NodeRow>>,
    ) -> Result<(), RecordError> {
        let (seq, id) = (closed.seq, closed.group);
        let rows = self.jobs.reads().group_rows(id).await?;
        let (facts, blobs, yard) = (tables.facts.clone(), self.blobs.clone(), self.yard_id.clone());
        let runtime = Handle::current();
        let mut writer = tables.writer.take().ok_or(RecordError::NoJob { job: id.job })?;
        let absent = std::mem::take(&mut tables.absent);
        let (writer, absent, appended) = tokio::task::spawn_blocking(move || {
            let absent = RefCell::new(absent);
            let record = group::record(&facts, &closed, rows, &nodes, yard);
            let appended = match record {
                Ok(record) => {
                    let fetch = |sha256: &str, bytes: u64| {
                        artifact::fetch(&runtime, &blobs, &record, &absent, sha256, bytes)
                    };
                    Ok(writer.append(&record, &fetch))
                }
                Err(source) => Err(RecordError::Row { group: id, source }),
            };
            (writer, absent.into_inner(), appended)
        })
        .await?;
        (tables.writer, tables.absent) = (Some(writer), absent);
        let root = tables.root.clone();
        appended?.map_err(|source| RecordError::Tables { job: id.job, root, source })?;
        tables.appended = seq;
        tables.waiting.push(id);
        tables.waiting_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    async fn seal(&self, job: JobId, tables: &mut Tables) -> Result<(), RecordError> {
        let mut writer = tables.writer.take().ok_or(RecordError::NoJob { job })?;
        let (writer, sealed) = tokio::task::spawn_blocking(move || {
            let sealed = writer.seal();
            (writer, sealed)
        })
        .await?;
        tables.writer = Some(writer);
        let root = tables.root.clone();
        let shards = sealed.map_err(|source| RecordError::Tables { job, root, source })?;
        let groups = std::mem::take(&mut tables.waiting);
        tables.waiting_since = None;
        tracing::debug!(%job, groups = groups.len(), shards = shards.len(), "sealed");
        match self.tell(job, groups, &shards).await {
            // Sealed all the same: the next start finds it on the disk.
            Err(RecordError::Stopping(_)) => Ok(()),
            told => told,
        }
    }

    /// Into the catalogue; returns once that is stored.
    async fn tell(
        &self,
        job: JobId,
        groups: Vec<GroupId>,
        shards: &[SealedShard],
    ) -> Result<(), RecordError> {
        let row = |shard: &SealedShard| ShardRow {
            job,
            table_name: shard.table.as_str().to_owned(),
            shard: shard.shard.clone(),
            rows: shard.rows,
            seq_min: shard.seq_min,
            seq_max: shard.seq_max,
            sha256: shard.sha256.clone(),
        };
        let (done, stored) = oneshot::channel();
        let shards = shards.iter().map(row).collect();
        self.inbox.send(Input::Sealed { groups, shards, done }).await?;
        Ok(stored.await.map_err(|_| Stopping)?)
    }
}

impl Tables {
    /// Goes on without a group that cannot be recorded. It stays closed and not sealed in the
    /// store, so nothing of it is lost.
    fn pass_over(&mut self, closed: &ClosedGroup, error: &RecordError) {
        let problem = format!("group {} cannot be recorded: {}", closed.group, chain(error));
        tracing::warn!(group = %closed.group, problem, "passing over a closed group");
        self.appended = closed.seq;
        self.unrecorded += 1;
        if self.first_problem.is_empty() {
            self.first_problem = shown(&problem, PROBLEM_CHARS_MAX);
        }
    }

    /// Time until what waits must be sealed by the plan's `flush`.
    fn due(&self) -> Option<Duration> {
        let flush = Duration::from_millis(self.facts.plan.output.shard.flush.0);
        self.waiting_since.map(|since| flush.saturating_sub(since.elapsed()))
    }
}

fn folder_gone(error: &RecordError) -> bool {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::NotFound)
}
