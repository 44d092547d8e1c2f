"""Session steps of jobs, driven from Python, against the real binary."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import lab
import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

SESSIONS = int(os.environ.get("ROLLYARD_SESSIONS", "12"))
RESOURCES = {
    "request": {"cpu": "10m", "memory": "32Mi"},
    "limit": {"cpu": "1", "memory": "128Mi", "disk": "16Mi", "pids": 64},
}


@pytest.fixture
def client(monkeypatch, yard):
    monkeypatch.setenv("ROLLYARD_BIN", str(lab.BINARY))
    monkeypatch.delenv("ROLLYARD_YARD", raising=False)
    monkeypatch.chdir(yard.directory)
    with ry.Client(data_dir=yard.data) as client:
        yield client
        for info in client.jobs(unfinished_only=True):
            client.job(info.id).cancel()


def spec(name, rows=1, group=1, session=None, grader=False, **fields):
    inline = [{"n": str(n)} for n in range(rows)]
    job = ry.Job(
        name, tasks={"inline": inline}, group=group, image="host", timeout="10m", resources=RESOURCES, **fields
    )
    job.step("play", session=session or {}, outputs=[{"name": "answer", "path": "answer"}] if grader else [])
    if grader:
        job.step(
            "grade",
            needs=["play"],
            env={"N": "${row.n}"},
            inputs=[{"artifact": "play.answer", "path": "/in/answer"}],
            grader={"reward_file": "/logs/verifier/reward.txt"},
            run='if grep -qx $((N * 7)) /in/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt',
        )
    return job


def ended(job):
    return {row["trajectory_id"]: row for row in job.rows()}


def test_a_function_drives_every_session_and_the_grader_grades(client):
    job = client.submit(spec("graded", rows=SESSIONS, group=2, grader=True), table="out")

    @ry.rollout
    async def solve(s):
        assert not s.task.takes_reward and s.task.recorded == 0
        assert s.task["n"] == s.task.row["n"] and "n" in s.task and "m" not in s.task
        assert s.task.rollout == f"{s.task.group}-s{s.task.sample_index}"
        answer = int((await s.run(f"echo $(({s.task.row['n']} * 7))")).text)
        await s.write("answer", f"{answer if int(s.task.row['n']) % 2 else 0}\n")
        assert (await s.read("answer")).strip()

    done = client.drive(job, solve, concurrency=8)
    assert (done.finished, done.with_problem, done.left) == (2 * SESSIONS, 0, 0), done.problems
    info = job.wait(timeout=lab.HANG_S)
    assert info.counts.rollouts_valid == 2 * SESSIONS
    # 0 is right for the row of 0.
    right = 2 * (SESSIONS // 2 + 1)
    assert info.rewards.successes == right
    steps = [row for row in job.rows("steps") if row["step_name"] == "play"]
    assert {row["kind"] for row in steps} == {"session"} and {row["exit_code"] for row in steps} == {None}


def test_without_a_grader_the_driver_gives_the_reward_or_says_what_is_wrong(client, capsys):
    job = client.submit(spec("own", rows=4), table="out")

    async def solve(s):
        assert s.task.takes_reward
        number = int(s.task.row["n"])
        await s.run("true")
        if number == 3:
            raise ValueError("the environment broke")
        if number < 2:
            await s.finish(reward=number / 2, turn_rewards=[0.25])

    done = client.drive(job, solve, concurrency=4)
    assert (done.finished, done.with_problem) == (4, 1)
    assert "ValueError: the environment broke" in done.problems[0]
    assert 'raise ValueError("the environment broke")' in done.problems[0], "its line"
    assert "rollyard/drive.py" not in done.problems[0]
    assert done.problems[0].partition(": ")[2] in capsys.readouterr().err
    job.wait(timeout=lab.HANG_S)
    rows = {row["task_id"]: row for row in job.rows()}
    assert sorted((row["reward"], row["reward_valid"]) for row in rows.values() if row["reward_valid"]) == [
        (0.0, True),
        (0.5, True),
    ]
    (broken,) = [row for row in rows.values() if row["failure_code"]]
    assert (broken["failure_code"], broken["reward"]) == ("step_exit", None)
    assert "the environment broke" in broken["failure_message"]


DRIVER = """
import asyncio, os, signal, sys
import rollyard as ry

