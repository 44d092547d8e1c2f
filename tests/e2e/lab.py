"""What the end-to-end tests share: the real binary, a yard of its own, tables, a census."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time

import pyarrow as pa

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("ROLLYARD_BIN", ROOT / "target/debug/rollyard"))
# A hang guard: ten times and more what anything here takes.
HANG_S = int(os.environ.get("ROLLYARD_HANG_S", "300"))
# A sandbox of which many fit; with a network namespace as every sandbox has.
SMALL = {"cpu": "10m", "memory": "16Mi", "memory_limit": "128Mi", "disk_limit": "16Mi", "pids_limit": 64}


class Yard:
    """A data directory and a table root, and the binary run on them."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.data = directory / "yard"
        self.table = directory / "out"
        self.socket = f"unix:{self.data}/yard.sock"

    def command(self, *args: str, data: pathlib.Path | None = None) -> list[str]:
        return [str(BINARY), "--data-dir", str(data or self.data), *map(str, args)]

    def call(self, *args: str, data: pathlib.Path | None = None, ok: bool = True) -> subprocess.CompletedProcess:
        done = subprocess.run(
            self.command(*args, data=data),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            cwd=self.directory,
        )
        if ok:
            assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *args: str, data: pathlib.Path | None = None, own_group: bool = False) -> subprocess.Popen:
        log = open(self.directory / f"{args[0]}-{time.monotonic_ns()}.log", "wb")
        return subprocess.Popen(
            self.command(*args, data=data),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            process_group=0 if own_group else None,
        )

    def listens(self) -> bool:
        """Somebody answers at every address of this yard. The socket's file says nothing: one that was
        killed leaves it behind."""
        addresses: list[tuple[int, object]] = [(socket.AF_UNIX, str(self.data / "yard.sock"))]
        if self.socket.startswith("http://"):
            host, port = self.socket.removeprefix("http://").rsplit(":", 1)
            addresses.append((socket.AF_INET, (host, int(port))))
        for family, address in addresses:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                if tried.connect_ex(address):
                    return False
        return True

    def json(self, *args: str) -> object:
        return json.loads(self.call("--output", "json", *args).stdout)

    def spec(self, text: str, name: str = "job.yaml") -> pathlib.Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def rows(self, table: str = "trajectories") -> list[dict]:
        """Every sealed row of every job under the table root."""
        rows = []
        for directory in sorted(self.table.glob(f"*/{table}")):
            rows += sealed_rows(directory)
        return rows


def sealed_rows(directory: pathlib.Path) -> list[dict]:
    """Without those of groups that closed anew."""
    rows, replaced = [], set()
    for line in (directory / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        with pa.memory_map(str(directory / (entry["shard"] + ".arrows"))) as source:
            table = pa.ipc.open_stream(source).read_all()
        assert table.num_rows == entry["rows"], entry
        rows += table.to_pylist()
        for part in filter(None, entry.get("replaces", "").split(",")):
            first, _, last = part.partition("-")
            replaced.update(range(int(first), int(last or first) + 1))
    return [row for row in rows if row["seq"] not in replaced]


def wait_until(condition, what: str, seconds: float = 60.0):
    """A hang guard, not an expectation."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"after {seconds} s still not: {what}")


def end(process: subprocess.Popen, how: int = signal.SIGTERM) -> int:
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def instance(data: pathlib.Path) -> str:
    """The mark of an executor in cgroup paths."""
    return hashlib.sha256(str(data).encode()).hexdigest()[:12]


def given_to(leaf: str) -> str | None:
    """The sandbox of a leaf in the v2 tree that was made ahead, under another name."""
    try:
        return os.getxattr(leaf, "trusted.rollyard.sandbox").decode()
    except OSError:
        return None


def census(data: pathlib.Path) -> dict[str, list[str]]:
    """What carries the mark of this data directory (or of any yard, for cgroups)."""
    found: dict[str, list[str]] = {"cgroups": [], "ahead": [], "loops": [], "processes": [], "mounts": []}
    # Not `**`: trees below come and go while it walks.
    nodes = (path for depth in ("", "*/", "*/*/") for path in data.glob(f"{depth}sandboxes"))
    marks = {instance(sandboxes) for sandboxes in (data, *nodes)}
    for top, folders, _ in os.walk("/sys/fs/cgroup", onerror=lambda _: None):
        if pathlib.Path(top).parent.name == "rollyard" and pathlib.Path(top).name in marks:
            for folder in folders:
                # Made ahead, for no sandbox yet: there while an executor lives.
                is_ahead = folder.startswith("pool.") and not given_to(f"{top}/{folder}")
                found["ahead" if is_ahead else "cgroups"].append(f"{top}/{folder}")
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            text = backing.read_text().strip()
            if str(data) in text:
                found["loops"].append(text)
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(data) in command:
                found["processes"].append(f"{process.name} {command[:100]}")
    with contextlib.suppress(OSError):
        found["mounts"] = [m for m in pathlib.Path("/proc/self/mounts").read_text().splitlines() if str(data) in m]
    return {kind: items for kind, items in found.items() if items}


def assert_census_empty(data: pathlib.Path):
    """After a SIGKILL the broker keeps what lives until the lease is over: wait for that, bounded."""
    try:
        wait_until(lambda: not census(data), "an empty census", 60)
    except AssertionError:
        raise AssertionError(f"left behind: {census(data)}") from None


def removed(directory: pathlib.Path) -> bool:
    """Removes it. False: somebody else removed something of it meanwhile."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return not directory.exists()
    return True


def seed() -> int:
    """Printed, so that a failure can be replayed with ROLLYARD_SEED."""
    value = int(os.environ.get("ROLLYARD_SEED", random.SystemRandom().randrange(2**32)))
    print(f"ROLLYARD_SEED={value}")
    return value
