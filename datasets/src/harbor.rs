//! Task directories of Harbor as task rows.
//!
//! ```text
//! DIR/fix-it/instruction.md   DIR/fix-it/task.toml   DIR/fix-it/{environment,solution,tests}/
//! ```
//! One directory is one row. `task.toml` is read with every key it may have: what this build has no
//! machinery for makes the task unsupported, by name; what the format does not know makes it bad.
//! Trees are packed by the caller, who has a place to put them; a row names them by [`TREES`].

mod config;
mod row;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rollout::plan::EnvironmentMode;
use rollout::spec::DiagnosticCode as Code;
use rollout::text::shown;
use serde_json::{Map, Value};

use crate::tasks::ROW_BYTES_MAX;

/// Columns of a row that name a tree, each after the folder it is made of.
pub const TREES: [&str; 3] = ["tests", "solution", "environment"];
/// The most tasks of a directory.
pub const TASKS_MAX: usize = 100_000;
/// The largest `task.toml`, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

const CONFIG: &str = "task.toml";

#[derive(Debug, thiserror::Error)]
pub enum HarborError {
    #[error("cannot read `{}`", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` holds no Harbor task: no folder in it has a `task.toml`", path.display())]
    NoTasks { path: PathBuf },
    #[error("`{}` holds more than {tasks_max} tasks (TASKS_MAX)", path.display())]
    TooMany { path: PathBuf, tasks_max: usize },
}

/// What a job wants of the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// Tasks of this mode only, where the steps follow from it.
    pub mode: Option<EnvironmentMode>,
    /// The job has no image of its own.
    pub image: bool,
    /// Its agent is the solution.
    pub solution: bool,
    /// Its graders run `tests/test.sh`.
    pub tests: bool,
    /// A Dockerfile can be built here.
    pub can_build: bool,
}

/// Column `image` of a task whose image is not built yet: of the form that it will have.
pub const TO_BE_BUILT: &str =
    "stored:sha256:0000000000000000000000000000000000000000000000000000000000000000";

#[derive(Debug, Clone, PartialEq)]
pub struct HarborTask {
    /// Its directory.
    pub dir: PathBuf,
    /// Every column but those of [`TREES`] that are there; these are null.
    pub row: Map<String, Value>,
    pub mode: EnvironmentMode,
    /// Its image is to be built from `environment/Dockerfile`; column `image` is [`TO_BE_BUILT`].
    pub needs_build: bool,
}

impl HarborTask {
    /// The name of its directory, by which it is known.
    pub fn name(&self) -> &str {
        self.row.get("task").and_then(Value::as_str).unwrap_or_default()
    }

    /// Artifacts it declares.
    pub fn artifacts(&self) -> usize {
        self.row.get("artifacts").and_then(Value::as_array).map_or(0, Vec::len)
    }
}

/// A task that cannot run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    pub task: String,
    pub code: Code,
    pub problem: String,
}

/// Why a task cannot run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    code: Code,
    problem: String,
}

impl Fault {
    fn bad(problem: impl Into<String>) -> Self {
        Self { code: Code::HarborBadTask, problem: problem.into() }
    }

    /// `key` needs something that this build does not have.
    fn later(key: &str) -> Self {
        Self { code: Code::NotAvailableYet, problem: format!("`{key}` is not available yet") }
    }
}

/// The tasks of a directory, in byte order of their names; or the one task it is. Blocks on the
/// disk.
///
/// # Errors
/// The directory cannot be read, or holds no task.
pub fn read(dir: &Path, wants: &Wants) -> Result<Vec<Result<HarborTask, Unsupported>>, HarborError> {
    let dirs = task_dirs(dir)?;
    let task = |dir: PathBuf| {
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        read_task(&dir, &name, wants).map_err(|fault| Unsupported {
            task: shown(&name, 128),
            code: fault.code,
            problem: fault.problem,
        })
    };
    Ok(dirs.into_iter().map(task).collect())
}

fn task_dirs(dir: &Path) -> Result<Vec<PathBuf>, HarborError> {
    let io = |source| HarborError::Io { path: dir.to_owned(), source };
    let whole = fs::canonicalize(dir).map_err(io)?;
    if whole.join(CONFIG).is_file() {
        return Ok(vec![whole]);
    }
    let mut dirs = Vec::new();
    for entry in fs::read_dir(&whole).map_err(io)? {
        let path = entry.map_err(io)?.path();
        // What else lies beside the tasks, such as a README or scripts, is none.
        if path.join(CONFIG).is_file() {
            dirs.push(path);
        }
        if dirs.len() > TASKS_MAX {
            return Err(HarborError::TooMany { path: dir.to_owned(), tasks_max: TASKS_MAX });
        }
    }
    if dirs.is_empty() {
        return Err(HarborError::NoTasks { path: dir.to_owned() });
    }
    dirs.sort_unstable();
    Ok(dirs)
}

fn read_task(dir: &Path, name: &str, wants: &Wants) -> Result<HarborTask, Fault> {
    let text = read_text(&dir.join(CONFIG), CONFIG_BYTES_MAX)?;
    let config = config::parse(&text)?;
    let instruction = dir.join("instruction.md");
    check_shape(dir, &config)?;
    let instruction = read_text(&instruction, ROW_BYTES_MAX as u64)?;
    let has = |file: &str| dir.join(file).is_file();
    if wants.tests && !has("tests/test.sh") {
        return Err(Fault::bad("it has no `tests/test.sh`"));
    }
    if wants.solution && !has("solution/solve.sh") {
        return Err(Fault {
            code: Code::HarborNoSolution,
            problem: "it has no `solution/solve.sh`".to_owned(),
        });
    }
    let mode = config.mode();
    if let Some(wanted) = wants.mode.filter(|wanted| *wanted != mode) {
        let problem =
            format!("its environment mode is `{}`, and this job grades `{}`", mode.as_str(), wanted.as_str());
        return Err(Fault { code: Code::HarborOtherMode, problem });
    }
    let needs_build = wants.image && config.environment.docker_image.is_none();
    if needs_build && !(has("environment/Dockerfile") && wants.can_build) {
        let problem = if has("environment/Dockerfile") {
            "its image is built from `environment/Dockerfile`, and none of buildah, podman and docker is installed"
        } else {
            "it names no image and has no `environment/Dockerfile`: name one in `defaults.image`, or by `--image`"
        };
        return Err(Fault { code: Code::HarborNeedsBuilder, problem: problem.to_owned() });
    }
    let mut row = row::of(name, &config, instruction)?;
    if needs_build {
        row.insert("image".to_owned(), TO_BE_BUILT.into());
    }
    Ok(HarborTask { dir: dir.to_owned(), row, mode, needs_build })
}

/// What a directory asks for by the files it has.
fn check_shape(dir: &Path, config: &config::Config) -> Result<(), Fault> {
    if !config.steps.is_empty() || dir.join("steps").is_dir() {
        return Err(Fault { code: Code::HarborMultiStep, problem: "it has several steps".to_owned() });
    }
    for name in ["docker-compose.yaml", "docker-compose.yml"] {
        if dir.join("environment").join(name).is_file() {
            let problem = format!("it needs several containers (`environment/{name}`)");
            return Err(Fault { code: Code::HarborCompose, problem });
        }
    }
    config.check()
}

fn read_text(path: &Path, bytes_max: u64) -> Result<String, Fault> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let failed = |error: io::Error| Fault::bad(format!("`{name}` cannot be read: {error}"));
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Fault::bad(format!("`{name}` is larger than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Fault::bad(format!("`{name}` is not UTF-8 text")))
}
