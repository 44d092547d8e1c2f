//! Declared outputs: files, and what a command prints. Read after the work, when every process
//! is dead; whole or not at all.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rollout::Bytes;
use rollout::classify::{OutputProblem, OutputProblemKind};
use rollout::outcome::Artifact;
use rollout::plan::{OutputDecl, OutputSource, ResolvedStep};

use crate::capture::Capture;
use crate::sandbox::{Exit, FileError, Sandbox, Spawn, SpawnError};
use crate::storage::{Put, Storage, StorageError};
use crate::tree::{self, TreeError};

/// For the command of one output.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// In the order of the declarations.
    pub artifacts: Vec<Artifact>,
    pub problems: Vec<OutputProblem>,
}

/// Why collecting stopped.
#[derive(Debug)]
pub(crate) enum CollectError {
    Storage(StorageError),
    /// The sandbox died, or its processes would not go.
    Lost(String),
}

impl From<StorageError> for CollectError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// `path`, from the step's workdir if it is relative.
pub(crate) fn in_workdir(path: &str, workdir: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", workdir.trim_end_matches('/')) }
}

/// Files first: a command of another output cannot touch them.
pub(crate) async fn collect(
    sandbox: &dyn Sandbox,
    step: &ResolvedStep,
    env: &BTreeMap<String, String>,
    storage: &Storage,
    dir: &Path,
) -> Result<Collected, CollectError> {
    let mut found: Vec<Option<Result<Artifact, OutputProblemKind>>> = vec![None; step.outputs.len()];
    for (declared, found) in step.outputs.iter().zip(&mut found) {
        if let OutputSource::Path(path) = &declared.source {
            let path = in_workdir(path, &step.workdir);
            *found = Some(read_file(sandbox, declared, &path, storage).await?);
        }
    }
    for (index, (declared, found)) in step.outputs.iter().zip(&mut found).enumerate() {
        if let OutputSource::Paths(paths) = &declared.source {
            // A task that declares nothing has nothing to miss.
            if paths.is_empty() {
                continue;
            }
            let packed = dir.join(format!("output-{index}"));
            let paths: Vec<String> = paths.iter().map(|path| in_workdir(path, &step.workdir)).collect();
            *found = Some(match tree::pack(sandbox, &paths, &packed, declared.max_bytes).await {
                Ok(file) => store(file, declared, &packed.display().to_string(), storage).await?,
                Err(TreeError::Problem(problem)) => Err(problem),
                Err(TreeError::Storage(error)) => return Err(error.into()),
            });
            if let Err(error) = tokio::fs::remove_file(&packed).await {
                tracing::warn!(path = %packed.display(), %error, "packed output not removed");
            }
        }
    }
    for (index, (declared, found)) in step.outputs.iter().zip(&mut found).enumerate() {
        if let OutputSource::Command(text) = &declared.source {
            let path = dir.join(format!("output-{index}"));
            let command = Command { sandbox, step, env, text, declared };
            *found = Some(command.run(storage, &path).await?);
        }
    }
    let mut collected = Collected::default();
    for (declared, found) in step.outputs.iter().zip(found) {
        match found {
            Some(Ok(artifact)) => collected.artifacts.push(artifact),
            Some(Err(kind)) => {
                collected.problems.push(OutputProblem { name: declared.name.to_string(), kind })
            }
            None => {}
        }
    }
    Ok(collected)
}

async fn read_file(
    sandbox: &dyn Sandbox,
    declared: &OutputDecl,
    path: &str,
    storage: &Storage,
) -> Result<Result<Artifact, OutputProblemKind>, StorageError> {
    let missing = |why: String| Ok(Err(OutputProblemKind::Missing { why }));
    let max = declared.max_bytes;
    let (file, size) = match sandbox.open_file(path).await {
        Ok(Some(found)) => found,
        Ok(None) => return missing(format!("nothing at {path}")),
        Err(
            error @ (FileError::NotAFile { .. }
            | FileError::NotADirectory { .. }
            | FileError::Escapes { .. }
            | FileError::UnknownUser { .. }
            | FileError::BadPath { .. }),
        ) => return missing(error.to_string()),
        Err(FileError::Full { path: what }) => {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(StorageError::File { action: "open", what, source });
        }
        Err(FileError::Io { path: what, source }) => {
            return Err(StorageError::File { action: "open", what, source });
        }
    };
    if size > max {
        return Ok(Err(OutputProblemKind::TooLarge { bytes: Some(size), max }));
    }
    store(file, declared, path, storage).await
}

