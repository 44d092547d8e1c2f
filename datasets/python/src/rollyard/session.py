"""A session of a job, driven from this process. `aio_session` is the asyncio twin."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from . import errors
from . import sandbox_calls as calls
from .flow import Flow
from .quantities import Duration, seconds
from .sandbox import Box
from .sandbox_calls import Command, Get, Payload, Put, Run, TurnRewards, Where
from .sandbox_views import ActionInfo, CommandResult
from .v1 import sandboxes_pb2 as wire

if TYPE_CHECKING:
    from .client import Client


class Task:
    """What a session is about: `task["column"]` is a value of the row."""

    def __init__(self, told: wire.Session) -> None:
        self.rollout = told.rollout
        self.step = told.step
        self.attempt = int(told.attempt)
        """The try of the step, from 0."""
        self.group = told.group
        self.sample_index = calls.sample_of(told.rollout)
        """Which of the samples of its group, from 0."""
        self.task_id = told.task_id
        self.row: dict[str, Any] = json.loads(told.row) if told.row else {}
        """The row of the task."""
        self.recorded = int(told.actions)
        """Actions that were recorded already when it was claimed: so many calls give what they gave."""
        self.takes_reward = told.takes_reward
        """Its job has no grader, so that `finish` may give a reward."""
        self.finished = False
        """By this driver."""

    def __getitem__(self, column: str) -> Any:
        try:
            return self.row[column]
        except KeyError:
            there = ", ".join(f"`{name}`" for name in self.row) or "no column"
            raise KeyError(f"the row of task {self.task_id} has no column `{column}`; it has {there}") from None

    def __contains__(self, column: object) -> bool:
        return column in self.row

    def __repr__(self) -> str:
        return f"Task({self.rollout!r}, {self.step!r}, row={self.row!r})"


class Session(Box):
    """A claimed session. While it is open the claim is renewed; after `close` it ends by itself and
    the session can be claimed again.

    Action ids are the ordinals of the calls: a driver that comes back and makes the same calls gets
    the recorded results. All of it raises `ClaimLost` once somebody else may drive the session.
    """

    def __init__(self, client: Client, told: wire.Session, ttl: Duration) -> None:
        super().__init__(client, Where(told.sandbox, told.claim))
        self.task = Task(told)
        self._actions = itertools.count()
        client._renewals.add(self, ttl)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Renews the claim no more. Without `finish` the session waits for another driver."""
        self._client._renewals.remove(self)

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
    ) -> CommandResult:
        """Runs a command to its end, whatever its exit code: see `Run` for the fields.

        Raises `OutcomeUnknown`, and `ActionConflict` if this call was another one before."""
        run = Run(command, dict(env or {}), cwd, user, stdin, timeout, output_bytes_max, in_shell)
        return self._run(calls.exec(self._where, self._next_id(), run))

    def run(self, command: Command, **options: Any) -> CommandResult:
        """`exec`, and raises `CommandError` unless it ended with 0."""
        return calls.checked(self.exec(command, **options), command)

    def read(self, path: str) -> bytes:
        """A file of at most 1 MiB, as it was when this call was recorded; larger ones by `download`."""
        return self._run(calls.get(self._where, self._next_id(), Get(path)))

    def write(self, path: str, data: bytes | str, *, mode: int | None = None, user: str | None = None) -> None:
        """Writes a file of at most 1 MiB whole; larger ones by `upload`."""
        whole = data.encode() if isinstance(data, str) else data
        self._run(calls.put(self._where, self._next_id(), Put(path, whole, mode, user)))

    @overload
    def act(self, action_id: str, payload: Run) -> CommandResult: ...
    @overload
    def act(self, action_id: str, payload: Get) -> bytes: ...
    @overload
    def act(self, action_id: str, payload: Put) -> None: ...
    def act(self, action_id: str, payload: Payload) -> Any:
        """One action under an id of the caller's: the same id and payload give the recorded result.

        Raises `OutcomeUnknown`, `ActionConflict`."""
        return self._run(calls.act_any(self._where, action_id, payload))

    def actions(self, first: int = 0) -> Iterator[ActionInfo]:
        """What is recorded, from this ordinal on, page by page."""
        more = True
        while more:
            rows, more = self._run(calls.actions(self._where, first))
            yield from rows
            more = more and bool(rows)
            first += len(rows)

    @property
    def model_url(self) -> str:
        """Not available yet."""
        raise no_model()

    def finish(
        self,
        reward: float | None = None,
        turn_rewards: TurnRewards | None = None,
        *,
        problem: str | None = None,
    ) -> None:
        """The session is over. `reward` only if `task.takes_reward`; `turn_rewards` by turn, from 0.
        `problem`: it did not work out, in words; such a rollout has no valid reward."""
        self._run(calls.finish(self._where, reward, turn_rewards, problem))
        self.task.finished = True
        self.close()


