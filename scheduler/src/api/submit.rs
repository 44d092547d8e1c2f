//! `Submit`: everything that can be wrong is found before anything is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Component, Path};
use std::sync::Arc;

use blobs::BlobStore;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rand::Rng;
use rollout::checkpoint::Layer;
use rollout::plan::{Filter, JobPlan};
use rollout::{JobId, resolve};
use rollout_wire::v1;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::{ApiCode, ApiError, JobsService, blob, error, images, jobs, schedules};
use crate::clock;
use crate::inbox::{Input, Submission, SubmitRefused, Submitted};
use crate::jobs::JobFacts;
use crate::rows::{RowsError, TaskRows};
use crate::store::{NewJob, NewSandbox, StoredFile};

/// Bytes of a spec document.
pub const DOCUMENT_BYTES_MAX: usize = 8 << 20;
/// Bytes of its name as shown, of a table root and of a client file's path.
pub const PATH_BYTES_MAX: usize = 4096;
/// Bytes of one name of a path: what file systems take.
const PATH_PART_BYTES_MAX: usize = 255;
/// Client files of one job.
pub const CLIENT_FILES_MAX: usize = 4096;
/// Groups of one job: rows times epochs.
pub const GROUPS_MAX: u32 = 100_000_000;
pub(super) const KEY_BYTES_MAX: usize = 255;
/// Requests to the blob store at once.
const RENEWED_AT_ONCE: usize = 16;

pub(super) async fn submit(
    service: &JobsService,
    request: v1::SubmitRequest,
) -> Result<v1::SubmitReply, ApiError> {
    bounds(&request)?;
    let resume = request.if_unfinished() == v1::submit_request::IfUnfinished::Resume;
    let request_hash = request_hash(&request);

    let turn = service.limits.check().await;
    let (request, plan, warnings) = checked(request).await?;
    drop(turn);

    // A repeated submit need not read its rows again; the driver decides all the same.
    if let Some(row) = service.reads.job_by_key(&request.idempotency_key).await? {
        if row.request_hash != request_hash {
            return Err(key_in_use(&request.idempotency_key, format_args!("job {}", row.job)));
        }
        return Ok(v1::SubmitReply {
            job: Some(jobs::message(service, row).await?),
            resumed: false,
            warnings,
            ..v1::SubmitReply::default()
        });
    }

    // From here on until the job is stored, none of its blobs is collected.
    let _submitting = service.collector()?.submitting().await;
    let files = stored_files(service, &plan, &request).await?;
    let asked = Asked {
        document: request.document,
        source_name: request.source_name,
        table_root: request.table_root,
        idempotency_key: request.idempotency_key.clone(),
        request_hash,
        files,
        sandbox: None,
    };
    if !request.once
        && let Some(schedule) = plan.schedule.clone()
    {
        return schedules::register(service, schedule, plan, asked, warnings).await;
    }
    let (mut new_job, mut facts, named) = new_job(&service.blobs, plan, asked).await?;
    new_job.images = images::pin(service, named, &request.images).await?;
    let pins = new_job.images.iter().map(|image| (image.reference.clone(), image.pinned.clone()));
    facts.images = pins.collect();
    let facts = Arc::new(facts);
    renew_trees(service, &facts).await?;
    let plan = facts.plan.clone();
    service.jobs.insert(facts);
    let (reply, answer) = oneshot::channel();
    let submission = Submission { new_job, plan, resume, fired: None, reply };
    service.inbox.send(Input::Submit(Box::new(submission))).await?;
    let Submitted { job, resumed } = match jobs::committed(service, answer).await? {
        Ok(submitted) => submitted,
        Err(SubmitRefused::KeyInUse { job }) => {
            return Err(key_in_use(&request.idempotency_key, format_args!("job {job}")));
        }
        Err(SubmitRefused::FileChanged { job, path }) => return Err(dataset_changed(&path, job)),
        Err(SubmitRefused::Store(error)) => return Err(error.into()),
    };
    let row = service.reads.job(job).await?;
    let row = row.ok_or_else(|| ApiError::not_found("job", &job.to_string()))?;
    let job = Some(jobs::message(service, row).await?);
    Ok(v1::SubmitReply { job, resumed, warnings, ..v1::SubmitReply::default() })
}

