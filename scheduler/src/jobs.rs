//! What is known of a job beside its state: its plan, its client files and its task rows. Made
//! from the stored document, kept while it is used.

mod cache;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blobs::BlobStore;
use rollout::checkpoint::Checkpoint;
use rollout::failure::Failure;
use rollout::plan::{Field, JobPlan, Per, ResolvedStep, ResourcesPlan, WorkPlan};
use rollout::resolve::{self, Lookup, ResolveError};
use rollout::result_key::ResultKey;
use rollout::{AttemptId, FailureCode, GroupId, JobId, Millis, RolloutId, StepIndex};
use scheduler_core::event::{ExpandedGroup, StepKeys};
use scheduler_core::snapshot::GroupSnapshot;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::rows::{Row, RowsError, TaskRows};
use crate::store::{JobKind, JobRow, Reads, success_at};
use cache::Cache;

/// Bytes of the index of one task row.
const ROW_INDEX_BYTES: usize = 8;
/// Between a try to read task rows that failed and the next.
const READ_BACKOFF_FIRST: Duration = Duration::from_millis(100);
const READ_BACKOFF_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct JobFacts {
    pub job: JobId,
    pub plan: Arc<JobPlan>,
    pub table_root: String,
    /// Path as written in the spec -> sha256.
    pub files: BTreeMap<String, String>,
    /// Image as the spec or a row names it -> by digest. What is not here names itself.
    pub images: BTreeMap<String, String>,
    pub rows: TaskRows,
    /// What steps that work from their image start with instead.
    pub base: Option<Arc<Checkpoint>>,
    /// Of its document.
    pub document_bytes: usize,
}

impl JobFacts {
    /// Rows that run in one epoch.
    fn rows_len(&self) -> u32 {
        self.rows.selection().len().max(1)
    }

    /// What its share of the memory goes with.
    fn bytes(&self) -> usize {
        self.rows.indexed().saturating_mul(ROW_INDEX_BYTES).saturating_add(self.document_bytes)
    }

    /// Pass over the task set that expansion `index` belongs to.
    pub fn epoch(&self, index: u32) -> u32 {
        index / self.rows_len()
    }

    /// Of the whole job.
    pub fn groups(&self) -> u64 {
        u64::from(self.rows_len()) * u64::from(self.plan.tasks.epochs)
    }

    /// Of the row of the task set that expansion `index` runs.
    fn position(&self, index: u32) -> Result<u32, RowsError> {
        let row = self.rows.selection().row(self.epoch(index), index % self.rows_len());
        row.ok_or(RowsError::NoSuchRow { index })
    }

    /// Blocks on the disk.
    pub fn row(&self, index: u32) -> Result<Row, RowsError> {
        self.rows.row(&self.plan, self.position(index)?)
    }

    /// Of a row that was checked when the job was submitted.
    pub fn task_id_of(&self, row: &Row, index: u32) -> String {
        let position = self.position(index).unwrap_or(index);
        resolve::task_id(&self.plan, u64::from(position), row).unwrap_or_else(|_| format!("row-{position}"))
    }

    pub async fn task_id(self: Arc<Self>, index: u32) -> Result<String, Error> {
        let job = self.job;
        let read = tokio::task::spawn_blocking(move || Ok(self.task_id_of(&self.row(index)?, index))).await;
        read.map_err(|error| Error::Panicked { task: error.to_string() })?
            .map_err(|source| Error::Rows { job, source: Box::new(source) })
    }

