//! The grader's channel: its output directory made new before the work, its reward read once
//! after every process is dead. Files go through the sandbox's own resolver, so a FIFO, a
//! directory or a symlink is a bad reward and never a hang or a file of the host.

use std::io::Read as _;

use rollout::outcome::Reward;
use rollout::plan::{GraderPlan, ResolvedStep, RewardSource};
use rollout::reward::{self, REWARD_FILE_BYTES_MAX, RewardProblem};

use crate::outputs::in_workdir;
use crate::sandbox::{FileError, Sandbox};

/// Made empty for every grader.
pub(crate) const VERIFIER_DIR: &str = "/logs/verifier";
/// Where it lies.
const LOGS_DIR: &str = "/logs";
const VERIFIER_DIR_MODE: u32 = 0o755;

/// Empties the grader's directory. A reward file anywhere else must not be there yet: nobody
/// could tell who wrote it.
pub(crate) async fn prepare(
    sandbox: &dyn Sandbox,
    step: &ResolvedStep,
    plan: &GraderPlan,
) -> Result<Option<RewardProblem>, FileError> {
    let reset = sandbox.reset_dir(VERIFIER_DIR, VERIFIER_DIR_MODE, &step.user).await;
    if let Err(FileError::NotADirectory { .. } | FileError::Escapes { .. }) = &reset {
        // What is in the way was left by the work: it takes nobody's reward.
        sandbox.reset_dir(LOGS_DIR, VERIFIER_DIR_MODE, "root").await?;
        sandbox.reset_dir(VERIFIER_DIR, VERIFIER_DIR_MODE, &step.user).await?;
    } else {
        reset?;
    }
    let RewardSource::File { paths, .. } = &plan.source else { return Ok(None) };
    for path in paths.iter().map(|path| in_workdir(path, &step.workdir)) {
        let is_ours = path.strip_prefix(VERIFIER_DIR).is_some_and(|rest| rest.starts_with('/'));
        if !is_ours && !matches!(sandbox.open_file(&path).await, Ok(None)) {
            return Ok(Some(RewardProblem::Planted { path }));
        }
    }
    Ok(None)
}

/// The reward, from the first path where something is, or from the exit code.
pub(crate) async fn read(
    sandbox: &dyn Sandbox,
    step: &ResolvedStep,
    plan: &GraderPlan,
    exit_code: Option<i32>,
) -> Result<Reward, RewardProblem> {
    let paths = match &plan.source {
        RewardSource::Exit(_) => return reward::from_exit(exit_code, plan),
        RewardSource::File { paths, .. } => paths,
    };
    for path in paths {
        let path = in_workdir(path, &step.workdir);
        match sandbox.open_file(&path).await {
            Ok(None) => {}
            Ok(Some((_, size))) if size.0 > REWARD_FILE_BYTES_MAX => {
                return Err(RewardProblem::TooLarge { path, bytes: size.0 });
            }
            Ok(Some((file, _))) => {
                let bytes = read_bounded(file, &path).await?;
                return reward::from_file(&path, &bytes, plan);
            }
            Err(error) => return Err(problem(path, &error)),
        }
    }
    Err(RewardProblem::Missing { paths: paths.clone() })
}

/// At most one byte more than allowed, whatever size the file had when it was opened.
async fn read_bounded(file: std::fs::File, path: &str) -> Result<Vec<u8>, RewardProblem> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        file.take(REWARD_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let unreadable = |problem: String| RewardProblem::Unreadable { path: path.to_owned(), problem };
    match read.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(unreadable(error.to_string())),
        Err(failed) => Err(unreadable(failed.to_string())),
    }
}

fn problem(path: String, error: &FileError) -> RewardProblem {
    match error {
        FileError::NotAFile { found, .. } => RewardProblem::NotAFile { path, found: format!("a {found}") },
        FileError::Escapes { .. } => {
            RewardProblem::NotAFile { path, found: "a way through a symlink".to_owned() }
        }
        FileError::NotADirectory { .. }
        | FileError::BadPath { .. }
        | FileError::Full { .. }
        | FileError::UnknownUser { .. }
        | FileError::Io { .. } => RewardProblem::Unreadable { path, problem: error.to_string() },
    }
}
