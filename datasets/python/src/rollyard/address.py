"""Where a yard is: its data directory, its socket, and the program that serves one."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from . import errors

SOCKET = "yard.sock"
SOCKET_PATH_BYTES_MAX = 107
"""The longest path a Unix socket may have on Linux."""


def default_data_dir() -> Path:
    """`ROLLYARD_DATA_DIR`, else /var/lib/rollyard for root, else $XDG_DATA_HOME/rollyard or
    ~/.local/share/rollyard: as the program has it."""
    if chosen := os.environ.get("ROLLYARD_DATA_DIR"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/rollyard")
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if data.is_absolute():
        return data / "rollyard"
    home = os.environ.get("HOME")
    return Path(home) / ".local/share/rollyard" if home else Path("/var/lib/rollyard")


def socket_url(data_dir: Path) -> str:
    """Of the yard that serves the data directory."""
    path = data_dir / SOCKET
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        message = f"the path of the socket in {data_dir} has {size} bytes; the limit is {SOCKET_PATH_BYTES_MAX}"
        raise errors.make("bad_data_dir", message, "name another; it may be a symbolic link")
    return f"unix:{path}"


def target(url: str) -> str:
    """The gRPC target of `unix:/path`, `unix:///path` or `http://HOST:PORT`."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if path.startswith("/"):
            return f"unix:{path}"
        raise errors.make("bad_yard", f"`{url}`: the path of a Unix socket must be absolute")
    if url.startswith("https://"):
        raise errors.make("not_available_yet", f"TLS (`{url}`)", "use a Unix socket or http:// on loopback")
    authority = url.removeprefix("http://").rstrip("/")
    host = authority.rpartition(":")[0].strip("[]")
    if not url.startswith("http://") or not (host in ("localhost", "::1") or host.startswith("127.")):
        hint = "write unix:/path/to/yard.sock or http://127.0.0.1:PORT"
        raise errors.make("bad_yard", f"`{url}` is not the address of a yard", hint)
    return authority


def answers(data_dir: Path) -> bool:
    """Whether something listens on the socket of the data directory."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(data_dir / SOCKET))
        except OSError:
            return False
    return True


def program() -> str:
    """The path of `rollyard`: `ROLLYARD_BIN`, else the first on PATH."""
    chosen = os.environ.get("ROLLYARD_BIN")
    found = shutil.which(chosen or "rollyard")
    if found is None:
        what = f"ROLLYARD_BIN names `{chosen}`, which is no program" if chosen else "no `rollyard` is on PATH"
        hint = "install it, set ROLLYARD_BIN, or start a yard with `rollyard dev` and give its URL"
        raise errors.make("yard_unreachable", f"no yard answers and none can be started: {what}", hint)
    return found
