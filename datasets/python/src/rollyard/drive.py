"""Environments in Python: an async function that is run once per session of a job."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors
from . import sandbox_calls as calls
from .aio_session import AsyncSession
from .quantities import Duration
from .session import Slots

if TYPE_CHECKING:
    from .aio import AsyncClient

Solve = Callable[[AsyncSession], Awaitable[Any]]
S = TypeVar("S", bound=Solve)

PROBLEM_BYTES_MAX = 4000
"""Of the text of an error; the yard takes little more."""
PROBLEMS_MAX = 100
FAILURES_IN_A_ROW_MAX = 3
"""With the same type of exception: so fails a mistake in `solve`, and it would fail every session."""
RELEASE_TTL_SECONDS = 1.0
#: A claim that was being asked for is looked for so often, so long apart.
RELEASE_LOOKS = 4
RELEASE_PAUSE_SECONDS = 0.25
"""The shortest a claim may have."""
RELEASE_SECONDS_MAX = 5.0
PACKAGE = os.path.dirname(__file__)
LEFT_TO_THE_YARD = (errors.SandboxGone, errors.ClaimLost)
"""What the yard deals with: the session is over, or not this driver's any more."""


def rollout(solve: S) -> S:
    """Marks an `async def solve(s)` that drives one session: see `Client.drive`."""
    of_its_own: bool = inspect.iscoroutinefunction(solve)
    if not of_its_own:
        raise errors.make("bad_request", f"`{shown(solve)}` is no coroutine function", "write `async def`")
    return solve


@dataclass
class DriveInfo:
    """What a drive came to, counted by runs of `solve`: a session that is tried again counts each time."""

    finished: int = 0
    """Runs whose session this drive finished, by `s.finish`, by the end of `solve`, or with a problem: those of
    `with_problem` are among them, unless their session was gone before that could be told."""
    with_problem: int = 0
    """Runs whose `solve` raised. Its session is finished with the exception as its `problem`, unless it was
    finished or gone before; a rollout with a problem has no valid reward."""
    left: int = 0
    """Runs whose session was left to the yard: its sandbox ended or its claim was lost under `solve`. The yard
    tries its step again if its retries allow, and that counts as another run."""
    problems: list[str] = field(default_factory=list)
    """Of the runs in `with_problem`, the first `PROBLEMS_MAX` (100): `ROLLOUT: ` and the exception, below it the
    traceback without the frames of this package, 4,000 bytes at most."""


def job_id(job: Any) -> str:
    return job if isinstance(job, str) else str(job.id)


def shown(solve: Any) -> str:
    return str(getattr(solve, "__name__", solve))


async def drive(
    client: AsyncClient,
    job: str,
    solve: Solve,
    concurrency: int,
    driver: str | None,
    ttl: Duration,
    raise_errors: bool | None,
) -> DriveInfo:
    if concurrency < 1:
        raise errors.make("bad_request", f"`concurrency` is {concurrency}: at least one session is driven at a time")
    return await _Drive(client, job, rollout(solve), driver, ttl, raise_errors).work(concurrency)


def problem_of(error: Exception) -> str:
    """The error in a line, then its traceback without the frames of this package, of which what does
    not fit is left out at the front."""
    line = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
    shown = "".join(traceback.format_list(frames))
    half = PROBLEM_BYTES_MAX // 2
    first = line.encode("utf-8", "replace")[:half].decode("utf-8", "ignore")
    last = shown.encode("utf-8", "replace")[-half + 1 :].decode("utf-8", "ignore").rstrip()
    return f"{first}\n{last}" if last else first


