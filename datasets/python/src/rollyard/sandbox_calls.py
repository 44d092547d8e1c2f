"""What the two clients have in common about sandboxes: requests, and conversations as flows."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Union

from . import errors
from .flow import PAGE_ROWS, Call, Flow, resent
from .quantities import Bytes, Cores, Duration, cores, seconds, size
from .sandbox_views import ActionInfo, CommandResult, FileInfo, KillInfo, LifecycleInfo, SandboxInfo
from .v1 import nodes_pb2
from .v1 import sandboxes_pb2 as wire

SERVICE = "Sandboxes"
FORKS_MAX = 64
KILL_IDS_MAX = 1000
"""Of one request, as the yard bounds it; more are sent in several."""
FILE_CHUNK_BYTES = 256 << 10
STREAM_CHUNK_BYTES = 64 << 10
"""Of the input of a process and of a forwarded connection, as the yard bounds it."""
STDIN_CHUNKS_MAX = 64
"""Pieces of input that wait for the yard; past it `write` waits."""
FORWARD_CONNECTIONS_MAX = 64
"""Of one forwarded port at once; more wait to be accepted."""
CLAIM_WAIT_MS = 20_000
TTL_SECONDS_DEFAULT = 60.0
RENEWALS_PER_TTL = 3

Command = Union[str, Sequence[str]]
"""Text for the shell, or a program with its arguments."""


@dataclass(frozen=True)
class Run:
    """A command as an action.

    `timeout` is in seconds, or text such as `"30s"`: its whole tree is killed then; None is 1 min.
    `output_bytes_max` is kept of each stream, 1 MiB at most and by default; what is past it is dropped
    and counted: `CommandResult.capture_truncated` says so. `in_shell`
    names a persistent shell, which takes text only: its environment, directory and functions stay.
    """

    command: Command
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    stdin: bytes = b""
    timeout: Duration | None = None
    output_bytes_max: int | None = None
    in_shell: str | None = None


@dataclass(frozen=True)
class Put:
    """A file written whole, as an action."""

    path: str
    data: bytes
    mode: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class Get:
    """A file of at most 1 MiB read, as an action."""

    path: str


Payload = Union[Run, Put, Get]


@dataclass(frozen=True)
class Where:
    """The sandbox, and the claim of who drives it: empty for one that a client created."""

    sandbox: str
    claim: str = ""

    def fields(self) -> dict[str, Any]:
        """Of a request about it."""
        return {"sandbox": self.sandbox, "claim": self.claim}


def milliseconds(duration: Duration | None, name: str) -> int | None:
    """A duration as it is sent."""
    return None if duration is None else max(1, round(seconds(duration, name) * 1000))


def fresh_key() -> str:
    """An idempotency key that nobody used before."""
    return secrets.token_hex(16)


def fresh_driver() -> str:
    """A name for who drives sessions from this process."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-") or "host"
    return f"{host[:64]}-{os.getpid()}-{secrets.token_hex(4)}"


# ---- life ----------------------------------------------------------------------------------


def create_request(
    *,
    image: str,
    cpu: Cores | None,
    memory: Bytes | None,
    cpu_limit: Cores | None,
    memory_limit: Bytes | None,
    disk_limit: Bytes | None,
    pids_limit: int | None,
    labels: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    user: str | None,
    workdir: str | None,
    idle_timeout: Duration | None,
    timeout: Duration | None,
    start_timeout: Duration | None,
    park_after: Duration | None,
    idle_mode: str | None,
    checkpoint: str | None,
    key: str | None,
) -> wire.CreateSandboxRequest:
    """A key of its own makes a repeated request one sandbox."""
    return wire.CreateSandboxRequest(
        idempotency_key=key or fresh_key(),
        image=image,
        request_cpu=cores(cpu, "cpu"),
        request_memory=size(memory, "memory"),
        limit_cpu=cores(cpu_limit, "cpu_limit"),
        limit_memory=size(memory_limit, "memory_limit"),
        limit_disk=size(disk_limit, "disk_limit"),
        limit_pids=pids_limit,
        labels=dict(labels or {}),
        env=dict(env or {}),
        user=user or "",
        workdir=workdir or "",
        idle_timeout_ms=milliseconds(idle_timeout, "idle_timeout"),
        timeout_ms=milliseconds(timeout, "timeout"),
        start_timeout_ms=milliseconds(start_timeout, "start_timeout"),
        park_after_ms=milliseconds(park_after, "park_after"),
        idle_mode=idle_mode or "",
        checkpoint=checkpoint or "",
    )