    /// `sha256:<hex>` of the row as JSON with sorted keys.
    pub fn task_hash(&self, row: &Row) -> String {
        let sorted: BTreeMap<_, _> = row.iter().collect();
        let text = serde_json::json!(sorted).to_string();
        format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())))
    }

    pub fn success_at(&self) -> f64 {
        success_at(&self.plan)
    }

    /// Every row of the task set that runs, if rows name trees or images. Blocks on the disk.
    pub fn each_row_with_blobs(&self, mut visit: impl FnMut(&Row)) -> Result<(), RowsError> {
        let mut layers = self.plan.steps.iter().flat_map(|step| &step.layers);
        if layers.all(|layer| layer.as_literal().is_some()) && !resolve::images_vary(&self.plan) {
            return Ok(());
        }
        for index in self.rows.selection().candidates() {
            visit(&self.rows.row(&self.plan, index)?);
        }
        Ok(())
    }

    fn lookup<T>(
        &self,
        group: GroupId,
        rollout: Option<RolloutId>,
        use_it: impl FnOnce(&Lookup<'_>) -> Result<T, ResolveError>,
    ) -> Result<Result<T, ResolveError>, RowsError> {
        let row = self.row(group.index)?;
        let task_id = self.task_id_of(&row, group.index);
        let lookup = Lookup { row: &row, task_id: &task_id, group, epoch: self.epoch(group.index), rollout };
        Ok(use_it(&lookup))
    }

    /// The step of an attempt with every lookup done. Blocks on the disk.
    pub fn resolve(&self, attempt: AttemptId) -> Result<ResolvedStep, Failure> {
        let rollout = attempt.rollout;
        let resolved = self.lookup(rollout.group, Some(rollout), |lookup| {
            resolve::resolve_step(&self.plan, attempt.step, lookup, &self.files)
        });
        match resolved {
            Ok(Ok(step)) => Ok(self.pinned(step)),
            Ok(Err(problem)) => Err(Failure::new(FailureCode::NotFound, problem.to_string())),
            Err(error) => Err(Failure::new(FailureCode::StorageFailed, crate::health::chain(&error))),
        }
    }

    /// Images as they were when the job was submitted, whatever their tags mean now.
    fn pinned(&self, mut step: ResolvedStep) -> ResolvedStep {
        for text in std::iter::once(&mut step.image).chain(&mut step.layers) {
            if let Some(pinned) = self.images.get(text) {
                text.clone_from(pinned);
            }
        }
        step
    }

    /// What the row of a group asks for. Blocks on the disk.
    pub fn expanded(&self, index: u32) -> Result<ExpandedGroup, RowsError> {
        let steps = &self.plan.steps;
        let sizes = steps.iter().any(|step| matches!(step.resources, ResourcesPlan::PerRow(_)));
        let looked_up = |time: &Field<Millis>| matches!(time, Field::PerRow(_));
        let times = steps
            .iter()
            .any(|step| [&step.start_timeout, &step.timeout, &step.grace].into_iter().any(looked_up));
        let keyed = steps.iter().any(|step| step.checkpoint.key.is_some());
        let base = self.base.clone();
        if !sizes && !times && !keyed {
            return Ok(ExpandedGroup { base, ..ExpandedGroup::default() });
        }
        let group = GroupId { job: self.job, index };
        let asked = self.lookup(group, None, |lookup| {
            let steps = || self.plan.step_indices();
            let resources = sizes
                .then(|| steps().map(|step| resolve::resolve_resources(&self.plan, step, lookup)).collect());
            let spans =
                times.then(|| steps().map(|step| resolve::resolve_span(&self.plan, step, lookup)).collect());
            let keys = steps().filter(|&step| self.plan.step(step).checkpoint.key.is_some());
            let keys = keys.map(|step| self.keys(step, lookup)).collect::<Result<_, _>>()?;
            Ok((resources.transpose()?, spans.transpose()?, keys))
        })?;
        Ok(match asked {
            Ok((resources, spans, keys)) => ExpandedGroup { resources, spans, broken: None, keys, base },
            Err(problem) => broken(Failure::new(FailureCode::NotFound, problem.to_string())),
        })
    }

    /// Of all samples; one where they are all the same. A refill has the key of whom it replaces.
    fn keys(&self, step: StepIndex, group: &Lookup<'_>) -> Result<StepKeys, ResolveError> {
        let key = |rollout| {
            let lookup = Lookup { rollout, ..*group };
            resolve::result_key(&self.plan, step, &lookup, Some(&self.files)).map(|key| key.map(Arc::new))
        };
        let mut keys: Vec<Arc<ResultKey>> = match self.plan.step(step).per {
            Per::Group => key(None)?.into_iter().collect(),
            Per::Rollout => {
                let samples = 0..self.plan.group.started();
                let rollout = |sample| RolloutId { group: group.group, sample, refill: 0 };
                samples
                    .filter_map(|sample| key(Some(rollout(sample))).transpose())
                    .collect::<Result<_, _>>()?
            }
        };
        if keys.windows(2).all(|pair| pair[0] == pair[1]) {
            keys.truncate(1);
        }
        Ok(StepKeys { step, keys })
    }
}

fn broken(failure: Failure) -> ExpandedGroup {
    ExpandedGroup { broken: Some(failure), ..Default::default() }
}

/// Facts by job; cheap to clone.
#[derive(Debug, Clone)]
pub struct Jobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    reads: Reads,
    blobs: BlobStore,
    cache: Mutex<Cache<Arc<JobFacts>>>,
}

