"""A sandbox that this client drives. `aio_sandbox` is the asyncio twin."""

from __future__ import annotations

import builtins
import io
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors
from . import sandbox_calls as calls
from .flow import Flow
from .forward import Forward
from .process import Process
from .quantities import Duration
from .sandbox_calls import Command, Run, Where
from .sandbox_views import CommandResult, FileInfo, LifecycleInfo, SandboxInfo
from .v1 import sandboxes_pb2 as wire

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")


class Box:
    """What a sandbox and a session have in common: files, processes, the idle ladder.

    Paths are absolute, or start at the working directory; no link is followed. All of it raises
    `SandboxGone` once the sandbox has ended.
    """

    def __init__(self, client: Client, where: Where) -> None:
        self._client = client
        self._where = where

    @property
    def id(self) -> str:
        """`ROLLOUT@NODE`"""
        return self._where.sandbox

    def _run(self, steps: Flow[T]) -> T:
        with calls.told_of_claims(self._where):
            return self._client._run(steps)

    def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        pty: tuple[int, int] | None = None,
        timeout: Duration | None = None,
        detach: bool = False,
    ) -> Process:
        """A process with its streams, of which nothing is recorded.

        `pty` gives it a terminal of so many columns and rows. Its whole tree is killed after
        `timeout` seconds (None: the timeout of the step), and when the returned process is closed,
        unless `detach`.
        """
        first = calls.exec_start(
            self._where, command, env=env, cwd=cwd, user=user, pty=pty, timeout=timeout, detach=detach
        )
        with calls.told_of_claims(self._where):
            return Process(self._client, first)

    def download(self, path: str, to: str | os.PathLike[str], *, version: str | None = None) -> FileInfo:
        """Copies a file to this machine, whole or not at all. With `version` it must be that one, and
        it must stay the same to its last byte. Raises `FileError`."""
        partial = f"{os.fspath(to)}.{secrets.token_hex(4)}.partial"
        try:
            with open(partial, "xb") as file:
                info = self._read_into(path, version, file)
            os.replace(partial, to)
        except BaseException:
            if os.path.lexists(partial):
                os.unlink(partial)
            raise
        return info

    def _read_into(self, path: str, version: str | None, file: Any) -> FileInfo:
        info: FileInfo | None = None
        request = calls.read_request(self._where, path, version)
        with (
            calls.told_of_claims(self._where),
            self._client._stream(calls.SERVICE, "ReadFile", request) as chunks,
        ):
            for chunk in chunks:
                if chunk.HasField("info"):
                    info = FileInfo.of(chunk.info)
                file.write(chunk.data)
        if info is None:
            raise errors.make("bad_answer", f"`{path}` was read without a word about the file")
        return info

    def _read_bytes(self, path: str, version: str | None) -> bytes:
        data = io.BytesIO()
        self._read_into(path, version, data)
        return data.getvalue()

    def upload(
        self, source: str | os.PathLike[str], path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Copies a file of this machine into the sandbox: there it is whole or not at all. `mode`:
        None is that of the file."""
        with open(source, "rb") as file:
            status = os.fstat(file.fileno())
            kept = status.st_mode & 0o777 if mode is None else mode
            return self._write_from(path, file, status.st_size, kept, user)

    def _write_from(
        self, path: str, source: Any, size: int, mode: int | None, user: str | None
    ) -> FileInfo:
        chunks = calls.write_chunks(self._where, path, source, size, mode, user)
        with calls.told_of_claims(self._where):
            return FileInfo.of(self._client._send(calls.SERVICE, "WriteFile", chunks))

    def list(self, path: str = ".") -> Iterator[FileInfo]:
        """What a directory holds, by name, page by page."""
        after, more = "", True
        while more:
            files, more = self._run(calls.files(self._where, path, after))
            yield from files
            more = more and bool(files)
            after = files[-1].name if files else ""

    def stat(self, path: str) -> FileInfo:
        """About a file. Raises `FileError` if there is none."""
        return self._run(calls.stat(self._where, path))

    def mkdir(self, path: str, *, user: str | None = None) -> FileInfo:
        """Makes a directory, and those above it that are missing."""
        return self._run(calls.mkdir(self._where, path, user))

    def remove(self, path: str) -> bool:
        """Removes a file, or a directory with what it holds. False: nothing was there."""
        return self._run(calls.remove(self._where, path))

    def forward(self, port: int, *, local_port: int = 0) -> Forward:
        """Makes a TCP port of the sandbox's loopback one of this machine's, until it is closed.
        `local_port` 0 takes a free one: see `Forward.address`."""
        return Forward(self._client.url, self._where, port, local_port)

    def pause(self, *, version: int | None = None, park: bool = False) -> LifecycleInfo:
        """Stops its processes and gives back what memory can be given back; whatever is called next
        resumes it. With `version` only if its lifecycle is at that version. With `park` its files are
        saved, its processes end and its node is free of it: the next call brings it back with its files
        and its recorded actions, there or on another node."""
        return self._run(calls.pause(self._where, version, park))

    def resume(self, *, version: int | None = None) -> LifecycleInfo:
        """Lets its processes go on."""
        return self._run(calls.resume(self._where, version))

    def checkpoint(self) -> str:
        """Saves its files and returns the checkpoint's id: `client.sandbox(checkpoint=id)` begins with
        them."""
        return self._run(calls.checkpoint(self._where))

    def fork(
        self, n: int = 1, *, labels: Mapping[str, str] | None = None, key: str | None = None
    ) -> builtins.list[Sandbox]:
        """New sandboxes that begin with the files this one has now; its processes stay here."""
        return [Sandbox(self._client, told.id, told) for told in self._run(calls.fork(self._where, n, labels, key))]


class Sandbox(Box):
    """A sandbox that a client created.

    It ends with `kill`, at the end of a `with` block, without a call for its `idle_timeout`, or at
    its `timeout`, whatever becomes of this process. Clients may share it, also between threads.
    """

    def __init__(self, client: Client, id: str, created: SandboxInfo | None = None) -> None:
        super().__init__(client, Where(id))
        self.created = created
        """As it was told when it was created; None if it was not created here."""
        self._actions = itertools.count()
        self._prefix = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.kill()
        except errors.Error:
            # Its deadlines end it; what went wrong in the block is the error to see.
            if kind is None:
                raise

    def _action_id(self) -> str:
        return f"{self._prefix}-{next(self._actions)}"

    def info(self) -> SandboxInfo:
        """The sandbox now. Raises `NotFoundError`."""
        return self._run(calls.info(self.id))

    def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: Duration | None = None,
        output_bytes_max: int | None = None,
        action_id: str | None = None,
    ) -> CommandResult:
        """Runs a command to its end and returns what is recorded of it, whatever its exit code: see
        `Run` for the fields. The same `action_id` with the same command gives the recorded result.

        Raises `OutcomeUnknown`, `ActionConflict`."""
        run = Run(command, dict(env or {}), cwd, user, stdin, timeout, output_bytes_max)
        return self._run(calls.exec(self._where, action_id or self._action_id(), run))

    def run(self, command: Command, **options: Any) -> CommandResult:
        """`exec`, and raises `CommandError` unless it ended with 0."""
        return calls.checked(self.exec(command, **options), command)

    def shell(self, name: str = "main") -> Shell:
        """The persistent shell of this name, begun by its first command."""
        return Shell(self, name)

    def read(self, path: str, *, version: str | None = None) -> bytes:
        """A file, whole. With `version` it must be that one. Raises `FileError`."""
        return self._read_bytes(path, version)

    def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> FileInfo:
        """Writes a file: it is there whole or not at all. `mode`: None is 0644."""
        whole = data.encode() if isinstance(data, str) else data
        return self._write_from(path, io.BytesIO(whole), len(whole), mode, user)

    def kill(self, reason: str = "ended by the client") -> bool:
        """Ends it. False: it had ended before."""
        return self._run(calls.kill_one(self.id, reason))


class Shell:
    """A persistent shell: its environment, directory and functions stay from one command to the next (`$?` does not).
    Commands run one after the other."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox

    def __repr__(self) -> str:
        return f"Shell({self._sandbox.id!r}, {self.name!r})"

    def exec(
        self,
        command: str,
        *,
        timeout: Duration | None = None,
        output_bytes_max: int | None = None,
        action_id: str | None = None,
    ) -> CommandResult:
        """Runs text in the shell and returns what is recorded, whatever its exit code. Raises
        `OutcomeUnknown`, `ActionConflict`."""
        run = Run(command, timeout=timeout, output_bytes_max=output_bytes_max, in_shell=self.name)
        sandbox = self._sandbox
        return sandbox._run(calls.exec(sandbox._where, action_id or sandbox._action_id(), run))

    def run(self, command: str, **options: Any) -> CommandResult:
        """`exec`, and raises `CommandError` unless it ended with 0."""
        return calls.checked(self.exec(command, **options), command)


def create(client: Client, request: wire.CreateSandboxRequest) -> Sandbox:
    told = client._run(calls.create(request))
    return Sandbox(client, told.id, told)
