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
from .client import Client, JobHandle, submit
from .errors import (
    BusyError,
    Error,
    JobEndedError,
    NotAvailableError,
    NotFoundError,
    RequestError,
    SpecError,
    TableError,
    UnreachableError,
    YardError,
)
from .spec import Job
from .table import Shard, Table, open_table
from .views import Counts, Failure, FailureCount, JobInfo, LogChunk, RetryInfo, Rewards, RolloutInfo

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "BusyError",
    "Client",
    "Counts",
    "Error",
    "Failure",
    "FailureCount",
    "Job",
    "JobEndedError",
    "JobHandle",
    "JobInfo",
    "LogChunk",
    "NotAvailableError",
    "NotFoundError",
    "RequestError",
    "RetryInfo",
    "Rewards",
    "RolloutInfo",
    "Shard",
    "SpecError",
    "Table",
    "TableError",
    "UnreachableError",
    "YardError",
    "open_table",
    "submit",
]
