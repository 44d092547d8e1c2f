"""kill -9 of an executor: what it ran goes on under the next one, once and to the byte."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import threading
import time

import lab
import pytest

KILLS = int(os.environ.get("ROLLYARD_KILLS", "8"))

SPEC = """\
apiVersion: rollyard/v1
kind: RolloutJob
name: adopted
tasks: {from: {inline: [%(rows)s]}}
group: {size: %(size)d}
defaults:
  image: host
  timeout: 120s
  retry: {limit: %(retries)d, backoff: 100ms, max_backoff: 200ms}
  resources: {request: {cpu: 50m, memory: 32Mi}, limit: {cpu: "1", memory: 128Mi, disk: 16Mi, pids: 64}}
steps:
%(steps)s
output: {table: ./out, shard: {rows: 64, flush: 1s}}
"""

ONE = '{n: "1"}'


def running(*command):
    """How many processes of this machine run exactly this."""
    wanted, found = b"".join(word.encode() + b"\0" for word in command), 0
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes() == wanted
    return found


class Nodes:
    """A scheduler and one executor, which is killed and started again."""

    def __init__(self, yard):
        self.yard = yard
        self.data = yard.directory / "n1"
        self.scheduler = yard.start("scheduler", "--listen", yard.socket)
        lab.wait_until(yard.listens, "the scheduler listens")
        self.executor = None
        self.start()

    def start(self, binary=None):
        serve = ("executor", "--name", "n1", "--scheduler", self.yard.socket)
        kept, lab.BINARY = lab.BINARY, binary or lab.BINARY
        try:
            self.executor = self.yard.start(*serve, data=self.data)
        finally:
            lab.BINARY = kept

    def kill(self):
        self.executor.send_signal(signal.SIGKILL)
        assert self.executor.wait(timeout=60) == -signal.SIGKILL

    def submit(self, steps, rows=ONE, size=1, retries=0):
        spec = self.yard.spec(SPEC % {"steps": steps, "rows": rows, "size": size, "retries": retries})
        return self.yard.start("--yard", self.yard.socket, "submit", spec, "--table", self.yard.table, "--wait")

    def leaves(self):
        paths = lab.census(self.yard.directory).get("cgroups", [])
        return [lab.given_to(path) or pathlib.Path(path).name for path in paths]

    def logs(self):
        return "".join(path.read_text() for path in self.yard.directory.glob("executor-*.log"))

    def end(self):
        for process in (self.executor, self.scheduler):
            lab.end(process)


@pytest.fixture
def nodes(yard):
    nodes = Nodes(yard)
    yield nodes
    nodes.end()


def ran(nodes, submitted):
    assert submitted.wait(timeout=lab.HANG_S) == 0, nodes.logs()
    return nodes.yard.rows("steps")


def stored(nodes, step):
    """What was captured of its standard output, as the yard keeps it."""
    digest = step["stdout_artifact"].removeprefix("sha256:")
    paths = [path for path in nodes.yard.data.rglob("*") if path.is_file() and path.name.endswith(digest[4:])]
    (content,) = {path.read_bytes() for path in paths}
    return content


def test_a_step_runs_once_through_a_kill_of_its_executor(nodes):
    submitted = nodes.submit('  - {name: work, run: "echo begun; sleep 4; echo done"}')
    lab.wait_until(nodes.leaves, "a sandbox")
    time.sleep(1)
    before = nodes.leaves()
    nodes.kill()
    time.sleep(0.5)
    assert nodes.leaves() == before, "it lives on"
    nodes.start()
    lab.wait_until(lambda: "taken over" in nodes.logs(), "it is taken over")
    assert nodes.leaves() == before, nodes.logs()
    (step,) = ran(nodes, submitted)
    assert (step["attempt"], step["failure_code"], step["exit_code"]) == (0, None, 0), nodes.logs()
    assert stored(nodes, step) == b"begun\ndone\n"


def test_output_is_exact_through_five_kills(nodes):
    count = "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); echo line $i; [ $((i % 500)) -eq 0 ] && sleep 0.1; done; true"
    submitted = nodes.submit(f'  - {{name: work, run: "{count}"}}')
    lab.wait_until(nodes.leaves, "a sandbox")
    time.sleep(0.5)
    for _ in range(5):
        nodes.kill()
        time.sleep(0.3)
        nodes.start()
        time.sleep(1)
    (step,) = ran(nodes, submitted)
    assert (step["attempt"], step["failure_code"]) == (0, None), nodes.logs()
    expected = "".join(f"line {n}\n" for n in range(1, 40001))
    assert stored(nodes, step).decode() == expected


def test_without_another_executor_the_broker_destroys_everything_at_the_end_of_the_lease(nodes):
    submitted = nodes.submit('  - {name: work, run: "sleep 600"}')
    lab.wait_until(nodes.leaves, "a sandbox")
    time.sleep(1)
    nodes.kill()
    time.sleep(2)
    assert nodes.leaves(), "the lease goes on"
    lab.wait_until(lambda: not lab.census(nodes.yard.directory).get("cgroups"), "the end of the lease", 30)
    lab.end(submitted, signal.SIGKILL)


def test_broker_and_executor_killed_leave_nothing_and_the_work_is_done_again(nodes):
    submitted = nodes.submit('  - {name: work, run: "sleep 2; echo done"}', retries=3)
    lab.wait_until(nodes.leaves, "a sandbox")
    children = pathlib.Path(f"/proc/{nodes.executor.pid}/task").glob("*/children")
    pids = [pid for path in children for pid in path.read_text().split()]
    (broker,) = [p for p in pids if pathlib.Path(f"/proc/{p}/comm").read_text() == "rollyard-broker\n"]
    nodes.executor.send_signal(signal.SIGKILL)
    os.kill(int(broker), signal.SIGKILL)
    nodes.executor.wait(timeout=60)
    nodes.start()
    steps = ran(nodes, submitted)
    assert steps[-1]["failure_code"] is None
    assert "taken over" not in nodes.logs()


def test_another_build_adopts_nothing_and_starts_anew(nodes):
    submitted = nodes.submit('  - {name: work, run: "sleep 2; echo done"}', retries=3)
    lab.wait_until(nodes.leaves, "a sandbox")
    time.sleep(0.5)
    nodes.kill()
    other = nodes.yard.directory / "rollyard"
    shutil.copy(lab.BINARY, other)
    nodes.start(other)
    steps = ran(nodes, submitted)
    assert steps[-1]["failure_code"] is None
    assert "sandboxes of another build are destroyed" in nodes.logs()
    assert "taken over" not in nodes.logs()


def test_a_start_beside_an_executor_that_lives_costs_nothing_when_that_one_is_killed(nodes):
    submitted = nodes.submit('  - {name: work, run: "echo begun; sleep 25; echo done"}')
    lab.wait_until(nodes.leaves, "a sandbox")
    other = nodes.yard.directory / "rollyard"
    shutil.copy(lab.BINARY, other)
    first = nodes.executor
    nodes.start(other)
    time.sleep(2)
    nodes.executor.kill()
    nodes.executor.wait(timeout=60)
    nodes.executor = first
    nodes.kill()
    nodes.start()
    (step,) = ran(nodes, submitted)
    assert (step["attempt"], step["failure_code"]) == (0, None), nodes.logs()
    assert stored(nodes, step) == b"begun\ndone\n"


def test_what_had_begun_and_is_lost_with_its_init_is_told_and_runs_again_as_another_attempt(nodes):
    submitted = nodes.submit('  - {name: work, run: "echo begun; sleep 4; echo done"}', retries=3)
    lab.wait_until(nodes.leaves, "a sandbox")
    time.sleep(1)
    nodes.kill()
    (record,) = nodes.data.rglob("*.record")
    last = record.read_text().splitlines()[-1]
    os.kill(json.loads(last)["deed"]["init_pid"], signal.SIGKILL)
    nodes.start()
    steps = sorted(ran(nodes, submitted), key=lambda step: step["attempt"])
    assert [step["attempt"] for step in steps] == list(range(len(steps))) and len(steps) == 2, nodes.logs()
    assert [step["failure_code"] for step in steps] == ["node_lost", None], nodes.logs()


STEPS = """\
  - {name: work, env: {N: "${row.n}"}, run: "for i in 1 2 3 4 5 6; do sleep 0.1; echo $i; done; echo $((N * 7)) > answer", outputs: [{name: answer, path: answer}]}
  - name: grade
    needs: [work]
    env: {N: "${row.n}"}
    inputs: [{artifact: work.answer, path: /in/answer}]
    grader: {reward_file: /logs/verifier/reward.txt}
    run: 'sleep 0.2; if [ "$(cat /in/answer)" = $((N * 7)) ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'\