/// What a job is made of, beside its plan.
pub(crate) struct Asked {
    pub document: String,
    pub source_name: String,
    /// Empty: what the spec says.
    pub table_root: String,
    pub idempotency_key: String,
    pub request_hash: String,
    pub files: Vec<StoredFile>,
    /// Of the sandbox of a client.
    pub sandbox: Option<NewSandbox>,
}

/// A job with an id of its own, all its rows checked, and the images they name. None is pinned yet.
pub(crate) async fn new_job(
    blobs: &BlobStore,
    plan: JobPlan,
    asked: Asked,
) -> Result<(NewJob, JobFacts, BTreeSet<String>), ApiError> {
    let job = JobId::from_bits(rand::rng().random());
    // Nothing of a sandbox is recorded.
    let table_root = match asked.sandbox {
        Some(_) => String::new(),
        None => {
            let root = table_root(&plan, job, &asked.table_root)?;
            let tried = root.clone();
            let written = tokio::task::spawn_blocking(move || try_to_write(Path::new(&tried))).await;
            written.map_err(std::io::Error::other).and_then(|written| written).map_err(|error| {
                let problem =
                    format!("nothing can be written at `{}`: {error}", rollout::text::shown(&root, 120));
                ApiError::bad_request("table_root", problem)
                    .hint("name a directory of the scheduler's machine that it can make and write in")
            })?;
            root
        }
    };
    let document_bytes = asked.document.len();
    let (facts, groups_total, named) =
        rows(blobs.clone(), job, plan, table_root.clone(), &asked.files, document_bytes).await?;
    let new_job = NewJob {
        job,
        name: facts.plan.name.to_string(),
        document: asked.document,
        source_name: asked.source_name,
        spec_hash: facts.plan.spec_hash.clone(),
        table_root,
        idempotency_key: asked.idempotency_key,
        request_hash: asked.request_hash,
        groups_total,
        group_size: facts.plan.group.started(),
        created_at: clock::wall(),
        retain: facts.plan.output.retain,
        sandbox: asked.sandbox,
        files: asked.files,
        images: Vec::new(),
    };
    Ok((new_job, facts, named))
}

/// The plan of the document, and its warnings. A large one takes seconds: it leaves the threads
/// that serve everyone else.
async fn checked(request: v1::SubmitRequest) -> Result<(v1::SubmitRequest, JobPlan, Vec<String>), ApiError> {
    let check = move || {
        let checked = rollout::spec::check(&request.document, &request.source_name);
        let Some(plan) = checked.plan.clone() else {
            let mut error = ApiError::new(ApiCode::SpecInvalid, checked.render(&request.document));
            error.details = error::list(checked.errors().filter_map(|error| serde_json::to_vec(error).ok()));
            return Err(error.hint("nothing was stored; correct the spec and submit it again"));
        };
        if plan.cells() > 1 {
            let message = format!("the matrix stands for {} jobs, and a submit is one", plan.cells());
            return Err(ApiError::bad_request("document", message)
                .hint("`rollyard submit` and `run` submit each combination by itself"));
        }
        let warnings = checked.warnings().filter_map(|warning| serde_json::to_string(warning).ok()).collect();
        Ok((request, plan, warnings))
    };
    tokio::task::spawn_blocking(check).await.map_err(|error| panicked(&error))?
}

fn panicked(error: &tokio::task::JoinError) -> ApiError {
    ApiError::new(ApiCode::StoreFailed, error.to_string())
}

pub(super) fn check_key(key: &str, bytes_max: usize) -> Result<(), ApiError> {
    let key_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if key.is_empty() || key.len() > bytes_max || !key.bytes().all(key_byte) {
        let problem = format!("expected 1 to {bytes_max} of a-z 0-9 -");
        return Err(ApiError::bad_request("idempotency_key", problem));
    }
    Ok(())
}