def no_model() -> errors.Error:
    return errors.make(
        "not_available_yet", "a model proxy, and so `model_url`", "call the model from the driver itself"
    )


class Renewals:
    """The claims of a client that are renewed, by one thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._due: dict[Session, float] = {}
        self._period: dict[Session, float] = {}
        self._renewed: dict[Session, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, session: Session, ttl: Duration) -> None:
        period = seconds(ttl, "ttl") / calls.RENEWALS_PER_TTL
        with self._changed:
            self._period[session] = period
            self._renewed[session] = time.monotonic()
            self._due[session] = time.monotonic() + period
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rollyard-renew", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, session: Session) -> None:
        with self._changed:
            self._due.pop(session, None)
            self._period.pop(session, None)
            self._renewed.pop(session, None)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()

    def _next(self) -> Session | None:
        """The session to renew now; None at the end."""
        with self._changed:
            while not self._closed:
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is None:
                    self._changed.wait()
                    continue
                left = self._due[first] - time.monotonic()
                if left <= 0:
                    self._due[first] = time.monotonic() + self._period[first]
                    return first
                self._changed.wait(left)
        return None

    def _work(self) -> None:
        while (session := self._next()) is not None:
            period = self._period.get(session)
            if period is None:
                continue
            asked = time.monotonic()
            try:
                self._client._run(calls.renew(session._where))
            except errors.Error as error:
                # One whose node stays away costs the others no turn for longer than its claim lasts.
                has_lapsed = asked - self._renewed.get(session, 0.0) > period * calls.RENEWALS_PER_TTL
                if has_lapsed or not calls.may_be_back(error):
                    # The next call of the session says what became of it.
                    self.remove(session)
            else:
                with self._changed:
                    if session in self._renewed:
                        self._renewed[session] = asked


HELD_LOOKS_MAX = 16
"""A driver by hand looks for what it holds from before under one of its names after the other, until so many in a
row hold nothing."""


class Slots:
    """Names for a driver of several sessions. A name gets back the session it holds, so each session
    has one of its own; a driver that comes back asks with the same names."""

    def __init__(self, driver: str | None) -> None:
        self._driver = driver or calls.fresh_driver()
        self._held: list[Task | None] = []
        self._asked: list[int] = []
        self._asks = itertools.count(1)
        # Nothing is held under a name that nobody had.
        self._looks = HELD_LOOKS_MAX if driver else 0

    def looks(self) -> bool:
        """Whether there may be more that is held from before."""
        return self._looks > 0

    def another(self) -> int:
        """One that did not ask yet."""
        self._held.append(None)
        self._asked.append(0)
        return len(self._held) - 1

    def free(self) -> int:
        """Of those whose session is finished, if there are any, the one that asked longest ago: each in turn, for
        under its name something may be held."""
        free = [slot for slot, task in enumerate(self._held) if task is None or task.finished]
        return min(free, key=self._asked.__getitem__) if free else self.another()

    def claim(self, job: str, ttl: Duration) -> tuple[int, Flow[wire.ClaimSessionReply]]:
        """The next to ask, and how: first for what is held from before."""
        held_only = self.looks()
        slot = self.another() if held_only else self.free()
        self._asked[slot] = next(self._asks)
        wait_ms = 0 if held_only else calls.CLAIM_WAIT_MS
        return slot, calls.claim(job, self.name(slot), ttl, wait_ms=wait_ms, held_only=held_only)

    def name(self, slot: int) -> str:
        return f"{self._driver}-{slot}"

    def hold(self, slot: int, task: Task | None) -> None:
        """What came of a claim."""
        self._held[slot] = task
        if self.looks():
            self._looks = HELD_LOOKS_MAX if task else self._looks - 1


def claimed(client: Client, job: str, driver: str | None, ttl: Duration) -> Iterator[Session]:
    slots = Slots(driver)
    while True:
        slot, claim = slots.claim(job, ttl)
        reply = client._run(claim)
        session = Session(client, reply.session, ttl) if reply.HasField("session") else None
        slots.hold(slot, session.task if session else None)
        if session is not None:
            yield session
        elif reply.drained:
            return
