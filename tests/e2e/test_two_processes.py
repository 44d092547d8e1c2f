"""Scheduler and executors as processes of their own, over a Unix socket."""

import os
import pathlib
import signal
import socket
import time

import lab
import pytest

HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()


@pytest.mark.parametrize("over", ["a Unix socket", "loopback"])
def test_the_same_job_runs_over_two_executors_and_survives_both_halves(yard, over):
    if over == "loopback":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        yard.socket = f"http://{listen}"
    else:
        listen = yard.socket
    scheduler = yard.start("scheduler", "--listen", listen)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    nodes = [
        yard.start("executor", "--name", name, "--scheduler", yard.socket, data=yard.directory / name)
        for name in ("n1", "n2")
    ]
    try:
        spec = yard.spec(HELLO)
        yard.call("--yard", yard.socket, "submit", spec, "--table", yard.table, "--wait")
        assert len(yard.rows()) == 4

        # The scheduler dies and comes back; the executors rejoin and the yard goes on.
        end = lab.end(scheduler, signal.SIGKILL)
        assert end == -signal.SIGKILL
        scheduler = yard.start("scheduler", "--listen", listen)
        lab.wait_until(lambda: yard.listens(), "the scheduler listens")
        yard.call("--yard", yard.socket, "submit", spec, "--table", yard.table, "--wait")
        assert len(yard.rows()) == 8
    finally:
        for process in [*nodes, scheduler]:
            lab.end(process)


def test_a_command_that_waits_bears_with_a_scheduler_that_is_away(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    spec = yard.spec(HELLO.replace('run: "echo', 'run: "sleep 1; echo'))
    # It is there and answers nothing: whether the submit arrived is not known when it dies.
    os.kill(scheduler.pid, signal.SIGSTOP)
    submitted = yard.start("--yard", yard.socket, "submit", spec, "--table", yard.table, "--wait")
    (log,) = yard.directory.glob("--yard-*.log")
    node = None
    try:
        for away in ("job ", "answers again"):
            time.sleep(1)
            assert submitted.poll() is None, log.read_text()
            lab.end(scheduler, signal.SIGKILL)
            # Longer than a short restart.
            time.sleep(4)
            assert submitted.poll() is None, log.read_text()
            scheduler = yard.start("scheduler", "--listen", yard.socket)
            lab.wait_until(lambda: away in log.read_text(), "the command has its scheduler back")
        node = yard.start("executor", "--name", "n1", "--scheduler", yard.socket, data=yard.directory / "n1")
        assert submitted.wait(timeout=lab.HANG_S) == 0, log.read_text()
        assert len(yard.json("--yard", yard.socket, "ps")) == 1, "sent twice, and one job"
        assert [row["reward"] for row in yard.rows()] == [1.0] * 4
        assert log.read_text().count("the yard does not answer: waiting up to 60 s") == 2
    finally:
        for process in filter(None, (node, scheduler, submitted)):
            lab.end(process)


def test_an_executor_that_lost_its_broker_ends_and_its_next_life_does_the_work(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    data = yard.directory / "n1"
    serve = ("executor", "--name", "n1", "--scheduler", yard.socket)
    executor = yard.start(*serve, data=data)
    try:
        spec = yard.spec(HELLO.replace('run: "echo', 'run: "sleep 1; echo'))
        submitted = yard.start("--yard", yard.socket, "submit", spec, "--table", yard.table, "--wait")
        lab.wait_until(lambda: lab.census(yard.directory).get("cgroups"), "a sandbox lives")
        children = pathlib.Path(f"/proc/{executor.pid}/task").glob("*/children")
        children = [pid for path in children for pid in path.read_text().split()]
        name = "rollyard-broker\n"
        (broker,) = [int(pid) for pid in children if pathlib.Path(f"/proc/{pid}/comm").read_text() == name]
        os.kill(broker, signal.SIGKILL)
        assert executor.wait(timeout=lab.HANG_S) == 1
        executor = yard.start(*serve, data=data)
        assert submitted.wait(timeout=lab.HANG_S) == 0
        assert [row["reward"] for row in yard.rows()] == [1.0] * 4
    finally:
        for process in (executor, scheduler):
            lab.end(process)


def test_without_an_executor_the_job_waits_and_explain_says_why(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    try:
        submitted = yard.json("--yard", yard.socket, "submit", yard.spec(HELLO), "--table", yard.table)
        job = submitted["job"]["id"]
        text = yard.call("--yard", yard.socket, "explain", job).stdout
        assert "No executor" in text, text
    finally:
        lab.end(scheduler)


def test_a_second_executor_on_a_data_directory_is_refused_at_once_and_ends_nothing(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")
    node = yard.start("executor", "--name", "n1", "--scheduler", yard.socket)
    try:
        lab.wait_until(lambda: yard.call("--yard", yard.socket, "nodes", "--output", "quiet").stdout, "a node")
        second = yard.call("executor", "--name", "n2", "--scheduler", yard.socket, ok=False)
        assert second.returncode == 1 and "data_dir_locked" in second.stderr, second.stderr
        assert "does not hand over" not in second.stderr, "the broker of the first is left alone"
        yard.call("--yard", yard.socket, "submit", yard.spec(HELLO), "--table", yard.table, "--wait")
        assert len(yard.rows()) == 4
    finally:
        lab.end(node)
        lab.end(scheduler)


def test_a_tcp_address_beyond_loopback_is_refused(yard):
    done = yard.call("scheduler", "--listen", "0.0.0.0:0", ok=False)
    assert done.returncode != 0 and "listen_not_loopback" in done.stderr