impl Jobs {
    pub fn new(reads: Reads, blobs: BlobStore) -> Self {
        Self(Arc::new(Inner { reads, blobs, cache: Mutex::default() }))
    }

    pub fn reads(&self) -> &Reads {
        &self.0.reads
    }

    fn known(&self, job: JobId) -> Option<Arc<JobFacts>> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner).get(job)
    }

    pub fn insert(&self, facts: Arc<JobFacts>) {
        let (job, bytes) = (facts.job, facts.bytes());
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner).insert(job, bytes, facts);
    }

    /// None if no such job is stored.
    pub async fn get(&self, job: JobId) -> Result<Option<Arc<JobFacts>>, Error> {
        if let Some(facts) = self.known(job) {
            return Ok(Some(facts));
        }
        match self.0.reads.job(job).await? {
            Some(row) => self.of(&row).await.map(Some),
            None => Ok(None),
        }
    }

    pub async fn of(&self, row: &JobRow) -> Result<Arc<JobFacts>, Error> {
        if let Some(facts) = self.known(row.job) {
            return Ok(facts);
        }
        let document = self.0.reads.document(row.job).await?;
        let (document, source_name) =
            document.ok_or(Error::StoredSpec { job: row.job, problem: "it is not stored".to_owned() })?;
        let files = self.0.reads.files(row.job).await?;
        let files = files.into_iter().map(|file| (file.path, file.sha256)).collect();
        let images = self.0.reads.images(row.job).await?;
        let base = match row.kind {
            JobKind::Rollouts => None,
            JobKind::Sandbox => self.0.reads.sandbox_base(row.job).await?.map(Arc::new),
        };
        let (row, blobs) = (row.clone(), self.0.blobs.clone());
        let make = move || made(&row, &document, &source_name, Stored { files, images, base }, &blobs);
        let made = tokio::task::spawn_blocking(make).await;
        let facts = Arc::new(made.map_err(|error| Error::Panicked { task: error.to_string() })??);
        self.insert(facts.clone());
        Ok(facts)
    }

    /// The plan alone, which needs no task rows: those of an old job may be gone. None if no such job is
    /// stored.
    pub async fn plan(&self, job: JobId) -> Result<Option<Arc<JobPlan>>, Error> {
        if let Some(facts) = self.known(job) {
            return Ok(Some(facts.plan.clone()));
        }
        let Some(row) = self.0.reads.job(job).await? else { return Ok(None) };
        let Some((document, source_name)) = self.0.reads.document(job).await? else { return Ok(None) };
        let planned = tokio::task::spawn_blocking(move || planned(&row, &document, &source_name)).await;
        let plan = planned.map_err(|error| Error::Panicked { task: error.to_string() })??;
        Ok(Some(Arc::new(plan)))
    }

    /// Groups `first..first + count` as the core takes them. What cannot be read now is read again
    /// until it can: a store or a disk that fails for a while ends no rollout.
    pub(crate) async fn expand(&self, job: JobId, first: u32, count: u32) -> Vec<ExpandedGroup> {
        let mut backoff = READ_BACKOFF_FIRST;
        loop {
            let error = match self.try_expand(job, first, count).await {
                Ok(groups) => return groups,
                Err(error) => error,
            };
            let problem = crate::health::chain(&error);
            if error.is_permanent() {
                tracing::warn!(%job, first, count, problem, "groups cannot be run");
                let group = broken(Failure::new(FailureCode::StorageFailed, problem));
                return (0..count).map(|_| group.clone()).collect();
            }
            tracing::warn!(%job, first, count, problem, "cannot read task rows; trying again");
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(READ_BACKOFF_MAX);
        }
    }

    /// A sealed group as the core takes it back; none if it cannot be read. What cannot be read now is
    /// read again until it can.
    pub(crate) async fn sealed_group(&self, group: GroupId) -> Option<GroupSnapshot> {
        let mut backoff = READ_BACKOFF_FIRST;
        loop {
            let expanded = self.expand(group.job, group.index, 1).await.into_iter().next()?;
            let error = match self.0.reads.sealed_group(group, expanded).await {
                Ok(stored) => return stored,
                Err(error) => error,
            };
            let problem = crate::health::chain(&error);
            if error.is_permanent() {
                tracing::warn!(%group, problem, "a sealed group cannot be opened again");
                return None;
            }
            tracing::warn!(%group, problem, "cannot read a sealed group; trying again");
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(READ_BACKOFF_MAX);
        }
    }

    async fn try_expand(&self, job: JobId, first: u32, count: u32) -> Result<Vec<ExpandedGroup>, Error> {
        let Some(facts) = self.get(job).await? else {
            let group = broken(Failure::new(FailureCode::NotFound, "the job is not stored"));
            return Ok((0..count).map(|_| group.clone()).collect());
        };
        let read = move || {
            let group = |index| match facts.expanded(index) {
                Err(error) if error.is_permanent() => {
                    let problem = crate::health::chain(&error);
                    tracing::warn!(%job, group = index, problem, "a task row cannot be used");
                    Ok(broken(Failure::new(FailureCode::StorageFailed, problem)))
                }
                read => read,
            };
            (first..first.saturating_add(count)).map(group).collect::<Result<Vec<_>, RowsError>>()
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| Error::Panicked { task: error.to_string() })?
            .map_err(|source| Error::Rows { job, source: Box::new(source) })
    }
}