fn bounds(request: &v1::SubmitRequest) -> Result<(), ApiError> {
    check_key(&request.idempotency_key, KEY_BYTES_MAX)?;
    for (field, bytes, bytes_max) in [
        ("document", request.document.len(), DOCUMENT_BYTES_MAX),
        ("source_name", request.source_name.len(), PATH_BYTES_MAX),
        ("table_root", request.table_root.len(), PATH_BYTES_MAX),
    ] {
        if bytes > bytes_max {
            return Err(ApiError::bad_request(field, format!("{bytes} bytes, at most {bytes_max}")));
        }
    }
    if request.files.len() > CLIENT_FILES_MAX {
        let problem = format!("{} files, at most {CLIENT_FILES_MAX}", request.files.len());
        return Err(ApiError::bad_request("files", problem));
    }
    let mut paths = BTreeSet::new();
    for file in &request.files {
        if file.path.len() > PATH_BYTES_MAX {
            return Err(ApiError::bad_request("files.path", format!("at most {PATH_BYTES_MAX} bytes")));
        }
        if !paths.insert(&file.path) {
            let shown = rollout::text::shown(&file.path, 120);
            return Err(ApiError::bad_request("files.path", format!("`{shown}` is there twice")));
        }
    }
    Ok(())
}

/// Over everything that makes two submits the same request; each part behind its length.
fn request_hash(request: &v1::SubmitRequest) -> String {
    let mut files: Vec<_> = request.files.iter().map(|file| (&file.path, &file.sha256)).collect();
    files.sort_unstable();
    let mut hasher = Sha256::new();
    let mut part = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    part(&request.document);
    part(&request.table_root);
    for (path, sha256) in files {
        part(path);
        part(sha256);
    }
    if request.once {
        part("once");
    }
    hex::encode(hasher.finalize())
}

fn dataset_changed(path: &str, job: JobId) -> ApiError {
    let path = rollout::text::shown(path, 200);
    let message = format!("`{path}` is not what it was when the unfinished job {job} of this spec began");
    ApiError::new(ApiCode::DatasetChanged, message)
        .hint("put the old file back to go on with it, or start over with `rollyard run --new`")
}

pub(crate) fn key_in_use(key: &str, owner: impl Display) -> ApiError {
    let message = format!("the idempotency key `{key}` was used for another request, {owner}");
    ApiError::new(ApiCode::IdempotencyRequestMismatch, message)
        .hint("use a new key for a changed spec, file or table root")
}

/// Where the tables go: an absolute local directory.
fn table_root(plan: &JobPlan, job: JobId, asked: &str) -> Result<String, ApiError> {
    let written = resolve::output_table(plan, job)
        .map_err(|problem| ApiError::new(ApiCode::SpecInvalid, problem.to_string()))?;
    let root = match (asked, written) {
        ("", None) => {
            let message = "neither the request nor `output.table` says where the tables go";
            return Err(ApiError::new(ApiCode::TableRootMissing, message)
                .hint("set `output.table`, or send an absolute `table_root`"));
        }
        ("", Some(written)) => written,
        (asked, _) => asked.to_owned(),
    };
    // A client that does not read specs learns here what to make absolute, and asks again.
    let relative = || {
        let literal = plan.output.table.as_ref().and_then(|table| table.as_literal());
        let literal = literal.filter(|_| asked.is_empty());
        literal.and_then(|table| serde_json::to_vec(&table).ok()).map(|table| error::list([table]))
    };
    let path = match root.split_once("://") {
        None => root.as_str(),
        Some(("file", path)) => path,
        Some((scheme, _)) => {
            let scheme = rollout::text::shown(scheme, 20);
            let message = format!("not_available_yet: tables at {scheme}:// URLs");
            return Err(ApiError::new(ApiCode::NotAvailableYet, message)
                .hint("use an absolute path on the scheduler's machine"));
        }
    };
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !Path::new(path).is_absolute() || path.contains('\0') || !Path::new(path).components().all(plain) {
        let shown = rollout::text::shown(path, 120);
        let mut refused = ApiError::bad_request("table_root", format!("`{shown}` is not an absolute path"))
            .hint("a relative path means nothing to the scheduler: make it absolute");
        refused.details = relative().unwrap_or_default();
        return Err(refused);
    }
    let part_bytes = path.split('/').map(str::len).max().unwrap_or_default();
    if path.len() > PATH_BYTES_MAX || part_bytes > PATH_PART_BYTES_MAX {
        let problem =
            format!("at most {PATH_BYTES_MAX} bytes, and {PATH_PART_BYTES_MAX} between two slashes");
        return Err(ApiError::bad_request("table_root", problem));
    }
    if path.chars().any(rollout::text::is_deceptive) {
        let shown = rollout::text::shown(path, 120);
        return Err(ApiError::bad_request(
            "table_root",
            format!("`{shown}` has characters that do not print"),
        )
        .hint("rename the directory"));
    }
    Ok(path.to_owned())
}

