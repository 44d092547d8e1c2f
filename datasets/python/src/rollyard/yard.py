"""A yard started on demand: `rollyard dev` as a child that ends with this process."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from . import address, errors

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LOG = "dev.log"
"""In the data directory: what the yard said since it was started."""
_LOG_TAIL_BYTES = 64 * 1024
_POLL_SECONDS = 0.02


class Yard:
    """A running `rollyard dev`.

    Its standard input is a pipe from this process: however this process ends, the yard sees the
    end of it, stops, and leaves unfinished jobs to be resumed. It is in a session of its own, so
    that a Ctrl-C in the terminal is not sent to it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ends it and waits. What runs is ended; what is done stays."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ensure(data_dir: Path) -> Yard | None:
    """Makes sure a yard serves the data directory: None if one did already.

    Raises `UnreachableError` if no program is found or the yard does not come up within
    `START_SECONDS_MAX`, else the program's own error.
    """
    address.socket_url(data_dir)
    if address.answers(data_dir):
        return None
    program = address.program()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / LOG
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, "--data-dir", str(data_dir), "--output", "json", "dev", "--stop-at-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=out,
            start_new_session=True,
        )
    yard = Yard(process)
    deadline = time.monotonic() + START_SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            lines = _tail(log)
            if any(line.startswith("serving ") for line in lines) and not ended:
                return yard
            if ended:
                if error := _why(lines):
                    # Another process was faster: its yard serves this one too.
                    if error.code == "data_dir_locked" and _answers_by(data_dir, deadline):
                        return None
                    raise error
                break
            time.sleep(_POLL_SECONDS)
    except BaseException:
        yard.stop()
        raise
    yard.stop()
    message = f"`{program} dev` did not come up within {START_SECONDS_MAX:.0f} s"
    raise errors.make("yard_unreachable", message, f"read {log}")


def _answers_by(data_dir: Path, deadline: float) -> bool:
    while time.monotonic() < deadline:
        if address.answers(data_dir):
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace").splitlines()


def _why(lines: list[str]) -> errors.Error | None:
    return next((error for line in reversed(lines) if (error := errors.from_program(line))), None)
