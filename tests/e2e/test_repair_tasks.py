"""The repair tasks of the examples: every one is broken as it says, and its reference fix mends it."""

import pathlib
import subprocess
import sys
import time

REPAIR = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/repair"
PROMISED_S = 60


def test_every_task_fails_before_its_fix_and_passes_after():
    begun = time.monotonic()
    done = subprocess.run([sys.executable, REPAIR / "check.py"], capture_output=True, text=True, timeout=5 * PROMISED_S)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, summary = done.stdout.splitlines()
    count = int(summary.split()[0])
    assert count >= 24 and len(rows) == count + 1, done.stdout
    assert time.monotonic() - begun < PROMISED_S, "the check is meant to be quick"