"""


def test_every_rollout_ends_once_whenever_the_executor_is_killed(nodes):
    """Without a single retry: nothing is lost by a kill."""
    rng = random.Random(lab.seed())
    groups = 12
    rows = ", ".join(f'{{n: "{n}"}}' for n in range(groups))
    submitted = nodes.submit(STEPS, rows=rows, size=4)
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.1, 2.0))
        nodes.kill()
        nodes.start()
    assert submitted.wait(timeout=lab.HANG_S) == 0, nodes.logs()
    rows = nodes.yard.rows()
    ids = [row["trajectory_id"] for row in rows]
    assert len(ids) == len(set(ids)) == 4 * groups
    assert {(row["reward"], row["failure_code"]) for row in rows} == {(1.0, None)}, rows
    steps = [(s["trajectory_id"], s["step_name"], s["attempt"]) for s in nodes.yard.rows("steps")]
    assert len(steps) == len(set(steps)) == 8 * groups, "an attempt ran twice, or another was needed"
    assert not nodes.leaves()


def test_a_sandbox_of_a_client_serves_again_with_its_files(nodes):
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")
    with ry.Client(nodes.yard.socket, start=False) as client:
        sandbox = client.sandbox(memory="32Mi", disk_limit="16Mi", cpu="10m", timeout=300)
        sandbox.run("echo before > f")
        before = sandbox.pause().version
        nodes.kill()
        nodes.start()

        def reads():
            try:
                return sandbox.read("f")
            except ry.Error as error:
                # Until it is attached again.
                return print(error)

        assert lab.wait_until(reads, "it serves again") == b"before\n"
        assert "taken over" in nodes.logs()
        assert sandbox.pause().version > before, "a version is never told of two states"
        assert sandbox.run("cat f; echo after >> f; cat f").text == "before\nbefore\nafter\n"
        assert sandbox.kill()


def test_a_paused_sandbox_of_a_client_stays_paused_through_a_kill(nodes):
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

    def frozen():
        """As the kernel says."""
        leaves = (pathlib.Path(leaf) for leaf in lab.census(nodes.yard.directory)["cgroups"])
        (events,) = filter(pathlib.Path.exists, (leaf / "cgroup.events" for leaf in leaves))
        return "frozen 1" in events.read_text()

    def shown(name):
        return nodes.yard.json("--yard", nodes.yard.socket, "sandbox", "show", name)

    with ry.Client(nodes.yard.socket, start=False) as client:
        sandbox = client.sandbox(memory="32Mi", disk_limit="16Mi", cpu="10m", timeout=300, park_after=600)
        sandbox.run("echo before > f; sleep 600 > /dev/null 2>&1 &")
        before, paused = shown(sandbox.id), sandbox.pause()
        for _ in range(2):
            nodes.kill()
            nodes.start()
            told = lab.wait_until(lambda: (now := shown(sandbox.id))["state"] == "paused" and now, "it is paused")
            assert frozen()
            assert told["expires_at_us"] == before["expires_at_us"], "its deadline is what it was"
        assert nodes.logs().count("taken over") >= 2
        assert sandbox.resume(version=paused.version).version == paused.version + 1
        assert not frozen()
        run = nodes.yard.call("--yard", nodes.yard.socket, "exec", sandbox.id, "cat", "f")
        assert run.stdout == "before\n"
        # A call resumes it by itself, as ever.
        sandbox.pause()
        nodes.kill()
        nodes.start()
        lab.wait_until(lambda: shown(sandbox.id)["state"] == "paused", "it is paused")
        assert sandbox.run("cat f").text == "before\n"
        assert shown(sandbox.id)["state"] == "running"
        assert sandbox.kill()


def test_a_call_that_a_driver_lost_with_the_executor_is_neither_its_mistake_nor_the_tasks(nodes):
    """More sessions than are let fail in a row. Their calls wait for the node to come back."""
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")
    rows = ", ".join(f'{{n: "{n}"}}' for n in range(5))
    submitted = nodes.submit("  - {name: play, session: {idle_timeout: 60s}}", rows=rows)
    turns, unknown = [], []

    async def solve(s):
        turns.append((await s.run("echo $((6 * 7))")).text)
        try:
            await s.run("sleep 20.0625")
        except ry.OutcomeUnknown:
            unknown.append(s.task.rollout)
            if int(s.task["n"]) > 0:
                raise
        await s.finish(reward=1.0)

    with ry.Client(nodes.yard.socket, start=False) as client:
        (job,) = lab.wait_until(lambda: list(client.jobs()), "the job is there")

        def kill():
            lab.wait_until(lambda: running("sleep", "20.0625") == 5, "all of them sleep")
            nodes.kill()
            nodes.start()

        killing = threading.Thread(target=kill)
        killing.start()
        done = client.drive(client.job(job.id), solve, concurrency=5)
        killing.join()
        assert submitted.wait(timeout=lab.HANG_S) == 0, nodes.logs()
    assert len(unknown) == 5 and set(turns) == {"42\n"}, (unknown, turns)
    # The four that were given up were a loss of the node: their groups are refilled.
    rows = nodes.yard.rows()
    assert {(row["reward"], row["failure_code"]) for row in rows} == {(1.0, None)} and len(rows) == 5, rows
    assert sum(row["trajectory_id"].endswith("-r1") for row in rows) == 4
    # No driver began again: their calls waited for the node.
    assert (done.finished, done.with_problem, done.left, len(turns)) == (9, 4, 0, 9)


def test_a_session_that_is_lost_is_gone_though_its_step_is_tried_again(nodes):
    """Elsewhere: whoever held the first learns that it is over, and waits for its node no longer than that takes."""
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")
    submitted = nodes.submit("  - {name: play, session: {idle_timeout: 60s}}", retries=3)
    with ry.Client(nodes.yard.socket, start=False) as client:
        (job,) = lab.wait_until(lambda: list(client.jobs()), "the job is there")
        first = next(client.job(job.id).sessions())
        assert first.run("echo 1").text == "1\n"
        nodes.kill()
        serve = ("executor", "--name", "n2", "--scheduler", nodes.yard.socket)
        nodes.executor = nodes.yard.start(*serve, data=nodes.yard.directory / "n2")
        with client.session(first.task.rollout, driver="next", wait=60) as second:
            assert (first.task.attempt, second.task.attempt) == (0, 1)
            with pytest.raises(ry.SandboxGone) as gone:
                first.run("echo 2")
            assert gone.value.code == "sandbox_gone", gone.value
            second.finish(reward=1.0)
        assert submitted.wait(timeout=lab.HANG_S) == 0, nodes.logs()
