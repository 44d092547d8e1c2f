"""What can go wrong: one class per family, each with the stable code of docs/errors.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sandbox_views import CommandResult
    from .views import JobInfo

CODE_METADATA = "rollyard-code"
HINT_METADATA = "rollyard-hint"
DETAILS_METADATA = "grpc-status-details-bin"
COMMAND_FAILED = "command_failed"
YARD_UNREACHABLE = "yard_unreachable"
NODE_LOST = "node_lost"
STILL_RUNNING = "still_running"
NOT_CONNECTED = "failed to connect"
"""How the transport begins its words where it got no connection."""


class Error(Exception):
    """Base of all errors of this package.

    `code` is stable and has a paragraph in docs/errors.md; `hint` says what to do, if anything is
    known; `details` is what the yard sent along for programs (decoded JSON), often None.
    """

    code: str
    hint: str | None
    details: Any

    def __init__(self, code: str, message: str, hint: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.details = details

    @property
    def message(self) -> str:
        """What happened, without code and hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.hint, self.details)


class SpecError(Error):
    """The spec, its task rows or a file it names is wrong. Nothing was started."""


class RequestError(Error):
    """An argument is out of its bounds, or contradicts an earlier request."""


class NotFoundError(Error):
    """No such job, rollout or step."""


class NotAvailableError(Error):
    """Valid, and not built yet."""


class BusyError(Error):
    """The yard takes no more of this now; the same call may succeed later."""


class UnreachableError(Error):
    """No yard answers, none can be started, or the connection broke. Jobs of a yard go on."""


class YardError(Error):
    """The yard could not do it: its store, its disk, or a fault."""


class TableError(Error):
    """A table is missing, damaged, or not readable from this machine."""


class JobEndedError(Error):
    """A job that was waited for is held or was cancelled. `job` is its last state."""

    job: JobInfo | None = None


class CommandError(Error):
    """A command in a sandbox did not end with 0, or could not be started. `result` is what it wrote;
    None if it never ran."""

    result: CommandResult | None = None


class StillRunning(Error, TimeoutError):
    """A process that was waited for has not ended in time. It runs on."""


class OutcomeUnknown(Error):
    """Nobody knows whether an action happened. It is never done again by itself."""


class ActionConflict(Error):
    """The action id was used with another payload."""


class SandboxGone(Error):
    """The sandbox has ended, or its node is lost."""


class StartError(Error):
    """A sandbox that was asked for found no room, or did not become ready."""


class ClaimLost(Error):
    """Somebody else drives the session now, or may: the claim ended."""


class FileError(Error):
    """A file of a sandbox is missing, of another kind, too large, or changed under the reader."""


FAMILIES: dict[type[Error], tuple[str, ...]] = {
    SpecError: (
        "spec_invalid",
        "rows_invalid",
        "file_missing",
        "file_changed",
        "blob_missing",
        "blob_mismatch",
        "dataset_changed",
        "table_root_missing",
        "job_too_large",
        "too_large",
        "not_text",
        "read_failed",
        "bad_spec",
        "bad_rows",
    ),
    RequestError: (
        "bad_request",
        "bad_message",
        "message_too_large",
        "idempotency_request_mismatch",
        "bad_target",
        "bad_usage",
        "bad_yard",
        "bad_data_dir",
        "not_started",
        "unknown_step",
        "output_relative",
        "retry_nothing",
        "retry_cancelled",
        "retry_too_many",
        "max_actions",
        "action_log_full",
        "version_conflict",
        "reward_not_taken",
    ),
    NotFoundError: ("not_found",),
    NotAvailableError: ("not_available_yet", "unknown_call"),
    BusyError: (
        "too_many_log_readers",
        "too_many_uploads",
        "too_many_streams",
        "store_busy",
        "client_too_slow",
        "too_many_calls",
        "too_many_sandbox_calls",
        "sandbox_not_ready",
    ),
    UnreachableError: ("yard_unreachable", "yard_lost", "stopping", "no_yard", "data_dir_locked", "log_unavailable"),
    TableError: ("no_tables", "table_unreadable"),
    JobEndedError: ("job_ended",),
    CommandError: (COMMAND_FAILED, "command_not_started"),
    StillRunning: (STILL_RUNNING,),
    OutcomeUnknown: ("outcome_unknown", "exec_lost"),
    ActionConflict: ("action_conflict",),
    SandboxGone: ("sandbox_ended", "sandbox_gone", "node_lost"),
    StartError: ("sandbox_not_started", "sandbox_start_timeout", "too_big_for_yard", "refused_by_every_node"),
    ClaimLost: ("claim_lost",),
    FileError: (
        "path_changed",
        "bad_path",
        "no_such_file",
        "wrong_kind_of_file",
        "file_too_large",
        "workspace_full",
    ),
}

_CLASS_OF = {code: family for family, codes in FAMILIES.items() for code in codes}


def make(code: str, message: str, hint: str | None = None, details: Any = None) -> Error:
    """The error of a code; one that no family names is a `YardError`."""
    return _CLASS_OF.get(code, YardError)(code, message, hint, details)


def from_call(
    status: str, message: str, metadata: Iterable[tuple[str, str | bytes]], url: str, reached: bool = False
) -> Error:
    """What a failed call means. A status without a code of its own comes from the transport.

    `status` is the name of the gRPC status, such as `UNAVAILABLE`; `reached`: the yard answered this
    client before, so that it may come back.
    """
    found: dict[str, str | bytes] = dict(metadata)
    own = found.get(CODE_METADATA)
    if own is None:
        if status == "UNAVAILABLE" and not reached and message.startswith(NOT_CONNECTED):
            return unreachable(f"cannot reach the yard at {url}: {message}")
        if status in ("UNAVAILABLE", "UNKNOWN", "CANCELLED"):
            what = f"the connection to the yard at {url} broke: {message}"
            return make("yard_lost", what, "the job, if one runs, goes on; ask again")
        return make(f"grpc_{status.lower()}", message)
    hint = found.get(HINT_METADATA)
    raw = found.get(DETAILS_METADATA)
    return make(_text(own), message, None if hint is None else _text(hint), _details(raw))


def unreachable(message: str) -> Error:
    """No yard is there: with the hint of the program."""
    hint = "start one with `rollyard dev`, or name a running one with `url` or ROLLYARD_YARD"
    return make(YARD_UNREACHABLE, message, hint)


def from_program(line: str) -> Error | None:
    """The error in a line that the program printed with `--output json`; None if it is none."""
    try:
        told = json.loads(line)["error"]
        causes = [str(cause) for cause in told.get("causes") or []]
        message = ": ".join([str(told["message"]), *causes])
        return make(str(told["code"]), message, told.get("hint"))
    except (ValueError, KeyError, TypeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _details(raw: str | bytes | None) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw
