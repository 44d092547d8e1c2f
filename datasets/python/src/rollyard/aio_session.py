"""The asyncio twin of `session`: the same names, awaited."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, overload

from . import errors
from . import sandbox_calls as calls
from .aio_sandbox import AsyncBox
from .quantities import Duration, seconds
from .sandbox_calls import Command, Get, Payload, Put, Run, TurnRewards, Where
from .sandbox_views import ActionInfo, CommandResult
from .session import Slots, Task, no_model
from .v1 import sandboxes_pb2 as wire

if TYPE_CHECKING:
    from .aio import AsyncClient


class AsyncSession(AsyncBox):
    """As `Session`. A call gets its ordinal when it is made, not when it is awaited: calls that run
    side by side have the same ids each time."""

    def __init__(self, client: AsyncClient, told: wire.Session, ttl: Duration) -> None:
        super().__init__(client, Where(told.sandbox, told.claim))
        self.task = Task(told)
        self._actions = itertools.count()
        period = seconds(ttl, "ttl") / calls.RENEWALS_PER_TTL
        self._renewing: asyncio.Task[None] = asyncio.create_task(self._renew(period))

    def __repr__(self) -> str:
        return f"AsyncSession({self.id!r})"

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `Session.close`."""
        self._renewing.cancel()

    async def _renew(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            try:
                await self._run(calls.renew(self._where))
            except errors.Error as error:
                if not calls.may_be_back(error):
                    # The next call of the session says what became of it.
                    return

    def _next_id(self) -> str:
        return str(next(self._actions))

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
        in_shell: str | None = None,
    ) -> Coroutine[Any, Any, CommandResult]:
        """As `Session.exec`."""
        run = Run(command, dict(env or {}), cwd, user, stdin, timeout, output_bytes_max, in_shell)
        return self._run(calls.exec(self._where, self._next_id(), run))

    def run(self, command: Command, **options: Any) -> Coroutine[Any, Any, CommandResult]:
        """As `Session.run`."""
        running = self.exec(command, **options)

        async def checked() -> CommandResult:
            return calls.checked(await running, command)

        return checked()

    def read(self, path: str) -> Coroutine[Any, Any, bytes]:
        """As `Session.read`."""
        return self._run(calls.get(self._where, self._next_id(), Get(path)))

    def write(
        self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """As `Session.write`."""
        whole = data.encode() if isinstance(data, str) else data
        return self._run(calls.put(self._where, self._next_id(), Put(path, whole, mode, user)))

    @overload
    async def act(self, action_id: str, payload: Run) -> CommandResult: ...
    @overload
    async def act(self, action_id: str, payload: Get) -> bytes: ...
    @overload
    async def act(self, action_id: str, payload: Put) -> None: ...
    async def act(self, action_id: str, payload: Payload) -> Any:
        """As `Session.act`."""
        return await self._run(calls.act_any(self._where, action_id, payload))

    async def actions(self, first: int = 0) -> AsyncIterator[ActionInfo]:
        """As `Session.actions`."""
        more = True
        while more:
            rows, more = await self._run(calls.actions(self._where, first))
            for row in rows:
                yield row
            more = more and bool(rows)
            first += len(rows)

    @property
    def model_url(self) -> str:
        """Not available yet."""
        raise no_model()

    async def finish(
        self,
        reward: float | None = None,
        turn_rewards: TurnRewards | None = None,
        *,
        problem: str | None = None,
    ) -> None:
        """As `Session.finish`."""
        await self._run(calls.finish(self._where, reward, turn_rewards, problem))
        self.task.finished = True
        self.close()


async def claimed(client: AsyncClient, job: str, driver: str | None, ttl: Duration) -> AsyncIterator[AsyncSession]:
    slots = Slots(driver)
    while True:
        slot, claim = slots.claim(job, ttl)
        reply = await client._run(claim)
        session = AsyncSession(client, reply.session, ttl) if reply.HasField("session") else None
        slots.hold(slot, session.task if session else None)
        if session is not None:
            yield session
        elif reply.drained:
            return
