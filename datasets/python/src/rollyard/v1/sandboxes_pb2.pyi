from rollyard.v1 import nodes_pb2 as _nodes_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateSandboxRequest(_message.Message):
    __slots__ = ("idempotency_key", "image", "request_cpu", "request_memory", "limit_cpu", "limit_memory", "limit_disk", "limit_pids", "labels", "env", "user", "workdir", "idle_timeout_ms", "timeout_ms", "start_timeout_ms", "checkpoint", "project", "park_after_ms", "idle_mode")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CPU_FIELD_NUMBER: _ClassVar[int]
    REQUEST_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_CPU_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_DISK_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PIDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PARK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MODE_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    image: str
    request_cpu: str
    request_memory: str
    limit_cpu: str
    limit_memory: str
    limit_disk: str
    limit_pids: int
    labels: _containers.ScalarMap[str, str]
    env: _containers.ScalarMap[str, str]
    user: str
    workdir: str
    idle_timeout_ms: int
    timeout_ms: int
    start_timeout_ms: int
    checkpoint: str
    project: str
    park_after_ms: int
    idle_mode: str
    def __init__(self, idempotency_key: _Optional[str] = ..., image: _Optional[str] = ..., request_cpu: _Optional[str] = ..., request_memory: _Optional[str] = ..., limit_cpu: _Optional[str] = ..., limit_memory: _Optional[str] = ..., limit_disk: _Optional[str] = ..., limit_pids: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., env: _Optional[_Mapping[str, str]] = ..., user: _Optional[str] = ..., workdir: _Optional[str] = ..., idle_timeout_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., start_timeout_ms: _Optional[int] = ..., checkpoint: _Optional[str] = ..., project: _Optional[str] = ..., park_after_ms: _Optional[int] = ..., idle_mode: _Optional[str] = ...) -> None: ...

class Sandbox(_message.Message):
    __slots__ = ("id", "state", "node", "image", "labels", "created_at_us", "started_at_us", "expires_at_us", "failure", "adopted", "job", "end", "idle_expires_at_us")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IDLE_EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    node: str
    image: str
    labels: _containers.ScalarMap[str, str]
    created_at_us: int
    started_at_us: int
    expires_at_us: int
    failure: _nodes_pb2.Failure
    adopted: bool
    job: str
    end: SandboxEnd
    idle_expires_at_us: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., node: _Optional[str] = ..., image: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., created_at_us: _Optional[int] = ..., started_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ..., failure: _Optional[_Union[_nodes_pb2.Failure, _Mapping]] = ..., adopted: bool = ..., job: _Optional[str] = ..., end: _Optional[_Union[SandboxEnd, _Mapping]] = ..., idle_expires_at_us: _Optional[int] = ...) -> None: ...

class SandboxEnd(_message.Message):
    __slots__ = ("cause", "message", "hint", "ended_at_us")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    cause: str
    message: str
    hint: str
    ended_at_us: int
    def __init__(self, cause: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., ended_at_us: _Optional[int] = ...) -> None: ...

class GetSandboxRequest(_message.Message):
    __slots__ = ("sandbox",)
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    def __init__(self, sandbox: _Optional[str] = ...) -> None: ...

