"""The repair job of the examples, on real yards: what misbehaves is told apart, and no reward follows it."""

import pathlib
import re
import shutil
import signal
import tempfile

import lab
import pytest

REPAIR = lab.ROOT / "docs/examples/repair"
# One task for each misdeed, and one whose samples are all honest.
MARKED = {
    "backup-name": (1, "agent_exit"),
    "binary-search": (0, "agent_exit"),
    "column-sum": (3, "agent_exit"),
    "disk-alarm": (2, "disk_quota"),
    "edit-distance": (1, "pids_limit"),
    "ini-reader": (0, "agent_exit"),
    "leap-days": (3, "agent_exit"),
}
TASKS = [*MARKED, "lru-cache"]
SIZE = 4


def spec(yard, honest: bool = False):
    text = (REPAIR / "repair.yaml").read_text()
    text, sources = re.subn(r"harbor: tasks\}", f"harbor: {REPAIR}/tasks}}, filter: {{ids: [{', '.join(TASKS)}]}}", text)
    text, files = re.subn(r"from: agent/", f"from: {REPAIR}/agent/", text)
    assert (sources, files) == (1, 4)
    if honest:
        text, marks = re.subn(r'"\$\{row\.metadata\.misbehave\}"', '""', text)
        assert marks == 1
    return yard.spec(text)


def rewards(rows: list[dict]) -> dict[tuple[str, int], float | None]:
    assert len(rows) == len(TASKS) * SIZE and not any(row["superseded"] for row in rows)
    found = {(row["task_id"], row["sample_index"]): row["reward"] for row in rows}
    assert len(found) == len(rows), "no group loses or repeats a member"
    return found


@pytest.fixture(scope="module")
def honest():
    """The rewards of samples that only do their work."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))
    yard = lab.Yard(directory)
    yard.call("run", spec(yard, honest=True), "--table", yard.table)
    rows = yard.rows()
    assert {row["failure_code"] for row in rows} == {None}
    found = rewards(rows)
    assert set(found.values()) == {0.0, 1.0}, "some tasks are mended, some are not"
    shutil.rmtree(directory)
    return found


def test_misdeeds_are_told_apart_and_change_no_reward(yard, honest):
    done = yard.call("run", spec(yard), "--table", yard.table)
    rows = yard.rows()
    assert rewards(rows) == honest
    told = {(row["task_id"], row["sample_index"]): row["failure_code"] for row in rows if row["failure_code"]}
    marked = {(task, sample): code for task, (sample, code) in MARKED.items()}
    assert {key: code for key, code in told.items() if key[0] != "lru-cache"} == marked
    for code in {code for _, code in MARKED.values()}:
        assert code in done.stdout
    setups = [step for step in yard.rows("steps") if step["step_name"] == "setup"]
    assert len(setups) == len(TASKS) == len({step["group_id"] for step in setups})
    lab.assert_census_empty(yard.data)


def test_over_two_executors_of_which_one_is_killed_half_way_the_rows_are_the_same(yard, honest):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    nodes = [
        yard.start("executor", "--name", name, "--scheduler", yard.socket, data=yard.directory / name)
        for name in ("n1", "n2")
    ]
    submitted = yard.start("--yard", yard.socket, "submit", spec(yard), "--table", yard.table, "--wait")

    def ended() -> int:
        return sum(job["rollouts"]["ended"] for job in yard.json("--yard", yard.socket, "ps"))

    try:
        lab.wait_until(lambda: ended() >= len(TASKS) * SIZE // 2, "half of the rollouts are done", lab.HANG_S)
        lab.end(nodes[0], signal.SIGKILL)
        assert submitted.wait(timeout=lab.HANG_S) == 0
        rows = yard.rows()
        assert rewards(rows) == honest
        done = [step for step in yard.rows("steps") if step["failure_domain"] in (None, "agent")]
        keys = [(step["group_id"], step["trajectory_id"], step["step_name"]) for step in done]
        assert len(keys) == len(set(keys)), "a finished step never runs again"
        assert len([key for key in keys if key[2] == "setup"]) == len(TASKS)
    finally:
        for process in (*nodes, scheduler, submitted):
            lab.end(process)
