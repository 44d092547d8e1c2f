"""The repair tasks of the examples: broken as they say, mended by their fix, graded without trust in the agent."""

import pathlib
import subprocess
import sys
import time

REPAIR = pathlib.Path(__file__).resolve().parents[2] / "docs/examples/repair"
PROMISED_S = 60


def check(*arguments: str) -> list[str]:
    command = [sys.executable, REPAIR / "check.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PROMISED_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_task_fails_before_its_fix_and_passes_after():
    begun = time.monotonic()
    *rows, summary = check()
    count = int(summary.split()[0])
    assert count >= 24 and len(rows) == count + 1, rows
    assert time.monotonic() - begun < PROMISED_S, "the check is meant to be quick"


def test_no_misdeed_and_no_hostile_file_changes_a_reward():
    rows = check("--misdeeds")
    assert len(rows) >= 20
    assert all("same reward" in row or "reward 0" in row for row in rows), rows


def test_the_agent_mends_one_task_and_honestly_fails_another():
    mended, failed, _ = check("--agent", "1", "disk-alarm", "leap-days")
    assert "reward 1.0" in mended and "mended after" in mended
    assert "reward 0.0" in failed and "no edit found" in failed
