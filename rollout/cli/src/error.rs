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
    #[error("`output.table` is relative (`{table}`), and the yard at {yard} has no access to this directory")]
    OutputRelative { table: String, yard: String },
    #[error("`output.table` has a lookup (`{table}`) and does not start with `/` or a URL scheme")]
    OutputLookup { table: String },
    #[error("`{url}` is not the address of a yard: {problem}")]
    BadYard { url: String, problem: &'static str },
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
    #[error("cannot export `{}`", shown(name, 200))]
    Export { name: String, source: datasets::export::Error },
    #[error("export as {format} is not available yet")]
    NoFormat { format: &'static str },
    #[error("interrupted")]
    Interrupted,
    #[error("job {job} {} {state}", if state == "held" { "is" } else { "ended as" })]
    JobEnded { job: String, state: String, reason: String },
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
        Self::Refused {
            code,
            message: status.message().to_owned(),
            hint: text(HINT_METADATA),
            exit: exit_of(status.code()),
        }
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Usage { .. } => "bad_usage",
            Self::BadDataDir { .. } => "bad_data_dir",
            Self::ReadFile { .. } => "read_failed",
            Self::SpecTooLarge { .. } => "too_large",
            Self::SpecNotText { .. } => "not_text",
            Self::FileChanged { .. } => "file_changed",
            Self::Rows { .. } | Self::BadRows { .. } => "bad_rows",
            Self::BadSpec { .. } => "bad_spec",
            Self::Warnings { .. } => "warnings_denied",
            Self::OutputRelative { .. } | Self::OutputLookup { .. } => "output_relative",
            Self::BadYard { .. } => "bad_yard",
            Self::OwnYard { .. } => "own_yard",
            Self::NoTls { .. } | Self::NoFormat { .. } => "not_available_yet",
            Self::Export { source, .. } => source.code(),
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
            Self::JobEnded { job, state, .. } if state == "held" => {
                format!(
                    "see more with `rollyard explain {job}`; end it with `rollyard cancel {job}`; `rollyard run --new` starts over"
                )
            }
            _ => return None,
        })
    }

    pub fn exit(&self) -> ExitStatus {
        match self {
            Self::Usage { .. }
            | Self::BadDataDir { .. }
            | Self::ReadFile { .. }
            | Self::SpecTooLarge { .. }
            | Self::SpecNotText { .. }
            | Self::Rows { .. }
            | Self::BadRows { .. }
            | Self::BadSpec { .. }
            | Self::Warnings { .. }
            | Self::OutputRelative { .. }
            | Self::OutputLookup { .. }
            | Self::BadYard { .. }
            | Self::OwnYard { .. }
            | Self::NoTls { .. }
            | Self::NoFormat { .. }
            | Self::NoStep { .. }
            | Self::BadTarget { .. } => ExitStatus::BadInput,
            Self::Unreachable { .. } | Self::Broken { .. } => ExitStatus::Unreachable,
            Self::Refused { exit, .. } | Self::Service { exit, .. } => *exit,
            Self::Export { source: datasets::export::Error::NoTables { .. }, .. } => ExitStatus::BadInput,
            Self::Interrupted => ExitStatus::Interrupted,
            Self::FileChanged { .. }
            | Self::BadAnswer { .. }
            | Self::Served { .. }
            | Self::EndedEarly { .. }
            | Self::NothingStarted { .. }
            | Self::Stdout(_)
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
            Self::Broken { message, .. } if !message.is_empty() => vec![message.clone()],
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
    fn a_status_without_a_code_is_the_transport_speaking() {
        let error = Error::from_status(&Status::unavailable("gone"), "unix:/y");
        assert_eq!((error.code(), error.exit()), ("yard_lost", ExitStatus::Unreachable));
        let error = Error::from_status(&Status::resource_exhausted("full"), "unix:/y");
        assert_eq!(error.code(), "grpc_resource_exhausted");
    }
}