ARGUMENTS = {
    "request_cpu": "cpu",
    "request_memory": "memory",
    "limit_cpu": "cpu_limit",
    "limit_memory": "memory_limit",
    "limit_disk": "disk_limit",
    "limit_pids": "pids_limit",
    "idle_timeout_ms": "idle_timeout",
    "timeout_ms": "timeout",
    "start_timeout_ms": "start_timeout",
    "park_after_ms": "park_after",
    "idempotency_key": "key",
}
"""A field of `CreateSandboxRequest` that has another name here."""


def in_arguments(text: str) -> str:
    """What the yard says of fields, of the arguments they come from."""
    return re.sub(r"`(\w+)`", lambda found: f"`{ARGUMENTS.get(found[1], found[1])}`", text)


def create(request: wire.CreateSandboxRequest) -> Flow[SandboxInfo]:
    """Waits until it is ready."""
    try:
        told = yield from resent(Call("Create", request, SERVICE))
    except errors.Error as error:
        error.args = (in_arguments(error.message), *error.args[1:])
        error.hint = in_arguments(error.hint) if error.hint else error.hint
        raise
    return SandboxInfo.of(told)


def info(sandbox: str) -> Flow[SandboxInfo]:
    told = yield Call("Get", wire.GetSandboxRequest(sandbox=sandbox), SERVICE)
    return SandboxInfo.of(told)


def page(request: wire.ListSandboxesRequest) -> Flow[tuple[list[SandboxInfo], str]]:
    """The sandboxes of one page, and the token of the next."""
    request.page_size = PAGE_ROWS
    reply = yield Call("List", request, SERVICE)
    return [SandboxInfo.of(told) for told in reply.sandboxes], reply.next_page_token


def kill(ids: Sequence[str] | None, labels: Mapping[str, str] | None, reason: str) -> Flow[KillInfo]:
    """By names or by labels. To end one twice changes nothing."""
    if (ids is None) == (not labels):
        raise errors.make("bad_request", "which sandboxes to end is not said", "give `ids`, or `labels`")
    if ids is None:
        request = wire.KillSandboxesRequest(labels=dict(labels or {}), reason=reason)
        return KillInfo.of((yield from resent(Call("Kill", request, SERVICE))))
    whole = KillInfo([], {})
    for start in range(0, len(ids), KILL_IDS_MAX):
        request = wire.KillSandboxesRequest(sandboxes=ids[start : start + KILL_IDS_MAX], reason=reason)
        part = KillInfo.of((yield from resent(Call("Kill", request, SERVICE))))
        whole.killed.extend(part.killed)
        whole.failed.update(part.failed)
    return whole


def kill_one(sandbox: str, reason: str) -> Flow[bool]:
    """Whether this call ended it."""
    done = yield from kill([sandbox], None, reason)
    for error in done.failed.values():
        raise error
    return bool(done.killed)


def fork(where: Where, count: int, labels: Mapping[str, str] | None, key: str | None) -> Flow[list[SandboxInfo]]:
    if not 1 <= count <= FORKS_MAX:
        raise errors.make("bad_request", f"{count} forks: 1 to {FORKS_MAX} can be made at once (FORKS_MAX)")
    request = wire.ForkSandboxRequest(
        sandbox=where.sandbox, count=count, idempotency_key=key or fresh_key(), labels=dict(labels or {})
    )
    reply = yield from resent(Call("Fork", request, SERVICE), with_nodes=True)
    return [SandboxInfo.of(told) for told in reply.sandboxes]


