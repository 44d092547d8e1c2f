"""`rollyard exec` while the scheduler or the executor is killed: begun once, its output whole or its end unknown."""

import signal
import subprocess
import time

import lab
import pytest
from test_adoption import Nodes


@pytest.fixture
def nodes(yard):
    nodes = Nodes(yard)
    yield nodes
    nodes.end()


@pytest.fixture
def sandbox(nodes):
    create = ("sandbox", "create", "--memory", "32Mi", "--limit-disk", "16Mi", "--cpu", "10m")
    return nodes.yard.call("--yard", nodes.yard.socket, *create).stdout.strip()


def begin(nodes, *command):
    """`exec` as it runs, once its command does."""
    whole = nodes.yard.command("--yard", nodes.yard.socket, "exec", *command)
    process = subprocess.Popen(
        whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n", process.stderr.read()
    return process


def ended(process):
    # Not `communicate`: what was read with the first line is in the buffer of the file.
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(timeout=lab.HANG_S), out, err


def begun(nodes, sandbox):
    """How often."""
    read = ("--yard", nodes.yard.socket, "exec", sandbox, "cat", "times")
    # A new command begins only once the node is attached again.
    return lab.wait_until(lambda: nodes.yard.call(*read, ok=False).stdout, "its node is back")


def restart(nodes, how):
    nodes.scheduler.send_signal(how)
    began = time.monotonic()
    nodes.scheduler.wait(timeout=60)
    # Half a second for calls that are nearly done; without a word to the others it would be 5 s.
    assert time.monotonic() - began < 4
    time.sleep(0.5)
    nodes.scheduler = nodes.yard.start("scheduler", "--listen", nodes.yard.socket)
    lab.wait_until(nodes.yard.listens, "the scheduler listens")


SCRIPT = "echo once >> times; echo begun; i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; %s"
LINES = "".join(f"line {n}\n" for n in range(1, 401))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_goes_on_through_an_end_of_the_scheduler(nodes, sandbox, how):
    running = begin(nodes, sandbox, "--", "sh", "-c", SCRIPT % "exit 7")
    for _ in range(2):
        time.sleep(0.5)
        restart(nodes, how)
    code, out, err = ended(running)
    assert (code, out) == (7, LINES), err
    assert begun(nodes, sandbox) == "once\n"


def test_a_command_that_ends_while_the_scheduler_is_away_is_told_whole(nodes, sandbox):
    running = begin(nodes, sandbox, "--", "sh", "-c", "echo once >> times; echo begun; sleep 2; echo done")
    nodes.scheduler.send_signal(signal.SIGKILL)
    nodes.scheduler.wait(timeout=60)
    time.sleep(4)
    nodes.scheduler = nodes.yard.start("scheduler", "--listen", nodes.yard.socket)
    code, out, err = ended(running)
    assert (code, out) == (0, "done\n"), err
    assert "the yard does not answer" in err and "the yard answers again" in err, err
    assert begun(nodes, sandbox) == "once\n"


def test_a_command_whose_executor_is_killed_is_unknown_and_never_begun_again(nodes, sandbox):
    running = begin(nodes, sandbox, "--", "sh", "-c", "echo once >> times; echo begun; sleep 600; echo done")
    nodes.kill()
    nodes.start()
    code, out, err = ended(running)
    assert (code, out) == (125, ""), err
    assert "error[outcome_unknown]: nobody knows how the command ended" in err, err
    assert begun(nodes, sandbox) == "once\n"


def test_a_command_ends_with_its_interrupted_client(nodes, sandbox):
    running = begin(nodes, sandbox, "--", "sh", "-c", "echo begun; exec sleep 97531")

    def runs():
        script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
        listing = nodes.yard.call("--yard", nodes.yard.socket, "exec", sandbox, "--", "sh", "-c", script)
        return "sleep 97531 " in listing.stdout

    assert runs()
    running.send_signal(signal.SIGINT)
    assert ended(running)[0] == 130
    lab.wait_until(lambda: not runs(), "it ends", 5)


def test_lines_fed_to_a_shell_are_done_once_through_a_kill_of_the_scheduler(nodes, sandbox):
    command = nodes.yard.command("--yard", nodes.yard.socket, "attach", "--shell", "main", sandbox)
    feeding = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    feeding.stdin.write("N=1; echo begun\nsleep 2; N=$((N+1)); echo $N\necho $N\n")
    feeding.stdin.close()
    assert feeding.stdout.readline() == "begun\n"
    time.sleep(0.5)
    restart(nodes, signal.SIGKILL)
    assert feeding.wait(timeout=lab.HANG_S) == 0, feeding.stderr.read()
    assert feeding.stdout.read() == "2\n2\n"
