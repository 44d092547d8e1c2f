from rollyard.v1 import nodes_pb2 as _nodes_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlobChunk(_message.Message):
    __slots__ = ("sha256", "data", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    data: bytes
    size: int
    def __init__(self, sha256: _Optional[str] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class PutBlobReply(_message.Message):
    __slots__ = ("size", "existed")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    size: int
    existed: bool
    def __init__(self, size: _Optional[int] = ..., existed: bool = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("document", "source_name", "files", "table_root", "idempotency_key", "if_unfinished", "once", "images")
    class IfUnfinished(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IF_UNFINISHED_UNSPECIFIED: _ClassVar[SubmitRequest.IfUnfinished]
        IF_UNFINISHED_NEW: _ClassVar[SubmitRequest.IfUnfinished]
        IF_UNFINISHED_RESUME: _ClassVar[SubmitRequest.IfUnfinished]
    IF_UNFINISHED_UNSPECIFIED: SubmitRequest.IfUnfinished
    IF_UNFINISHED_NEW: SubmitRequest.IfUnfinished
    IF_UNFINISHED_RESUME: SubmitRequest.IfUnfinished
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROOT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    IF_UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    document: str
    source_name: str
    files: _containers.RepeatedCompositeFieldContainer[ClientFile]
    table_root: str
    idempotency_key: str
    if_unfinished: SubmitRequest.IfUnfinished
    once: bool
    images: _containers.RepeatedCompositeFieldContainer[ImagePin]
    def __init__(self, document: _Optional[str] = ..., source_name: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ClientFile, _Mapping]]] = ..., table_root: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., if_unfinished: _Optional[_Union[SubmitRequest.IfUnfinished, str]] = ..., once: bool = ..., images: _Optional[_Iterable[_Union[ImagePin, _Mapping]]] = ...) -> None: ...

class ImagePin(_message.Message):
    __slots__ = ("reference", "digest")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    reference: str
    digest: str
    def __init__(self, reference: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ClientFile(_message.Message):
    __slots__ = ("path", "sha256", "size")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    size: int
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job", "resumed", "warnings", "schedule", "replaced")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    resumed: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    schedule: Schedule
    replaced: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., resumed: bool = ..., warnings: _Optional[_Iterable[str]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., replaced: bool = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "unfinished_only", "sandboxes_too")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_ONLY_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_TOO_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    unfinished_only: bool
    sandboxes_too: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., unfinished_only: bool = ..., sandboxes_too: bool = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "name", "state", "spec_hash", "table_root", "created_at_us", "finished_at_us", "counts", "reason", "rewards", "failures", "failure_message", "group_size", "memory")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROOT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_US_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    state: str
    spec_hash: str
    table_root: str
    created_at_us: int
    finished_at_us: int
    counts: Counts
    reason: str
    rewards: Rewards
    failures: _containers.RepeatedCompositeFieldContainer[FailureCount]
    failure_message: str
    group_size: int
    memory: JobMemory
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., spec_hash: _Optional[str] = ..., table_root: _Optional[str] = ..., created_at_us: _Optional[int] = ..., finished_at_us: _Optional[int] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., reason: _Optional[str] = ..., rewards: _Optional[_Union[Rewards, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[FailureCount, _Mapping]]] = ..., failure_message: _Optional[str] = ..., group_size: _Optional[int] = ..., memory: _Optional[_Union[JobMemory, _Mapping]] = ...) -> None: ...

class JobMemory(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepMemory]
    def __init__(self, steps: _Optional[_Iterable[_Union[StepMemory, _Mapping]]] = ...) -> None: ...

class StepMemory(_message.Message):
    __slots__ = ("step", "attempts", "request_bytes", "kept_bytes", "held_most_bytes", "held_p95_bytes", "kernel_peak_bytes", "told", "advice")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_P95_BYTES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    step: str
    attempts: int
    request_bytes: int
    kept_bytes: int
    held_most_bytes: int
    held_p95_bytes: int
    kernel_peak_bytes: int
    told: str
    advice: MemoryAdvice
    def __init__(self, step: _Optional[str] = ..., attempts: _Optional[int] = ..., request_bytes: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., held_most_bytes: _Optional[int] = ..., held_p95_bytes: _Optional[int] = ..., kernel_peak_bytes: _Optional[int] = ..., told: _Optional[str] = ..., advice: _Optional[_Union[MemoryAdvice, _Mapping]] = ...) -> None: ...

