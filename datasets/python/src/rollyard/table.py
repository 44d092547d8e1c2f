"""Tables as files: sealed shards, mapped, without a server."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import errors

TABLES = ("trajectories", "turns", "steps", "artifacts", "events", "tensors")
MANIFEST = "manifest.jsonl"
SUPERSEDED = "superseded"
MANIFEST_BYTES_MAX = 1 << 30
_SHARD = re.compile(r"[0-9]+-[0-9]+")


@dataclass(frozen=True)
class Shard:
    """A sealed file: an Arrow stream with one record batch per group. It never changes."""

    path: Path
    rows: int
    seq_min: int
    seq_max: int
    sha256: str
    """Of the file, hex."""


class Table:
    """The sealed shards of one table at one moment: `refresh` looks for new ones.

    A group that failed rollouts were run again in has rows under a new `seq`; those under the old
    one are left out. Columns and their meaning: docs/tables.md. Rows of rollouts that a refill
    replaced (`superseded`) lie in tables of their own, which follow if the table was opened with
    `superseded=True`.
    """

    def __init__(self, directory: Path, superseded: bool = False) -> None:
        self.directory = directory
        self.name = directory.name
        self._superseded = superseded
        self._shards: list[Shard] = []
        self._replaced: set[int] = set()
        self.refresh()

    def refresh(self) -> Table:
        """Reads the manifest again. Returns the table itself."""
        shards, replaced = _manifest(self.directory)
        beside = self.directory.parent / SUPERSEDED / self.name
        if self._superseded and (beside / MANIFEST).exists():
            shards += _manifest(beside)[0]
        self._shards, self._replaced = shards, replaced
        return self

    @property
    def shards(self) -> tuple[Shard, ...]:
        """In order of sealing."""
        return tuple(self._shards)

    @property
    def schema(self) -> pa.Schema:
        """Of the first shard, with its metadata. Raises `TableError` if none is sealed."""
        if not self._shards:
            raise errors.make("no_tables", f"{self.directory} has no sealed shard yet")
        with self._open(self._shards[0]) as reader:
            return reader.schema

    def __len__(self) -> int:
        """Rows, of groups that are sealed."""
        if not self._drops_rows and not self._replaced:
            return sum(shard.rows for shard in self._shards)
        return sum(batch.num_rows for batch in self.record_batches())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows()

    def __repr__(self) -> str:
        return f"Table({str(self.directory)!r}, {len(self._shards)} shards)"

    @property
    def _drops_rows(self) -> bool:
        return self.name == "trajectories" and not self._superseded

    def record_batches(self, verify: bool = False) -> Iterator[pa.RecordBatch]:
        """One batch per group, in order of sealing. Buffers lie in the mapped file: read-only, and
        not copied. A group without a row of this table has an empty batch. Columns that were added
        later are not in the batches of older shards. `verify` checks the digest of every shard first.

        Raises `TableError`.
        """
        for shard in self._shards:
            if verify:
                self._verify(shard)
            try:
                with self._open(shard) as reader:
                    for batch in reader:
                        yield self._kept(batch)
            except (pa.ArrowException, OSError) as error:
                raise errors.make("table_unreadable", f"shard {shard.path} is damaged: {error}") from error

    def rows(self, verify: bool = False) -> Iterator[dict[str, Any]]:
        """Row by row as Python values: lists for lists, None for null."""
        for batch in self.record_batches(verify):
            yield from batch.to_pylist()

    def to_arrow(self, verify: bool = False) -> pa.Table:
        """Everything as one table of chunks, mapped and not copied. Dictionaries may differ from
        chunk to chunk (`unify_dictionaries()` makes them one). A column that older shards do not have is
        null there."""
        batches = list(self.record_batches(verify))
        first = batches[0].schema if batches else self.schema
        if all(batch.schema.equals(first) for batch in batches):
            return pa.Table.from_batches(batches, schema=first)
        parts = [pa.Table.from_batches([batch]) for batch in batches]
        return pa.concat_tables(parts, promote_options="default")

    def to_pandas(self, verify: bool = False, **options: Any) -> Any:
        """A pandas DataFrame, copied; dictionary columns become categories. `options` go to
        `pyarrow.Table.to_pandas`. Needs pandas."""
        return self.to_arrow(verify).unify_dictionaries().to_pandas(**options)

    def to_hf(self) -> Any:
        """A `datasets.Dataset` over the mapped shards; dictionary columns become strings and are
        copied, the others are not. Needs datasets >= 3.6."""
        import datasets

        if not self._shards:
            raise errors.make("no_tables", f"{self.directory} has no sealed shard yet")
        parts = [datasets.Dataset.from_file(str(shard.path)) for shard in self._shards]
        whole = datasets.concatenate_datasets(parts)
        if self._replaced:
            seqs = whole.data.column("seq").to_pylist()
            whole = whole.select([row for row, seq in enumerate(seqs) if seq not in self._replaced])
        if self._drops_rows:
            replaced = whole.data.column("superseded").to_pylist()
            if any(replaced):
                whole = whole.select([row for row, gone in enumerate(replaced) if not gone])
        return whole

    def _open(self, shard: Shard) -> pa.RecordBatchStreamReader:
        try:
            return pa.ipc.open_stream(pa.memory_map(str(shard.path)))
        except FileNotFoundError as error:
            raise errors.make("table_unreadable", f"the manifest names {shard.path}, which is not there") from error
        except (pa.ArrowException, OSError) as error:
            raise errors.make("table_unreadable", f"shard {shard.path} is damaged: {error}") from error

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # One group each.
        if self._replaced and batch.num_rows and batch.column("seq")[0].as_py() in self._replaced:
            return batch.slice(0, 0)
        if not self._drops_rows or "superseded" not in batch.schema.names:
            return batch
        replaced = batch.column("superseded")
        if not pc.any(replaced).as_py():
            return batch
        return batch.filter(pc.invert(replaced))

    def _verify(self, shard: Shard) -> None:
        try:
            with shard.path.open("rb") as file:
                found = _digest(file)
        except OSError as error:
            raise errors.make("table_unreadable", f"cannot read {shard.path}: {error.strerror}") from error
        if found != shard.sha256:
            message = f"shard {shard.path} is damaged: its sha256 is {found}, not {shard.sha256}"
            raise errors.make("table_unreadable", message)


def _digest(file: Any) -> str:
    hasher = hashlib.sha256()
    while data := file.read(1 << 20):
        hasher.update(data)
    return hasher.hexdigest()


def open_table(path: str | os.PathLike[str], name: str | None = None, *, superseded: bool = False) -> Table:
    """Opens the folder of one table (`out/JOB/steps`), or table `name` (trajectories) of a job's
    folder (`out/JOB`). No server is needed, and the table may still be written.

    Raises `TableError`.
    """
    directory = Path(path)
    if name is not None or directory.name not in TABLES:
        directory = directory / (name or "trajectories")
    if directory.name not in TABLES:
        raise errors.make("no_tables", f"`{directory.name}` is not a table", f"one of {', '.join(TABLES)}")
    return Table(directory, superseded)


def _seqs(text: str) -> set[int]:
    """Of a set such as `1-256,300`."""
    seqs: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        seqs.update(range(int(first), int(last or first) + 1))
    return seqs


def _manifest(directory: Path) -> tuple[list[Shard], set[int]]:
    """The shards, and the seqs whose groups closed anew under others."""
    path = directory / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "name the folder of a job, such as out/JOB, or of one table in it"
        raise errors.make("no_tables", f"no sealed table is at {directory}", hint) from error
    except OSError as error:
        raise errors.make("table_unreadable", f"cannot read {path}: {error.strerror}") from error
    if len(data) > MANIFEST_BYTES_MAX:
        message = f"{path} has more than {MANIFEST_BYTES_MAX} bytes (MANIFEST_BYTES_MAX)"
        raise errors.make("table_unreadable", message)
    # What follows the last line end is an append that a crash cut short, or one going on.
    lines = data.split(b"\n")[:-1]
    shards = []
    replaced: set[int] = set()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if not _SHARD.fullmatch(entry["shard"]):
                raise ValueError(f"`{entry['shard']}` is not the name of a shard")
            shard = Shard(
                directory / f"{entry['shard']}.arrows",
                int(entry["rows"]),
                int(entry["seq_min"]),
                int(entry["seq_max"]),
                str(entry["sha256"]),
            )
            replaces = _seqs(str(entry.get("replaces", "")))
        except (ValueError, KeyError, TypeError) as error:
            # A damaged last line is a crash's too: its shard is adopted by the next writer.
            if number == len(lines):
                break
            message = f"line {number} of {path} is not a manifest line: {error}"
            raise errors.make("table_unreadable", message) from error
        shards.append(shard)
        replaced |= replaces
    return shards, replaced
