"""The client that blocks. `aio` is its twin."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pyarrow as pa

from . import address, errors, flow, session, spec, yard
from .client_sandboxes import SandboxClient
from .flow import Call, Flow, Step, Upload
from .progress import Progress
from .quantities import Duration, seconds
from .sandbox_calls import TTL_SECONDS_DEFAULT
from .session import Session
from .table import Table, open_table
from .v1 import jobs_pb2 as wire
from .v1.jobs_pb2_grpc import JobsStub
from .v1.sandboxes_pb2_grpc import SandboxesStub
from .views import Counts, JobInfo, LogChunk, RetryInfo, RolloutInfo

T = TypeVar("T")


class Client(SandboxClient):
    """A connection to a yard.

    `url` is `unix:/path/to/yard.sock` or `http://127.0.0.1:PORT`; without it `ROLLYARD_YARD`, else
    the socket in `data_dir` (`ROLLYARD_DATA_DIR`, else /var/lib/rollyard for root and
    ~/.local/share/rollyard for others). If no yard serves that, one is started with the program
    `rollyard` (`ROLLYARD_BIN`, then PATH), unless `start` is false; it ends with `close`, or with
    this process however that ends. Its unfinished jobs stay and go on with the next one.

    Clients may be shared between threads. Raises `UnreachableError`, `RequestError`, and whatever
    the program says if it cannot serve here.
    """

    def __init__(
        self,
        url: str | None = None,
        project: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        start: bool = True,
    ) -> None:
        self.url, self._yard = connect_or_start(url, project, data_dir, start)
        self._channel = grpc.insecure_channel(address.target(self.url), options=flow.CHANNEL_OPTIONS)
        self._stub: Any = JobsStub(self._channel)  # type: ignore[no-untyped-call]
        sandboxes: Any = SandboxesStub(self._channel)  # type: ignore[no-untyped-call]
        self._stubs: dict[str, Any] = {"Jobs": self._stub, "Sandboxes": sandboxes}
        self._closed = False
        self._reached = False
        super().__init__()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and ends the yard if this client started it."""
        self._closed = True
        super().close()
        self._channel.close()
        if self._yard is not None:
            self._yard.stop()
            self._yard = None

    def submit(
        self,
        what: spec.Spec,
        *,
        agent: Sequence[str] | str | None = None,
        n: int | None = None,
        image: str | None = None,
        table: str | os.PathLike[str] | None = None,
        new: bool = False,
        key: str | None = None,
    ) -> JobHandle:
        """Submits a spec and returns its job, durable by then.

        `what` is a dict, the path of a YAML or JSON file, a builder `Job`, or a folder of Harbor
        tasks; `agent` (argv, or a shell command), `n` (rollouts a task) and `image` are for the
        last. An unfinished job of the same spec and tables goes on instead, unless `new`. `table`
        is where the tables go, instead of the spec's `output.table`. The same `key` gives the same
        job, however often it is sent.

        Files the spec names are sent along. Raises `SpecError` with every problem in `details`.
        """
        if spec.is_harbor(what):
            return JobHandle(self, *harbor(self.url, what, agent, n, image, table, new, key))
        refuse_harbor_arguments(agent, n, image)
        document = spec.document(what)
        root = None if table is None else os.fspath(table)
        submitting = flow.submit(
            document, table=root, new=new, key=key, on_this_machine=self.url.startswith("unix:")
        )
        submitted = self._run(submitting)
        return JobHandle(self, submitted.job.id, submitted.resumed)

    def job(self, id: str) -> JobHandle:
        """A job the yard knows. Nothing is asked yet."""
        return JobHandle(self, id, False)

    def jobs(self, unfinished_only: bool = False) -> Iterator[JobInfo]:
        """All jobs, newest first, page by page."""
        request = wire.ListRequest(unfinished_only=unfinished_only)
        while True:
            reply = self._run(flow.pages("List", request))
            yield from map(JobInfo.of, reply.jobs)
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    def _run(self, steps: Flow[T]) -> T:
        return flow.run(steps, self._do)

    def _do(self, step: Step) -> Any:
        with self._errors():
            if isinstance(step, Upload):
                return self._stub.PutBlob(step.chunks(), wait_for_ready=False)
            if isinstance(step, Call):
                reply = getattr(self._stubs[step.service], step.method)(step.request)
                self._reached = True
                return reply
        if self._closed:
            raise errors.make("yard_lost", f"the connection to {self.url} is closed")
        time.sleep(step.seconds)
        return None

    @contextlib.contextmanager
    def _stream(self, service: str, method: str, request: Any) -> Iterator[Iterator[Any]]:
        """What a call answers, piece by piece."""
        with self._errors():
            call = getattr(self._stubs[service], method)(request)
            try:
                yield call
            finally:
                call.cancel()

    def _send(self, service: str, method: str, chunks: Iterator[Any]) -> Any:
        """The answer to what is sent piece by piece. What goes wrong with the pieces is raised."""
        broke: list[BaseException] = []

        def kept() -> Iterator[Any]:
            try:
                yield from chunks
            except BaseException as error:
                broke.append(error)
                raise

        try:
            with self._errors():
                return getattr(self._stubs[service], method)(kept())
        except errors.Error:
            if broke:
                raise broke[0] from None
            raise

    def _talk(self, service: str, method: str, inputs: Iterator[Any]) -> Any:
        """A call that goes both ways."""
        with self._errors():
            return getattr(self._stubs[service], method)(inputs)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise error_of(error, self.url, self._reached) from None
        except ValueError as error:
            # What grpc says of a closed channel.
            raise errors.make("yard_lost", f"the connection to {self.url} is closed") from error