/// What was stored with a job beside its document.
struct Stored {
    files: BTreeMap<String, String>,
    images: BTreeMap<String, String>,
    base: Option<Arc<Checkpoint>>,
}

/// The plan of a sandbox: of the one session of its spec, which nobody has to claim.
pub(crate) fn of_sandbox(plan: &mut JobPlan) {
    for step in &mut plan.steps {
        if let WorkPlan::Session(session) = &mut step.work {
            (session.unclaimed, session.takes_reward) = (true, false);
        }
    }
}

fn planned(row: &JobRow, document: &str, source_name: &str) -> Result<JobPlan, Error> {
    let checked = rollout::spec::check(document, source_name);
    let Some(mut plan) = checked.plan else {
        let problem = checked.render(document);
        return Err(Error::StoredSpec { job: row.job, problem });
    };
    if row.kind == JobKind::Sandbox {
        of_sandbox(&mut plan);
    }
    Ok(plan)
}

fn made(
    row: &JobRow,
    document: &str,
    source_name: &str,
    stored: Stored,
    blobs: &BlobStore,
) -> Result<JobFacts, Error> {
    let Stored { files, images, base } = stored;
    let plan = planned(row, document, source_name)?;
    let rows = TaskRows::open(&plan, &files, blobs)
        .map_err(|source| Error::Rows { job: row.job, source: Box::new(source) })?;
    let (plan, document_bytes) = (Arc::new(plan), document.len());
    let table_root = row.table_root.clone();
    Ok(JobFacts { job: row.job, plan, table_root, files, images, rows, base, document_bytes })
}

#[cfg(test)]
mod tests {
    use rollout::Timestamp;
    use sqlx::Connection;

    use super::*;
    use crate::store::{self, Batch, NewJob};

    const SPEC: &str = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: one\n\
        tasks: {from: {inline: [{n: \"1\"}]}}\ndefaults: {image: host, timeout: 30s}\n\
        steps:\n  - {name: grade, from: image, run: \"true\", grader: {exit: {0: 1}}}\n";

    #[tokio::test]
    async fn a_store_that_does_not_answer_delays_groups_and_breaks_none() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, reads, _) = store::open(dir.path(), None).await.unwrap();
        let job = JobId::from_bits(7);
        let new_job = NewJob {
            job,
            name: "one".to_owned(),
            document: SPEC.to_owned(),
            source_name: "one.yaml".to_owned(),
            spec_hash: String::new(),
            table_root: "/tables".to_owned(),
            idempotency_key: "k".to_owned(),
            request_hash: String::new(),
            groups_total: 2,
            group_size: 1,
            created_at: Timestamp(1),
            retain: rollout::plan::RetainPlan::default(),
            sandbox: None,
            files: Vec::new(),
            images: Vec::new(),
        };
        let batch = Batch { new_jobs: vec![new_job], ..Batch::default() };
        writer.commit(&batch, Timestamp(1)).await.unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join("yard.db"));
        let mut by_hand = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("ALTER TABLE files RENAME TO away").execute(&mut by_hand).await.unwrap();

        let blobs = BlobStore::open(&format!("file://{}/blobs", dir.path().display())).unwrap();
        let jobs = Jobs::new(reads, blobs);
        let expanding = tokio::spawn(async move { jobs.expand(job, 0, 2).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        sqlx::query("ALTER TABLE away RENAME TO files").execute(&mut by_hand).await.unwrap();
        let groups = tokio::time::timeout(Duration::from_secs(60), expanding).await.expect("in time");
        let whole = ExpandedGroup::default();
        assert_eq!(groups.unwrap(), vec![whole; 2]);
    }
}