async def solve(s):
    for turn in range(4):
        done = await s.run(f"echo {{turn}} >> log; cat log")
        print(turn, done.repeated, done.text.split(), flush=True)
        if turn == {die_after}:
            await asyncio.sleep(600)
    await s.finish(reward=1.0)

client = ry.Client({url!r}, start=False)
print(client.drive({job!r}, solve, concurrency=1, driver={driver!r}, ttl={ttl}).finished, flush=True)
"""


def driver(client, job, *, die_after, name, ttl):
    text = textwrap.dedent(DRIVER).format(die_after=die_after, url=client.url, job=job.id, driver=name, ttl=ttl)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", ["d", "another"])
def test_a_driver_that_comes_back_gets_what_is_recorded(client, name):
    """Under its name at once, under another when the claim has ended."""
    job = client.submit(spec("back"), table="out")
    first = driver(client, job, die_after=2, name="d", ttl=3)
    lines = [first.stdout.readline() for _ in range(3)]
    assert lines[2] == "2 False ['0', '1', '2']\n", lines
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=lab.HANG_S)
    first.stdout.close()
    began = time.monotonic()
    second = driver(client, job, die_after=-1, name=name, ttl=3)
    text, _ = second.communicate(timeout=lab.HANG_S)
    assert text.splitlines() == [
        "0 True ['0']",
        "1 True ['0', '1']",
        "2 True ['0', '1', '2']",
        "3 False ['0', '1', '2', '3']",
        "1",
    ]
    assert name == "d" or time.monotonic() - began > 1, "it was claimed before the claim of the first ended"
    job.wait(timeout=lab.HANG_S)
    (row,) = ended(job).values()
    assert (row["reward"], row["attempt"]) == (1.0, 0)


HOLDER = """
import asyncio
import rollyard as ry

calls = 0

async def solve(s):
    global calls
    calls += 1
    if calls == 1:
        while calls < 2:
            await asyncio.sleep(0.05)
        await s.finish(reward=0.0)
        print("finished", flush=True)
    await asyncio.sleep(600)