class ListSandboxesRequest(_message.Message):
    __slots__ = ("labels", "ended_too", "page_size", "page_token")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ENDED_TOO_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    ended_too: bool
    page_size: int
    page_token: str
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ..., ended_too: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSandboxesReply(_message.Message):
    __slots__ = ("sandboxes", "next_page_token")
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sandboxes: _containers.RepeatedCompositeFieldContainer[Sandbox]
    next_page_token: str
    def __init__(self, sandboxes: _Optional[_Iterable[_Union[Sandbox, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class KillSandboxesRequest(_message.Message):
    __slots__ = ("sandboxes", "labels", "reason")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sandboxes: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    reason: str
    def __init__(self, sandboxes: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class KillSandboxesReply(_message.Message):
    __slots__ = ("killed", "failed")
    KILLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    killed: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[KillFailure]
    def __init__(self, killed: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[KillFailure, _Mapping]]] = ...) -> None: ...

class KillFailure(_message.Message):
    __slots__ = ("sandbox", "code", "message")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    code: str
    message: str
    def __init__(self, sandbox: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ForkSandboxRequest(_message.Message):
    __slots__ = ("sandbox", "count", "idempotency_key", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    count: int
    idempotency_key: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, sandbox: _Optional[str] = ..., count: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ForkSandboxReply(_message.Message):
    __slots__ = ("sandboxes", "checkpoint")
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    sandboxes: _containers.RepeatedCompositeFieldContainer[Sandbox]
    checkpoint: str
    def __init__(self, sandboxes: _Optional[_Iterable[_Union[Sandbox, _Mapping]]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class ClaimSessionRequest(_message.Message):
    __slots__ = ("job", "wait_ms", "driver", "ttl_ms", "rollout", "held_only")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    HELD_ONLY_FIELD_NUMBER: _ClassVar[int]
    job: str
    wait_ms: int
    driver: str
    ttl_ms: int
    rollout: str
    held_only: bool
    def __init__(self, job: _Optional[str] = ..., wait_ms: _Optional[int] = ..., driver: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., rollout: _Optional[str] = ..., held_only: bool = ...) -> None: ...

class ClaimSessionReply(_message.Message):
    __slots__ = ("session", "drained")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    session: Session
    drained: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., drained: bool = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("sandbox", "rollout", "step", "attempt", "group", "task_id", "row", "claim", "actions", "takes_reward")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    TAKES_REWARD_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    rollout: str
    step: str
    attempt: int
    group: str
    task_id: str
    row: str
    claim: str
    actions: int
    takes_reward: bool
    def __init__(self, sandbox: _Optional[str] = ..., rollout: _Optional[str] = ..., step: _Optional[str] = ..., attempt: _Optional[int] = ..., group: _Optional[str] = ..., task_id: _Optional[str] = ..., row: _Optional[str] = ..., claim: _Optional[str] = ..., actions: _Optional[int] = ..., takes_reward: bool = ...) -> None: ...

class RenewSessionRequest(_message.Message):
    __slots__ = ("sandbox", "claim")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ...) -> None: ...

class RenewSessionReply(_message.Message):
    __slots__ = ("ttl_ms",)
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ttl_ms: int
    def __init__(self, ttl_ms: _Optional[int] = ...) -> None: ...

class FinishSessionRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "reward", "turn_rewards", "problem")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TURN_REWARDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    reward: float
    turn_rewards: _containers.RepeatedCompositeFieldContainer[TurnReward]
    problem: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., reward: _Optional[float] = ..., turn_rewards: _Optional[_Iterable[_Union[TurnReward, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class TurnReward(_message.Message):
    __slots__ = ("turn", "reward")
    TURN_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    turn: int
    reward: float
    def __init__(self, turn: _Optional[int] = ..., reward: _Optional[float] = ...) -> None: ...

class FinishSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "action_id", "run", "put", "get")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    action_id: str
    run: RunCommand
    put: PutFile
    get: GetFile
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., action_id: _Optional[str] = ..., run: _Optional[_Union[RunCommand, _Mapping]] = ..., put: _Optional[_Union[PutFile, _Mapping]] = ..., get: _Optional[_Union[GetFile, _Mapping]] = ...) -> None: ...

class RunCommand(_message.Message):
    __slots__ = ("shell", "argv", "env", "cwd", "user", "stdin", "timeout_ms", "output_bytes_max", "in_shell")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SHELL_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    IN_SHELL_FIELD_NUMBER: _ClassVar[int]
    shell: str
    argv: _nodes_pb2.Argv
    env: _containers.ScalarMap[str, str]
    cwd: str
    user: str
    stdin: bytes
    timeout_ms: int
    output_bytes_max: int
    in_shell: str
    def __init__(self, shell: _Optional[str] = ..., argv: _Optional[_Union[_nodes_pb2.Argv, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., user: _Optional[str] = ..., stdin: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., output_bytes_max: _Optional[int] = ..., in_shell: _Optional[str] = ...) -> None: ...

class PutFile(_message.Message):
    __slots__ = ("path", "data", "mode", "user")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    mode: int
    user: str
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., mode: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class GetFile(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class ActReply(_message.Message):
    __slots__ = ("state", "result", "repeated", "ordinal")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    state: str
    result: ActResult
    repeated: bool
    ordinal: int
    def __init__(self, state: _Optional[str] = ..., result: _Optional[_Union[ActResult, _Mapping]] = ..., repeated: bool = ..., ordinal: _Optional[int] = ...) -> None: ...

class ActResult(_message.Message):
    __slots__ = ("exit_code", "signal", "timed_out", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "capture_truncated", "data", "code", "message", "started_at_us", "finished_at_us")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_US_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    timed_out: bool
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    capture_truncated: bool
    data: bytes
    code: str
    message: str
    started_at_us: int
    finished_at_us: int
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., timed_out: bool = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., stdout_bytes: _Optional[int] = ..., stderr_bytes: _Optional[int] = ..., capture_truncated: bool = ..., data: _Optional[bytes] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., started_at_us: _Optional[int] = ..., finished_at_us: _Optional[int] = ...) -> None: ...

class ListActionsRequest(_message.Message):
    __slots__ = ("sandbox", "page_size")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    page_size: int
    def __init__(self, sandbox: _Optional[str] = ..., page_size: _Optional[int] = ..., **kwargs) -> None: ...

class ListActionsReply(_message.Message):
    __slots__ = ("actions", "more")
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    more: bool
    def __init__(self, actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ..., more: bool = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("ordinal", "action_id", "payload_sha256", "state", "result")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    action_id: str
    payload_sha256: str
    state: str
    result: ActResult
    def __init__(self, ordinal: _Optional[int] = ..., action_id: _Optional[str] = ..., payload_sha256: _Optional[str] = ..., state: _Optional[str] = ..., result: _Optional[_Union[ActResult, _Mapping]] = ...) -> None: ...

class ExecInput(_message.Message):
    __slots__ = ("start", "stdin", "close_stdin", "resize", "signal", "received", "hang_up")
    START_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_STDIN_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HANG_UP_FIELD_NUMBER: _ClassVar[int]
    start: ExecStart
    stdin: bytes
    close_stdin: bool
    resize: PtySize
    signal: int
    received: ExecReceived
    hang_up: bool
    def __init__(self, start: _Optional[_Union[ExecStart, _Mapping]] = ..., stdin: _Optional[bytes] = ..., close_stdin: bool = ..., resize: _Optional[_Union[PtySize, _Mapping]] = ..., signal: _Optional[int] = ..., received: _Optional[_Union[ExecReceived, _Mapping]] = ..., hang_up: bool = ...) -> None: ...

class ExecReceived(_message.Message):
    __slots__ = ("stdout_bytes", "stderr_bytes")
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    stdout_bytes: int
    stderr_bytes: int
    def __init__(self, stdout_bytes: _Optional[int] = ..., stderr_bytes: _Optional[int] = ...) -> None: ...

class ExecStart(_message.Message):
    __slots__ = ("sandbox", "claim", "shell", "argv", "env", "cwd", "user", "pty", "timeout_ms", "detach", "exec_id", "resume")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    SHELL_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PTY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    shell: str
    argv: _nodes_pb2.Argv
    env: _containers.ScalarMap[str, str]
    cwd: str
    user: str
    pty: PtySize
    timeout_ms: int
    detach: bool
    exec_id: str
    resume: ExecReceived
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., shell: _Optional[str] = ..., argv: _Optional[_Union[_nodes_pb2.Argv, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., user: _Optional[str] = ..., pty: _Optional[_Union[PtySize, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., detach: bool = ..., exec_id: _Optional[str] = ..., resume: _Optional[_Union[ExecReceived, _Mapping]] = ...) -> None: ...

class PtySize(_message.Message):
    __slots__ = ("columns", "rows")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    columns: int
    rows: int
    def __init__(self, columns: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class ExecOutput(_message.Message):
    __slots__ = ("started", "stdout", "stderr", "ended")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    started: ExecStarted
    stdout: bytes
    stderr: bytes
    ended: ExecEnded
    def __init__(self, started: _Optional[_Union[ExecStarted, _Mapping]] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., ended: _Optional[_Union[ExecEnded, _Mapping]] = ...) -> None: ...

class ExecStarted(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class ExecEnded(_message.Message):
    __slots__ = ("exit_code", "signal", "timed_out")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    timed_out: bool
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., timed_out: bool = ...) -> None: ...

class FileInfo(_message.Message):
    __slots__ = ("path", "kind", "size", "mode", "uid", "gid", "modified_at_us", "version", "symlink_target")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_AT_US_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SYMLINK_TARGET_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_at_us: int
    version: str
    symlink_target: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[str] = ..., size: _Optional[int] = ..., mode: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., modified_at_us: _Optional[int] = ..., version: _Optional[str] = ..., symlink_target: _Optional[str] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "path", "offset", "size", "version")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    offset: int
    size: int
    version: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("info", "data")
    INFO_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    info: FileInfo
    data: bytes
    def __init__(self, info: _Optional[_Union[FileInfo, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteFileChunk(_message.Message):
    __slots__ = ("start", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: WriteFileStart
    data: bytes
    def __init__(self, start: _Optional[_Union[WriteFileStart, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteFileStart(_message.Message):
    __slots__ = ("sandbox", "claim", "path", "mode", "user", "size")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    mode: int
    user: str
    size: int
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ..., mode: _Optional[int] = ..., user: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "path", "page_size", "after")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    page_size: int
    after: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ..., page_size: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListFilesReply(_message.Message):
    __slots__ = ("files", "more")
    FILES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileInfo]
    more: bool
    def __init__(self, files: _Optional[_Iterable[_Union[FileInfo, _Mapping]]] = ..., more: bool = ...) -> None: ...

class StatFileRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "path")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class MakeDirRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "path", "user")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    user: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class RemoveFileRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "path")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    path: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class RemoveFileReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: bool = ...) -> None: ...

class ForwardInput(_message.Message):
    __slots__ = ("open", "data", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: ForwardOpen
    data: bytes
    close: bool
    def __init__(self, open: _Optional[_Union[ForwardOpen, _Mapping]] = ..., data: _Optional[bytes] = ..., close: bool = ...) -> None: ...

class ForwardOpen(_message.Message):
    __slots__ = ("sandbox", "claim", "port")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    port: int
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class ForwardOutput(_message.Message):
    __slots__ = ("opened", "data", "closed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    opened: bool
    data: bytes
    closed: bool
    def __init__(self, opened: bool = ..., data: _Optional[bytes] = ..., closed: bool = ...) -> None: ...

class PauseSandboxRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "version", "park")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARK_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    version: int
    park: bool
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., version: _Optional[int] = ..., park: bool = ...) -> None: ...

class ResumeSandboxRequest(_message.Message):
    __slots__ = ("sandbox", "claim", "version")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    version: int
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class LifecycleReply(_message.Message):
    __slots__ = ("rung", "version", "reclaimed_bytes")
    RUNG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECLAIMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    rung: str
    version: int
    reclaimed_bytes: int
    def __init__(self, rung: _Optional[str] = ..., version: _Optional[int] = ..., reclaimed_bytes: _Optional[int] = ...) -> None: ...

class TakeCheckpointRequest(_message.Message):
    __slots__ = ("sandbox", "claim")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    sandbox: str
    claim: str
    def __init__(self, sandbox: _Optional[str] = ..., claim: _Optional[str] = ...) -> None: ...

class TakeCheckpointReply(_message.Message):
    __slots__ = ("checkpoint", "id")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _nodes_pb2.Checkpoint
    id: str
    def __init__(self, checkpoint: _Optional[_Union[_nodes_pb2.Checkpoint, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...
