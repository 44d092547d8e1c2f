//! What a call on a sandbox is told when it is refused: a code of docs/errors.md, what, and what to do.

use nix::libc;
use rollout::text::shown;
use rollout_wire::{CODE_METADATA, HINT_METADATA};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::ceilings::descriptors::Spent;
use crate::sandbox::{FileError, SpawnError};
use crate::storage::chain;

/// Characters of a message.
const MESSAGE_CHARS_MAX: usize = 2_000;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $text:literal $status:ident $hint:literal;)*) => {
        /// Every code of a call on a sandbox; docs/errors.md has a paragraph for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum SandboxCode { $($(#[$doc])* $variant),* }

        impl SandboxCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
            const fn status(self) -> Code {
                match self { $(Self::$variant => Code::$status),* }
            }
            const fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint),* }
            }
        }
    };
}

codes! {
    /// No such sandbox here, and none that left a record.
    NotFound "not_found" NotFound "see `rollyard sandbox ls`";
    /// A field of the request is out of its bounds.
    BadRequest "bad_request" InvalidArgument "";
    /// It was here and is over.
    SandboxEnded "sandbox_ended" FailedPrecondition "create another; of a session step, claim the session that was started anew";
    /// The session is not held by this claim (any more).
    ClaimLost "claim_lost" FailedPrecondition "claim the session again; recorded actions stay";
    /// The action id was used with another payload.
    ActionConflict "action_conflict" AlreadyExists "give each action an id of its own";
    /// The session had as many actions as it may have.
    MaxActions "max_actions" FailedPrecondition "finish the session within its `max_actions`";
    /// More at once, or in all, than a named bound.
    TooManyCalls "too_many_calls" ResourceExhausted "wait for some of them to end";
    /// The record of actions is as large as it may be.
    ActionLogFull "action_log_full" ResourceExhausted "use a new sandbox, or exec, which is not recorded";
    /// What was done cannot be recorded.
    StorageFailed "storage_failed" Unavailable "look at the disk under the executor's data directory";
    /// It changed while it was read, or is another one than the version says.
    PathChanged "path_changed" Aborted "read it again from its beginning";
    /// The path leads out of the sandbox, through a link, or cannot be one.
    BadPath "bad_path" InvalidArgument "";
    /// Nothing is at that path.
    NoSuchFile "no_such_file" NotFound "";
    /// Something else than what the call is for.
    WrongKindOfFile "wrong_kind_of_file" FailedPrecondition "";
    FileTooLarge "file_too_large" InvalidArgument "";
    /// The writable layer has no room for it.
    WorkspaceFull "workspace_full" ResourceExhausted "remove something, or ask for a larger limit.disk";
    /// The program, its directory or its user is not there.
    CommandNotStarted "command_not_started" FailedPrecondition "";
    /// It has as many processes as it may have, or no memory for another.
    ProcessLimit "process_limit" ResourceExhausted "end some of its processes, or create one with larger limits of pids and memory";
    /// No process of that name waits for its client.
    ExecLost "exec_lost" FailedPrecondition "look at what it would have done; what it did by then stays";
    /// Nothing listens there.
    PortRefused "port_refused" Unavailable "listen on 127.0.0.1 or ::1 inside the sandbox first";
    /// The lifecycle is at another version.
    VersionConflict "version_conflict" Aborted "look at it again";
    /// It is being parked, or is; the scheduler brings it back.
    SandboxParked "sandbox_parked" Unavailable "call again through the scheduler, which brings it back";
    /// Its files cannot be saved, or something else keeps it on its node.
    NotParkable "not_parkable" FailedPrecondition "pause it without `park`: its processes stop, and it stays on its node";
    /// A reward in a job that has a grader.
    RewardNotTaken "reward_not_taken" FailedPrecondition "leave the reward to the grader, or the grader out of the job";
    /// The call is another server's, or this backend cannot do it.
    NotAvailableYet "not_available_yet" Unimplemented "";
    /// A call of the kernel failed.
    StartFailed "start_failed" Internal "look at the node's log";
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub code: SandboxCode,
    pub message: String,
}

impl Refusal {
    pub fn new(code: SandboxCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn bad(field: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(SandboxCode::BadRequest, format!("field `{field}`: {problem}"))
    }

    pub fn ended(name: &str) -> Self {
        Self::new(SandboxCode::SandboxEnded, format!("sandbox {name} is over"))
    }

    pub fn parked(name: &str) -> Self {
        Self::new(SandboxCode::SandboxParked, format!("sandbox {name} is parked"))
    }

    pub fn too_many(what: &str, name: &str, max: usize) -> Self {
        Self::new(SandboxCode::TooManyCalls, format!("{max} {what} at once ({name}), and no more"))
    }

    pub fn no_file(path: &str) -> Self {
        Self::new(SandboxCode::NoSuchFile, format!("nothing is at `{}`", shown(path, 200)))
    }

    pub fn changed(path: &str) -> Self {
        Self::new(SandboxCode::PathChanged, format!("`{}` changed", shown(path, 200)))
    }
}

impl From<Spent> for Refusal {
    fn from(spent: Spent) -> Self {
        Self::new(SandboxCode::TooManyCalls, spent.to_string())
    }
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        use SandboxCode as Code;
        let code = match &error {
            FileError::NotAFile { .. } | FileError::NotADirectory { .. } => Code::WrongKindOfFile,
            FileError::Escapes { .. } | FileError::BadPath { .. } => Code::BadPath,
            FileError::UnknownUser { .. } => Code::BadRequest,
            FileError::Full { .. } => Code::WorkspaceFull,
            FileError::Io { .. } => Code::StartFailed,
        };
        Self::new(code, chain(&error))
    }
}

impl From<SpawnError> for Refusal {
    fn from(error: SpawnError) -> Self {
        use SandboxCode as Code;
        let code = match &error {
            SpawnError::Exec { .. } | SpawnError::Workdir { .. } | SpawnError::UnknownUser { .. } => {
                Code::CommandNotStarted
            }
            SpawnError::Setup { source, .. } if source.kind() == std::io::ErrorKind::QuotaExceeded => {
                Code::TooManyCalls
            }
            // As the kernel refuses a fork within the limits of the sandbox.
            SpawnError::Setup { source, .. }
                if matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)) =>
            {
                Code::ProcessLimit
            }
            SpawnError::Setup { .. } => Code::StartFailed,
            SpawnError::Dead { .. } => Code::SandboxEnded,
        };
        Self::new(code, chain(&error))
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, message } = refusal;
        tracing::debug!(code = code.as_str(), problem = message, "refused a call on a sandbox");
        let mut metadata = MetadataMap::new();
        metadata.insert(CODE_METADATA, MetadataValue::from_static(code.as_str()));
        if !code.hint().is_empty() {
            metadata.insert(HINT_METADATA, MetadataValue::from_static(code.hint()));
        }
        Self::with_metadata(code.status(), shown(&message, MESSAGE_CHARS_MAX), metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_travel_with_their_hint() {
        let texts: std::collections::BTreeSet<_> =
            SandboxCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), SandboxCode::ALL.len());
        let status = Status::from(Refusal::ended("j-s\u{1b}"));
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.message(), "sandbox j-s\\u{1b} is over");
        assert_eq!(status.metadata().get(CODE_METADATA).unwrap(), "sandbox_ended");
        assert!(status.metadata().get(HINT_METADATA).is_some());
    }
}
