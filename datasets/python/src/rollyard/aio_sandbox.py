"""The asyncio twin of `sandbox`: the same names, awaited."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from . import errors
from . import sandbox_calls as calls
from .flow import Flow
from .forward import AsyncForward
from .process import still_running
from .quantities import Duration, seconds
from .sandbox_calls import Command, Run, Where
from .sandbox_views import CommandResult, ExitInfo, FileInfo, LifecycleInfo, SandboxInfo
from .v1 import sandboxes_pb2 as wire
from .views import LogChunk

# What a wait of no time takes, for what has come already to be read.
_ONE_TURN_SECONDS = 0.01

if TYPE_CHECKING:
    from .aio import AsyncClient

T = TypeVar("T")


class Opening:
    """`client.sandbox(...)`: await it for a sandbox to keep, or enter it for one that ends with the
    block."""

    def __init__(self, create: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._create = create
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self._create().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._create()
        return self._sandbox

    async def __aexit__(self, *raised: object) -> None:
        assert self._sandbox is not None
        await self._sandbox.__aexit__(*raised)


class AsyncBox:
    """As `Box`."""

    def __init__(self, client: AsyncClient, where: Where) -> None:
        self._client = client
        self._where = where

    @property
    def id(self) -> str:
        """`ROLLOUT@NODE`"""
        return self._where.sandbox

    async def _run(self, steps: Flow[T]) -> T:
        with calls.told_of_claims(self._where):
            return await self._client._run(steps)

    async def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        pty: tuple[int, int] | None = None,
        timeout: Duration | None = None,
        detach: bool = False,
    ) -> AsyncProcess:
        """As `Box.start`."""
        first = calls.exec_start(
            self._where, command, env=env, cwd=cwd, user=user, pty=pty, timeout=timeout, detach=detach
        )
        with calls.told_of_claims(self._where):
            return await AsyncProcess._start(self._client, first)

    async def download(self, path: str, to: str | os.PathLike[str], *, version: str | None = None) -> FileInfo:
        """As `Box.download`."""
        partial = f"{os.fspath(to)}.{secrets.token_hex(4)}.partial"
        try:
            with open(partial, "xb") as file:
                info = await self._read_into(path, version, file)
            os.replace(partial, to)
        except BaseException:
            if os.path.lexists(partial):
                os.unlink(partial)
            raise
        return info

    async def _read_into(self, path: str, version: str | None, file: Any) -> FileInfo:
        info: FileInfo | None = None
        request = calls.read_request(self._where, path, version)
        with calls.told_of_claims(self._where):
            async with self._client._stream(calls.SERVICE, "ReadFile", request) as chunks:
                async for chunk in chunks:
                    if chunk.HasField("info"):
                        info = FileInfo.of(chunk.info)
                    file.write(chunk.data)
        if info is None:
            raise errors.make("bad_answer", f"`{path}` was read without a word about the file")
        return info

    async def _read_bytes(self, path: str, version: str | None) -> bytes:
        data = io.BytesIO()
        await self._read_into(path, version, data)
        return data.getvalue()

    async def upload(
        self, source: str | os.PathLike[str], path: str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """As `Box.upload`."""
        with open(source, "rb") as file:
            status = os.fstat(file.fileno())
            kept = status.st_mode & 0o777 if mode is None else mode
            return await self._write_from(path, file, status.st_size, kept, user)

    async def _write_from(
        self, path: str, source: Any, size: int, mode: int | None, user: str | None
    ) -> FileInfo:
        chunks = calls.write_chunks(self._where, path, source, size, mode, user)
        with calls.told_of_claims(self._where):
            return FileInfo.of(await self._client._send(calls.SERVICE, "WriteFile", chunks))

    async def list(self, path: str = ".") -> AsyncIterator[FileInfo]:
        """As `Box.list`."""
        after, more = "", True
        while more:
            files, more = await self._run(calls.files(self._where, path, after))
            for file in files:
                yield file
            more = more and bool(files)
            after = files[-1].name if files else ""

    async def stat(self, path: str) -> FileInfo:
        """As `Box.stat`."""
        return await self._run(calls.stat(self._where, path))

    async def mkdir(self, path: str, *, user: str | None = None) -> FileInfo:
        """As `Box.mkdir`."""
        return await self._run(calls.mkdir(self._where, path, user))

    async def remove(self, path: str) -> bool:
        """As `Box.remove`."""
        return await self._run(calls.remove(self._where, path))

    def forward(self, port: int, *, local_port: int = 0) -> AsyncForward:
        """As `Box.forward`: `async with sb.forward(8000) as local`."""
        return AsyncForward(self._client, self._where, port, local_port)

    async def pause(self, *, version: int | None = None, park: bool = False) -> LifecycleInfo:
        """As `Box.pause`."""
        return await self._run(calls.pause(self._where, version, park))

    async def resume(self, *, version: int | None = None) -> LifecycleInfo:
        """As `Box.resume`."""
        return await self._run(calls.resume(self._where, version))

    async def checkpoint(self) -> str:
        """As `Box.checkpoint`."""
        return await self._run(calls.checkpoint(self._where))

    async def fork(
        self, n: int = 1, *, labels: Mapping[str, str] | None = None, key: str | None = None
    ) -> builtins.list[AsyncSandbox]:
        """As `Box.fork`."""
        forks = await self._run(calls.fork(self._where, n, labels, key))
        return [AsyncSandbox(self._client, told.id, told) for told in forks]


class AsyncSandbox(AsyncBox):
    """As `Sandbox`."""

    def __init__(self, client: AsyncClient, id: str, created: SandboxInfo | None = None) -> None:
        super().__init__(client, Where(id))
        self.created = created
        self._actions = itertools.count()
        self._prefix = secrets.token_hex(8)

    def __repr__(self) -> str:
        return f"AsyncSandbox({self.id!r})"

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        try:
            await self.kill()
        except errors.Error:
            # Its deadlines end it; what went wrong in the block is the error to see.
            if kind is None:
                raise

    def _action_id(self) -> str:
        return f"{self._prefix}-{next(self._actions)}"

    async def info(self) -> SandboxInfo:
        """As `Sandbox.info`."""
        return await self._run(calls.info(self.id))

    async def exec(
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
        """As `Sandbox.exec`."""
        run = Run(command, dict(env or {}), cwd, user, stdin, timeout, output_bytes_max)
        return await self._run(calls.exec(self._where, action_id or self._action_id(), run))

    async def run(self, command: Command, **options: Any) -> CommandResult:
        """As `Sandbox.run`."""
        return calls.checked(await self.exec(command, **options), command)

    def shell(self, name: str = "main") -> AsyncShell:
        """As `Sandbox.shell`."""
        return AsyncShell(self, name)

    async def read(self, path: str, *, version: str | None = None) -> bytes:
        """As `Sandbox.read`."""
        return await self._read_bytes(path, version)

    async def write(
        self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """As `Sandbox.write`."""
        whole = data.encode() if isinstance(data, str) else data
        return await self._write_from(path, io.BytesIO(whole), len(whole), mode, user)

    async def kill(self, reason: str = "ended by the client") -> bool:
        """As `Sandbox.kill`."""
        return await self._run(calls.kill_one(self.id, reason))


class AsyncShell:
    """As `Shell`."""

    def __init__(self, sandbox: AsyncSandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox

    def __repr__(self) -> str:
        return f"AsyncShell({self._sandbox.id!r}, {self.name!r})"

    async def exec(
        self,
        command: str,
        *,
        timeout: Duration | None = None,
        output_bytes_max: int | None = None,
        action_id: str | None = None,
    ) -> CommandResult:
        """As `Shell.exec`."""
        run = Run(command, timeout=timeout, output_bytes_max=output_bytes_max, in_shell=self.name)
        sandbox = self._sandbox
        return await sandbox._run(calls.exec(sandbox._where, action_id or sandbox._action_id(), run))

    async def run(self, command: str, **options: Any) -> CommandResult:
        """As `Shell.run`."""
        return calls.checked(await self.exec(command, **options), command)


class AsyncProcess:
    """As `Process`."""

    def __init__(self, client: AsyncClient, call: Any) -> None:
        self._client = client
        self._call = call
        self._sending = asyncio.Lock()
        self._reading: asyncio.Task[wire.ExecOutput | None] | None = None
        self.end: ExitInfo | None = None
        self.pid = 0

    @classmethod
    async def _start(cls, client: AsyncClient, first: wire.ExecInput) -> AsyncProcess:
        process = cls(client, (await client._stub_of(calls.SERVICE)).Exec())
        try:
            # Of a refusal the reader is told why.
            with contextlib.suppress(BrokenPipeError):
                await process._put(first)
            told = await process._read()
            if told is None or not told.HasField("started"):
                raise errors.make("bad_answer", "a process began without a word about its start")
        except BaseException:
            await process.close()
            raise
        process.pid = int(told.started.pid)
        return process

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _next(self) -> wire.ExecOutput | None:
        """Given up, what comes is for the next who asks: a read that is cancelled ends the call."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        told = await asyncio.shield(self._reading)
        self._reading = None
        return told

    async def _read(self) -> wire.ExecOutput | None:
        async with self._client._errors():
            told = await self._call.read()
            return None if told is grpc.aio.EOF else told

    async def _put(self, item: wire.ExecInput) -> None:
        async with self._sending:
            if self.end is not None or self._call.done():
                raise BrokenPipeError("the process takes no more input")
            try:
                await self._call.write(item)
            except (grpc.RpcError, asyncio.InvalidStateError):
                raise BrokenPipeError("the process takes no more input") from None

    async def __aiter__(self) -> AsyncIterator[LogChunk]:
        """As iterating over `Process`."""
        while self.end is None:
            told = await self._next()
            if told is None:
                raise errors.make("yard_lost", "the streams of the process ended before it did")
            if told.HasField("ended"):
                self.end = ExitInfo.of(told.ended)
            else:
                stream = told.WhichOneof("output")
                yield LogChunk(stream, getattr(told, stream), 0)

    async def wait(self, timeout: Duration | None = None) -> ExitInfo:
        """As `Process.wait`."""
        left = None if timeout is None else seconds(timeout, "timeout", may_be_zero=True)
        if self.end is None:
            # A wait of no time is given one turn: what is there already is read.
            ended = asyncio.ensure_future(self._ended())
            try:
                await asyncio.wait_for(ended, max(left, _ONE_TURN_SECONDS) if left is not None else None)
            except asyncio.TimeoutError:
                raise still_running(left) from None
        assert self.end is not None
        return self.end

    async def _ended(self) -> None:
        async for _ in self:
            pass

    async def write(self, data: bytes) -> None:
        """As `Process.write`."""
        for piece in calls.pieces(data, calls.STREAM_CHUNK_BYTES):
            await self._put(wire.ExecInput(stdin=piece))

    async def close_stdin(self) -> None:
        """As `Process.close_stdin`."""
        await self._put(wire.ExecInput(close_stdin=True))

    async def resize(self, columns: int, rows: int) -> None:
        """As `Process.resize`."""
        await self._put(wire.ExecInput(resize=wire.PtySize(columns=columns, rows=rows)))

    async def signal(self, number: int) -> None:
        """As `Process.signal`."""
        await self._put(wire.ExecInput(signal=number))

    async def close(self) -> None:
        """As `Process.close`."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None


async def create(client: AsyncClient, request: wire.CreateSandboxRequest) -> AsyncSandbox:
    told = await client._run(calls.create(request))
    return AsyncSandbox(client, told.id, told)