class _Drive:
    def __init__(
        self,
        client: AsyncClient,
        job: str,
        solve: Solve,
        driver: str | None,
        ttl: Duration,
        raise_errors: bool | None,
    ) -> None:
        self._client = client
        self._job = job
        self._solve = solve
        self._slots = Slots(driver)
        self._ttl = ttl
        self._raise_errors = raise_errors
        self._done = DriveInfo()
        self._held: dict[AsyncSession, int] = {}
        self._asking: int | None = None
        self._asked: dict[int, int] = {}
        self._asks = 0
        self._failing: type[Exception] | None = None
        self._in_a_row = 0

    async def work(self, concurrency: int) -> DriveInfo:
        free = set(range(concurrency))
        running: dict[asyncio.Task[None], int] = {}
        claiming: asyncio.Task[Any] | None = None
        drained = False
        try:
            while not drained or running:
                if claiming is None and free and not drained:
                    claiming = asyncio.create_task(self._claim(self._next(free)))
                waited: set[asyncio.Task[Any]] = {*running, *([claiming] if claiming else [])}
                done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {claiming}:
                    free.add(running.pop(task))
                    task.result()
                if claiming in done:
                    assert claiming is not None
                    slot, reply = claiming.result()
                    claiming = None
                    if not reply.HasField("session"):
                        free.add(slot)
                    else:
                        session = AsyncSession(self._client, reply.session, self._ttl)
                        self._held[session] = slot
                        running[asyncio.create_task(self._one(session))] = slot
                    drained = reply.drained
        finally:
            left = [*running, *([claiming] if claiming else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._release()
        return self._done

    def _next(self, free: set[int]) -> int:
        """The slot that asks: each in turn, for under its name something may be held. First those that did
        not ask yet, or whose session was left to the yard and may come back."""
        slot = min(free, key=lambda slot: (self._asked.get(slot, 0), slot))
        free.remove(slot)
        return slot

    async def _claim(self, slot: int) -> tuple[int, Any]:
        self._asking = slot
        # No slot waits for a session while another did not ask for what it holds.
        wait_ms = calls.CLAIM_WAIT_MS if slot in self._asked else 0
        reply = await self._client._run(
            calls.claim(self._job, self._slots.name(slot), self._ttl, wait_ms=wait_ms)
        )
        self._asking = None
        self._asks += 1
        self._asked[slot] = self._asks
        return slot, reply

    async def _release(self) -> None:
        """What is held still is another driver's soon: it is claimed again for the shortest time. Where
        that cannot be done its claim ends by itself."""

        async def one(session: AsyncSession, slot: int) -> None:
            name, rollout = self._slots.name(slot), session.task.rollout
            again = calls.claim(self._job, name, RELEASE_TTL_SECONDS, rollout=rollout, wait_ms=0)
            await self._client._run(again)

        async def asked(slot: int) -> None:
            # The call was given up and may have been granted, or be granted yet.
            name = self._slots.name(slot)
            for _ in range(RELEASE_LOOKS):
                again = calls.claim(self._job, name, RELEASE_TTL_SECONDS, wait_ms=0, held_only=True)
                if (await self._client._run(again)).HasField("session"):
                    return
                await asyncio.sleep(RELEASE_PAUSE_SECONDS)

        releasing = [one(session, slot) for session, slot in self._held.items()]
        if self._asking is not None:
            releasing.append(asked(self._asking))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*releasing, return_exceptions=True), RELEASE_SECONDS_MAX)

    async def _one(self, session: AsyncSession) -> None:
        async with session:
            try:
                returned = await self._solve(session)
                if returned is not None:
                    what = f"`{shown(self._solve)}` returned {returned!r:.100}"
                    raise errors.make("bad_request", what, "give the reward with `s.finish(reward=...)`")
                if not session.task.finished:
                    await session.finish()
            except LEFT_TO_THE_YARD:
                self._asked.pop(self._held.pop(session), None)
                self._done.left += 1
                return
            except errors.UnreachableError:
                # The yard is away for good, or this drive is: the claim ends by itself.
                raise
            except Exception as error:
                if self._raise_errors or self._is_a_mistake(error):
                    raise
                await self._failed(session, error)
            else:
                self._in_a_row = 0
            del self._held[session]
            if session.task.finished:
                self._done.finished += 1

    def _is_a_mistake(self, error: Exception) -> bool:
        """Whether as many sessions failed in a row with this type of exception as are let pass. A node that
        was lost is nobody's mistake."""
        if isinstance(error, errors.OutcomeUnknown):
            return False
        self._in_a_row = self._in_a_row + 1 if self._failing is type(error) else 1
        self._failing = type(error)
        return self._raise_errors is None and self._in_a_row >= FAILURES_IN_A_ROW_MAX

    async def _failed(self, session: AsyncSession, error: Exception) -> None:
        text = problem_of(error)
        if self._done.with_problem == 0:
            words = f"`{shown(self._solve)}` failed in {session.task.rollout}; of later failures see `problems`:"
            print(f"{words}\n{text}", file=sys.stderr, flush=True)
        self._done.with_problem += 1
        if len(self._done.problems) < PROBLEMS_MAX:
            self._done.problems.append(f"{session.task.rollout}: {text}")
        if session.task.finished:
            return
        try:
            await session.finish(problem=text)
        except LEFT_TO_THE_YARD:
            self._done.left += 1
