"""Sandboxes that are saved and end on their node, to come back at the next call: from Python, against the
real binary."""

import contextlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import lab
import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")


def park(sandbox):
    assert sandbox.pause(park=True).rung == "parked"
    lab.wait_until(lambda: sandbox.info().state == "parked", "it is parked")


def test_a_parked_sandbox_is_gone_from_its_node_and_the_next_call_brings_it_back(client, yard, sandbox):
    sandbox.run("echo one > kept; mkdir d; echo old > d/f; echo gone > gone; (sleep 1000 &) > /dev/null 2>&1")
    sandbox.run("rm gone; rm -rf d; mkdir d; echo new > d/g")
    for _ in range(3):
        park(sandbox)
        lab.wait_until(lambda: not lab.census(yard.data).get("cgroups"), "its node holds nothing of it")
        assert [told.state for told in client.sandboxes({"of": "test"})] == ["parked"]
        with pytest.raises(ry.Error) as refused:
            sandbox.pause(park=True)
        assert refused.value.code == "sandbox_parked", "a pause is not what brings it back"
        assert sandbox.run("cat kept; ls; ls d; pgrep sleep || echo none").text == "one\nd\nkept\ng\nnone\n"
        assert sandbox.info().state == "running"


def test_recorded_actions_are_repeated_and_not_done_again(sandbox):
    first = sandbox.exec("echo x >> done; wc -l < done", action_id="a")
    park(sandbox)
    again = sandbox.exec("echo x >> done; wc -l < done", action_id="a")
    assert (again.text, sandbox.run("wc -l < done").text) == (first.text, "1\n")
    assert sandbox.exec("echo x >> done; wc -l < done", action_id="b").text == "2\n"


def test_a_parked_sandbox_ends_by_its_deadlines_and_by_a_kill(client):
    idle = client.sandbox(idle_timeout=3, labels={"of": "test"}, **lab.SMALL)
    short = client.sandbox(timeout=3, labels={"of": "test"}, **lab.SMALL)
    killed = client.sandbox(labels={"of": "test"}, **lab.SMALL)
    for sandbox in (idle, short, killed):
        assert sandbox.pause(park=True).rung == "parked"
    assert killed.kill()
    for sandbox in (idle, short, killed):
        lab.wait_until(lambda: sandbox.info().state == "ended", "its end")
        assert sandbox.info().failure is None or sandbox.info().failure.code == "step_timeout"
        with pytest.raises(ry.SandboxGone):
            sandbox.exec("true")


def test_many_callers_of_a_parked_sandbox_wait_for_the_one_resume(sandbox):
    sandbox.run("echo there > f")
    for _ in range(3):
        park(sandbox)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda n: sandbox.exec(f"cat f; echo {n}").text, range(8)))
        assert got == [f"there\n{n}\n" for n in range(8)]


def test_a_parked_sandbox_is_forked(sandbox):
    sandbox.run("echo there > f")
    park(sandbox)
    forks = sandbox.fork(2)
    assert [fork.read("f") for fork in forks] == [b"there\n"] * 2
    assert all(fork.kill() for fork in forks)


def test_a_call_that_comes_while_it_is_parked_goes_first_or_waits(sandbox):
    sandbox.run("echo 0 > n")
    with ThreadPoolExecutor(2) as pool:
        for turn in range(8):

            def parks():
                with contextlib.suppress(ry.Error):
                    sandbox.pause(park=True)

            parking = pool.submit(parks)
            time.sleep(turn * 0.01)
            assert sandbox.exec(f"cat n; echo {turn + 1} > n").text == f"{turn}\n"
            parking.result()


def test_it_outlives_the_scheduler_and_the_node_it_was_parked_on(yard, monkeypatch):
    monkeypatch.setenv("ROLLYARD_BIN", str(lab.BINARY))
    serve = ("scheduler", "--listen", yard.socket)
    scheduler = yard.start(*serve)
    lab.wait_until(yard.listens, "the scheduler listens")
    executors = {}
    try:
        for name in ("n1", "n2"):
            where = yard.directory / name
            executors[name] = yard.start("executor", "--name", name, "--scheduler", yard.socket, data=where)
        with ry.Client(yard.socket, start=False) as client:
            sandbox = client.sandbox(labels={"of": "test"}, **lab.SMALL)
            home = sandbox.info().node
            first = sandbox.exec("echo x >> done; wc -l < done", action_id="a")
            park(sandbox)
            lab.end(scheduler, signal.SIGKILL)
            scheduler = yard.start(*serve)
            lab.wait_until(lambda: state(sandbox) == "parked", "the scheduler is back")
            assert "parked for" in yard.call("explain", sandbox.created.job).stdout
            lab.end(executors[home], signal.SIGKILL)
            away = sandbox.exec("wc -l < done; cat done")
            assert (away.text, sandbox.info().node != home) == ("1\nx\n", True)
            assert sandbox.exec("echo x >> done; wc -l < done", action_id="a").text == first.text
            assert sandbox.run("cat done").text == "x\n", "done once"
            assert sandbox.kill()
    finally:
        for process in (*executors.values(), scheduler):
            lab.end(process)


def state(sandbox) -> str:
    with contextlib.suppress(ry.Error):
        return sandbox.info().state
    return ""
