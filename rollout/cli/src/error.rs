//! What can go wrong in the program itself, and how it is told: a code, what, on which object,
//! why, and what to do.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use rollout::text::shown;
use rollout_wire::{CODE_METADATA, HINT_METADATA};
use serde_json::json;
use tonic::{Code, Status};

use crate::exit::ExitStatus;

/// The most characters of one line that came from outside.
pub const LINE_CHARS_MAX: usize = 2000;
/// The most lines of one message that came from outside.
pub const MESSAGE_LINES_MAX: usize = 200;
/// The most causes printed below an error.
const CAUSES_MAX: usize = 8;

/// The code of a yard that is about to be gone.
const STOPPING: &str = "stopping";
/// The code of a command that never ran.
pub const COMMAND_NOT_STARTED: &str = "command_not_started";
/// The code of a node that is away, and may come back with its sandboxes.
pub const NODE_LOST: &str = "node_lost";
/// The code of a session that somebody else drives: nobody does from here.
const CLAIM_LOST: &str = "claim_lost";

pub type Boxed = Box<dyn StdError + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line; `message` and `hint` are clap's.
    #[error("{message}")]
    Usage { message: String, hint: String },
    #[error("`{}` cannot be the data directory: {problem}", data_dir.display())]
    BadDataDir { data_dir: PathBuf, problem: String },
    #[error("cannot read `{}`", path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("cannot write `{}`", path.display())]
    WriteFile { path: PathBuf, source: io::Error },
    #[error("the Harbor tasks cannot be read")]
    Harbor { source: datasets::harbor::HarborError },
    #[error("the tree `{}` cannot be packed", path.display())]
    Tree { path: PathBuf, source: Box<images::layers::Error> },
    #[error("image `{}` cannot be used", shown(reference, 200))]
    Image { reference: String, source: Box<images::oci::Error> },
    #[error("`{}` names no image: {problem}", shown(text, 200))]
    ImageName { text: String, problem: String },
    #[error("none of buildah, podman and docker is installed, and an image must be built")]
    NoBuilder,
    #[error("{name} did not build the image: {problem}")]
    Builder { name: &'static str, problem: String },
    #[error("{tasks} task{} cannot run here", if *tasks == 1 { "" } else { "s" })]
    Unsupported { tasks: usize },
    #[error("`{}` is larger than {limit} bytes, the most a spec may have (TEXT_BYTES_MAX)", path.display())]
    SpecTooLarge { path: PathBuf, limit: usize },
    #[error("`{}` is not UTF-8 text", path.display())]
    SpecNotText { path: PathBuf },
    #[error("file `{}`, named by the spec, changed while it was read", path.display())]
    FileChanged { path: PathBuf },
    #[error("the task rows in `{}` cannot be read", path.display())]
    Rows { path: PathBuf, source: datasets::tasks::RowError },
    #[error("the task rows in `{}` have {errors} error{}", path.display(), if *errors == 1 { "" } else { "s" })]
    BadRows { path: PathBuf, errors: u64 },
    #[error("the spec has {errors} error{}", if *errors == 1 { "" } else { "s" })]
    BadSpec { errors: usize },
    #[error("the spec has {warnings} warning{}, and --deny-warnings is set", if *warnings == 1 { "" } else { "s" })]
    Warnings { warnings: usize },
    #[error("`output.table` is relative (`{table}`), and the yard at {yard} need not be on this machine")]
    OutputRelative { table: String, yard: String },
    #[error("`output.table` has a lookup (`{table}`) and does not start with `/` or a URL scheme")]
    OutputLookup { table: String },
    #[error("`{url}` is not the address of a yard: {problem}")]
    BadYard { url: String, problem: &'static str },
    #[error("neither a spec nor --harbor says what to run")]
    NoSpec,
    #[error("--model `{url}` is not available yet: no proxy records model calls")]
    NoModels { url: String },
    #[error("`run` has a yard of its own and cannot use {url}")]
    OwnYard { url: String },
    #[error("TLS (`{url}`) is not available yet")]
    NoTls { url: String },
    #[error("cannot reach the yard at {url}")]
    Unreachable { url: String, source: Boxed },
    #[error("the connection to the yard at {url} broke")]
    Broken { url: String, message: String },
    #[error("{message}")]
    Refused { code: String, message: String, hint: Option<String>, exit: ExitStatus },
    #[error("the yard's answer makes no sense: {problem}")]
    BadAnswer { problem: String },
    #[error("`{text}` names nothing: expected {expected}")]
    BadTarget { text: String, expected: &'static str },
    #[error("{rollout} has no step `{step}`")]
    NoStep { rollout: String, step: String, nearest: Option<String> },
    #[error("no step of {rollout} has started yet, so there is no output")]
    NothingStarted { rollout: String },
    #[error("a yard already serves the data directory {}", data_dir.display())]
    Served { data_dir: PathBuf },
    #[error("the {part} ended by itself")]
    EndedEarly { part: &'static str },
    #[error("cannot write to standard output")]
    Stdout(#[source] io::Error),
    /// The embedded yard, or a service of it.
    #[error("{what}")]
    Service { code: &'static str, what: String, source: Boxed, hint: Option<String>, exit: ExitStatus },
    #[error("`matrix.max_parallel` and `matrix.fail_fast` need somebody who waits")]
    MatrixWaits,
    #[error("{failed} of the {cells} jobs of the matrix did not end well")]
    CellsFailed { failed: usize, cells: usize, exit: u8 },
    #[error("another job of the matrix failed first, and `fail_fast` is set")]
    FailFast,
    #[error("cannot export `{}`", shown(name, 200))]
    Export { name: String, source: datasets::export::Error },
    #[error("export as {format} is not available yet")]
    NoFormat { format: &'static str },
    #[error("the checkpoints have more than {limit} {what} to compare")]
    DiffTooLarge { what: &'static str, limit: u64 },
    #[error("layer {} cannot be read", shown(layer, 80))]
    Layer { layer: String, source: Box<images::layers::Error> },
    #[error("{failed} of the sandboxes could not be ended")]
    KillFailed { failed: usize, first: String, job: Option<String> },
    #[error("{left_out} of what was to be copied {} left out", if *left_out == 1 { "was" } else { "were" })]
    CopyIncomplete { left_out: usize },
    #[error("the copy has more than {limit} {what}")]
    CopyTooLarge { what: &'static str, limit: u64 },
    #[error("`{}` is there already", path.display())]
    CopyExists { path: PathBuf },
    #[error("{problem}")]
    BadCopy { problem: &'static str },
    #[error(
        "nobody knows how the command ended{}: the yard or its node was lost under it",
        if *begun { "" } else { ", or whether it ran" }
    )]
    OutcomeUnknown { begun: bool, why: String },
    #[error("standard input is no terminal")]
    NoTerminal,
    #[error("the terminal cannot be switched")]
    Terminal(#[source] io::Error),
    #[error("interrupted")]
    Interrupted,
    /// `own_yard`: of `run`, whose yard ends with the command.
    #[error("job {job} {} {state}", if state == "held" { "is" } else { "ended as" })]
    JobEnded { job: String, state: String, reason: String, own_yard: bool },
}

impl Error {
    /// What the yard answered. A status that carries no code of its own comes from the transport.
    pub fn from_status(status: &Status, url: &str) -> Self {
        let text = |key: &str| {
            let value = status.metadata().get(key)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let Some(code) = text(CODE_METADATA) else {
            return match status.code() {
                Code::Unavailable | Code::Unknown | Code::Cancelled => {
                    Self::Broken { url: url.to_owned(), message: transport_cause(status) }
                }
                _ => Self::Refused {
                    code: format!("grpc_{}", snake(status.code())),
                    message: status.message().to_owned(),
                    hint: None,
                    exit: exit_of(status.code()),
                },
            };
        };
        if let (CLAIM_LOST, Some(id)) = (code.as_str(), sandbox_in(status.message())) {
            let job = id.rollout.group.job;
            let message = format!("{id} is a session of job {job}: its driver holds it");
            let hint = "drive it with `client.drive` (docs/python.md); `rollyard logs` shows what was done";
            return Self::Refused {
                code,
                message,
                hint: Some(hint.to_owned()),
                exit: exit_of(status.code()),
            };
        }
        // A code is an answer: a yard that cannot reach its store is there. One that stops is not.
        let refused_exit = match status.code() {
            Code::Unavailable if code != STOPPING => ExitStatus::Failure,
            _ if code == COMMAND_NOT_STARTED => not_started(status.message()),
            status => exit_of(status),
        };
        Self::Refused {
            code,
            message: status.message().to_owned(),
            hint: text(HINT_METADATA),
            exit: refused_exit,
        }
    }

    /// Whether no yard answered: one that starts again may.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Broken { .. } | Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => code == STOPPING,
            _ => false,
        }
    }

    /// Whether nobody answered, or the node of a sandbox is away: the same call may be answered later.
    pub fn may_pass(&self) -> bool {
        self.is_silence() || self.code() == NODE_LOST
    }

    /// Of a job that did not end well. `own_yard`: its yard ends with the command.
    pub fn ended(job: &crate::view::Job, own_yard: bool) -> Self {
        let reason = job.reason.clone().or_else(|| job.failure_message.clone());
        let reason = reason.unwrap_or_else(|| "no rollout ended well".to_owned());
        Self::JobEnded { job: job.id.clone(), state: job.state.clone(), reason, own_yard }
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Usage { .. } => "bad_usage",
            Self::BadDataDir { .. } => "bad_data_dir",
            Self::ReadFile { .. } => "read_failed",
            Self::WriteFile { .. } => "write_failed",
            Self::Harbor { .. } => "harbor_unreadable",
            Self::Tree { .. } => "bad_tree",
            Self::Image { source, .. } => match &**source {
                images::oci::Error::InUse { .. } => "image_in_use",
                _ => "image_unusable",
            },
            Self::ImageName { .. } => "bad_image",
            Self::NoBuilder => "no_builder",
            Self::Builder { .. } => "build_failed",
            Self::Unsupported { .. } => "tasks_unsupported",
            Self::SpecTooLarge { .. } => "too_large",
            Self::SpecNotText { .. } => "not_text",
            Self::FileChanged { .. } => "file_changed",
            Self::Rows { .. } | Self::BadRows { .. } => "bad_rows",
            Self::BadSpec { .. } => "bad_spec",
            Self::Warnings { .. } => "warnings_denied",
            Self::OutputRelative { .. } | Self::OutputLookup { .. } => "output_relative",
            Self::BadYard { .. } => "bad_yard",
            Self::OwnYard { .. } => "own_yard",
            Self::NoTls { .. } | Self::NoModels { .. } | Self::NoFormat { .. } => "not_available_yet",
            Self::Export { source, .. } => source.code(),
            Self::NoSpec => "bad_usage",
            Self::Unreachable { .. } => "yard_unreachable",
            Self::Broken { .. } => "yard_lost",
            Self::Refused { code, .. } => code,
            Self::BadAnswer { .. } => "bad_answer",
            Self::BadTarget { .. } => "bad_target",
            Self::NoStep { .. } => "unknown_step",
            Self::NothingStarted { .. } => "not_started",
            Self::Served { .. } => "data_dir_locked",
            Self::EndedEarly { .. } => "ended_early",
            Self::Stdout(_) => "write_failed",
            Self::Service { code, .. } => code,
            Self::MatrixWaits => "matrix_waits",
            Self::CellsFailed { .. } => "cells_failed",
            Self::FailFast => "fail_fast",
            Self::DiffTooLarge { .. } => "diff_too_large",
            Self::Layer { .. } => "chunk_corrupt",
            Self::KillFailed { .. } => "kill_failed",
            Self::CopyIncomplete { .. } => "copy_incomplete",
            Self::CopyTooLarge { .. } => "copy_too_large",
            Self::CopyExists { .. } => "output_exists",
            Self::BadCopy { .. } => "bad_usage",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::NoTerminal => "no_terminal",
            Self::Terminal(_) => "no_terminal",
            Self::Interrupted => "interrupted",
            Self::JobEnded { .. } => "job_ended",
        }
    }

    /// What to do.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::BadDataDir { .. } => "name another with --data-dir; it may be a symbolic link".to_owned(),
            Self::Unreachable { .. } => {
                "start one with `rollyard dev`, or name a running one with --yard or ROLLYARD_YARD".to_owned()
            }
            Self::Broken { .. } => "the job, if one runs, goes on; ask again with `rollyard ps`".to_owned(),
            Self::BadYard { .. } => "write unix:/path/to/yard.sock or http://127.0.0.1:PORT".to_owned(),
            Self::OwnYard { .. } => {
                "use `rollyard submit --wait`, or leave --yard and ROLLYARD_YARD out".to_owned()
            }
            Self::NoModels { .. } => {
                "leave --model out; the agent may only call what is inside its sandbox".to_owned()
            }
            Self::NoBuilder => {
                "install one, or build the image elsewhere and use `rollyard image import`".to_owned()
            }
            Self::Image { source, .. } if matches!(&**source, images::oci::Error::InUse { .. }) => {
                "wait until its sandboxes end; `rollyard ps` lists what runs".to_owned()
            }
            Self::NoSpec => "name a spec, or a directory of tasks with --harbor DIR".to_owned(),
            Self::NoTls { .. } => "use a Unix socket or http:// on loopback".to_owned(),
            Self::OutputRelative { .. } => "write an absolute path, or pass --table".to_owned(),
            Self::OutputLookup { .. } => "start it with `/`, or pass --table".to_owned(),
            Self::NoFormat { .. } => "use parquet, ipc-file, jsonl or hf".to_owned(),
            Self::Export { source, .. } => source.hint()?.to_owned(),
            Self::Refused { hint, .. } | Self::Service { hint, .. } => hint.clone()?,
            Self::NoStep { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::NothingStarted { rollout } => format!("see why with `rollyard explain {rollout}`"),
            Self::Served { .. } => {
                "hand it the spec with `rollyard submit --wait`, or choose another --data-dir".to_owned()
            }
            Self::FileChanged { .. } => "submit again".to_owned(),
            Self::KillFailed { job: Some(job), .. } => {
                format!("`rollyard cancel {job}` ends the job; its driver finishes a session")
            }
            Self::KillFailed { first, .. } => format!("see more with `rollyard sandbox show {first}`"),
            Self::CopyIncomplete { .. } => "standard output names them".to_owned(),
            Self::CopyTooLarge { what: "bytes", .. } => "raise --max-bytes".to_owned(),
            Self::CopyTooLarge { .. } => "copy parts of it, or an archive".to_owned(),
            Self::CopyExists { .. } => "name another, or remove it first".to_owned(),
            Self::BadCopy { .. } => "write SANDBOX:PATH for one of the two".to_owned(),
            Self::OutcomeUnknown { .. } => {
                "look at what it would have done in the sandbox; it is never begun again by itself".to_owned()
            }
            Self::NoTerminal | Self::Terminal(_) => {
                "use `rollyard exec SANDBOX -- COMMAND`, with -i to pass standard input on".to_owned()
            }
            Self::MatrixWaits => "pass --wait, or use `rollyard run`".to_owned(),
            Self::Unsupported { .. } => {
                "correct the tasks, or leave them out with `on_unsupported: skip` (`run --harbor`: `--on-unsupported skip`)".to_owned()
            }
            Self::JobEnded { job, state, reason, own_yard } if state == "held" => {
                held_hint(job, reason, *own_yard)
            }
            _ => return None,
        })
    }

    pub fn exit(&self) -> ExitStatus {
        match self {
            Self::Usage { .. }
            | Self::BadDataDir { .. }
            | Self::ReadFile { .. }
            | Self::Harbor { .. }
            | Self::Tree { .. }
            | Self::Unsupported { .. }
            | Self::SpecTooLarge { .. }
            | Self::SpecNotText { .. }
            | Self::Rows { .. }
            | Self::BadRows { .. }
            | Self::ImageName { .. }
            | Self::BadSpec { .. }
            | Self::Warnings { .. }
            | Self::OutputRelative { .. }
            | Self::OutputLookup { .. }
            | Self::BadYard { .. }
            | Self::OwnYard { .. }
            | Self::NoTls { .. }
            | Self::NoModels { .. }
            | Self::NoSpec
            | Self::MatrixWaits
            | Self::NoFormat { .. }
            | Self::NoStep { .. }
            | Self::CopyExists { .. }
            | Self::BadCopy { .. }
            | Self::NoTerminal
            | Self::BadTarget { .. } => ExitStatus::BadInput,
            Self::Unreachable { .. } | Self::Broken { .. } => ExitStatus::Unreachable,
            Self::Refused { exit, .. } | Self::Service { exit, .. } => *exit,
            Self::Export { source: datasets::export::Error::NoTables { .. }, .. } => ExitStatus::BadInput,
            Self::Interrupted => ExitStatus::Interrupted,
            Self::OutcomeUnknown { .. } => ExitStatus::Unknown,
            Self::CellsFailed { exit, .. } => ExitStatus::ALL
                .into_iter()
                .find(|status| status.code() == *exit)
                .unwrap_or(ExitStatus::Failure),
            Self::NoBuilder => ExitStatus::HostCannot,
            Self::FileChanged { .. }
            | Self::Image { .. }
            | Self::Builder { .. }
            | Self::WriteFile { .. }
            | Self::FailFast
            | Self::DiffTooLarge { .. }
            | Self::Layer { .. }
            | Self::BadAnswer { .. }
            | Self::Served { .. }
            | Self::EndedEarly { .. }
            | Self::NothingStarted { .. }
            | Self::Stdout(_)
            | Self::KillFailed { .. }
            | Self::CopyIncomplete { .. }
            | Self::CopyTooLarge { .. }
            | Self::Terminal(_)
            | Self::Export { .. }
            | Self::JobEnded { .. } => ExitStatus::Failure,
        }
    }

    /// The reader of our output went away, as in `rollyard ps | head -1`: not worth a word.
    pub fn reader_gone(&self) -> bool {
        matches!(self, Self::Stdout(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }

    fn causes(&self) -> Vec<String> {
        let mut causes = match self {
            // Between the address, which the message has, and the kernel's answer are layers of the
            // transport that say nothing.
            Self::Unreachable { source, .. } => return vec![last_cause(&**source)],
            Self::Broken { message, .. } if !message.is_empty() => vec![message.clone()],
            Self::OutcomeUnknown { why, .. } => vec![why.clone()],
            Self::JobEnded { reason, .. } if !reason.is_empty() => vec![reason.clone()],
            _ => Vec::new(),
        };
        let first = self.source();
        let chain = std::iter::successors(first, |&error| error.source()).take(CAUSES_MAX);
        for cause in chain.map(ToString::to_string) {
            // Libraries are fond of repeating their source in their own text.
            if !causes.iter().any(|known| known.contains(&cause)) {
                causes.push(cause);
            }
        }
        causes
    }

    /// For people, on standard error.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let message = lines(&self.to_string());
        _ = writeln!(out, "error[{}]: {}", shown(self.code(), 64), message.join("\n  "));
        for cause in self.causes() {
            _ = writeln!(out, "  because: {}", lines(&cause).join("\n    "));
        }
        if let Some(hint) = self.hint() {
            _ = writeln!(out, "  hint: {}", lines(&hint).join("\n    "));
        }
        out
    }

    /// The same as one JSON object on one line.
    pub fn json(&self) -> String {
        let error = json!({
            "code": self.code(),
            "message": self.to_string(),
            "causes": self.causes(),
            "hint": self.hint(),
            "exit_code": self.exit().code(),
        });
        crate::output::json::line(&json!({ "error": error }))
    }
}

/// Text from outside as lines that are safe on a terminal; what is past a bound is said, not
/// dropped in silence.
pub fn lines(text: &str) -> Vec<String> {
    let mut out: Vec<String> =
        text.lines().take(MESSAGE_LINES_MAX).map(|line| shown(line, LINE_CHARS_MAX)).collect();
    let more = text.lines().count() - out.len();
    if more > 0 {
        out.push(format!("({more} more lines)"));
    }
    out
}

/// An error and its causes on one line.
pub fn chain(error: &dyn StdError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source()).take(CAUSES_MAX);
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A job is held for its nodes, and then another node is enough, or for what its steps did.
fn held_hint(job: &str, reason: &str, own_yard: bool) -> String {
    let for_nodes = ["too_big_for_yard", "no_backend", "refused_by_every_node"]
        .iter()
        .any(|code| reason.starts_with(code));
    let goes_on = match (for_nodes, own_yard) {
        (true, false) => "it goes on by itself once a node that can run it attaches (`rollyard executor`); ",
        (true, true) => {
            "the same command goes on with it, and a node with more (--cpu, --memory, --disk) may run it; "
        }
        (false, _) => "",
    };
    let again = if own_yard { "`rollyard run --new`" } else { "`rollyard submit`" };
    format!(
        "{goes_on}see more with `rollyard explain {job}`; end it with `rollyard cancel {job}`; {again} starts over"
    )
}

/// As a shell has it: of a program that is not there, and of one that cannot be run.
fn not_started(message: &str) -> ExitStatus {
    ExitStatus::Passed(if message.contains("No such file or directory") { 127 } else { 126 })
}

/// The sandbox that a message is about.
fn sandbox_in(message: &str) -> Option<rollout::SandboxId> {
    message.split_whitespace().find_map(|word| word.trim_matches('`').parse().ok())
}

fn last_cause(error: &(dyn StdError + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source()).take(CAUSES_MAX);
    chain.last().map(ToString::to_string).unwrap_or_default()
}

fn transport_cause(status: &Status) -> String {
    let chain = std::iter::successors(status.source(), |&error| error.source());
    chain.last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

fn exit_of(code: Code) -> ExitStatus {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ExitStatus::BadInput,
        Code::Unavailable => ExitStatus::Unreachable,
        _ => ExitStatus::Failure,
    }
}

fn snake(code: Code) -> String {
    let mut out = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_its_code_its_lines_and_its_hint() {
        let mut status = Status::invalid_argument("row 3 has no column `n`\nrow 7 too\u{1b}[2J");
        status.metadata_mut().insert(CODE_METADATA, "row_missing_column".parse().expect("ascii"));
        status.metadata_mut().insert(HINT_METADATA, "add the column".parse().expect("ascii"));
        let error = Error::from_status(&status, "unix:/y");
        assert_eq!(error.exit(), ExitStatus::BadInput);
        assert_eq!(
            error.text(),
            "error[row_missing_column]: row 3 has no column `n`\n  row 7 too\\u{1b}[2J\n  hint: add the column\n"
        );
    }

    #[test]
    fn a_cause_is_told_once() {
        let source = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = Error::ReadFile { path: "a.yaml".into(), source };
        assert_eq!(error.text(), "error[read_failed]: cannot read `a.yaml`\n  because: no such file\n");
        let json: serde_json::Value = serde_json::from_str(&error.json()).expect("JSON");
        assert_eq!(json["error"]["exit_code"], 2);
        assert_eq!(json["error"]["causes"][0], "no such file");
    }

    #[test]
    fn a_held_job_is_told_what_lets_it_go_on() {
        let hint = |reason: &str, own_yard| {
            let (job, state, reason) = ("j1".to_owned(), "held".to_owned(), reason.to_owned());
            Error::JobEnded { job, state, reason, own_yard }.hint().expect("a hint")
        };
        let submitted = hint("too_big_for_yard: step `work` asks cpu 64", false);
        assert!(submitted.starts_with("it goes on by itself once a node"), "{submitted}");
        assert!(submitted.contains("`rollyard submit` starts over"), "{submitted}");
        let ran = hint("refused_by_every_node: step `work` can run nowhere", true);
        assert!(ran.starts_with("the same command goes on") && ran.contains("run --new"), "{ran}");
        assert!(hint("more than 50 % failed", false).starts_with("see more with"));
    }

    #[test]
    fn an_unreachable_yard_is_told_by_its_address_and_the_kernels_answer() {
        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Transport(#[source] io::Error);
        let source = Box::new(Transport(io::Error::from_raw_os_error(111)));
        let text = Error::Unreachable { url: "http://127.0.0.1:1".into(), source }.text();
        assert!(text.contains("cannot reach the yard at http://127.0.0.1:1\n"), "{text}");
        assert!(text.contains("because: Connection refused (os error 111)\n"), "{text}");
        assert!(!text.contains("transport error"), "{text}");
    }

    #[test]
    fn a_yard_that_answers_is_reached_whatever_it_cannot_do() {
        for (code, exit) in [
            ("store_failed", ExitStatus::Failure),
            ("store_busy", ExitStatus::Failure),
            ("log_unavailable", ExitStatus::Failure),
            ("stopping", ExitStatus::Unreachable),
        ] {
            let mut status = Status::unavailable("not now");
            status.metadata_mut().insert(CODE_METADATA, code.parse().expect("ascii"));
            assert_eq!(Error::from_status(&status, "unix:/y").exit(), exit, "{code}");
        }
    }

    #[test]
    fn a_status_without_a_code_is_the_transport_speaking() {
        let error = Error::from_status(&Status::unavailable("gone"), "unix:/y");
        assert_eq!((error.code(), error.exit()), ("yard_lost", ExitStatus::Unreachable));
        let error = Error::from_status(&Status::resource_exhausted("full"), "unix:/y");
        assert_eq!(error.code(), "grpc_resource_exhausted");
    }
}
