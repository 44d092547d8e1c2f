//! Everything before the command: the sandbox, its files, its inputs. One block with one way to
//! fail; the caller tears down whatever `slot` holds then.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rollout::Millis;
use rollout::failure::{Failure, FailureCode};
use rollout::plan::ResolvedContent;
use rollout::reward::RewardProblem;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{Tools, destroy, health, kept, killed};
use crate::clock::elapsed;
use crate::grading;
use crate::lifecycle::{Kill, Order, Refusal, RefusalClass};
use crate::outputs::in_workdir;
use crate::sandbox::{CreateError, FileError, FileSource, Sandbox, SandboxSpec};
use crate::storage::{StorageError, chain};
use crate::tree::{self, PlaceError};
use crate::workspace::{self, FetchError, StackError};

const INPUT_MODE: u32 = 0o644;

/// The command can start.
#[derive(Debug)]
pub(super) struct Ready {
    /// Of a grader: why no reward it may give would count.
    pub reward_problem: Option<RewardProblem>,
    /// Until the command runs, the start timeout goes on.
    pub start_deadline: Instant,
}

#[derive(Debug)]
pub(super) enum Unready {
    /// Nothing happened; another node may take it.
    Refused(Refusal),
    Failed(Failure),
}

pub(super) async fn prepare(
    tools: &Tools,
    order: &Order,
    slot: &mut Option<Box<dyn Sandbox>>,
    sandbox_id: String,
    dir: &Path,
    kills: &mut watch::Receiver<Option<Kill>>,
) -> Result<Ready, Unready> {
    let began = Instant::now();
    let timeout = order.step.start_timeout;
    let deadline = began + std::time::Duration::from_millis(timeout.0);
    let provisioning = async {
        let (captures, spares) = (dir.to_owned(), Arc::clone(&tools.spares));
        let made = tokio::task::spawn_blocking(move || spares.make_dir(&captures)).await;
        made.map_err(io::Error::other)
            .and_then(|made| made)
            .map_err(|error| storage_failed(&StorageError::capture(dir, error)))?;
        let is_new = slot.is_none();
        obtain(tools, order, slot, sandbox_id).await?;
        let Some(sandbox) = slot.as_deref() else {
            return Err(failed(FailureCode::StartFailed, "the backend gave no sandbox".to_owned()));
        };
        if order.step.best_effort && is_new {
            yield_cpu(sandbox).await?;
        }
        // What was parked has its files as it left them.
        if order.parked.is_none() {
            place_files(tools, order, sandbox, dir).await?;
            place_inputs(tools, order, sandbox, dir).await?;
        }
        // What goes on in a live sandbox was ready before.
        if let Some(check) = order.step.health_check.as_ref().filter(|_| is_new) {
            health::ready(sandbox, order, check, dir).await.map_err(Unready::Failed)?;
        }
        match &order.step.grader {
            None => Ok(None),
            Some(plan) => grading::prepare(sandbox, &order.step, plan).await.map_err(|e| file_failed(&e)),
        }
    };
    tokio::select! {
        ready = provisioning => ready.map(|reward_problem| Ready { reward_problem, start_deadline: deadline }),
        kill = killed(kills) => Err(failed(kill.code, format!("{}; it was not running yet", kill.reason))),
        () = tokio::time::sleep_until(deadline) => {
            Err(failed(FailureCode::StartTimeout, start_timeout_words(elapsed(began), timeout)))
        }
    }
}

pub(super) fn start_timeout_words(after: Millis, timeout: Millis) -> String {
    format!("the sandbox was not ready after {after}, with a start timeout of {timeout}")
}