class MemoryAdvice(_message.Message):
    __slots__ = ("code", "field", "suggested_bytes", "told")
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    code: str
    field: str
    suggested_bytes: int
    told: str
    def __init__(self, code: _Optional[str] = ..., field: _Optional[str] = ..., suggested_bytes: _Optional[int] = ..., told: _Optional[str] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("groups_total", "groups_closed", "groups_sealed", "rollouts_total", "rollouts_admitted", "rollouts_ended", "rollouts_valid", "steps_running", "steps_ready", "rollouts_superseded")
    GROUPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_SEALED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_ENDED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_VALID_FIELD_NUMBER: _ClassVar[int]
    STEPS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    STEPS_READY_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    groups_total: int
    groups_closed: int
    groups_sealed: int
    rollouts_total: int
    rollouts_admitted: int
    rollouts_ended: int
    rollouts_valid: int
    steps_running: int
    steps_ready: int
    rollouts_superseded: int
    def __init__(self, groups_total: _Optional[int] = ..., groups_closed: _Optional[int] = ..., groups_sealed: _Optional[int] = ..., rollouts_total: _Optional[int] = ..., rollouts_admitted: _Optional[int] = ..., rollouts_ended: _Optional[int] = ..., rollouts_valid: _Optional[int] = ..., steps_running: _Optional[int] = ..., steps_ready: _Optional[int] = ..., rollouts_superseded: _Optional[int] = ...) -> None: ...

class Rewards(_message.Message):
    __slots__ = ("count", "sum", "successes", "pass_at_k")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_FIELD_NUMBER: _ClassVar[int]
    PASS_AT_K_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: float
    successes: int
    pass_at_k: _containers.RepeatedCompositeFieldContainer[PassAtK]
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[float] = ..., successes: _Optional[int] = ..., pass_at_k: _Optional[_Iterable[_Union[PassAtK, _Mapping]]] = ...) -> None: ...

class PassAtK(_message.Message):
    __slots__ = ("k", "value", "groups")
    K_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    k: int
    value: float
    groups: int
    def __init__(self, k: _Optional[int] = ..., value: _Optional[float] = ..., groups: _Optional[int] = ...) -> None: ...