/// Makes something beside where the tables will lie, and removes it: rows that can never be written would keep
/// their job from ending. Blocks.
fn try_to_write(root: &Path) -> std::io::Result<()> {
    let there = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let probe = there.join(format!(".rollyard-probe-{:016x}", rand::rng().random::<u64>()));
    std::fs::create_dir(&probe)?;
    std::fs::remove_dir(probe)
}

/// The client files the spec names: sent with it, stored, and of the size they claim.
async fn stored_files(
    service: &JobsService,
    plan: &JobPlan,
    request: &v1::SubmitRequest,
) -> Result<Vec<StoredFile>, ApiError> {
    let sent: BTreeMap<&str, &v1::ClientFile> =
        request.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let named = rollout::spec::client_files(plan);
    let mut files = Vec::new();
    for path in &named {
        let path = *path;
        let shown = || rollout::text::shown(path, 120);
        let Some(file) = sent.get(path) else {
            let message = format!("the spec names the file `{}`, which was not sent with it", shown());
            let mut missing = ApiError::new(ApiCode::FileMissing, message);
            // A client that does not read specs learns here what to send.
            let unsent = named.iter().filter(|path| !sent.contains_key(**path));
            missing.details = error::list(unsent.filter_map(|path| serde_json::to_vec(path).ok()));
            return Err(missing);
        };
        match service.blobs.renew(&file.sha256).await.map_err(blob::failed)? {
            Some(size) if size == file.size => {}
            Some(size) => {
                let message =
                    format!("blob {} of `{}` has {size} bytes, not {}", file.sha256, shown(), file.size);
                return Err(ApiError::new(ApiCode::BlobMismatch, message));
            }
            None => {
                let message = format!("blob {} of `{}` is not in the store", file.sha256, shown());
                return Err(ApiError::new(ApiCode::BlobMissing, message).hint("send it by PutBlob first"));
            }
        }
        files.push(StoredFile { path: path.to_owned(), sha256: file.sha256.clone(), size: file.size });
    }
    Ok(files)
}

/// The trees that the task rows name are there, and stay until the job is stored.
pub(super) async fn renew_trees(service: &JobsService, facts: &Arc<JobFacts>) -> Result<(), ApiError> {
    let reading = facts.clone();
    let read = tokio::task::spawn_blocking(move || {
        let tree = |text: &str| text.parse::<Layer>().ok().map(|layer| layer.blob);
        let named = |value: &Value| value.as_str().and_then(tree);
        let written = reading.plan.steps.iter().flat_map(|step| &step.layers);
        let mut blobs: BTreeSet<String> = written.filter_map(|layer| tree(layer.as_literal()?)).collect();
        reading.each_row_with_blobs(|row| blobs.extend(row.values().filter_map(named)))?;
        Ok(blobs)
    });
    let blobs =
        read.await.map_err(|error| panicked(&error))?.map_err(|error: RowsError| rows_invalid(&error))?;
    let renewed = stream::iter(blobs).map(async |blob| match service.blobs.renew(&blob).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => {
            let message = format!("blob {blob} of a tree that the task rows name is not in the store");
            Err(ApiError::new(ApiCode::BlobMissing, message).hint("send it by PutBlob first"))
        }
        Err(error) => Err(blob::failed(error)),
    });
    renewed.buffer_unordered(RENEWED_AT_ONCE).try_collect().await
}

/// Opens the rows and checks every one of them; how many groups they are, and the images they name.
async fn rows(
    blobs: BlobStore,
    job: JobId,
    plan: JobPlan,
    table_root: String,
    files: &[StoredFile],
    document_bytes: usize,
) -> Result<(JobFacts, u32, BTreeSet<String>), ApiError> {
    let files: BTreeMap<_, _> = files.iter().map(|f| (f.path.clone(), f.sha256.clone())).collect();
    let checked = tokio::task::spawn_blocking(move || {
        let rows = TaskRows::open(&plan, &files, &blobs).map_err(|error| rows_invalid(&error))?;
        let (count, named) = check_rows(&plan, &rows)?;
        let groups = u64::from(count) * u64::from(plan.tasks.epochs);
        let groups = u32::try_from(groups).ok().filter(|groups| *groups <= GROUPS_MAX);
        let groups = groups.ok_or_else(|| {
            let message =
                format!("{count} rows in {} epochs are more than {GROUPS_MAX} groups", plan.tasks.epochs);
            ApiError::new(ApiCode::JobTooLarge, message)
        })?;
        let (plan, images) = (Arc::new(plan), BTreeMap::new());
        let facts = JobFacts { job, plan, table_root, files, images, rows, base: None, document_bytes };
        Ok((facts, groups, named))
    });
    checked.await.map_err(|error| panicked(&error))?
}