def pause(where: Where, version: int | None, park: bool) -> Flow[LifecycleInfo]:
    request = wire.PauseSandboxRequest(**where.fields(), version=version, park=park)
    return LifecycleInfo.of((yield Call("Pause", request, SERVICE)))


def resume(where: Where, version: int | None) -> Flow[LifecycleInfo]:
    request = wire.ResumeSandboxRequest(**where.fields(), version=version)
    return LifecycleInfo.of((yield Call("Resume", request, SERVICE)))


def checkpoint(where: Where) -> Flow[str]:
    reply = yield Call("TakeCheckpoint", wire.TakeCheckpointRequest(**where.fields()), SERVICE)
    if not reply.id:
        raise errors.make("bad_answer", f"{where.sandbox} was saved, and the checkpoint has no name")
    return str(reply.id)


# ---- actions -------------------------------------------------------------------------------


def run_message(run: Run) -> wire.RunCommand:
    """The command as it is sent. The same call always gives the same bytes."""
    message = wire.RunCommand(
        env=dict(run.env),
        cwd=run.cwd or "",
        user=run.user or "",
        stdin=run.stdin,
        timeout_ms=milliseconds(run.timeout, "timeout"),
        output_bytes_max=run.output_bytes_max,
        in_shell=run.in_shell or "",
    )
    if isinstance(run.command, str):
        message.shell = run.command
    else:
        message.argv.CopyFrom(argv(run.command))
    return message


def argv(command: Sequence[str]) -> nodes_pb2.Argv:
    if not command:
        raise errors.make("bad_request", "the command has no program")
    return nodes_pb2.Argv(items=command)


def act_request(where: Where, action_id: str, payload: Payload) -> wire.ActRequest:
    request = wire.ActRequest(**where.fields(), action_id=action_id)
    if isinstance(payload, Run):
        request.run.CopyFrom(run_message(payload))
    elif isinstance(payload, Put):
        put = wire.PutFile(path=payload.path, data=payload.data, mode=payload.mode, user=payload.user or "")
        request.put.CopyFrom(put)
    else:
        request.get.path = payload.path
    return request


def act(where: Where, action_id: str, payload: Payload) -> Flow[wire.ActReply]:
    """One recorded action; sent again if the connection breaks, for it runs once all the same."""
    request = act_request(where, action_id, payload)
    reply = yield from resent(Call("Act", request, SERVICE), with_nodes=True)
    if reply.state == "unknown":
        what = f"nobody knows whether action `{action_id}` of {where.sandbox} happened: its node lost it under way"
        hint = "look at what it would have done, then go on under another action id"
        raise errors.make("outcome_unknown", what, hint)
    if reply.result.code:
        raise errors.make(reply.result.code, reply.result.message, hint_of(reply.result.code, payload))
    return reply  # type: ignore[no-any-return]


def hint_of(code: str, payload: Payload) -> str | None:
    """What to do about an action that could not be done."""
    if code != "command_not_started" or not isinstance(payload, Run) or isinstance(payload.command, str):
        return None
    if len(payload.command) == 1 and " " in payload.command[0]:
        return "a list is a program with its arguments: give text to have it read by the shell"
    return None


@contextlib.contextmanager
def told_of_claims(where: Where) -> Iterator[None]:
    """Whose a session is, where it is called without a claim."""
    try:
        yield
    except errors.ClaimLost:
        if where.claim:
            raise
        rollout = where.sandbox.partition("@")[0]
        what = f"{where.sandbox} is a session of job {job_of(rollout)}: its driver holds it"
        hint = "drive it with `client.drive(job, solve)`, or by hand with `client.session(ROLLOUT)`"
        raise errors.make("claim_lost", what, hint) from None


