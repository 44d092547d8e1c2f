"""Rollyard from Python: submit batches of RL rollouts, wait for them, read their tables.

    import rollyard as ry

    job = ry.submit("job.yaml")
    job.wait(progress=True)
    for row in job.rows():
        print(row["task_id"], row["status"], row["reward"])

A yard that runs on this machine is used; without one, one is started and ends with this process.
Tables are read without a yard: `ry.open_table("out/JOB")`.
"""

from .aio import AsyncClient, AsyncJobHandle
from .aio_sandbox import AsyncProcess, AsyncSandbox, AsyncShell
from .aio_session import AsyncSession
from .client import Client, JobHandle, submit
from .drive import DriveInfo, rollout
from .errors import (
    ActionConflict,
    BusyError,
    ClaimLost,
    CommandError,
    Error,
    FileError,
    JobEndedError,
    NotAvailableError,
    NotFoundError,
    OutcomeUnknown,
    RequestError,
    SandboxGone,
    SpecError,
    StartError,
    StillRunning,
    TableError,
    UnreachableError,
    YardError,
)
from .forward import AsyncForward, Forward
from .process import Process
from .sandbox import Sandbox, Shell
from .sandbox_calls import Get, Put, Run, TruncatedWarning
from .sandbox_views import ActionInfo, CommandResult, ExitInfo, FileInfo, KillInfo, LifecycleInfo, SandboxEnd, SandboxInfo
from .session import Session
from .spec import Job
from .table import Shard, Table, open_table
from .views import (
    Counts,
    Failure,
    FailureCount,
    JobInfo,
    LogChunk,
    MemoryAdvice,
    RetryInfo,
    Rewards,
    RolloutInfo,
    StepMemory,
)

__all__ = [
    "ActionConflict",
    "ActionInfo",
    "AsyncClient",
    "AsyncForward",
    "AsyncJobHandle",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncShell",
    "BusyError",
    "ClaimLost",
    "Client",
    "CommandError",
    "CommandResult",
    "Counts",
    "DriveInfo",
    "Error",
    "ExitInfo",
    "Failure",
    "FailureCount",
    "FileError",
    "FileInfo",
    "Forward",
    "Get",
    "Job",
    "JobEndedError",
    "JobHandle",
    "JobInfo",
    "KillInfo",
    "LifecycleInfo",
    "LogChunk",
    "MemoryAdvice",
    "NotAvailableError",
    "NotFoundError",
    "OutcomeUnknown",
    "Process",
    "Put",
    "RequestError",
    "RetryInfo",
    "Rewards",
    "RolloutInfo",
    "Run",
    "Sandbox",
    "SandboxGone",
    "SandboxEnd",
    "SandboxInfo",
    "Session",
    "Shard",
    "Shell",
    "SpecError",
    "StartError",
    "StepMemory",
    "StillRunning",
    "Table",
    "TableError",
    "TruncatedWarning",
    "UnreachableError",
    "YardError",
    "open_table",
    "rollout",
    "submit",
]
