"""The soak of sandboxes in small: kills of everything, the census and the books at the end. 10,000 in `make soak`."""

import json
import os
import subprocess

import lab

BENCHES = lab.BINARY.parent / "benches"
SANDBOXES = int(os.environ.get("ROLLYARD_SANDBOX_SOAK", "150"))


def test_sandboxes_under_kills_end_once_and_leave_nothing(yard):
    assert BENCHES.exists(), f"{BENCHES} is not built: run `cargo build --workspace --all-targets`"
    often = {"executor": 500, "scheduler": 1000, "broker": 2000, "job": 500}
    # Each at least once.
    seldom = {"executor": SANDBOXES // 3, "scheduler": SANDBOXES // 2, "broker": SANDBOXES, "job": SANDBOXES // 2}
    every = {part: min(often[part], seldom[part]) for part in often}
    args = [word for part, count in every.items() for word in (f"--{part}-every", str(count))]
    done = subprocess.run(
        [str(BENCHES), "soak", "--sandboxes", str(SANDBOXES), "--seed", str(lab.seed()), *args],
        env={**os.environ, "ROLLYARD_BIN": str(lab.BINARY), "TMPDIR": str(yard.directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=lab.HANG_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert (figures["leaks"]["value"], figures["wrong"]["value"]) == (0, 0)
    assert figures["leaks"]["n"] >= SANDBOXES and all(figures["leaks"]["kills"].values()), figures
