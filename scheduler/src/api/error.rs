//! What a client is told when something is refused: code, what, on which object, what to do.

use std::str::FromStr;

use rollout::text::shown;
use rollout_wire::{CODE_METADATA, HINT_METADATA};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::error::Error;
use crate::health::chain;
use crate::inbox::Stopping;

/// Characters of a caller's text that an error repeats.
const SHOWN_CHARS_MAX: usize = 120;
// A refusal travels in headers, of which clients take 16 KiB by default: a larger one would reach
// them as a broken connection. On the wire most characters of a message take up to three bytes,
// details four for each three.
/// Characters of a message.
const MESSAGE_CHARS_MAX: usize = 2_500;
/// Characters of a hint.
const HINT_CHARS_MAX: usize = 512;
/// Bytes of the details.
const DETAILS_BYTES_MAX: usize = 4_096;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $text:literal $status:ident;)*) => {
        /// Every code of the API; docs/errors.md has a paragraph for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ApiCode { $($(#[$doc])* $variant),* }

        impl ApiCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
            pub(crate) const fn status(self) -> Code {
                match self { $(Self::$variant => Code::$status),* }
            }
        }
    };
}

codes! {
    /// No such job, rollout or step; or not of this yard.
    NotFound "not_found" NotFound;
    /// A field of the request is out of its bounds.
    BadRequest "bad_request" InvalidArgument;
    /// The spec has errors; details carry them as JSON.
    SpecInvalid "spec_invalid" InvalidArgument;
    /// A task row misses a column, repeats an id or is too large.
    RowsInvalid "rows_invalid" InvalidArgument;
    /// The spec names a client file that was not sent with it.
    FileMissing "file_missing" InvalidArgument;
    /// A client file of the request is not in the blob store.
    BlobMissing "blob_missing" FailedPrecondition;
    /// The spec or a row names an image of the client's machine that was not sent; details name such.
    ImageUnsent "image_unsent" InvalidArgument;
    /// What an image means cannot be found out: the reference and the registry's answer.
    ImageUnresolved "image_unresolved" FailedPrecondition;
    /// The bytes are not those the hash names.
    BlobMismatch "blob_mismatch" InvalidArgument;
    /// A client file differs from the one the unfinished job began with.
    DatasetChanged "dataset_changed" FailedPrecondition;
    /// The key was used for another request.
    IdempotencyRequestMismatch "idempotency_request_mismatch" AlreadyExists;
    /// No rollout is to be run again; the message says why not.
    RetryNothing "retry_nothing" FailedPrecondition;
    /// The job was cancelled.
    RetryCancelled "retry_cancelled" FailedPrecondition;
    /// More rollouts than may wait to be run again.
    RetryTooMany "retry_too_many" InvalidArgument;
    /// Neither the request nor the spec says where the tables go.
    TableRootMissing "table_root_missing" InvalidArgument;
    /// What is asked for is designed and not built.
    NotAvailableYet "not_available_yet" Unimplemented;
    /// More rows, groups or files than one job may have.
    JobTooLarge "job_too_large" InvalidArgument;
    /// The output is not stored, and the node that had it is away.
    LogUnavailable "log_unavailable" Unavailable;
    /// Too many readers of the logs of one node.
    TooManyLogReaders "too_many_log_readers" ResourceExhausted;
    /// Too many uploads at once.
    TooManyUploads "too_many_uploads" ResourceExhausted;
    /// Too many followers of jobs and logs at once.
    TooManyStreams "too_many_streams" ResourceExhausted;
    /// A message is larger than such a message may be.
    MessageTooLarge "message_too_large" InvalidArgument;
    /// Bytes that are no such message.
    BadMessage "bad_message" InvalidArgument;
    /// No such call.
    UnknownCall "unknown_call" Unimplemented;
    /// The client sent or took nothing for too long.
    ClientTooSlow "client_too_slow" DeadlineExceeded;
    /// The yard keeps as many schedules as it may.
    TooManySchedules "too_many_schedules" ResourceExhausted;
    /// The store has not taken the change yet; it may still do so.
    StoreBusy "store_busy" Unavailable;
    /// The store or the blob store failed.
    StoreFailed "store_failed" Unavailable;
    /// What is asked for needs a running yard; only its data directory was opened.
    NoYard "no_yard" FailedPrecondition;
    /// An open group has the checkpoint, or a sandbox runs that was started from it.
    CheckpointInUse "checkpoint_in_use" FailedPrecondition;
    /// What nobody needs is collected already.
    CollectionRuns "collection_runs" FailedPrecondition;
    /// The sandbox has ended.
    SandboxEnded "sandbox_ended" FailedPrecondition;
    /// The sandbox has ended, or there never was one.
    SandboxGone "sandbox_gone" NotFound;
    /// The sandbox is not ready yet.
    SandboxNotReady "sandbox_not_ready" Unavailable;
    /// The sandbox is parked, and the call is not one to bring it back for.
    SandboxParked "sandbox_parked" FailedPrecondition;
    /// A sandbox that was asked for ended before it was ready.
    SandboxNotStarted "sandbox_not_started" FailedPrecondition;
    /// A sandbox that was asked for found no room, or was not ready, in its time.
    SandboxStartTimeout "sandbox_start_timeout" DeadlineExceeded;
    /// No node has so much, whatever else runs.
    TooBigForYard "too_big_for_yard" FailedPrecondition;
    /// Every node refused it for good.
    RefusedByEveryNode "refused_by_every_node" FailedPrecondition;
    /// The node of the sandbox cannot be reached.
    NodeLost "node_lost" Unavailable;
    /// Too many calls of sandboxes at once.
    TooManySandboxCalls "too_many_sandbox_calls" ResourceExhausted;
    /// The scheduler is stopping.
    Stopping "stopping" Unavailable;
}