/// Checks every row that can run; how many run in an epoch, and the images of all.
fn check_rows(plan: &JobPlan, rows: &TaskRows) -> Result<(u32, BTreeSet<String>), ApiError> {
    let selection = rows.selection();
    if selection.is_empty() && plan.tasks.filter != Filter::default() {
        return Err(ApiError::new(ApiCode::RowsInvalid, "`tasks.filter` leaves no row".to_owned())
            .hint("use a smaller `offset`, or no `filter`"));
    }
    let mut ids: BTreeMap<String, u32> = BTreeMap::new();
    let mut images = BTreeSet::new();
    let images_vary = resolve::images_vary(plan);
    for index in selection.candidates() {
        let row = rows.row(plan, index).map_err(|error| rows_invalid(&error))?;
        let position = u64::from(index);
        let invalid = |problem: &dyn std::error::Error| {
            ApiError::new(ApiCode::RowsInvalid, crate::health::chain(problem))
                .hint("`rollyard check` lists every row with a problem")
        };
        resolve::check_row(plan, position, &row).map_err(|problem| invalid(&problem))?;
        if images_vary || images.is_empty() {
            images.extend(resolve::image_texts(plan, position, &row).map_err(|problem| invalid(&problem))?);
            images::check_count(images.len())?;
        }
        // Without `tasks.id` ids are row numbers: they cannot repeat.
        if plan.tasks.id.is_none() {
            continue;
        }
        let id = resolve::task_id(plan, position, &row).map_err(|problem| invalid(&problem))?;
        if let Some(first) = ids.insert(id.clone(), index) {
            let message = format!("rows {first} and {index} have the same task id `{id}`");
            return Err(
                ApiError::new(ApiCode::RowsInvalid, message).hint("`tasks.id` must be unique in the set")
            );
        }
    }
    Ok((selection.len(), images))
}

fn rows_invalid(error: &RowsError) -> ApiError {
    let code = match error {
        RowsError::NotSent { .. } => ApiCode::FileMissing,
        RowsError::BlobMissing { .. } => ApiCode::BlobMissing,
        RowsError::Blob { .. } => ApiCode::StoreFailed,
        RowsError::TooMany { .. } => ApiCode::JobTooLarge,
        RowsError::File { .. }
        | RowsError::NoSuchRow { .. }
        | RowsError::Id { .. }
        | RowsError::UnknownIds { .. } => ApiCode::RowsInvalid,
    };
    ApiError::new(code, crate::health::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_hash_covers_document_files_and_table_root_and_not_their_order() {
        let file = |path: &str| v1::ClientFile { path: path.to_owned(), sha256: "x".to_owned(), size: 1 };
        let request = v1::SubmitRequest {
            document: "a".to_owned(),
            files: vec![file("p"), file("q")],
            ..v1::SubmitRequest::default()
        };
        let hash = request_hash(&request);
        let mut same = request.clone();
        same.files.reverse();
        same.source_name = "other.yaml".to_owned();
        assert_eq!(request_hash(&same), hash);
        let changes: [fn(&mut v1::SubmitRequest); 3] =
            [|r| r.document.push('b'), |r| r.table_root.push('/'), |r| r.files[0].sha256.push('y')];
        for change in changes {
            let mut other = request.clone();
            change(&mut other);
            assert_ne!(request_hash(&other), hash);
        }
    }

    #[test]
    fn keys_outside_the_alphabet_and_repeated_paths_are_refused() {
        let with_key =
            |key: &str| v1::SubmitRequest { idempotency_key: key.to_owned(), ..v1::SubmitRequest::default() };
        assert!(bounds(&with_key("run-1")).is_ok());
        for key in ["", "Run", "a b", "a_b", &"a".repeat(256)] {
            assert!(bounds(&with_key(key)).is_err(), "{key}");
        }
        let mut twice = with_key("k");
        twice.files = vec![v1::ClientFile::default(), v1::ClientFile::default()];
        assert!(bounds(&twice).is_err());
    }
}