client = ry.Client({url!r}, start=False)
client.drive({job!r}, solve, concurrency=2, driver="d", ttl=600)
"""


def test_what_a_driver_holds_is_found_behind_a_place_that_is_free(client):
    """The first place has nothing left to do, and must not wait before the second asks."""
    job = client.submit(spec("places", rows=2), table="out")
    text = textwrap.dedent(HOLDER).format(url=client.url, job=job.id)
    first = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "finished\n"
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=lab.HANG_S)
    first.stdout.close()

    async def solve(s):
        await s.finish(reward=1.0)

    # Long before its claim ends by itself.
    assert client.drive(job, solve, concurrency=2, driver="d", ttl=600).finished == 1
    job.wait(timeout=lab.HANG_S)
    assert sorted(row["reward"] for row in job.rows()) == [0.0, 1.0]


@pytest.mark.parametrize("twin", [False, True])
def test_a_driver_by_hand_that_comes_back_begins_with_what_it_holds(client, twin):
    job = client.submit(spec("back", rows=4), table="out")
    with ry.Client(client.url, start=False) as first:
        sessions = first.job(job.id).sessions(driver="d", ttl=600)
        taken = [next(sessions) for _ in range(3)]
        taken[0].finish(reward=0.0)
    held = [session.task.rollout for session in taken[1:]]
    if twin:

        async def come_back():
            async with ry.AsyncClient(client.url, start=False) as other:
                found = []
                async for session in other.job(job.id).sessions(driver="d", ttl=600):
                    found.append(session.task.rollout)
                    await session.finish(reward=1.0)
                return found

        found = asyncio.run(come_back())
    else:
        found = []
        for session in job.sessions(driver="d", ttl=600):
            found.append(session.task.rollout)
            session.finish(reward=1.0)
    # Not when their claims end by themselves, and not behind the one that is free.
    assert found[:2] == held and len(found) == 3
    job.wait(timeout=lab.HANG_S)
    assert sorted(row["reward"] for row in job.rows()) == [0.0, 1.0, 1.0, 1.0]


def test_a_session_is_driven_by_hand(client):
    job = client.submit(spec("hand"), table="out")
    sessions = job.sessions(ttl=30)
    session = next(sessions)
    with session:
        assert session.act("a.1", ry.Run("echo x >> f; cat f")).text == "x\n"
        assert session.act("a.1", ry.Run("echo x >> f; cat f")).repeated
        session.act("a.2", ry.Put("g", b"data"))
        assert session.act("a.3", ry.Get("g")) == b"data"
        with pytest.raises(ry.ActionConflict):
            session.act("a.1", ry.Run("other"))
        with pytest.raises(ry.FileError):
            session.act("a.4", ry.Get("/nothing"))
        assert [(action.ordinal, action.action_id, action.state) for action in session.actions()] == [
            (0, "a.1", "done"),
            (1, "a.2", "done"),
            (2, "a.3", "done"),
            (3, "a.4", "done"),
        ]
        # What is not recorded works all the same.
        assert [file.name for file in session.list(".") if file.name in "fg"] == ["f", "g"]
        with session.start("cat f") as process:
            assert next(iter(process)).data == b"x\n"
        # Nobody else may.
        with pytest.raises(ry.NotFoundError):
            client.session(session.task.rollout, wait=0.1)
        other = client.open_sandbox(session.id)
        for call in (
            lambda: other.exec("true"),
            lambda: other.start("true"),
            lambda: other.read("f"),
            lambda: other.write("f", b"x"),
            lambda: other.stat("f"),
        ):
            with pytest.raises(ry.ClaimLost, match=f"a session of job {job.id}: its driver holds it") as refused:
                call()
            assert "client.drive" in refused.value.hint
        with pytest.raises(ry.NotAvailableError):
            _ = session.model_url
        session.finish(0.5)
    assert next(sessions, None) is None
    with pytest.raises(ry.SandboxGone):
        session.exec("true")
    job.wait(timeout=lab.HANG_S)
    assert [row["reward"] for row in job.rows()] == [0.5]


def test_a_claim_that_is_not_renewed_is_anothers(client):
    job = client.submit(spec("stolen"), table="out")
    first = next(job.sessions(ttl="1s", driver="first"))
    first.run("echo once >> f")
    first.close()
    second = client.session(first.task.rollout, wait=20)
    assert second.run("echo once >> f").repeated and second.task.recorded == 1
    with pytest.raises(ry.ClaimLost):
        first.run("echo twice >> f")
    assert second.run("cat f").text == "once\n"
    second.finish(1.0)
    job.wait(timeout=lab.HANG_S)


def test_an_open_session_keeps_its_claim(client):
    job = client.submit(spec("kept"), table="out")
    session = next(job.sessions(ttl=1))
    time.sleep(3)
    assert session.run("echo mine").text == "mine\n"
    session.finish(1.0)
    job.wait(timeout=lab.HANG_S)


def test_a_session_without_a_driver_is_tried_again_and_then_lost(client):
    job = client.submit(
        spec("lost", session={"idle_timeout": "1s"}, retry={"limit": 1, "backoff": "100ms"}), table="out"
    )
    job.wait(timeout=lab.HANG_S)
    (row,) = ended(job).values()
    assert (row["failure_code"], row["failure_domain"], row["reward"]) == ("driver_lost", "scheduler", None)
    assert [step["attempt"] for step in job.rows("steps")] == [0, 1]


def test_the_most_actions_end_a_session(client):
    job = client.submit(spec("most", session={"max_actions": 3}, grader=True), table="out")

    async def solve(s):
        while True:
            await s.run("echo 0 > answer")

    client.drive(job, solve)
    job.wait(timeout=lab.HANG_S)
    (row,) = ended(job).values()
    assert (row["stop_reason"], row["reward"]) == ("max_actions", 1.0), row


def test_driving_ends_with_the_first_error_if_that_is_asked(client):
    job = client.submit(spec("errors", rows=2), table="out")

    async def broken(s):
        raise NameError("a slip")

    with pytest.raises(NameError):
        client.drive(job, broken, driver="d", raise_errors=True)

    async def returns(s):
        return 1.0

    with pytest.raises(ry.RequestError, match="s.finish"):
        client.drive(job, returns, driver="d", raise_errors=True)

    async def mended(s):
        await s.finish(reward=1.0)

    assert client.drive(job, mended, driver="d").finished == 2
    assert job.wait(timeout=lab.HANG_S).rewards.mean == 1.0
    with pytest.raises(ry.RequestError):
        ry.rollout(lambda s: None)


def test_a_mistake_does_not_burn_the_job(client):
    job = client.submit(spec("mistake", rows=8), table="out")

    async def mistaken(s):
        s.task["m"]

    # Its claims are given up: whoever comes next need not wait for them to end.
    with pytest.raises(KeyError, match="no column `m`; it has `n`"):
        client.drive(job, mistaken, concurrency=4, ttl=600)

    async def mended(s):
        await s.finish(reward=1.0)

    done = client.drive(job, mended)
    job.wait(timeout=lab.HANG_S)
    assert [done.finished, sum(row["reward"] == 1.0 for row in job.rows())] == [6, 6], "2 had failed before"


def test_failures_are_let_pass_if_that_is_asked_or_they_differ(client):
    job = client.submit(spec("passed", rows=6), table="out")
    count = itertools.count()

    async def differs(s):
        raise (ValueError if next(count) % 2 else TypeError)("again")

    done = client.drive(job, differs, concurrency=1)
    assert (done.finished, done.with_problem) == (6, 6)
    job = client.submit(spec("let", rows=4), table="out")

    async def same(s):
        raise ValueError("again")

    done = client.drive(job, same, raise_errors=False)
    assert (done.finished, done.with_problem) == (4, 4)


def test_ctrl_c_in_drive_detaches(client, capsys):
    job = client.submit(spec("left"), table="out")
    began = threading.Event()

    async def sleeps(s):
        await s.run("echo once >> f")
        began.set()
        await asyncio.sleep(600)

    def interrupt():
        assert began.wait(lab.HANG_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        client.drive(job, sleeps, ttl=600)
    assert interrupted.value.__context__ is None and interrupted.value.__cause__ is None
    assert f"job {job.id} goes on in the yard" in capsys.readouterr().err

    async def goes_on(s):
        assert (await s.run("echo once >> f")).repeated
        await s.finish(reward=1.0)

    assert client.drive(job, goes_on).finished == 1
    assert job.wait(timeout=lab.HANG_S).rewards.mean == 1.0


def test_calls_side_by_side_have_the_same_ids_each_time(client):
    job = client.submit(spec("beside"), table="out")

    async def work():
        async with ry.AsyncClient(client.url) as twin:
            handle = twin.job(job.id)
            session = await anext(handle.sessions(driver="d"))
            texts = [done.text for done in await asyncio.gather(*(session.run(f"echo {n}") for n in range(8)))]
            assert texts == [f"{n}\n" for n in range(8)]
            session.close()
            again = await anext(handle.sessions(driver="d"))
            assert again.task.recorded == 8
            repeated = await asyncio.gather(*(again.run(f"echo {n}") for n in range(8)))
            assert all(done.repeated for done in repeated)
            await again.finish(reward=1)

    asyncio.run(work())
    job.wait(timeout=lab.HANG_S)


def test_drivers_and_sandboxes_outlive_the_scheduler(yard):
    """It is killed while sessions are driven; what is done is done once, and nothing is lost."""
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    executor = yard.start("executor", "--name", "n1", "--scheduler", yard.socket, data=yard.directory / "n1")
    try:
        with ry.Client(yard.socket, start=False) as client:
            small = {"memory": "16Mi", "disk_limit": "16Mi"}
            sandbox = client.sandbox(labels={"of": "test"}, **small)
            sandbox.run("echo before > f")
            job = client.submit(spec("outlives", rows=4), table=str(yard.table))
            turns = []

            async def solve(s):
                for turn in range(12):
                    done = await s.run(f"echo {turn} >> log; sleep 0.2; wc -l < log")
                    assert int(done.text) == turn + 1, "each line is there once"
                    turns.append(turn)
                await s.finish(reward=1.0)

            with ThreadPoolExecutor(1) as pool:
                driving = pool.submit(client.drive, job, solve, concurrency=4)
                lab.wait_until(lambda: len(turns) >= 8, "turns are made")
                lab.end(scheduler, signal.SIGKILL)
                scheduler = yard.start("scheduler", "--listen", yard.socket)
                done = driving.result(timeout=lab.HANG_S)
            assert (done.finished, done.with_problem, done.left) == (4, 0, 0), done
            info = client.job(job.id).wait(timeout=lab.HANG_S)
            assert (info.rewards.count, info.rewards.mean, len(turns)) == (4, 1.0, 48)
            assert sandbox.read("f") == b"before\n"
            assert sandbox.kill()
    finally:
        for process in (executor, scheduler):
            lab.end(process)
