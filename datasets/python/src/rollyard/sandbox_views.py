"""What a yard tells about sandboxes, as plain values. Times are aware datetimes in UTC, sizes are
bytes; what is unknown is None."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from . import errors
from .v1 import sandboxes_pb2 as wire
from .views import Failure, failure_of, time_of


@dataclass(frozen=True)
class SandboxEnd:
    """How a sandbox ended."""

    cause: str
    """idle_timeout, timeout, killed or finished; else the code of its failure"""
    message: str
    hint: str
    """What to do about it; may be empty."""
    ended_at: datetime

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"

    @classmethod
    def of(cls, told: wire.SandboxEnd) -> SandboxEnd:
        return cls(cause=told.cause, message=told.message, hint=told.hint, ended_at=time_of(told.ended_at_us))


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox at one moment."""

    id: str
    """`ROLLOUT@NODE`"""
    state: str
    """waiting, starting, running, paused, parked or ended"""
    node: str | None
    """None while it waits or is parked."""
    image: str
    labels: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None
    """Its absolute deadline: no call puts it off."""
    idle_expires_at: datetime | None
    """When it ends if nobody calls it until then; None where nobody said so."""
    end: SandboxEnd | None
    """How it ended; None of one that lives."""
    failure: Failure | None
    """Of one that ended, and not because it was told to."""
    adopted: bool
    """It was there already: the key was used before."""
    job: str

    @classmethod
    def of(cls, told: wire.Sandbox) -> SandboxInfo:
        def time(field: str) -> datetime | None:
            return time_of(getattr(told, field)) if told.HasField(field) else None

        return cls(
            id=told.id,
            state=told.state,
            node=told.node or None,
            image=told.image,
            labels=dict(told.labels),
            created_at=time_of(told.created_at_us),
            started_at=time("started_at_us"),
            expires_at=time("expires_at_us"),
            idle_expires_at=time("idle_expires_at_us"),
            end=SandboxEnd.of(told.end) if told.HasField("end") else None,
            failure=failure_of(told.failure) if told.HasField("failure") else None,
            adopted=told.adopted,
            job=told.job,
        )


@dataclass(frozen=True)
class CommandResult:
    """A command that ended, as it is recorded."""

    exit_code: int | None
    """None: it was killed by a signal or by its deadline."""
    signal: int | None
    timed_out: bool
    """Its whole tree was killed at its deadline."""
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    """That were written: more than `stdout` has if `capture_truncated`."""
    stderr_bytes: int
    capture_truncated: bool
    """More was written than is kept: see `Run.output_bytes_max`."""
    started_at: datetime
    finished_at: datetime
    action_id: str
    ordinal: int
    """Counts the actions of the sandbox from 0."""
    repeated: bool
    """It was recorded before: nothing ran now."""

    @property
    def ok(self) -> bool:
        """It ended by itself, with 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """`stdout`; what is no UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.timed_out:
            return f"was killed at its deadline after {(self.finished_at - self.started_at).total_seconds():.1f} s"
        if self.exit_code is not None:
            return f"ended with {self.exit_code}"
        return f"was killed by signal {self.signal}" if self.signal is not None else "ended without an exit code"

    @classmethod
    def of(cls, reply: wire.ActReply, action_id: str) -> CommandResult:
        told = reply.result
        return cls(
            exit_code=told.exit_code if told.HasField("exit_code") else None,
            signal=told.signal if told.HasField("signal") else None,
            timed_out=told.timed_out,
            stdout=told.stdout,
            stderr=told.stderr,
            stdout_bytes=told.stdout_bytes,
            stderr_bytes=told.stderr_bytes,
            capture_truncated=told.capture_truncated,
            started_at=time_of(told.started_at_us),
            finished_at=time_of(told.finished_at_us),
            action_id=action_id,
            ordinal=reply.ordinal,
            repeated=reply.repeated,
        )


@dataclass(frozen=True)
class ExitInfo:
    """How a process with streams ended."""

    exit_code: int | None
    signal: int | None
    timed_out: bool

    @classmethod
    def of(cls, ended: wire.ExecEnded) -> ExitInfo:
        return cls(
            exit_code=ended.exit_code if ended.HasField("exit_code") else None,
            signal=ended.signal if ended.HasField("signal") else None,
            timed_out=ended.timed_out,
        )


@dataclass(frozen=True)
class FileInfo:
    """A file of a sandbox. No link is followed."""

    path: str
    kind: str
    """file, directory, symlink, fifo, socket or device; not_utf8: its name is no text, and is shown escaped"""
    size: int
    mode: int
    uid: int
    """As the sandbox numbers them."""
    gid: int
    modified_at: datetime
    version: str
    """Changes when the file does."""
    symlink_target: str | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @classmethod
    def of(cls, told: wire.FileInfo) -> FileInfo:
        return cls(
            path=told.path,
            kind=told.kind,
            size=told.size,
            mode=told.mode,
            uid=told.uid,
            gid=told.gid,
            modified_at=time_of(told.modified_at_us),
            version=told.version,
            symlink_target=told.symlink_target or None,
        )


@dataclass(frozen=True)
class LifecycleInfo:
    """Where a sandbox is on the idle ladder."""

    rung: str
    """running, frozen, reclaimed or parked"""
    version: int
    """Grows with every change."""
    reclaimed_bytes: int
    """Really given back, net of what others share."""

    @classmethod
    def of(cls, told: wire.LifecycleReply) -> LifecycleInfo:
        return cls(rung=told.rung, version=told.version, reclaimed_bytes=told.reclaimed_bytes)


@dataclass(frozen=True)
class KillInfo:
    """What a request to end sandboxes came to."""

    killed: list[str]
    """Those it ended: one that had ended is not among them."""
    failed: dict[str, errors.Error]
    """Those it could not end, and why."""

    @classmethod
    def of(cls, reply: wire.KillSandboxesReply) -> KillInfo:
        failed = {one.sandbox: errors.make(one.code, one.message) for one in reply.failed}
        return cls(killed=list(reply.killed), failed=failed)


@dataclass(frozen=True)
class ActionInfo:
    """One recorded action."""

    ordinal: int
    action_id: str
    payload_sha256: str
    state: str
    """dispatched, done or unknown"""
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    data: bytes
    """Of a file that was read."""
    code: str | None
    """It could not be done: a code of docs/errors.md."""

    @classmethod
    def of(cls, told: wire.Action) -> ActionInfo:
        result = told.result
        return cls(
            ordinal=told.ordinal,
            action_id=told.action_id,
            payload_sha256=told.payload_sha256,
            state=told.state,
            exit_code=result.exit_code if result.HasField("exit_code") else None,
            stdout=result.stdout,
            stderr=result.stderr,
            data=result.data,
            code=result.code or None,
        )
