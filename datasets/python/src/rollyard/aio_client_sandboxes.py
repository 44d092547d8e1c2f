"""What `AsyncClient` does about sandboxes and sessions: the twin of `client_sandboxes`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from . import aio_sandbox, drive, sandbox_calls
from .aio_sandbox import AsyncSandbox, Opening
from .aio_session import AsyncSession
from .drive import DriveInfo, Solve
from .flow import Flow
from .quantities import Bytes, Cores, Duration
from .sandbox_calls import TTL_SECONDS_DEFAULT
from .sandbox_views import KillInfo, SandboxInfo
from .v1 import sandboxes_pb2 as wire

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncJobHandle

T = TypeVar("T")


class AsyncSandboxClient:
    """The part of `AsyncClient` that is about sandboxes."""

    async def _run(self, steps: Flow[T]) -> T:
        raise NotImplementedError

    def sandbox(
        self,
        image: str = "host",
        *,
        cpu: Cores | None = None,
        memory: Bytes | None = None,
        cpu_limit: Cores | None = None,
        memory_limit: Bytes | None = None,
        disk_limit: Bytes | None = None,
        pids_limit: int | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        idle_timeout: Duration | None = None,
        timeout: Duration | None = None,
        start_timeout: Duration | None = None,
        park_after: Duration | None = None,
        idle_mode: str | None = None,
        checkpoint: str | None = None,
        key: str | None = None,
    ) -> Opening:
        """As `Client.sandbox`: `async with client.sandbox() as sb`, or `sb = await client.sandbox()`."""
        request = sandbox_calls.create_request(
            image=image,
            cpu=cpu,
            memory=memory,
            cpu_limit=cpu_limit,
            memory_limit=memory_limit,
            disk_limit=disk_limit,
            pids_limit=pids_limit,
            labels=labels,
            env=env,
            user=user,
            workdir=workdir,
            idle_timeout=idle_timeout,
            timeout=timeout,
            start_timeout=start_timeout,
            park_after=park_after,
            idle_mode=idle_mode,
            checkpoint=checkpoint,
            key=key,
        )
        return Opening(lambda: aio_sandbox.create(cast("AsyncClient", self), request))

    def open_sandbox(self, id: str) -> AsyncSandbox:
        """As `Client.open_sandbox`."""
        return AsyncSandbox(cast("AsyncClient", self), id)

    async def sandboxes(
        self, labels: Mapping[str, str] | None = None, *, ended: bool = False
    ) -> AsyncIterator[SandboxInfo]:
        """As `Client.sandboxes`."""
        request = wire.ListSandboxesRequest(labels=dict(labels or {}), ended_too=ended)
        while True:
            rows, token = await self._run(sandbox_calls.page(request))
            for row in rows:
                yield row
            if not token:
                return
            request.page_token = token

    async def kill_sandboxes(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        ids: Sequence[str] | None = None,
        reason: str = "ended by the client",
    ) -> KillInfo:
        """As `Client.kill_sandboxes`."""
        return await self._run(sandbox_calls.kill(ids, labels, reason))

    async def session(
        self,
        rollout: str,
        *,
        driver: str | None = None,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        wait: Duration = 20.0,
    ) -> AsyncSession:
        """As `Client.session`."""
        name = driver or sandbox_calls.fresh_driver()
        told = await self._run(sandbox_calls.claim_one(rollout, name, ttl, wait))
        return AsyncSession(cast("AsyncClient", self), told, ttl)

    async def drive(
        self,
        job: AsyncJobHandle | str,
        solve: Solve,
        *,
        concurrency: int = 256,
        driver: str | None = None,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        raise_errors: bool | None = None,
    ) -> DriveInfo:
        """Drives the sessions of a job with `async def solve(s)`, up to `concurrency` at once, until
        none will come.

        The calls of `s` are recorded actions with their ordinals as ids. A driver that dies leaves its
        claims to end after `ttl` seconds; whoever drives the session then (at once, under the same
        `driver`) makes the same calls again and gets the recorded results, up to where it stopped.

        A `solve` that returns without `s.finish` finishes without a reward; one that raises finishes
        with the error and its traceback as its problem, and no valid reward. `raise_errors` says when
        an exception ends the drive and is raised: None once `FAILURES_IN_A_ROW_MAX` (3) sessions in a
        row failed with the same type of exception, True at the first, False never. Sessions that are
        open then are not finished: their claims are given up, for a driver with a mended `solve`. A
        session that the yard lost meanwhile (`SandboxGone`, `ClaimLost`) is left to the yard.
        """
        return await drive.drive(
            cast("AsyncClient", self), drive.job_id(job), solve, concurrency, driver, ttl, raise_errors
        )