def act_any(where: Where, action_id: str, payload: Payload) -> Flow[Any]:
    """What the payload gives: a `CommandResult`, the bytes of a file, or None."""
    reply = yield from act(where, action_id, payload)
    if isinstance(payload, Run):
        return CommandResult.of(reply, action_id)
    return reply.result.data if isinstance(payload, Get) else None


def exec(where: Where, action_id: str, run: Run) -> Flow[CommandResult]:
    return CommandResult.of((yield from act(where, action_id, run)), action_id)


def put(where: Where, action_id: str, payload: Put) -> Flow[None]:
    yield from act(where, action_id, payload)


def get(where: Where, action_id: str, payload: Get) -> Flow[bytes]:
    reply = yield from act(where, action_id, payload)
    return reply.result.data


class TruncatedWarning(UserWarning):
    """A command wrote more than is kept of its output; the whole of it comes by `start`, or by a file."""


def checked(result: CommandResult, command: Command) -> CommandResult:
    """Raises `CommandError` unless it ended with 0, and warns if its output was not kept whole."""
    shown = command if isinstance(command, str) else " ".join(command)
    if result.capture_truncated:
        written, kept = result.stdout_bytes + result.stderr_bytes, len(result.stdout) + len(result.stderr)
        words = f"of what `{shown[:200]}` wrote {kept} of {written} bytes are kept (`output_bytes_max`)"
        warnings.warn(words, TruncatedWarning, stacklevel=3)
    if result.ok:
        return result
    tail = result.stderr[-2000:].decode("utf-8", "replace").strip()
    error = errors.CommandError(
        errors.COMMAND_FAILED, f"`{shown[:200]}` {result.end}" + (f": {tail}" if tail else "")
    )
    error.result = result
    raise error


def actions(where: Where, first: int) -> Flow[tuple[list[ActionInfo], bool]]:
    """A page of what is recorded, and whether there is more."""
    request = wire.ListActionsRequest(sandbox=where.sandbox, page_size=PAGE_ROWS)
    setattr(request, "from", first)
    reply = yield Call("ListActions", request, SERVICE)
    return [ActionInfo.of(told) for told in reply.actions], reply.more


# ---- processes and files -------------------------------------------------------------------


