"""What the two clients have in common: a conversation with a yard as a generator of calls, which
each client carries out in its own way."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Union

from . import errors
from .spec import Document
from .v1 import jobs_pb2 as wire

MESSAGE_BYTES_MAX = 32 << 20
CHUNK_BYTES = 256 << 10
PAGE_ROWS = 1000
CLIENT_FILES_MAX = 4096
"""Of one job, as the yard bounds it."""
DEFAULT_TABLE = "out"
RESEND_SECONDS_MAX = 60.0
"""For so long a request that may be sent twice is sent again while the yard is away."""
RESEND_PAUSE_SECONDS = 0.2
"""The first pause between two tries. Each is twice the one before."""
RESEND_PAUSE_SECONDS_MAX = 3.0
NODE_AWAY_SECONDS_MAX = 30.0
"""For so long such a request is sent again while a node is away: it comes back, or its lease ends and the
yard says what became of the sandbox."""
RECONNECT_MS_MAX = 1000

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    # A yard that starts again is found soon; one that is gone without a word is noticed.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # The path of a Unix socket, which is the default, is no authority: servers refuse it.
    ("grpc.default_authority", "localhost"),
]


@dataclass(frozen=True)
class Call:
    """One call of the service `Jobs`, or of another."""

    method: str
    request: Any
    service: str = "Jobs"


@dataclass(frozen=True)
class Pause:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class Upload:
    """`PutBlob` of a file."""

    path: Path
    sha256: str
    size: int

    def chunks(self) -> Iterator[wire.BlobChunk]:
        """At least one: the first names the hash, even of an empty file."""
        with self.path.open("rb") as file:
            first = True
            while (data := file.read(CHUNK_BYTES)) or first:
                chunk = wire.BlobChunk(data=data)
                if first:
                    chunk.sha256, chunk.size = self.sha256, self.size
                    first = False
                yield chunk


T = TypeVar("T")
Step = Union[Call, Upload, Pause]
Flow = Generator[Step, Any, T]


def run(flow: Flow[T], do: Callable[[Step], Any]) -> T:
    """Carries a flow out, one call after the other."""
    try:
        step = next(flow)
        while True:
            try:
                reply = do(step)
            except errors.Error as error:
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


class Patience:
    """Bears with a yard that does not answer, for `RESEND_SECONDS_MAX` at a time; and with a node, if that
    is asked for, for `NODE_AWAY_SECONDS_MAX`."""

    def __init__(self, say: Callable[[str], None] | None = None, with_nodes: bool = False) -> None:
        self._say = say
        self._with_nodes = with_nodes
        self._since: float | None = None
        self._pause = RESEND_PAUSE_SECONDS
        self._seconds_max = RESEND_SECONDS_MAX
        self._said = False

    def answered(self) -> None:
        """The yard answered."""
        if self._said and self._say is not None:
            self._say("the yard answers again")
        self._since, self._pause, self._said = None, RESEND_PAUSE_SECONDS, False

    def pause(self, error: errors.Error) -> float:
        """Seconds to wait before the next try. Raises `error` if it is an answer, if the yard never
        answered, or after `RESEND_SECONDS_MAX`."""
        if self._with_nodes and error.code == errors.NODE_LOST:
            seconds_max = NODE_AWAY_SECONDS_MAX
        elif isinstance(error, errors.UnreachableError) and error.code != errors.YARD_UNREACHABLE:
            seconds_max = RESEND_SECONDS_MAX
        else:
            raise error
        now = time.monotonic()
        if self._since is None or self._seconds_max != seconds_max:
            # The yard came back, and its node is yet to come: each has its own time.
            self._since, self._pause, self._seconds_max = now, RESEND_PAUSE_SECONDS, seconds_max
        left = seconds_max - (now - self._since)
        if left <= 0:
            raise error
        if not self._said and now - self._since >= 1.0:
            self._said = True
            if self._say is not None:
                self._say(f"the yard does not answer: waiting up to {seconds_max:.0f} s for it ({error})")
        pause = min(self._pause, left)
        self._pause = min(self._pause * 2, RESEND_PAUSE_SECONDS_MAX)
        return pause


def resent(call: Step, *, with_nodes: bool = False) -> Flow[Any]:
    """A call that gives the same answer however often it is sent: while the yard is away it is sent
    again, for `RESEND_SECONDS_MAX`. Not one that never answered. `with_nodes`: while the node of its
    sandbox is away, too."""
    patience = Patience(with_nodes=with_nodes)
    while True:
        try:
            reply = yield call
            return reply
        except errors.Error as error:
            pause = patience.pause(error)
        yield Pause(pause)


def retry_request(target: str, all_failed: bool, cancelled: bool, key: str | None) -> wire.RetryRequest:
    """A key of its own makes a repeated request one."""
    key = key or secrets.token_hex(16)
    return wire.RetryRequest(target=target, all_failed=all_failed, cancelled=cancelled, idempotency_key=key)


@dataclass(frozen=True)
class Submitted:
    job: wire.Job
    resumed: bool
    """An unfinished job of this spec was found and goes on."""


def submit(
    document: Document, *, table: str | None, new: bool, key: str | None, on_this_machine: bool
) -> Flow[Submitted]:
    """Submits, and sends what the yard says is missing: the files the spec names, and where its
    relative `output.table` is. Only files whose path stands in the spec are sent."""
    choice = wire.SubmitRequest.IF_UNFINISHED_NEW if new else wire.SubmitRequest.IF_UNFINISHED_RESUME
    request = wire.SubmitRequest(
        document=document.text,
        source_name=document.name,
        table_root="" if table is None else _resolved(table, on_this_machine),
        idempotency_key=key or secrets.token_hex(16),
        if_unfinished=choice,
        once=True,
    )
    sent: set[str] = set()
    while True:
        try:
            # One key: a request whose answer was lost is sent again and makes no second job.
            reply = yield from resent(Call("Submit", request))
            return Submitted(reply.job, reply.resumed)
        except errors.Error as error:
            if error.code == "table_root_missing" and not request.table_root:
                request.table_root = _resolved(DEFAULT_TABLE, on_this_machine)
            elif error.code == "bad_request" and not request.table_root and _one_text(error.details):
                request.table_root = _resolved(error.details[0], on_this_machine)
            elif error.code == "file_missing" and (paths := _unsent(error.details, sent)):
                for path in paths:
                    if len(sent) == CLIENT_FILES_MAX or path not in document.text:
                        raise
                    sent.add(path)
                    request.files.append((yield from _send(document.directory / path, path)))
            else:
                raise


def _one_text(details: Any) -> bool:
    return isinstance(details, list) and len(details) == 1 and isinstance(details[0], str)


def _unsent(details: Any, sent: set[str]) -> list[str]:
    paths = details if isinstance(details, list) else []
    return [path for path in paths if isinstance(path, str) and path not in sent]


def _send(path: Path, name: str) -> Flow[wire.ClientFile]:
    hasher, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                hasher.update(data)
                size += len(data)
    except OSError as error:
        raise errors.make("read_failed", f"cannot read `{path}`: {error.strerror}") from error
    upload = Upload(path, hasher.hexdigest(), size)
    try:
        reply = yield from resent(upload)
    except errors.Error as error:
        if error.code == "blob_mismatch":
            raise errors.make("file_changed", f"`{path}` changed while it was read", "submit again") from error
        raise
    if reply.size != size:
        raise errors.make("file_changed", f"`{path}` changed while it was read", "submit again")
    return wire.ClientFile(path=name, sha256=upload.sha256, size=size)


def _resolved(table: str, on_this_machine: bool) -> str:
    """Absolute and without links: the same folder always gets the same name."""
    if os.path.isabs(table) or "://" in table:
        return table
    if not on_this_machine:
        message = f"`output.table` is relative (`{table}`), and the yard may be on another machine"
        raise errors.make("output_relative", message, "write an absolute path, or pass table=")
    return os.path.realpath(table)


def pages(method: str, request: Any) -> Flow[Any]:
    """One page of a list; the caller asks for the next with its token."""
    request.page_size = PAGE_ROWS
    reply = yield Call(method, request)
    return reply


def target_of(job: str, step: str | None) -> str:
    """What to explain: the job, one of its rollouts (`ROLLOUT` or `ROLLOUT/STEP`)."""
    if step is None:
        return job
    if not step.startswith(f"{job}-"):
        message = f"`{step}` names nothing of {job}: expected ROLLOUT or ROLLOUT/STEP"
        raise errors.make("bad_target", message, "list the rollouts with job.rollouts()")
    return step


def most_telling(rollout: str, rows: Any) -> str:
    """The first step that failed, else the last that started: whose output to show."""
    failed = [row for row in rows if row.HasField("outcome") and row.outcome.HasField("failure")]
    started = [row for row in rows if row.HasField("started_at_us")]
    if failed:
        return str(failed[0].step)
    if started:
        return str(max(started, key=lambda row: row.started_at_us).step)
    raise errors.make("not_started", f"no step of {rollout} has started yet, so there is no output")


def split_target(target: str) -> tuple[str, str | None]:
    """ROLLOUT or ROLLOUT/STEP."""
    rollout, slash, step = target.partition("/")
    return rollout, step if slash else None


def ended(job_id: str, info: Any) -> errors.JobEndedError | None:
    """Why a wait for this job ends badly, if it does."""
    if info.state == "finished":
        return None
    reason = info.reason or info.failure_message or "no reason is known"
    verb = "is" if info.state == "held" else "ended as"
    hint = f"job.explain() says more; job.cancel() ends it; submit(..., new=True) starts over: {job_id}"
    error = errors.JobEndedError(
        "job_ended", f"job {job_id} {verb} {info.state}: {reason}", hint if info.state == "held" else None
    )
    error.job = info
    return error
