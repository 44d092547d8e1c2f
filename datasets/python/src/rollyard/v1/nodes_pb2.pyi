from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportBatch(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class CommandBatch(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("hello", "heartbeat", "started", "ended", "refused", "log_data", "held", "checkpoint", "identified")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LOG_DATA_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    started: AttemptStarted
    ended: AttemptEnded
    refused: AttemptRefused
    log_data: LogData
    held: Held
    checkpoint: CheckpointTaken
    identified: ImageIdentified
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., started: _Optional[_Union[AttemptStarted, _Mapping]] = ..., ended: _Optional[_Union[AttemptEnded, _Mapping]] = ..., refused: _Optional[_Union[AttemptRefused, _Mapping]] = ..., log_data: _Optional[_Union[LogData, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointTaken, _Mapping]] = ..., identified: _Optional[_Union[ImageIdentified, _Mapping]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("welcome", "refuse", "heartbeat_ack", "start", "kill", "release", "ended_ack", "read_log", "identify")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ENDED_ACK_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refuse: Refuse
    heartbeat_ack: HeartbeatAck
    start: StartAttempt
    kill: KillAttempt
    release: ReleaseSandbox
    ended_ack: EndedAck
    read_log: ReadLog
    identify: IdentifyImage
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refuse: _Optional[_Union[Refuse, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., start: _Optional[_Union[StartAttempt, _Mapping]] = ..., kill: _Optional[_Union[KillAttempt, _Mapping]] = ..., release: _Optional[_Union[ReleaseSandbox, _Mapping]] = ..., ended_ack: _Optional[_Union[EndedAck, _Mapping]] = ..., read_log: _Optional[_Union[ReadLog, _Mapping]] = ..., identify: _Optional[_Union[IdentifyImage, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "incarnation", "capacity", "held", "version", "sandboxes_url")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_URL_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    capacity: Capacity
    held: _containers.RepeatedCompositeFieldContainer[HeldAttempt]
    version: str
    sandboxes_url: str
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldAttempt, _Mapping]]] = ..., version: _Optional[str] = ..., sandboxes_url: _Optional[str] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("cpu_milli", "memory_bytes", "disk_bytes", "sandboxes", "disk_limit_max_bytes", "backends")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    sandboxes: int
    disk_limit_max_bytes: int
    backends: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., sandboxes: _Optional[int] = ..., disk_limit_max_bytes: _Optional[int] = ..., backends: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldAttempt(_message.Message):
    __slots__ = ("attempt", "generation", "phase")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[HeldAttempt.Phase]
        PHASE_RUNNING: _ClassVar[HeldAttempt.Phase]
        PHASE_ENDED: _ClassVar[HeldAttempt.Phase]
        PHASE_KEPT: _ClassVar[HeldAttempt.Phase]
    PHASE_UNSPECIFIED: HeldAttempt.Phase
    PHASE_RUNNING: HeldAttempt.Phase
    PHASE_ENDED: HeldAttempt.Phase
    PHASE_KEPT: HeldAttempt.Phase
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    phase: HeldAttempt.Phase
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., phase: _Optional[_Union[HeldAttempt.Phase, str]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldAttempt]
    def __init__(self, held: _Optional[_Iterable[_Union[HeldAttempt, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "memory_available_bytes", "disk_available_bytes", "load_milli", "sandboxes", "held", "creation_burst", "creations_per_s_milli")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_MILLI_FIELD_NUMBER: _ClassVar[int]
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CREATION_BURST_FIELD_NUMBER: _ClassVar[int]
    CREATIONS_PER_S_MILLI_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    memory_available_bytes: int
    disk_available_bytes: int
    load_milli: int
    sandboxes: int
    held: int
    creation_burst: int
    creations_per_s_milli: int
    def __init__(self, sequence: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., disk_available_bytes: _Optional[int] = ..., load_milli: _Optional[int] = ..., sandboxes: _Optional[int] = ..., held: _Optional[int] = ..., creation_burst: _Optional[int] = ..., creations_per_s_milli: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "lease_ttl_ms", "blobs", "yard")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    YARD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease_ttl_ms: int
    blobs: str
    yard: str
    def __init__(self, epoch: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., blobs: _Optional[str] = ..., yard: _Optional[str] = ...) -> None: ...

class Refuse(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("rollout", "step", "attempt")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    step: int
    attempt: int
    def __init__(self, rollout: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class StartAttempt(_message.Message):
    __slots__ = ("attempt", "generation", "step", "continue_from", "keep", "inputs", "base", "parked")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FROM_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    step: Step
    continue_from: AttemptRef
    keep: bool
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    base: Checkpoint
    parked: Parked
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., continue_from: _Optional[_Union[AttemptRef, _Mapping]] = ..., keep: bool = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., base: _Optional[_Union[Checkpoint, _Mapping]] = ..., parked: _Optional[_Union[Parked, _Mapping]] = ...) -> None: ...

class Parked(_message.Message):
    __slots__ = ("log", "claim", "ran_ms", "time_left_ms", "idle_left_ms", "version")
    LOG_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    RAN_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    log: StoredLog
    claim: ParkedClaim
    ran_ms: int
    time_left_ms: int
    idle_left_ms: int
    version: int
    def __init__(self, log: _Optional[_Union[StoredLog, _Mapping]] = ..., claim: _Optional[_Union[ParkedClaim, _Mapping]] = ..., ran_ms: _Optional[int] = ..., time_left_ms: _Optional[int] = ..., idle_left_ms: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class StoredLog(_message.Message):
    __slots__ = ("sha256", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size: int
    def __init__(self, sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class ParkedClaim(_message.Message):
    __slots__ = ("driver", "token", "ttl_ms")
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    driver: str
    token: str
    ttl_ms: int
    def __init__(self, driver: _Optional[str] = ..., token: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("image", "layers")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    image: str
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    def __init__(self, image: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("id", "blob_sha256", "packed_bytes", "content_bytes", "entries")
    ID_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    blob_sha256: str
    packed_bytes: int
    content_bytes: int
    entries: int
    def __init__(self, id: _Optional[str] = ..., blob_sha256: _Optional[str] = ..., packed_bytes: _Optional[int] = ..., content_bytes: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class CheckpointTaken(_message.Message):
    __slots__ = ("attempt", "generation", "checkpoint")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    checkpoint: Checkpoint
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("path", "sha256", "size", "tree")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    size: int
    tree: bool
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., tree: bool = ...) -> None: ...

class KillAttempt(_message.Message):
    __slots__ = ("attempt", "generation", "code", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    code: str
    reason: str
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseSandbox(_message.Message):
    __slots__ = ("attempt", "generation")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class EndedAck(_message.Message):
    __slots__ = ("attempt", "generation")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class IdentifyImage(_message.Message):
    __slots__ = ("image",)
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    image: str
    def __init__(self, image: _Optional[str] = ...) -> None: ...

class ImageIdentified(_message.Message):
    __slots__ = ("image", "digest")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    image: str
    digest: str
    def __init__(self, image: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ReadLog(_message.Message):
    __slots__ = ("request", "attempt", "stream", "offset", "bytes_max")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    request: int
    attempt: AttemptRef
    stream: str
    offset: int
    bytes_max: int
    def __init__(self, request: _Optional[int] = ..., attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class LogData(_message.Message):
    __slots__ = ("request", "data", "gone")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    request: int
    data: bytes
    gone: bool
    def __init__(self, request: _Optional[int] = ..., data: _Optional[bytes] = ..., gone: bool = ...) -> None: ...

class AttemptStarted(_message.Message):
    __slots__ = ("attempt", "generation", "started_at_us")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    started_at_us: int
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., started_at_us: _Optional[int] = ...) -> None: ...

class AttemptEnded(_message.Message):
    __slots__ = ("attempt", "generation", "outcome", "kept")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    outcome: Outcome
    kept: bool
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., kept: bool = ...) -> None: ...

class AttemptRefused(_message.Message):
    __slots__ = ("attempt", "generation", "message")
    class Class(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CLASS_UNSPECIFIED: _ClassVar[AttemptRefused.Class]
        CLASS_BUSY: _ClassVar[AttemptRefused.Class]
        CLASS_NEVER_FITS: _ClassVar[AttemptRefused.Class]
        CLASS_UNHEALTHY: _ClassVar[AttemptRefused.Class]
        CLASS_SANDBOX_GONE: _ClassVar[AttemptRefused.Class]
        CLASS_CHECKPOINT_BAD: _ClassVar[AttemptRefused.Class]
    CLASS_UNSPECIFIED: AttemptRefused.Class
    CLASS_BUSY: AttemptRefused.Class
    CLASS_NEVER_FITS: AttemptRefused.Class
    CLASS_UNHEALTHY: AttemptRefused.Class
    CLASS_SANDBOX_GONE: AttemptRefused.Class
    CLASS_CHECKPOINT_BAD: AttemptRefused.Class
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLASS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    generation: int
    message: str
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., generation: _Optional[int] = ..., message: _Optional[str] = ..., **kwargs) -> None: ...

class Step(_message.Message):
    __slots__ = ("name", "kind", "shell", "argv", "image", "user", "workdir", "env", "files", "outputs", "resources", "timeout_ms", "start_timeout_ms", "grace_ms", "grader", "per", "checkpoint_after", "checkpoint_every_ms", "layers", "health_check", "session", "idle", "backend", "best_effort")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHELL_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    GRADER_FIELD_NUMBER: _ClassVar[int]
    PER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AFTER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_CHECK_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BEST_EFFORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    shell: str
    argv: Argv
    image: str
    user: str
    workdir: str
    env: _containers.ScalarMap[str, str]
    files: _containers.RepeatedCompositeFieldContainer[File]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    resources: Resources
    timeout_ms: int
    start_timeout_ms: int
    grace_ms: int
    grader: Grader
    per: str
    checkpoint_after: bool
    checkpoint_every_ms: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    health_check: HealthCheck
    session: SessionStep
    idle: Idle
    backend: str
    best_effort: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., shell: _Optional[str] = ..., argv: _Optional[_Union[Argv, _Mapping]] = ..., image: _Optional[str] = ..., user: _Optional[str] = ..., workdir: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., start_timeout_ms: _Optional[int] = ..., grace_ms: _Optional[int] = ..., grader: _Optional[_Union[Grader, _Mapping]] = ..., per: _Optional[str] = ..., checkpoint_after: bool = ..., checkpoint_every_ms: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., health_check: _Optional[_Union[HealthCheck, _Mapping]] = ..., session: _Optional[_Union[SessionStep, _Mapping]] = ..., idle: _Optional[_Union[Idle, _Mapping]] = ..., backend: _Optional[str] = ..., best_effort: bool = ...) -> None: ...

class SessionStep(_message.Message):
    __slots__ = ("idle_timeout_ms", "max_actions", "takes_reward", "unclaimed")
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    TAKES_REWARD_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_FIELD_NUMBER: _ClassVar[int]
    idle_timeout_ms: int
    max_actions: int
    takes_reward: bool
    unclaimed: bool
    def __init__(self, idle_timeout_ms: _Optional[int] = ..., max_actions: _Optional[int] = ..., takes_reward: bool = ..., unclaimed: bool = ...) -> None: ...

class Idle(_message.Message):
    __slots__ = ("park_after_ms", "mode")
    PARK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    park_after_ms: int
    mode: str
    def __init__(self, park_after_ms: _Optional[int] = ..., mode: _Optional[str] = ...) -> None: ...

class HealthCheck(_message.Message):
    __slots__ = ("command", "interval_ms", "timeout_ms", "start_period_ms", "start_interval_ms", "retries")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    START_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    command: str
    interval_ms: int
    timeout_ms: int
    start_period_ms: int
    start_interval_ms: int
    retries: int
    def __init__(self, command: _Optional[str] = ..., interval_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., start_period_ms: _Optional[int] = ..., start_interval_ms: _Optional[int] = ..., retries: _Optional[int] = ...) -> None: ...

class Argv(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[str]] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("path", "text", "blob_sha256", "mode")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    path: str
    text: str
    blob_sha256: str
    mode: int
    def __init__(self, path: _Optional[str] = ..., text: _Optional[str] = ..., blob_sha256: _Optional[str] = ..., mode: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "path", "command", "paths", "media_type", "max_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    command: str
    paths: Paths
    media_type: str
    max_bytes: int
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., command: _Optional[str] = ..., paths: _Optional[_Union[Paths, _Mapping]] = ..., media_type: _Optional[str] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Paths(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[str]] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("request_cpu_milli", "request_memory_bytes", "request_disk_bytes", "limit_cpu_milli", "limit_memory_bytes", "limit_disk_bytes", "limit_pids")
    REQUEST_CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    REQUEST_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PIDS_FIELD_NUMBER: _ClassVar[int]
    request_cpu_milli: int
    request_memory_bytes: int
    request_disk_bytes: int
    limit_cpu_milli: int
    limit_memory_bytes: int
    limit_disk_bytes: int
    limit_pids: int
    def __init__(self, request_cpu_milli: _Optional[int] = ..., request_memory_bytes: _Optional[int] = ..., request_disk_bytes: _Optional[int] = ..., limit_cpu_milli: _Optional[int] = ..., limit_memory_bytes: _Optional[int] = ..., limit_disk_bytes: _Optional[int] = ..., limit_pids: _Optional[int] = ...) -> None: ...

class Grader(_message.Message):
    __slots__ = ("file", "exit", "range", "regrades", "on_agent_timeout", "on_timeout")
    FILE_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    REGRADES_FIELD_NUMBER: _ClassVar[int]
    ON_AGENT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ON_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    file: RewardFile
    exit: RewardExit
    range: Range
    regrades: int
    on_agent_timeout: str
    on_timeout: str
    def __init__(self, file: _Optional[_Union[RewardFile, _Mapping]] = ..., exit: _Optional[_Union[RewardExit, _Mapping]] = ..., range: _Optional[_Union[Range, _Mapping]] = ..., regrades: _Optional[int] = ..., on_agent_timeout: _Optional[str] = ..., on_timeout: _Optional[str] = ...) -> None: ...

class RewardFile(_message.Message):
    __slots__ = ("paths", "key")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    key: str
    def __init__(self, paths: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ...) -> None: ...

class RewardExit(_message.Message):
    __slots__ = ("rewards",)
    class RewardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    rewards: _containers.ScalarMap[int, float]
    def __init__(self, rewards: _Optional[_Mapping[int, float]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("failure", "exit_code", "signal", "oom", "timed_out", "stdout", "stderr", "artifacts", "reward", "times", "usage", "image_digest", "checkpoint", "actions", "parked", "silent")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OOM_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    exit_code: int
    signal: int
    oom: bool
    timed_out: bool
    stdout: Captured
    stderr: Captured
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    reward: Reward
    times: Times
    usage: Usage
    image_digest: str
    checkpoint: Checkpoint
    actions: int
    parked: Parked
    silent: bool
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., oom: bool = ..., timed_out: bool = ..., stdout: _Optional[_Union[Captured, _Mapping]] = ..., stderr: _Optional[_Union[Captured, _Mapping]] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., reward: _Optional[_Union[Reward, _Mapping]] = ..., times: _Optional[_Union[Times, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., image_digest: _Optional[str] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., actions: _Optional[int] = ..., parked: _Optional[_Union[Parked, _Mapping]] = ..., silent: bool = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "domain", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    domain: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., domain: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Captured(_message.Message):
    __slots__ = ("sha256", "stored_bytes", "written_bytes", "truncated")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    stored_bytes: int
    written_bytes: int
    truncated: bool
    def __init__(self, sha256: _Optional[str] = ..., stored_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., truncated: bool = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("name", "media_type", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    media_type: str
    size: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., media_type: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class Reward(_message.Message):
    __slots__ = ("value", "components")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    value: float
    components: _containers.RepeatedCompositeFieldContainer[Component]
    def __init__(self, value: _Optional[float] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Times(_message.Message):
    __slots__ = ("taken_at_us", "started_at_us", "ended_at_us", "boot_ms", "run_ms", "checkpoint_ms")
    TAKEN_AT_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    BOOT_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_MS_FIELD_NUMBER: _ClassVar[int]
    taken_at_us: int
    started_at_us: int
    ended_at_us: int
    boot_ms: int
    run_ms: int
    checkpoint_ms: int
    def __init__(self, taken_at_us: _Optional[int] = ..., started_at_us: _Optional[int] = ..., ended_at_us: _Optional[int] = ..., boot_ms: _Optional[int] = ..., run_ms: _Optional[int] = ..., checkpoint_ms: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("cpu_ms", "memory_peak_bytes", "disk_peak_bytes", "memory_held_peak_bytes")
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HELD_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_ms: int
    memory_peak_bytes: int
    disk_peak_bytes: int
    memory_held_peak_bytes: int
    def __init__(self, cpu_ms: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., disk_peak_bytes: _Optional[int] = ..., memory_held_peak_bytes: _Optional[int] = ...) -> None: ...
