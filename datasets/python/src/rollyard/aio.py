"""The asyncio twin of `client`: the same names, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pyarrow as pa

from . import address, aio_session, errors, flow, spec, yard
from .aio_client_sandboxes import AsyncSandboxClient
from .aio_session import AsyncSession
from .client import connect_or_start, error_of, harbor, refuse_harbor_arguments
from .flow import Call, Flow, Step, Upload
from .progress import Progress
from .quantities import Duration, seconds
from .sandbox_calls import TTL_SECONDS_DEFAULT
from .table import Table, open_table
from .v1 import jobs_pb2 as wire
from .v1.jobs_pb2_grpc import JobsStub
from .v1.sandboxes_pb2_grpc import SandboxesStub
from .views import Counts, JobInfo, LogChunk, RetryInfo, RolloutInfo

T = TypeVar("T")


class AsyncClient(AsyncSandboxClient):
    """As `Client`, for one event loop. The connection is made (and a yard started, if need be) at
    `async with` or the first call."""

    def __init__(
        self,
        url: str | None = None,
        project: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        start: bool = True,
    ) -> None:
        self.url: str | None = None
        self._connect: Callable[[], tuple[str, yard.Yard | None]] = lambda: connect_or_start(
            url, project, data_dir, start
        )
        self._lock = asyncio.Lock()
        self._yard: yard.Yard | None = None
        self._channel: Any = None
        self._stub: Any = None
        self._stubs: dict[str, Any] = {}
        self._closed = False
        self._reached = False

    async def __aenter__(self) -> AsyncClient:
        await self._ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ready(self) -> tuple[Any, str]:
        async with self._lock:
            if self._stub is None or self.url is None:
                url, self._yard = await asyncio.to_thread(self._connect)
                self._channel = grpc.aio.insecure_channel(address.target(url), options=flow.CHANNEL_OPTIONS)
                self._stub = JobsStub(self._channel)  # type: ignore[no-untyped-call]
                sandboxes: Any = SandboxesStub(self._channel)  # type: ignore[no-untyped-call]
                self._stubs = {"Jobs": self._stub, "Sandboxes": sandboxes}
                self.url = url
            return self._stub, self.url

    async def _stub_of(self, service: str) -> Any:
        await self._ready()
        return self._stubs[service]

    async def close(self) -> None:
        """Closes the connection, and ends the yard if this client started it."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
        if self._yard is not None:
            await asyncio.to_thread(self._yard.stop)
            self._yard = None

    async def submit(
        self,
        what: spec.Spec,
        *,
        agent: Sequence[str] | str | None = None,
        n: int | None = None,
        image: str | None = None,
        table: str | os.PathLike[str] | None = None,
        new: bool = False,
        key: str | None = None,
    ) -> AsyncJobHandle:
        """As `Client.submit`."""
        _, url = await self._ready()
        if spec.is_harbor(what):
            found = await asyncio.to_thread(harbor, url, what, agent, n, image, table, new, key)
            return AsyncJobHandle(self, *found)
        refuse_harbor_arguments(agent, n, image)
        document = spec.document(what)
        root = None if table is None else os.fspath(table)
        submitted = await self._run(
            flow.submit(document, table=root, new=new, key=key, on_this_machine=url.startswith("unix:"))
        )
        return AsyncJobHandle(self, submitted.job.id, submitted.resumed)

    def job(self, id: str) -> AsyncJobHandle:
        """A job the yard knows. Nothing is asked yet."""
        return AsyncJobHandle(self, id, False)

    async def jobs(self, unfinished_only: bool = False) -> AsyncIterator[JobInfo]:
        """All jobs, newest first, page by page."""
        request = wire.ListRequest(unfinished_only=unfinished_only)
        while True:
            reply = await self._run(flow.pages("List", request))
            for job in reply.jobs:
                yield JobInfo.of(job)
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    async def _run(self, steps: Flow[T]) -> T:
        """`flow.run`, awaited."""
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self._do(step)
                except errors.Error as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _do(self, step: Step) -> Any:
        await self._ready()
        async with self._errors():
            if isinstance(step, Upload):
                return await self._stub.PutBlob(_chunks(step))
            if isinstance(step, Call):
                reply = await getattr(self._stubs[step.service], step.method)(step.request)
                self._reached = True
                return reply
        if self._closed:
            raise errors.make("yard_lost", f"the connection to {self.url} is closed")
        await asyncio.sleep(step.seconds)
        return None

    @contextlib.asynccontextmanager
    async def _stream(self, service: str, method: str, request: Any) -> AsyncIterator[Any]:
        """What a call answers, piece by piece."""
        stub = await self._stub_of(service)
        async with self._errors():
            call = getattr(stub, method)(request)
            try:
                yield call
            finally:
                call.cancel()

    async def _send(self, service: str, method: str, chunks: Iterator[Any]) -> Any:
        """The answer to what is sent piece by piece. What goes wrong with the pieces is raised."""
        stub = await self._stub_of(service)
        async with self._errors():
            call = getattr(stub, method)()
            try:
                while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                    await call.write(chunk)
                await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError):
                # It was answered early: the answer says why.
                pass
            except BaseException:
                call.cancel()
                raise
            return await call

    @contextlib.asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise error_of(error, self.url or "", self._reached) from None
        except grpc.aio.UsageError as error:
            raise errors.make("yard_lost", f"the connection to {self.url} is closed") from error


