"""A process of a sandbox with its streams, for the client that blocks."""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import errors
from . import sandbox_calls as calls
from .quantities import Duration, seconds
from .sandbox_views import ExitInfo
from .v1 import sandboxes_pb2 as wire
from .views import LogChunk

if TYPE_CHECKING:
    from .client import Client


class Inputs:
    """What is on its way to a process: bounded, read by the transport in a thread of its own."""

    def __init__(self) -> None:
        self._waiting: collections.deque[wire.ExecInput] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: wire.ExecInput) -> None:
        """Waits while `STDIN_CHUNKS_MAX` are on their way. Raises `BrokenPipeError` once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < calls.STDIN_CHUNKS_MAX)
            if self._closed:
                raise BrokenPipeError("the process takes no more input")
            self._waiting.append(item)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more comes; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[wire.ExecInput]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._waiting))
                if not self._waiting:
                    return
                item = self._waiting.popleft()
                self._changed.notify_all()
            yield item


def still_running(left: float | None) -> errors.Error:
    return errors.make(errors.STILL_RUNNING, f"the process has not ended within {left:g} s, and runs on")


class Process:
    """A process that runs while this is open: iterate over what it writes, then look at `end`.

    Its tree is killed when it is closed, at the end of a `with` block, or when this program ends,
    unless it was started with `detach`. It stops when nobody reads what it writes.
    """

    def __init__(self, client: Client, first: wire.ExecInput) -> None:
        self._client = client
        self._inputs = Inputs()
        self._inputs.put(first)
        self._call: Any = client._talk(calls.SERVICE, "Exec", iter(self._inputs))
        self._reading: queue.SimpleQueue[tuple[wire.ExecOutput | None, BaseException | None]] | None = None
        self.end: ExitInfo | None = None
        """How it ended; None while it runs."""
        try:
            told = self._next()
            if told is None or not told.HasField("started"):
                raise errors.make("bad_answer", "a process began without a word about its start")
        except BaseException:
            self.close()
            raise
        self.pid = int(told.started.pid)
        """As the sandbox numbers it."""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, until: float | None = None) -> wire.ExecOutput | None:
        """Raises `queue.Empty` at `until`; what comes then is for the next who asks."""
        if until is None and self._reading is None:
            with self._client._errors():
                return next(self._call, None)
        if self._reading is None:
            self._reading = queue.SimpleQueue()
            # The transport cannot be waited for with a deadline. It ends with the call.
            threading.Thread(target=self._read, args=(self._reading,), name="rollyard-read", daemon=True).start()
        told, error = self._reading.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        self._reading = None
        if error is not None:
            raise error
        return told

    def _read(self, into: queue.SimpleQueue[tuple[wire.ExecOutput | None, BaseException | None]]) -> None:
        try:
            with self._client._errors():
                told = next(self._call, None)
        except BaseException as error:
            into.put((None, error))
        else:
            into.put((told, None))

    def __iter__(self) -> Iterator[LogChunk]:
        """What it writes, as it comes; of a terminal all of it is stdout."""
        return self._chunks(None)

    def _chunks(self, until: float | None) -> Iterator[LogChunk]:
        while self.end is None:
            told = self._next(until)
            if told is None:
                self._inputs.close()
                raise errors.make("yard_lost", "the streams of the process ended before it did")
            if told.HasField("ended"):
                self.end = ExitInfo.of(told.ended)
                self._inputs.close()
            else:
                stream = told.WhichOneof("output")
                yield LogChunk(stream, getattr(told, stream), 0)

    def wait(self, timeout: Duration | None = None) -> ExitInfo:
        """Waits for its end; what it writes until then is dropped. `timeout` is in seconds, or text such as
        `"30s"`.

        Raises `StillRunning`, a `TimeoutError`: the process runs on, and can be waited for and read again."""
        left = None if timeout is None else seconds(timeout, "timeout", may_be_zero=True)
        try:
            for _ in self._chunks(None if left is None else time.monotonic() + left):
                pass
        except queue.Empty:
            raise still_running(left) from None
        assert self.end is not None
        return self.end

    def write(self, data: bytes) -> None:
        """To its standard input. Waits while the process does not read. Raises `BrokenPipeError` once
        it has ended."""
        for piece in calls.pieces(data, calls.STREAM_CHUNK_BYTES):
            self._inputs.put(wire.ExecInput(stdin=piece))

    def close_stdin(self) -> None:
        """Its standard input ends."""
        self._inputs.put(wire.ExecInput(close_stdin=True))

    def resize(self, columns: int, rows: int) -> None:
        """Its terminal has another size now."""
        self._inputs.put(wire.ExecInput(resize=wire.PtySize(columns=columns, rows=rows)))

    def signal(self, number: int) -> None:
        """To its process group."""
        self._inputs.put(wire.ExecInput(signal=number))

    def close(self) -> None:
        """Ends the conversation, and with it the process's tree unless it is detached."""
        self._inputs.close()
        self._call.cancel()