class JobHandle:
    """One job of a yard. It stays valid while the client is open; the job does not need it."""

    def __init__(self, client: Client, id: str, resumed: bool) -> None:
        self.id = id
        self.resumed = resumed
        """Submit found it unfinished."""
        self._client = client

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def info(self) -> JobInfo:
        """The job now. Raises `NotFoundError`."""
        return JobInfo.of(self._client._do(Call("Get", wire.GetRequest(job=self.id))))

    def counts(self) -> Counts:
        """How far it is."""
        return self.info().counts

    def wait(
        self, *, progress: bool = False, timeout: Duration | None = None, through_hold: bool = False
    ) -> JobInfo:
        """Waits for the end and returns the finished job, whatever its rewards: see
        `JobInfo.went_well`.

        `timeout` is in seconds. `through_hold` goes on waiting while the job is held. A Ctrl-C
        detaches: the job goes on in the yard.

        Raises `JobEndedError` if it was cancelled or is held, `TimeoutError`, `UnreachableError`
        if the yard stays away.
        """
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout", may_be_zero=True)
        shown = Progress(progress)
        try:
            info = self._watch(deadline, through_hold, shown)
        except KeyboardInterrupt:
            shown.say(f"job {self.id} goes on in the yard")
            raise
        finally:
            shown.end()
        if error := flow.ended(self.id, info):
            raise error
        return info

    def _watch(self, deadline: float | None, through_hold: bool, shown: Progress) -> JobInfo:
        patience = flow.Patience(shown.say)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            changes = self._client._stub.Watch(wire.GetRequest(job=self.id), timeout=left)
            broke = errors.make("yard_lost", f"the watch of {self.id} ended early")
            try:
                with self._client._errors():
                    for message in changes:
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
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))

    def cancel(self, reason: str = "cancelled by the user") -> JobInfo:
        """Cancels it. What runs is ended; groups that are closed keep their rows."""
        return JobInfo.of(self._client._do(Call("Cancel", wire.CancelRequest(job=self.id, reason=reason))))

    def retry(
        self, target: str | None = None, *, all_failed: bool = False, cancelled: bool = False, key: str | None = None
    ) -> RetryInfo:
        """Runs again what infrastructure lost, in the job, or in GROUP or ROLLOUT of it, in the place of
        the rollouts that failed. With `all_failed` also what failed for the task or the grader; with
        `cancelled` also what was cancelled. The same `key` gives the same answer.

        Raises `RequestError` with code `retry_nothing` if there is nothing to run again."""
        request = flow.retry_request(target or self.id, all_failed, cancelled, key)
        return RetryInfo.of(self._client._run(flow.resent(Call("Retry", request))))

    def sessions(self, *, driver: str | None = None, ttl: Duration = TTL_SECONDS_DEFAULT) -> Iterator[Session]:
        """The sessions of the job that nobody drives, claimed one by one, until none will come.

        A claim ends `ttl` seconds after its last call or renewal; while a session is open it is
        renewed. `driver` is [a-z0-9-]{1,255}: the same name gets back what it holds, and that first."""
        return session.claimed(self._client, self.id, driver, ttl)

    def explain(self, step: str | None = None) -> list[str]:
        """Why the job, or ROLLOUT or ROLLOUT/STEP of it, is where it is: sentences, the most
        important first."""
        request = wire.ExplainRequest(target=flow.target_of(self.id, step))
        return list(self._client._do(Call("Explain", request)).lines)

    def rollouts(self) -> Iterator[RolloutInfo]:
        """All that were admitted so far, page by page."""
        request = wire.ListRolloutsRequest(job=self.id)
        while True:
            reply = self._client._run(flow.pages("ListRollouts", request))
            yield from map(RolloutInfo.of, reply.rollouts)
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    def logs(
        self,
        target: str,
        *,
        stream: str | None = None,
        attempt: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogChunk]:
        """What a step wrote. `target` is ROLLOUT/STEP, or ROLLOUT: then the first step that
        failed, else the last that started. `stream` is stdout or stderr, None for both; `attempt`
        counts from 0, None for the last; `follow` goes on until the step ends."""
        rollout, step = flow.split_target(flow.target_of(self.id, target))
        if step is None:
            rows = self._client._do(Call("ListSteps", wire.ListStepsRequest(rollout=rollout))).steps
            step = flow.most_telling(rollout, rows)
        request = wire.LogsRequest(
            rollout=rollout, step=step, attempt=attempt, stream=stream or "", follow=follow
        )
        chunks = self._client._stub.Logs(request)
        try:
            with self._client._errors():
                for chunk in chunks:
                    yield LogChunk(chunk.stream, chunk.data, chunk.dropped_bytes)
        finally:
            chunks.cancel()

    def table(self, name: str = "trajectories", *, superseded: bool = False) -> Table:
        """A table of the job: the groups that are sealed by now. The yard's tables must be files
        of this machine. Raises `TableError`."""
        return open_table(Path(self.info().table_root) / self.id, name, superseded=superseded)

    def record_batches(self, table: str = "trajectories") -> Iterator[pa.RecordBatch]:
        """One batch per sealed group: see `Table.record_batches`."""
        return self.table(table).record_batches()

    def rows(self, table: str = "trajectories") -> Iterator[dict[str, Any]]:
        """The rows of sealed groups: see `Table.rows`."""
        return self.table(table).rows()


