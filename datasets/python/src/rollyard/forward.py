"""A port of a sandbox as a port of this machine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import grpc

from . import address, errors, flow
from . import sandbox_calls as calls
from .sandbox_calls import Where
from .v1 import sandboxes_pb2 as wire
from .v1.sandboxes_pb2_grpc import SandboxesStub

if TYPE_CHECKING:
    from .aio import AsyncClient

START_SECONDS_MAX = 30.0
CUT = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)
"""What a call raises that has ended meanwhile, and a connection."""


class Relay:
    """Listens on loopback and carries each connection to the sandbox. At most
    `FORWARD_CONNECTIONS_MAX` at once; more wait."""

    def __init__(self, stub: Any, where: Where, port: int) -> None:
        if not 1 <= port <= 65535:
            raise errors.make("bad_request", f"port {port}: a TCP port is 1 to 65535")
        self._stub = stub
        self._where = where
        self._port = port
        self._room = asyncio.Semaphore(calls.FORWARD_CONNECTIONS_MAX)
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, local_port: int) -> tuple[str, int]:
        """The address it listens on."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", local_port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        """Stops listening and cuts the connections."""
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._room:
                await self._carry(reader, writer)
        except CUT:
            # The peer sees its connection cut, as it would see it from the port itself.
            writer.transport.abort()
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = self._stub.Forward()
        up: asyncio.Task[None] | None = None
        try:
            opening = wire.ForwardOpen(**self._where.fields(), port=self._port)
            await call.write(wire.ForwardInput(open=opening))
            while (told := await call.read()) is not grpc.aio.EOF:
                kind = told.WhichOneof("output")
                if kind == "opened":
                    up = asyncio.create_task(self._send(call, reader))
                elif kind == "data":
                    writer.write(told.data)
                    await writer.drain()
                elif kind == "closed" and writer.can_write_eof():
                    writer.write_eof()
        finally:
            call.cancel()
            if up is not None:
                up.cancel()
                with contextlib.suppress(asyncio.CancelledError, *CUT):
                    await up

    async def _send(self, call: Any, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(calls.STREAM_CHUNK_BYTES):
            await call.write(wire.ForwardInput(data=data))
        await call.write(wire.ForwardInput(close=True))


class Forward:
    """A forwarded port, until it is closed: for the client that blocks, carried by a thread."""

    def __init__(self, url: str, where: Where, port: int, local_port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollyard-forward", daemon=True)
        self._thread.start()
        self._relay: Relay | None = None
        self._channel: Any = None
        opening = asyncio.run_coroutine_threadsafe(self._open(url, where, port, local_port), self._loop)
        try:
            self.address: tuple[str, int] = opening.result(START_SECONDS_MAX)
            """Host and port on this machine."""
        except BaseException:
            self.close()
            raise

    async def _open(self, url: str, where: Where, port: int, local_port: int) -> tuple[str, int]:
        self._channel = grpc.aio.insecure_channel(address.target(url), options=flow.CHANNEL_OPTIONS)
        stub = SandboxesStub(self._channel)  # type: ignore[no-untyped-call]
        self._relay = Relay(stub, where, port)
        return await self._relay.listen(local_port)

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """On this machine."""
        return self.address[1]

    def close(self) -> None:
        """Stops listening and cuts the connections."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(START_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()

    async def _shut(self) -> None:
        if self._relay is not None:
            await self._relay.close()
        if self._channel is not None:
            await self._channel.close()


class AsyncForward:
    """A forwarded port, while the `async with` block runs or until it is closed."""

    def __init__(self, client: AsyncClient, where: Where, port: int, local_port: int) -> None:
        self._client = client
        self._what = (where, port, local_port)
        self._relay: Relay | None = None
        self.address: tuple[str, int] = ("", 0)
        """Host and port on this machine, once it is open."""

    async def __aenter__(self) -> AsyncForward:
        where, port, local_port = self._what
        self._relay = Relay(await self._client._stub_of(calls.SERVICE), where, port)
        self.address = await self._relay.listen(local_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """On this machine."""
        return self.address[1]

    async def close(self) -> None:
        """Stops listening and cuts the connections."""
        if self._relay is not None:
            await self._relay.close()