def exec_start(
    where: Where,
    command: Command,
    *,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    pty: tuple[int, int] | None,
    timeout: Duration | None,
    detach: bool,
) -> wire.ExecInput:
    """The first input of a process with streams. `pty`: columns and rows."""
    start = wire.ExecStart(
        **where.fields(),
        env=dict(env or {}),
        cwd=cwd or "",
        user=user or "",
        timeout_ms=milliseconds(timeout, "timeout"),
        detach=detach,
    )
    if isinstance(command, str):
        start.shell = command
    else:
        start.argv.CopyFrom(argv(command))
    if pty is not None:
        start.pty.CopyFrom(wire.PtySize(columns=pty[0], rows=pty[1]))
    return wire.ExecInput(start=start)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Cut to what one message may have."""
    return (data[start : start + size] for start in range(0, len(data), size))


def read_request(where: Where, path: str, version: str | None) -> wire.ReadFileRequest:
    return wire.ReadFileRequest(**where.fields(), path=path, version=version or "")


def write_chunks(
    where: Where, path: str, source: BinaryIO, size: int, mode: int | None, user: str | None
) -> Iterator[wire.WriteFileChunk]:
    """A file as it is sent: exactly `size` bytes of `source`."""
    start = wire.WriteFileStart(**where.fields(), path=path, mode=mode, user=user or "", size=size)
    yield wire.WriteFileChunk(start=start)
    left = size
    while left > 0:
        data = source.read(min(left, FILE_CHUNK_BYTES))
        if not data:
            raise errors.make("file_changed", f"what is written to `{path}` has {left} bytes less than it had")
        left -= len(data)
        yield wire.WriteFileChunk(data=data)


def files(where: Where, path: str, after: str) -> Flow[tuple[list[FileInfo], bool]]:
    """A page of a directory, and whether there is more."""
    request = wire.ListFilesRequest(**where.fields(), path=path, page_size=PAGE_ROWS, after=after)
    reply = yield Call("ListFiles", request, SERVICE)
    return [FileInfo.of(told) for told in reply.files], reply.more


def stat(where: Where, path: str) -> Flow[FileInfo]:
    return FileInfo.of((yield Call("StatFile", wire.StatFileRequest(**where.fields(), path=path), SERVICE)))


def mkdir(where: Where, path: str, user: str | None) -> Flow[FileInfo]:
    request = wire.MakeDirRequest(**where.fields(), path=path, user=user or "")
    return FileInfo.of((yield Call("MakeDir", request, SERVICE)))


def remove(where: Where, path: str) -> Flow[bool]:
    reply = yield Call("RemoveFile", wire.RemoveFileRequest(**where.fields(), path=path), SERVICE)
    return bool(reply.removed)


# ---- drivers -------------------------------------------------------------------------------


def job_of(rollout: str) -> str:
    """The job of JOB-gN-sN."""
    job, dash, _ = rollout.partition("-g")
    if not dash:
        raise errors.make("bad_target", f"`{rollout}` names nothing: expected a rollout (JOB-gN-sN)")
    return job


def sample_of(rollout: str) -> int:
    """The sample of JOB-gN-sN."""
    found = re.search(r"-s([0-9]+)(-r[0-9]+)?$", rollout)
    if found is None:
        raise errors.make("bad_answer", f"`{rollout}` is no rollout (JOB-gN-sN)")
    return int(found[1])


def claim(
    job: str,
    driver: str,
    ttl: Duration,
    *,
    rollout: str = "",
    wait_ms: int = CLAIM_WAIT_MS,
    held_only: bool = False,
) -> Flow[wire.ClaimSessionReply]:
    """One that nobody drives, if there is one within `wait_ms`; `held_only`: one that `driver` holds."""
    request = wire.ClaimSessionRequest(
        job=job,
        wait_ms=wait_ms,
        driver=driver,
        ttl_ms=milliseconds(ttl, "ttl") or 0,
        rollout=rollout,
        held_only=held_only,
    )
    reply = yield from resent(Call("Claim", request, SERVICE))
    return reply  # type: ignore[no-any-return]


def claim_one(rollout: str, driver: str, ttl: Duration, wait: Duration) -> Flow[wire.Session]:
    """The session of this rollout."""
    wait_ms = min(60_000, round(seconds(wait, "wait", may_be_zero=True) * 1000))
    reply = yield from claim(job_of(rollout), driver, ttl, rollout=rollout, wait_ms=wait_ms)
    if reply.HasField("session"):
        return reply.session
    what = f"{rollout} has no session that can be claimed: none runs now, or somebody else drives it"
    raise errors.make("not_found", what, "job.explain(ROLLOUT) says where it is")


def may_be_back(error: errors.Error) -> bool:
    """The yard or the node may be there again before a claim ends: it is renewed when it is due."""
    return isinstance(error, errors.UnreachableError) or error.code == errors.NODE_LOST


def renew(where: Where) -> Flow[None]:
    yield Call("Renew", wire.RenewSessionRequest(**where.fields()), SERVICE)


TurnRewards = Union[Sequence[float], Mapping[int, float]]


def finish(
    where: Where, reward: float | None, turn_rewards: TurnRewards | None, problem: str | None
) -> Flow[None]:
    if problem is not None and reward is not None:
        raise errors.make("bad_request", "a session with a `problem` has no valid reward", "leave `reward` out")
    rewards = turn_rewards if turn_rewards is not None else {}
    turns = rewards.items() if isinstance(rewards, Mapping) else enumerate(rewards)
    request = wire.FinishSessionRequest(
        **where.fields(),
        reward=reward,
        turn_rewards=[wire.TurnReward(turn=turn, reward=value) for turn, value in turns],
        problem=problem or "",
    )
    yield from resent(Call("Finish", request, SERVICE), with_nodes=True)