def connect_or_start(
    url: str | None, project: str | None, data_dir: str | os.PathLike[str] | None, start: bool
) -> tuple[str, yard.Yard | None]:
    """The URL of the yard to talk to, and the yard if it was started for that."""
    if project is not None:
        raise errors.make("not_available_yet", "projects", "leave `project` out")
    url = url or (os.environ.get("ROLLYARD_YARD") if data_dir is None else None)
    if url is not None:
        address.target(url)
        return url, None
    directory = address.default_data_dir() if data_dir is None else Path(data_dir).absolute()
    socket = address.socket_url(directory)
    if start:
        return socket, yard.ensure(directory)
    if not address.answers(directory):
        raise errors.unreachable(f"no yard serves {directory}")
    return socket, None


def error_of(error: grpc.RpcError, url: str, reached: bool) -> errors.Error:
    """What a failed call means."""
    metadata = [(key, value) for key, value in (error.trailing_metadata() or ())]
    return errors.from_call(error.code().name, error.details() or "", metadata, url, reached)


def refuse_harbor_arguments(
    agent: Sequence[str] | str | None, n: int | None, image: str | None
) -> None:
    """They mean something for a folder of tasks only; a spec says it itself."""
    given = [name for name, value in (("agent", agent), ("n", n), ("image", image)) if value is not None]
    if given:
        hint = "for a folder of Harbor tasks only: write it in the spec"
        raise errors.make("bad_request", f"{', '.join(given)}: not of this spec", hint)


def harbor(
    url: str,
    tasks: Any,
    agent: Sequence[str] | str | None,
    n: int | None,
    image: str | None,
    table: str | os.PathLike[str] | None,
    new: bool,
    key: str | None,
) -> tuple[str, bool]:
    """Submits a folder of Harbor tasks by the program, which packs their trees. The job's id, and
    whether it was found unfinished."""
    text = spec.print_harbor_spec(spec.harbor_arguments(tasks, agent=agent, n=n, image=image, table=table))
    arguments = ["--yard", url, "submit", "-"]
    arguments += [] if new else ["--resume"]
    arguments += [] if key is None else ["--idempotency-key", key]
    arguments += [] if table is None else ["--table", os.fspath(table)]
    submitted = json.loads(spec.call_program(arguments, stdin=text))
    return str(submitted["job"]["id"]), bool(submitted["resumed"])


_default: Client | None = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of `ry.submit`, made at first use and closed with the process."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Client()
            atexit.register(_default.close)
        return _default


def submit(what: spec.Spec, **options: Any) -> JobHandle:
    """`Client().submit` on one client of the process: see there."""
    return default_client().submit(what, **options)