async fn store(
    file: std::fs::File,
    declared: &OutputDecl,
    what: &str,
    storage: &Storage,
) -> Result<Result<Artifact, OutputProblemKind>, StorageError> {
    let max = declared.max_bytes;
    Ok(match storage.put_open_file(file, max.0, what).await? {
        Put::TooLarge => Err(OutputProblemKind::TooLarge { bytes: None, max }),
        Put::Stored(blob) => Ok(Artifact {
            name: declared.name.to_string(),
            media_type: declared.media_type.clone(),
            size: Bytes(blob.size),
            sha256: blob.sha256,
        }),
    })
}

/// A command whose standard output is the output.
struct Command<'a> {
    sandbox: &'a dyn Sandbox,
    step: &'a ResolvedStep,
    env: &'a BTreeMap<String, String>,
    text: &'a str,
    declared: &'a OutputDecl,
}

impl Command<'_> {
    async fn run(
        &self,
        storage: &Storage,
        path: &Path,
    ) -> Result<Result<Artifact, OutputProblemKind>, CollectError> {
        let missing = |why: String| Ok(Err(OutputProblemKind::Missing { why }));
        let max = self.declared.max_bytes;
        let started = |source| StorageError::capture(path, source);
        let (stdout, capture) = Capture::start(path.to_owned(), max).await.map_err(started)?;
        let ended = self.spawn_and_wait(stdout).await;
        let killed = self.sandbox.kill_all().await;
        let recorded = capture.finish().await;
        killed.map_err(|error| CollectError::Lost(format!("its processes could not be ended: {error}")))?;
        let recorded = recorded?;
        // Endless output is too large, however its command ended.
        if recorded.written > max && !matches!(ended, Err(SpawnError::Dead { .. })) {
            return Ok(Err(OutputProblemKind::TooLarge { bytes: Some(recorded.written), max }));
        }
        match ended {
            Ok(Some(Exit::Code(0))) => {}
            Ok(Some(Exit::Code(code))) => return missing(format!("its command exited with code {code}")),
            Ok(Some(Exit::Signal(signal))) => {
                return missing(format!("its command was killed by signal {signal}"));
            }
            Ok(None) => {
                let limit = COMMAND_TIMEOUT.as_secs();
                return missing(format!("its command still ran after {limit}s"));
            }
            Err(SpawnError::Dead { reason }) => return Err(CollectError::Lost(reason)),
            Err(error) => return missing(format!("its command did not run: {error}")),
        }
        let what = path.display().to_string();
        let file = recorded.open().map_err(|source| StorageError::File {
            action: "open",
            what: what.clone(),
            source,
        })?;
        Ok(store(file, self.declared, &what, storage).await?)
    }

    /// None: it was still running at its deadline.
    async fn spawn_and_wait(&self, stdout: OwnedFd) -> Result<Option<Exit>, SpawnError> {
        let setup = |source| SpawnError::Setup { action: "open /dev/null".to_owned(), source };
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").map_err(setup)?;
        let argv = ["/bin/sh", "-e", "-c", self.text].map(str::to_owned).to_vec();
        let (user, cwd) = (self.step.user.clone(), self.step.workdir.clone());
        let spawn = Spawn { argv, env: self.env.clone(), cwd, user, stdout, stderr: null.into() };
        let work = async {
            let process = self.sandbox.spawn(spawn).await?;
            tokio::select! {
                exit = process.wait() => exit,
                reason = self.sandbox.died() => Err(SpawnError::Dead { reason }),
            }
        };
        tokio::time::timeout(COMMAND_TIMEOUT, work).await.ok().transpose()
    }
}
