"""What `Client` does about sandboxes and sessions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from . import sandbox, sandbox_calls
from .drive import DriveInfo, Solve, job_id
from .flow import Flow
from .quantities import Bytes, Cores, Duration
from .sandbox import Sandbox
from .sandbox_calls import TTL_SECONDS_DEFAULT
from .sandbox_views import KillInfo, SandboxInfo
from .session import Renewals, Session
from .v1 import sandboxes_pb2 as wire

if TYPE_CHECKING:
    from .client import Client, JobHandle

T = TypeVar("T")


class SandboxClient:
    """The part of `Client` that is about sandboxes."""

    url: str

    def __init__(self) -> None:
        self._renewals = Renewals(cast("Client", self))

    def close(self) -> None:
        """Sessions that are open are renewed no more."""
        self._renewals.close()

    def _run(self, steps: Flow[T]) -> T:
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
    ) -> Sandbox:
        """Creates a sandbox and waits until it is ready; a burst waits in the yard. In a `with` block
        it ends with the block.

        `image`, `cpu`, `memory` (what is reserved: None is 500m and 512Mi) and the limits are written
        as in a spec, or as numbers of cores and bytes; durations are seconds, or text such as `"30s"`.
        It ends `idle_timeout` after the last call (None: 5 min) and `timeout` after it was
        ready (None: 1 h), paused or not. It may wait `start_timeout` for room (None: 5 min).
        After `park_after` without a call (None: 30 s) it goes down the idle ladder, as far as `idle_mode` says:
        `"freeze"` (None) stops its processes; `"checkpoint"` saves its files and ends it on its node, which is free
        of it until the next call. `checkpoint` is what its files begin with, over that checkpoint's image. The same
        `key` gives the same sandbox.
        """
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
        return sandbox.create(cast("Client", self), request)

    def open_sandbox(self, id: str) -> Sandbox:
        """A sandbox that is there already: `ROLLOUT@NODE`, or `ROLLOUT`. Nothing is asked yet."""
        return Sandbox(cast("Client", self), id)

    def sandboxes(self, labels: Mapping[str, str] | None = None, *, ended: bool = False) -> Iterator[SandboxInfo]:
        """The sandboxes that have all of these labels, page by page; with `ended` also those that have
        ended."""
        request = wire.ListSandboxesRequest(labels=dict(labels or {}), ended_too=ended)
        while True:
            rows, token = self._run(sandbox_calls.page(request))
            yield from rows
            if not token:
                return
            request.page_token = token

    def kill_sandboxes(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        ids: Sequence[str] | None = None,
        reason: str = "ended by the client",
    ) -> KillInfo:
        """Ends the sandboxes that have all of these labels, or those of these names. It goes on past
        one that fails; to end one twice changes nothing."""
        return self._run(sandbox_calls.kill(ids, labels, reason))

    def session(
        self,
        rollout: str,
        *,
        driver: str | None = None,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        wait: Duration = 20.0,
    ) -> Session:
        """Claims the session of a rollout, to drive it by hand; `wait` seconds at most for it to run
        unclaimed. See `JobHandle.sessions` for `driver` and `ttl`. Raises `NotFoundError`."""
        name = driver or sandbox_calls.fresh_driver()
        told = self._run(sandbox_calls.claim_one(rollout, name, ttl, wait))
        return Session(cast("Client", self), told, ttl)

    def drive(
        self,
        job: JobHandle | str,
        solve: Solve,
        *,
        concurrency: int = 256,
        driver: str | None = None,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        raise_errors: bool | None = None,
    ) -> DriveInfo:
        """Drives the sessions of a job with `async def solve(s)`, up to `concurrency` at once, until
        none will come. See `AsyncClient.drive`; not for use inside an event loop. A Ctrl-C detaches:
        claims are given up, and the job goes on in the yard."""
        from .aio import AsyncClient

        async def work() -> DriveInfo:
            async with AsyncClient(self.url) as client:
                return await client.drive(
                    job_id(job), solve, concurrency=concurrency, driver=driver, ttl=ttl, raise_errors=raise_errors
                )

        try:
            return asyncio.run(work())
        except KeyboardInterrupt:
            print(f"job {job_id(job)} goes on in the yard", file=sys.stderr, flush=True)
        # Of the event loop nothing is to be told.
        raise KeyboardInterrupt