/// A new sandbox, or the kept one made this step's.
///
/// A creation runs in a task of its own: if nobody waits for it any more, because this future was
/// dropped at the start timeout or by a kill, what it makes is destroyed as soon as it is made.
async fn obtain(
    tools: &Tools,
    order: &Order,
    slot: &mut Option<Box<dyn Sandbox>>,
    id: String,
) -> Result<(), Unready> {
    let step = &order.step;
    if let Some(kept) = slot {
        return kept::take_over(tools, order, kept.as_ref()).await;
    }
    let Some(backend) = tools.backends.of(step.backend).cloned() else {
        let message = format!("not_enforceable: backend {} is not offered here", step.backend);
        return Err(Unready::Refused(Refusal { class: RefusalClass::NeverFits, message }));
    };
    let base = tools.workspaces.base(&tools.storage, &tools.stragglers, &step.image).await;
    let base = base.map_err(|error| stack_failed(&StackError::Fetch(error)))?;
    let layers = workspace::stack(&tools.workspaces, &tools.storage, &tools.stragglers, order).await;
    let spec = SandboxSpec {
        id,
        image: step.image.clone(),
        base,
        image_digest: order.base.as_ref().map(|base| base.image.clone()),
        layers: layers.map_err(|error| stack_failed(&error))?,
        limits: step.resources.limit,
        user: step.user.clone(),
        workdir: step.workdir.clone(),
    };
    let (sender, made) = oneshot::channel();
    tools.stragglers.spawn(async move {
        if let Err(Ok(Handover(Some(sandbox)))) = sender.send(backend.create(spec).await.map(Handover::of)) {
            destroy(sandbox).await;
        }
    });
    match made.await {
        Ok(Ok(mut handover)) => {
            *slot = handover.0.take();
            Ok(())
        }
        Ok(Err(error)) => Err(create_failed(&error)),
        Err(_) => Err(failed(FailureCode::StartFailed, "the creation of the sandbox panicked".to_owned())),
    }
}

async fn yield_cpu(sandbox: &dyn Sandbox) -> Result<(), Unready> {
    match sandbox.yield_cpu().await {
        Ok(true) => Ok(()),
        Ok(false) => {
            tracing::debug!("best-effort steps run as all others do here");
            Ok(())
        }
        Err(error) => Err(failed(FailureCode::StartFailed, format!("giving way to others: {error}"))),
    }
}

/// A new sandbox on its way to its runner. If the runner is gone between the send and the
/// receipt, the sandbox is still torn down, by its own drop.
struct Handover(Option<Box<dyn Sandbox>>);

impl Handover {
    fn of(sandbox: Box<dyn Sandbox>) -> Self {
        Self(Some(sandbox))
    }
}

async fn place_files(tools: &Tools, order: &Order, sandbox: &dyn Sandbox, dir: &Path) -> Result<(), Unready> {
    for (index, file) in order.step.files.iter().enumerate() {
        let content = match &file.content {
            ResolvedContent::Text(text) => FileSource::Bytes(text.clone().into_bytes()),
            ResolvedContent::Blob(sha256) => {
                let fetched = tools.storage.fetch(sha256, None, &dir.join(format!("file-{index}"))).await;
                FileSource::File(fetched.map_err(|error| storage_failed(&error))?)
            }
        };
        let written = sandbox.write_file(&file.path, content, file.mode, &order.step.user).await;
        written.map_err(|error| file_failed(&error))?;
    }
    Ok(())
}

async fn place_inputs(
    tools: &Tools,
    order: &Order,
    sandbox: &dyn Sandbox,
    dir: &Path,
) -> Result<(), Unready> {
    for (index, input) in order.inputs.iter().enumerate() {
        let local = dir.join(format!("input-{index}"));
        let fetched = tools.storage.fetch(&input.sha256, Some(input.size), &local).await;
        let fetched = fetched.map_err(|error| storage_failed(&error))?;
        let path = in_workdir(&input.path, &order.step.workdir);
        if input.tree {
            let placed = tree::unpack(sandbox, fetched, &path, &order.step.user).await;
            placed.map_err(|error| match error {
                PlaceError::File(error) => file_failed(&error),
                PlaceError::Bad(problem) => failed(FailureCode::StorageFailed, problem),
            })?;
        } else {
            let content = FileSource::File(fetched);
            let written = sandbox.write_file(&path, content, INPUT_MODE, &order.step.user).await;
            written.map_err(|error| file_failed(&error))?;
        }
        // The sandbox has its copy.
        if let Err(error) = tokio::fs::remove_file(&local).await {
            tracing::warn!(path = %local.display(), %error, "fetched input not removed");
        }
    }
    Ok(())
}