async def _chunks(upload: Upload) -> AsyncIterator[wire.BlobChunk]:
    chunks = upload.chunks()
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


class AsyncJobHandle:
    """As `JobHandle`."""

    def __init__(self, client: AsyncClient, id: str, resumed: bool) -> None:
        self.id = id
        self.resumed = resumed
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"

    async def info(self) -> JobInfo:
        """The job now. Raises `NotFoundError`."""
        return JobInfo.of(await self._client._do(Call("Get", wire.GetRequest(job=self.id))))

    async def counts(self) -> Counts:
        """How far it is."""
        return (await self.info()).counts

    async def wait(
        self, *, progress: bool = False, timeout: Duration | None = None, through_hold: bool = False
    ) -> JobInfo:
        """As `JobHandle.wait`. A cancelled task detaches: the job goes on in the yard."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout", may_be_zero=True)
        shown = Progress(progress)
        try:
            info = await self._watch(deadline, through_hold, shown)
        except (KeyboardInterrupt, asyncio.CancelledError):
            shown.say(f"job {self.id} goes on in the yard")
            raise
        finally:
            shown.end()
        if error := flow.ended(self.id, info):
            raise error
        return info

    async def _watch(self, deadline: float | None, through_hold: bool, shown: Progress) -> JobInfo:
        patience = flow.Patience(shown.say)
        stub, _ = await self._client._ready()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            changes = stub.Watch(wire.GetRequest(job=self.id), timeout=left)
            broke = errors.make("yard_lost", f"the watch of {self.id} ended early")
            try:
                async with self._client._errors():
                    async for message in changes:
                        patience.answered()
                        self._client._reached = True
                        info = JobInfo.of(message)
                        shown.update(info)
                        if info.final or (info.state == "held" and not through_hold):
                            return info
            except errors.UnreachableError as error:
                broke = error
            except errors.Error as error:
                if error.code == "grpc_deadline_exceeded" and deadline is not None:
                    raise TimeoutError(f"job {self.id} has not ended in time") from None
                raise
            finally:
                changes.cancel()
            pause = patience.pause(broke)
            await asyncio.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))

    async def cancel(self, reason: str = "cancelled by the user") -> JobInfo:
        """As `JobHandle.cancel`."""
        return JobInfo.of(await self._client._do(Call("Cancel", wire.CancelRequest(job=self.id, reason=reason))))

    async def retry(
        self, target: str | None = None, *, all_failed: bool = False, cancelled: bool = False, key: str | None = None
    ) -> RetryInfo:
        """As `JobHandle.retry`."""
        request = flow.retry_request(target or self.id, all_failed, cancelled, key)
        return RetryInfo.of(await self._client._run(flow.resent(Call("Retry", request))))

    def sessions(
        self, *, driver: str | None = None, ttl: Duration = TTL_SECONDS_DEFAULT
    ) -> AsyncIterator[AsyncSession]:
        """As `JobHandle.sessions`."""
        return aio_session.claimed(self._client, self.id, driver, ttl)

    async def explain(self, step: str | None = None) -> list[str]:
        """As `JobHandle.explain`."""
        request = wire.ExplainRequest(target=flow.target_of(self.id, step))
        return list((await self._client._do(Call("Explain", request))).lines)

    async def rollouts(self) -> AsyncIterator[RolloutInfo]:
        """As `JobHandle.rollouts`."""
        request = wire.ListRolloutsRequest(job=self.id)
        while True:
            reply = await self._client._run(flow.pages("ListRollouts", request))
            for rollout in reply.rollouts:
                yield RolloutInfo.of(rollout)
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    async def logs(
        self,
        target: str,
        *,
        stream: str | None = None,
        attempt: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogChunk]:
        """As `JobHandle.logs`."""
        rollout, step = flow.split_target(flow.target_of(self.id, target))
        if step is None:
            reply = await self._client._do(Call("ListSteps", wire.ListStepsRequest(rollout=rollout)))
            step = flow.most_telling(rollout, reply.steps)
        request = wire.LogsRequest(
            rollout=rollout, step=step, attempt=attempt, stream=stream or "", follow=follow
        )
        stub, _ = await self._client._ready()
        chunks = stub.Logs(request)
        try:
            async with self._client._errors():
                async for chunk in chunks:
                    yield LogChunk(chunk.stream, chunk.data, chunk.dropped_bytes)
        finally:
            chunks.cancel()

    async def table(self, name: str = "trajectories", *, superseded: bool = False) -> Table:
        """As `JobHandle.table`."""
        root = Path((await self.info()).table_root)
        return await asyncio.to_thread(open_table, root / self.id, name, superseded=superseded)

    async def record_batches(self, table: str = "trajectories") -> AsyncIterator[pa.RecordBatch]:
        """As `JobHandle.record_batches`."""
        batches = (await self.table(table)).record_batches()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def rows(self, table: str = "trajectories") -> AsyncIterator[dict[str, Any]]:
        """As `JobHandle.rows`."""
        async for batch in self.record_batches(table):
            for row in batch.to_pylist():
                yield row
