"""What a yard tells, as plain values. Times are aware datetimes in UTC; what is unknown is None."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from .v1 import jobs_pb2 as wire
from .v1 import nodes_pb2

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
FINAL_STATES = ("finished", "cancelled")


def time_of(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Counts:
    """How far a job is."""

    groups_total: int
    groups_closed: int
    groups_sealed: int
    """In the tables."""
    rollouts_total: int
    rollouts_admitted: int
    rollouts_ended: int
    rollouts_valid: int
    """With a valid reward."""
    rollouts_superseded: int
    """Replaced by refills; in none of the other counts."""
    steps_running: int
    steps_ready: int

    @classmethod
    def of(cls, counts: wire.Counts) -> Counts:
        return cls(**{name: int(getattr(counts, name)) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Rewards:
    """Over valid rewards only: an invalid one is no zero."""

    count: int
    mean: float | None
    successes: int
    """At or above the grader's success mark."""
    pass_at_k: dict[int, float]
    """Unbiased, over the closed groups with at least k valid members."""


@dataclass(frozen=True)
class Failure:
    """Why something ended badly, and who is to blame. Codes: docs/errors.md."""

    code: str
    domain: str
    message: str
    hint: str = ""
    """What to do about it; may be empty."""


@dataclass(frozen=True)
class FailureCount:
    """Rollouts of a job that ended for one reason."""

    code: str
    domain: str
    rollouts: int
    example: str
    """The message of one of them."""
    example_rollout: str
    hint: str = ""
    """What to do about it; may be empty."""


@dataclass(frozen=True)
class MemoryAdvice:
    """What to change in the spec of a step."""

    code: str
    """asks_too_much or asks_too_little"""
    field: str
    """Of the step, such as `resources.request.memory`."""
    suggested_bytes: int
    told: str
    """A sentence."""


@dataclass(frozen=True)
class StepMemory:
    """What the attempts of a step held: anonymous memory and files in memory, the most that was seen of each."""

    attempts: int
    """Ended and measured."""
    request_bytes: int | None
    """`resources.request.memory`; None where the row says it."""
    kept_bytes: int | None
    """What a node keeps for its sandbox, files in memory too."""
    held_most_bytes: int
    held_p95_bytes: int
    """95 of 100 attempts held at most this; less than a quarter too high."""
    kernel_peak_bytes: int | None
    """The largest peak the kernel counted, cached files too; None if it counts none."""
    advice: MemoryAdvice | None

    @classmethod
    def of(cls, memory: wire.StepMemory) -> StepMemory:
        advice = memory.advice
        return cls(
            attempts=memory.attempts,
            request_bytes=memory.request_bytes if memory.HasField("request_bytes") else None,
            kept_bytes=memory.kept_bytes if memory.HasField("kept_bytes") else None,
            held_most_bytes=memory.held_most_bytes,
            held_p95_bytes=memory.held_p95_bytes,
            kernel_peak_bytes=memory.kernel_peak_bytes if memory.HasField("kernel_peak_bytes") else None,
            advice=MemoryAdvice(advice.code, advice.field, advice.suggested_bytes, advice.told)
            if memory.HasField("advice")
            else None,
        )


@dataclass(frozen=True)
class RetryInfo:
    """What a request to run rollouts again came to."""

    retried: int
    """Rollouts that are run again."""
    not_retried: dict[str, int]
    """How many are not, by reason: fine, agent, failed, cancelled, asked."""
    job: JobInfo

    @classmethod
    def of(cls, reply: wire.RetryReply) -> RetryInfo:
        others = {other.code: other.rollouts for other in reply.not_retried}
        return cls(reply.retried, others, JobInfo.of(reply.job))


@dataclass(frozen=True)
class JobInfo:
    """A job at one moment."""

    id: str
    name: str
    state: str
    """running, held, cancelling, finished or cancelled"""
    reason: str | None
    """Of `held` and `cancelling`."""
    failure_message: str | None
    spec_hash: str
    table_root: str
    """The tables are in `<table_root>/<id>`."""
    created_at: datetime
    finished_at: datetime | None
    group_size: int
    counts: Counts
    rewards: Rewards
    failures: list[FailureCount]
    memory: dict[str, StepMemory] | None
    """By step, those that were measured. Of `JobHandle.info` only: elsewhere None."""

    @property
    def final(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in FINAL_STATES

    @property
    def went_well(self) -> bool:
        """It ran to its end, and at least one rollout has a valid reward or no failure."""
        failed = sum(failure.rollouts for failure in self.failures)
        some = self.counts.rollouts_valid > 0 or failed < self.counts.rollouts_ended
        return self.state == "finished" and (some or self.counts.rollouts_ended == 0)

    @classmethod
    def of(cls, job: wire.Job) -> JobInfo:
        rewards = job.rewards
        return cls(
            id=job.id,
            name=job.name,
            state=job.state,
            reason=job.reason or None,
            failure_message=job.failure_message if job.HasField("failure_message") else None,
            spec_hash=job.spec_hash,
            table_root=job.table_root,
            created_at=time_of(job.created_at_us),
            finished_at=time_of(job.finished_at_us) if job.HasField("finished_at_us") else None,
            group_size=job.group_size,
            counts=Counts.of(job.counts),
            rewards=Rewards(
                count=rewards.count,
                mean=rewards.sum / rewards.count if rewards.count else None,
                successes=rewards.successes,
                pass_at_k={one.k: one.value for one in rewards.pass_at_k},
            ),
            failures=[
                FailureCount(one.code, one.domain, one.rollouts, one.example, one.example_rollout, one.hint)
                for one in job.failures
            ],
            memory={one.step: StepMemory.of(one) for one in job.memory.steps} if job.HasField("memory") else None,
        )


@dataclass(frozen=True)
class RolloutInfo:
    """One rollout of a job."""

    id: str
    task_id: str
    status: str
    """waiting, running, or a status of the table `trajectories`"""
    stop_reason: str | None
    failure: Failure | None
    reward: float | None
    """None unless valid."""
    created_at: datetime | None
    finished_at: datetime | None
    superseded: bool
    """Replaced by a refill: another rollout has its sample."""

    @classmethod
    def of(cls, rollout: wire.Rollout) -> RolloutInfo:
        return cls(
            id=rollout.id,
            task_id=rollout.task_id,
            status=rollout.status,
            stop_reason=rollout.stop_reason if rollout.HasField("stop_reason") else None,
            failure=failure_of(rollout.failure) if rollout.HasField("failure") else None,
            reward=rollout.reward if rollout.HasField("reward") else None,
            created_at=time_of(rollout.created_at_us) if rollout.HasField("created_at_us") else None,
            finished_at=time_of(rollout.finished_at_us) if rollout.HasField("finished_at_us") else None,
            superseded=rollout.superseded,
        )


def failure_of(failure: nodes_pb2.Failure) -> Failure:
    return Failure(failure.code, failure.domain, failure.message, failure.hint)


@dataclass(frozen=True)
class LogChunk:
    """Bytes a step wrote, as they were written."""

    stream: str
    """stdout or stderr"""
    data: bytes
    dropped_bytes: int
    """Set once, at the end of a stream that was written past its cap: bytes not kept."""