#[derive(Debug)]
pub struct ApiError {
    pub code: ApiCode,
    pub message: String,
    pub hint: Option<String>,
    /// JSON, for programs.
    pub details: Vec<u8>,
}

impl ApiError {
    pub(crate) fn new(code: ApiCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, details: Vec::new() }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same for what never existed, what is gone and what is not even an id.
    pub(crate) fn not_found(kind: &str, text: &str) -> Self {
        Self::new(ApiCode::NotFound, format!("no {kind} `{}`", shown(text, SHOWN_CHARS_MAX)))
    }

    pub(crate) fn bad_request(field: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(ApiCode::BadRequest, format!("field `{field}`: {problem}"))
    }

    /// Logged here, where it is handled: only what an operator should know.
    pub(crate) fn log(&self) {
        if matches!(self.code, ApiCode::StoreFailed | ApiCode::StoreBusy) {
            tracing::warn!(code = self.code.as_str(), problem = self.message, "refused a request");
        } else {
            tracing::debug!(code = self.code.as_str(), problem = self.message, "refused a request");
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let new = Self::new(ApiCode::StoreFailed, chain(&error));
        match error.hint() {
            Some(hint) => new.hint(hint),
            None => new,
        }
    }
}

impl From<Stopping> for ApiError {
    fn from(stopping: Stopping) -> Self {
        Self::new(ApiCode::Stopping, stopping.to_string()).hint("try again once it is back")
    }
}

/// The lines of `text` as they may be shown anywhere, as many as fit.
fn lines(text: &str, chars_max: usize) -> String {
    const CUT: &str = "\n... (the rest does not fit here)";
    let mut out = String::new();
    for line in text.lines() {
        let room = chars_max.saturating_sub(out.len() + CUT.len() + 1);
        let line = shown(line, room);
        if line.len() > room {
            // Escaped text is ASCII: any byte is the end of a character.
            out.push_str(if out.is_empty() { "" } else { "\n" });
            out.push_str(line.get(..room).unwrap_or_default());
            out.push_str(CUT);
            break;
        }
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&line);
    }
    out
}

/// A JSON list of the first of `items`, as many as a refusal can carry.
pub(super) fn list(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut list = Vec::from(*b"[");
    for item in items {
        let comma = usize::from(list.len() > 1);
        if list.len() + comma + item.len() + 1 > DETAILS_BYTES_MAX {
            break;
        }
        list.extend(std::iter::repeat_n(b',', comma).chain(item));
    }
    list.push(b']');
    list
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(CODE_METADATA, MetadataValue::from_static(error.code.as_str()));
        // Header values are printable ASCII.
        let hint = error.hint.map(|hint| shown(&hint, HINT_CHARS_MAX));
        if let Some(hint) = hint.and_then(|hint| MetadataValue::from_str(&hint).ok()) {
            metadata.insert(HINT_METADATA, hint);
        }
        let message = lines(&error.message, MESSAGE_CHARS_MAX);
        Self::with_details_and_metadata(error.code.status(), message, error.details.into(), metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_travel_in_metadata_with_the_hint() {
        let mut texts: Vec<_> = ApiCode::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), ApiCode::ALL.len());
        let error = ApiError::bad_request("page_size", "0\u{1b}[31m").hint("ask for 1 to 1000 \u{e9}");
        let status = Status::from(error);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.metadata().get(CODE_METADATA).unwrap(), "bad_request");
        assert_eq!(status.metadata().get(HINT_METADATA).unwrap(), "ask for 1 to 1000 \\u{e9}");
    }

    #[test]
    fn what_is_not_found_reads_the_same_whatever_it_was() {
        assert_eq!(ApiError::not_found("job", "j0").message, "no job `j0`");
    }
}
