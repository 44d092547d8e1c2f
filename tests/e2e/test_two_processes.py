"""Scheduler and executors as processes of their own, over a Unix socket."""

import signal

import lab

HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()


def test_the_same_job_runs_over_two_executors_and_survives_both_halves(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: (yard.data / "yard.sock").exists(), "the scheduler listens")
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
        scheduler = yard.start("scheduler", "--listen", yard.socket)
        yard.call("--yard", yard.socket, "submit", spec, "--table", yard.table, "--wait")
        assert len(yard.rows()) == 8
    finally:
        for process in [*nodes, scheduler]:
            lab.end(process)


def test_without_an_executor_the_job_waits_and_explain_says_why(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: (yard.data / "yard.sock").exists(), "the scheduler listens")
    try:
        submitted = yard.json("--yard", yard.socket, "submit", yard.spec(HELLO), "--table", yard.table)
        job = submitted["job"]["id"]
        text = yard.call("--yard", yard.socket, "explain", job).stdout
        assert "no executor" in text, text
    finally:
        lab.end(scheduler)


def test_a_tcp_address_beyond_loopback_is_refused(yard):
    done = yard.call("scheduler", "--listen", "0.0.0.0:0", ok=False)
    assert done.returncode != 0 and "listen_not_loopback" in done.stderr