class FailureCount(_message.Message):
    __slots__ = ("domain", "code", "rollouts", "example", "example_rollout", "hint")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    domain: str
    code: str
    rollouts: int
    example: str
    example_rollout: str
    hint: str
    def __init__(self, domain: _Optional[str] = ..., code: _Optional[str] = ..., rollouts: _Optional[int] = ..., example: _Optional[str] = ..., example_rollout: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ("job", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRolloutsReply(_message.Message):
    __slots__ = ("rollouts", "next_page_token")
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    next_page_token: str
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("id", "task_id", "status", "stop_reason", "failure", "reward", "created_at_us", "finished_at_us", "superseded")
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_US_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    id: str
    task_id: str
    status: str
    stop_reason: str
    failure: _nodes_pb2.Failure
    reward: float
    created_at_us: int
    finished_at_us: int
    superseded: bool
    def __init__(self, id: _Optional[str] = ..., task_id: _Optional[str] = ..., status: _Optional[str] = ..., stop_reason: _Optional[str] = ..., failure: _Optional[_Union[_nodes_pb2.Failure, _Mapping]] = ..., reward: _Optional[float] = ..., created_at_us: _Optional[int] = ..., finished_at_us: _Optional[int] = ..., superseded: bool = ...) -> None: ...

class ListStepsRequest(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    def __init__(self, rollout: _Optional[str] = ...) -> None: ...

class ListStepsReply(_message.Message):
    __slots__ = ("steps", "rollout")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepRow]
    rollout: Rollout
    def __init__(self, steps: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("step", "kind", "state", "attempt", "generation", "node", "outcome", "placed_at_us", "started_at_us", "ended_at_us", "per")
    STEP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    PER_FIELD_NUMBER: _ClassVar[int]
    step: str
    kind: str
    state: str
    attempt: int
    generation: int
    node: str
    outcome: _nodes_pb2.Outcome
    placed_at_us: int
    started_at_us: int
    ended_at_us: int
    per: str
    def __init__(self, step: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., generation: _Optional[int] = ..., node: _Optional[str] = ..., outcome: _Optional[_Union[_nodes_pb2.Outcome, _Mapping]] = ..., placed_at_us: _Optional[int] = ..., started_at_us: _Optional[int] = ..., ended_at_us: _Optional[int] = ..., per: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("lines", "json")
    LINES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    json: str
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., json: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    reason: str
    def __init__(self, job: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("target", "all_failed", "cancelled", "idempotency_key")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ALL_FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    target: str
    all_failed: bool
    cancelled: bool
    idempotency_key: str
    def __init__(self, target: _Optional[str] = ..., all_failed: bool = ..., cancelled: bool = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class RetryReply(_message.Message):
    __slots__ = ("job", "retried", "not_retried")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    NOT_RETRIED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    retried: int
    not_retried: _containers.RepeatedCompositeFieldContainer[NotRetried]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., retried: _Optional[int] = ..., not_retried: _Optional[_Iterable[_Union[NotRetried, _Mapping]]] = ...) -> None: ...

class NotRetried(_message.Message):
    __slots__ = ("code", "why", "rollouts")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    code: str
    why: str
    rollouts: int
    def __init__(self, code: _Optional[str] = ..., why: _Optional[str] = ..., rollouts: _Optional[int] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("rollout", "step", "attempt", "stream", "follow")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    step: str
    attempt: int
    stream: str
    follow: bool
    def __init__(self, rollout: _Optional[str] = ..., step: _Optional[str] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., follow: bool = ...) -> None: ...

class LogsChunk(_message.Message):
    __slots__ = ("stream", "data", "dropped_bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: str
    data: bytes
    dropped_bytes: int
    def __init__(self, stream: _Optional[str] = ..., data: _Optional[bytes] = ..., dropped_bytes: _Optional[int] = ...) -> None: ...

class ReadArtifactRequest(_message.Message):
    __slots__ = ("rollout", "step", "name", "attempt")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    step: str
    name: str
    attempt: int
    def __init__(self, rollout: _Optional[str] = ..., step: _Optional[str] = ..., name: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class ArtifactChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "incarnation", "state", "capacity", "used_cpu_milli", "used_memory_bytes", "used_disk_bytes", "sandboxes", "memory_available_bytes", "load_milli", "version", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    USED_CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    USED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_MILLI_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    state: str
    capacity: _nodes_pb2.Capacity
    used_cpu_milli: int
    used_memory_bytes: int
    used_disk_bytes: int
    sandboxes: int
    memory_available_bytes: int
    load_milli: int
    version: str
    held: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[str] = ..., capacity: _Optional[_Union[_nodes_pb2.Capacity, _Mapping]] = ..., used_cpu_milli: _Optional[int] = ..., used_memory_bytes: _Optional[int] = ..., used_disk_bytes: _Optional[int] = ..., sandboxes: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., load_milli: _Optional[int] = ..., version: _Optional[str] = ..., held: _Optional[int] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("id", "name", "project", "cron", "timezone", "enabled", "overlap", "catch_up", "spec_hash", "table_root", "created_at_us", "next_at_us", "next", "last_fire_at_us", "last_job", "waiting_at_us", "fired", "skipped", "missed", "failed", "problem")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROOT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_US_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIRE_AT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    WAITING_AT_US_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    project: str
    cron: str
    timezone: str
    enabled: bool
    overlap: str
    catch_up: bool
    spec_hash: str
    table_root: str
    created_at_us: int
    next_at_us: _containers.RepeatedScalarFieldContainer[int]
    next: _containers.RepeatedScalarFieldContainer[str]
    last_fire_at_us: int
    last_job: str
    waiting_at_us: int
    fired: int
    skipped: int
    missed: int
    failed: int
    problem: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., project: _Optional[str] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., enabled: bool = ..., overlap: _Optional[str] = ..., catch_up: bool = ..., spec_hash: _Optional[str] = ..., table_root: _Optional[str] = ..., created_at_us: _Optional[int] = ..., next_at_us: _Optional[_Iterable[int]] = ..., next: _Optional[_Iterable[str]] = ..., last_fire_at_us: _Optional[int] = ..., last_job: _Optional[str] = ..., waiting_at_us: _Optional[int] = ..., fired: _Optional[int] = ..., skipped: _Optional[int] = ..., missed: _Optional[int] = ..., failed: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSchedulesReply(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class SetScheduleRequest(_message.Message):
    __slots__ = ("schedule", "enabled")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    enabled: bool
    def __init__(self, schedule: _Optional[str] = ..., enabled: bool = ...) -> None: ...

class RemoveScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    def __init__(self, schedule: _Optional[str] = ...) -> None: ...

class RemoveScheduleReply(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class FireScheduleRequest(_message.Message):
    __slots__ = ("schedule", "idempotency_key")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    idempotency_key: str
    def __init__(self, schedule: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class FireScheduleReply(_message.Message):
    __slots__ = ("schedule", "result", "job")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    result: str
    job: str
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., result: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("of", "removed_too", "page_size", "page_token")
    OF_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOO_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    of: str
    removed_too: bool
    page_size: int
    page_token: str
    def __init__(self, of: _Optional[str] = ..., removed_too: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCheckpointsReply(_message.Message):
    __slots__ = ("checkpoints", "next_page_token")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[StoredCheckpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[StoredCheckpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StoredCheckpoint(_message.Message):
    __slots__ = ("id", "rollout", "step", "attempt", "ordinal", "kind", "state", "packed_bytes", "content_bytes", "depth", "taken_at_us", "expires_at_us", "removed_at_us", "removed_why")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    REMOVED_AT_US_FIELD_NUMBER: _ClassVar[int]
    REMOVED_WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    rollout: str
    step: str
    attempt: int
    ordinal: int
    kind: str
    state: str
    packed_bytes: int
    content_bytes: int
    depth: int
    taken_at_us: int
    expires_at_us: int
    removed_at_us: int
    removed_why: str
    def __init__(self, id: _Optional[str] = ..., rollout: _Optional[str] = ..., step: _Optional[str] = ..., attempt: _Optional[int] = ..., ordinal: _Optional[int] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., packed_bytes: _Optional[int] = ..., content_bytes: _Optional[int] = ..., depth: _Optional[int] = ..., taken_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ..., removed_at_us: _Optional[int] = ..., removed_why: _Optional[str] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetCheckpointReply(_message.Message):
    __slots__ = ("id", "checkpoint", "taken", "users")
    ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    checkpoint: _nodes_pb2.Checkpoint
    taken: _containers.RepeatedCompositeFieldContainer[StoredCheckpoint]
    users: _containers.RepeatedCompositeFieldContainer[CheckpointUser]
    def __init__(self, id: _Optional[str] = ..., checkpoint: _Optional[_Union[_nodes_pb2.Checkpoint, _Mapping]] = ..., taken: _Optional[_Iterable[_Union[StoredCheckpoint, _Mapping]]] = ..., users: _Optional[_Iterable[_Union[CheckpointUser, _Mapping]]] = ...) -> None: ...

class CheckpointUser(_message.Message):
    __slots__ = ("rollout", "step", "attempt", "running")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    step: str
    attempt: int
    running: bool
    def __init__(self, rollout: _Optional[str] = ..., step: _Optional[str] = ..., attempt: _Optional[int] = ..., running: bool = ...) -> None: ...

class ReadLayerRequest(_message.Message):
    __slots__ = ("checkpoint", "blob_sha256")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    blob_sha256: str
    def __init__(self, checkpoint: _Optional[str] = ..., blob_sha256: _Optional[str] = ...) -> None: ...

class RemoveCheckpointRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RemoveCheckpointReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedCompositeFieldContainer[StoredCheckpoint]
    def __init__(self, removed: _Optional[_Iterable[_Union[StoredCheckpoint, _Mapping]]] = ...) -> None: ...

class CollectGarbageRequest(_message.Message):
    __slots__ = ("dry_run", "grace_ms")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    grace_ms: int
    def __init__(self, dry_run: bool = ..., grace_ms: _Optional[int] = ...) -> None: ...

class CollectGarbageReply(_message.Message):
    __slots__ = ("dry_run", "expired_checkpoints", "layers", "unnamed", "kept")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    expired_checkpoints: int
    layers: BlobSum
    unnamed: BlobSum
    kept: BlobSum
    def __init__(self, dry_run: bool = ..., expired_checkpoints: _Optional[int] = ..., layers: _Optional[_Union[BlobSum, _Mapping]] = ..., unnamed: _Optional[_Union[BlobSum, _Mapping]] = ..., kept: _Optional[_Union[BlobSum, _Mapping]] = ...) -> None: ...

class BlobSum(_message.Message):
    __slots__ = ("blobs", "bytes")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    blobs: int
    bytes: int
    def __init__(self, blobs: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