pub(super) fn stack_failed(error: &StackError) -> Unready {
    let message = error.to_string();
    let refused = |class| Unready::Refused(Refusal { class, message: message.clone() });
    match error {
        StackError::NotALayer { .. } => failed(FailureCode::NotFound, message),
        StackError::TooLarge { .. } => refused(RefusalClass::NeverFits),
        StackError::Fetch(FetchError::Bad { .. }) => refused(RefusalClass::CheckpointBad),
        // The same at every try and on every node.
        StackError::Named(FetchError::Bad { .. }) => failed(FailureCode::NotFound, message),
        StackError::Fetch(FetchError::Image { .. }) | StackError::Named(FetchError::Image { .. }) => {
            failed(FailureCode::NotFound, message)
        }
        StackError::Fetch(FetchError::Busy(_)) | StackError::Named(FetchError::Busy(_)) => {
            refused(RefusalClass::Busy)
        }
        StackError::Fetch(FetchError::Failed { .. }) | StackError::Named(FetchError::Failed { .. }) => {
            failed(FailureCode::StorageFailed, message)
        }
    }
}

pub(super) fn failed(code: FailureCode, message: String) -> Unready {
    Unready::Failed(Failure::new(code, message))
}

fn storage_failed(error: &StorageError) -> Unready {
    failed(FailureCode::StorageFailed, chain(error))
}

/// A path that cannot be written, or content that does not fit, is the task's: no retry helps.
fn file_failed(error: &FileError) -> Unready {
    match error {
        FileError::Full { .. } => {
            let why = "before the step began: a larger disk limit is needed";
            failed(FailureCode::NotFound, format!("{error}, {why}"))
        }
        FileError::NotAFile { .. }
        | FileError::NotADirectory { .. }
        | FileError::Escapes { .. }
        | FileError::BadPath { .. } => failed(FailureCode::NotFound, error.to_string()),
        FileError::UnknownUser { .. } => failed(FailureCode::NotFound, format!("unknown_user: {error}")),
        FileError::Io { .. } => failed(FailureCode::StartFailed, error.to_string()),
    }
}

fn create_failed(error: &CreateError) -> Unready {
    let message = error.to_string();
    match error {
        // What an image lacks it lacks at every try.
        CreateError::BadRootfs { .. } => failed(FailureCode::NotFound, format!("bad_rootfs: {message}")),
        CreateError::ImageMissing { .. } => {
            let message = format!("image_missing: {message}");
            Unready::Refused(Refusal { class: RefusalClass::NeverFits, message })
        }
        CreateError::UnknownUser { .. } => failed(FailureCode::NotFound, format!("unknown_user: {message}")),
        CreateError::NotEnforceable { .. } => {
            let message = format!("not_enforceable: {message}");
            Unready::Refused(Refusal { class: RefusalClass::NeverFits, message })
        }
        CreateError::Busy { .. } => Unready::Refused(Refusal { class: RefusalClass::Busy, message }),
        CreateError::Ended { .. } => Unready::Refused(Refusal { class: RefusalClass::Unhealthy, message }),
        CreateError::Failed { .. } => failed(FailureCode::StartFailed, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A retry of a chain begins at its agent: what an agent left must never cause one.
    #[test]
    fn what_stands_in_the_way_of_a_file_is_retried_only_if_the_node_is_to_blame() {
        let path = || "/in/answer".to_owned();
        for (error, should_retry) in [
            (FileError::NotAFile { path: path(), found: "directory" }, false),
            (FileError::NotADirectory { path: path(), part: "in".to_owned(), found: "file" }, false),
            (FileError::Escapes { path: path() }, false),
            (FileError::BadPath { path: path(), problem: "it is empty" }, false),
            (FileError::Full { path: path() }, false),
            (FileError::UnknownUser { path: path(), user: "bob".to_owned() }, false),
            (FileError::Io { path: path(), source: io::Error::from_raw_os_error(5) }, true),
        ] {
            let Unready::Failed(failure) = file_failed(&error) else { panic!("{error:?}") };
            assert_eq!(failure.code.consequence().should_retry, should_retry, "{error:?}");
        }
    }
}
