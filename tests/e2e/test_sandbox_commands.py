"""The commands about sandboxes, against the real binary."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import lab
import pytest

SMALL = ["--cpu", "10m", "--memory", "16Mi", "--limit-memory", "128Mi", "--limit-disk", "16Mi", "--limit-pids", "64"]


@pytest.fixture
def running(yard):
    dev = yard.start("dev")
    try:
        lab.wait_until(lambda: yard.call("nodes", "--output", "quiet", ok=False).stdout, "a node")
        yield yard
        yard.call("kill", "--selector", "of=test", ok=False)
    finally:
        lab.end(dev)


@pytest.fixture
def sandbox(running):
    return create(running)


def create(yard, *more):
    return yard.call("sandbox", "create", *SMALL, "--label", "of=test", *more).stdout.strip()


def test_from_create_to_kill(running):
    one = create(running, "--label", "n=1", "-e", "WHO=me")
    other = create(running, "--label", "n=2")
    (told,) = running.json("sandbox", "ls", "--selector", "of=test,n=1")
    assert (told["id"], told["state"], told["labels"]) == (one, "running", {"n": "1", "of": "test"})
    assert running.json("sandbox", "show", one)["id"] == one
    assert running.json("ps") == [], "a sandbox is no job of the list"
    done = running.call("exec", one, "--", "sh", "-c", 'echo "$WHO"; echo err >&2; exit 7', ok=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "me\n", "err\n")
    assert running.call("pause", one, "--output", "quiet").stdout.strip() in ("frozen", "reclaimed")
    assert running.call("exec", one, "true").returncode == 0
    assert running.call("resume", one, "--output", "quiet").stdout == "running\n"
    running.call("exec", one, "--", "sh", "-c", "echo kept > f")
    forks = running.call("fork", one, "-n", "2", "--label", "of=test").stdout.split()
    assert [running.call("exec", fork, "--", "cat", "f").stdout for fork in forks] == ["kept\n"] * 2
    checkpoint = running.call("checkpoint", "take", one).stdout.strip()
    again = create(running, "--checkpoint", checkpoint)
    assert running.call("exec", again, "cat", "f").stdout == "kept\n"
    assert sorted(running.call("kill", one, *forks).stdout.split()) == sorted([one, *forks])
    assert running.call("kill", one).stdout == "", "it had ended"
    assert sorted(running.call("kill", "-l", "of=test").stdout.split()) == sorted([other, again])
    assert running.json("sandbox", "ls") == []
    gone = running.call("exec", one, "true", ok=False)
    assert gone.returncode == 1 and "error[sandbox_ended]" in gone.stderr, gone.stderr
    assert "has ended (killed): killed by the user" in gone.stderr, gone.stderr


def test_why_a_sandbox_ended_and_where_a_parked_one_is(running):
    parked = create(running)
    running.call("pause", "--park", parked)
    shown = running.call("sandbox", "show", parked).stdout
    assert "\nnode      parked\n" in shown and " without a call, else " in shown, shown
    told = running.json("sandbox", "show", parked)
    assert told["node"] is None and told["idle_expires_at_us"] < told["expires_at_us"]
    idle, killed = create(running, "--idle-timeout", "1s"), create(running)
    running.call("kill", killed, "--reason", "not needed\nany more")
    lab.wait_until(lambda: running.json("sandbox", "show", idle)["state"] == "ended", "its idle timeout")
    listed = running.call("sandbox", "ls", "--all").stdout
    assert "ended: idle_timeout" in listed and "ended: killed" in listed, listed
    shown = running.call("sandbox", "show", idle).stdout
    assert "why       idle_timeout: no call came for its idle timeout of 1s\n" in shown, shown
    shown = running.call("sandbox", "show", killed).stdout
    assert "why       killed: not needed any more\n" in shown, shown
    assert running.json("sandbox", "show", killed)["end"]["cause"] == "killed"
    why = running.call("explain", idle.partition("@")[0]).stdout
    assert "The sandbox has ended (idle_timeout): no call came for its idle timeout of 1s." in why, why


def test_standard_input_and_signals(running, sandbox):
    data = os.urandom(2_000_000)
    command = running.command("exec", "-i", sandbox, "--", "sh", "-c", "cat")
    done = subprocess.run(command, input=data, capture_output=True, timeout=lab.HANG_S)
    assert (done.returncode, done.stdout == data) == (0, True), done.stderr
    assert running.call("exec", sandbox, "--", "sh", "-c", "kill -9 $$", ok=False).returncode == 137
    slow = running.call("exec", "--timeout", "500ms", sandbox, "--", "sleep", "100", ok=False)
    assert slow.returncode == 137 and "deadline" in slow.stderr

    # What ends the command ends what it started, unless it is detached.
    def runs(mark):
        listing = running.call("exec", sandbox, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
        return f"sleep {mark} " in listing.stdout

    for mark, detach in (("9871", []), ("9872", ["--detach"])):
        process = running.start("exec", *detach, sandbox, "--", "sleep", mark)
        lab.wait_until(lambda: runs(mark), "it runs")
        assert lab.end(process, signal.SIGINT) == 130
    lab.wait_until(lambda: not runs("9871"), "it ends")
    assert runs("9872")


class Terminal:
    """`rollyard` on a terminal of its own."""

    def __init__(self, command):
        self.near, far = pty.openpty()
        self.resize(97, 31)
        self.modes = termios.tcgetattr(far)
        self.far = far
        self.process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, start_new_session=True)
        self.text = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.near, text.encode())

    def read_until(self, word):
        deadline = time.monotonic() + 60
        while word not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.near], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.text += os.read(self.near, 65536).decode(errors="replace")
        before, _, self.text = self.text.partition(word)
        return before

    def end(self):
        code = self.process.wait(timeout=60)
        assert termios.tcgetattr(self.far) == self.modes, "the terminal is as it was"
        os.close(self.near)
        os.close(self.far)
        return code


def test_a_terminal_is_passed_on_with_its_size_and_restored(running, sandbox):
    terminal = Terminal(running.command("exec", "-it", sandbox, "--", "sh", "-c", "stty size; exec sh"))
    terminal.read_until("31 97")
    terminal.type("echo $((6 * 7))\n")
    terminal.read_until("42")
    terminal.resize(81, 25)
    terminal.process.send_signal(signal.SIGWINCH)
    time.sleep(0.5)
    terminal.type("stty size\n")
    terminal.read_until("25 81")
    # Ctrl-C goes to what runs in the sandbox, not to the program.
    terminal.type("sleep 1000\n")
    time.sleep(0.5)
    terminal.type("\x03")
    time.sleep(0.2)
    terminal.type("echo after-$((1 + 1)); exit 5\n")
    terminal.read_until("after-2")
    assert terminal.end() == 5


def test_a_terminal_is_restored_when_the_program_is_told_to_end(running, sandbox):
    terminal = Terminal(running.command("exec", "-it", sandbox, "--", "sh", "-c", "echo up; sleep 1000"))
    terminal.read_until("up")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 130


def test_attach_opens_a_shell_and_feeds_one_that_stays(running, sandbox):
    terminal = Terminal(running.command("attach", sandbox))
    terminal.type("echo in-$((40 + 2)); exit 3\n")
    terminal.read_until("in-42")
    assert terminal.end() == 3

    def feed(text):
        command = running.command("attach", sandbox, "--shell", "main")
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=lab.HANG_S)

    assert feed("cd /tmp\nA=kept\n").returncode == 0
    done = feed("pwd; echo $A\n(exit 4)\n")
    assert (done.returncode, done.stdout) == (4, "/tmp\nkept\n"), done.stderr


def test_cp_both_ways(running, sandbox):
    tree = running.directory / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "big").write_bytes(os.urandom(3_000_000))
    (tree / "sub/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "sub/run.sh").chmod(0o755)
    running.call("cp", "tree", f"{sandbox}:/tmp/tree")
    assert running.call("exec", sandbox, "--", "/tmp/tree/sub/run.sh").stdout == "ran\n"
    running.call("exec", sandbox, "--", "sh", "-c", "cd /tmp/tree; ln -s /etc/passwd link; for n in $(seq 30); do echo $n > f$n; done")
    told = running.json("cp", f"{sandbox}:/tmp/tree", "back")
    assert (told["files"], told["directories"], told["symlinks"], told["left_out"]) == (32, 2, 1, [])
    back = running.directory / "back"
    assert (back / "big").read_bytes() == (tree / "big").read_bytes()
    assert (back / "sub/run.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(back / "link") == "/etc/passwd" and (back / "f30").read_text() == "30\n"
    refused = running.call("cp", f"{sandbox}:/nothing", "x", ok=False)
    assert refused.returncode == 1 and "error[no_such_file]" in refused.stderr
    refused = running.call("cp", f"{sandbox}:/tmp/tree", "back2", "--max-bytes", "1Ki", ok=False)
    assert "error[copy_too_large]" in refused.stderr


def test_errors_are_told_in_json(running, sandbox):
    for args, code in [
        (["exec", "j0000000000007-g0-s0", "true"], "sandbox_gone"),
        (["exec", sandbox, "/nowhere"], "command_not_started"),
        (["kill", "j0000000000007-g0-s0"], "kill_failed"),
        (["sandbox", "create", "--image", "dir:/nowhere"], None),
        (["pause", sandbox, "--version", "999"], "version_conflict"),
    ]:
        done = running.call("--output", "json", *args, ok=False)
        told = json.loads(done.stderr.splitlines()[-1])["error"]
        assert done.returncode == told["exit_code"] != 0
        assert code in (None, told["code"]), told


def test_what_waits_says_why_and_ctrl_c_ends_it(yard):
    dev = yard.start("dev", "--memory", "512Mi")
    try:
        lab.wait_until(lambda: yard.call("nodes", "--output", "quiet", ok=False).stdout, "a node")
        sizes = ["--cpu", "10m", "--memory", "400Mi", "--limit-memory", "400Mi", "--limit-disk", "16Mi"]
        large = [*sizes, "--label", "of=test"]

        def told(process, words):
            text = b""
            while words not in text:
                piece = os.read(process.stderr.fileno(), 65536)
                assert piece, text
                text += piece
            return text.decode()

        def begun(*args):
            return subprocess.Popen(yard.command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        first = yard.call("sandbox", "create", *large).stdout.strip()
        for args in (["sandbox", "create", *large], ["fork", first, "-n", "2"]):
            process = begun(*args)
            assert "memory" in told(process, b"memory")
            assert len(yard.call("sandbox", "ls", "--output", "quiet").stdout.split()) >= 2
            process.send_signal(signal.SIGINT)
            out, text = process.communicate(timeout=lab.HANG_S)
            assert (process.returncode, out) == (130, b""), text
            assert b"ended j" in text
            assert yard.call("sandbox", "ls", "--output", "quiet").stdout.split() == [first]
        # Of a key that others may know nothing is ended.
        process = begun("sandbox", "create", *large, "--idempotency-key", "k")
        told(process, b"memory")
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=lab.HANG_S)
        assert process.returncode == 130 and b"--idempotency-key" in text
        yard.call("kill", first)
        assert yard.call("sandbox", "create", *large, "--idempotency-key", "k").stdout.strip()
        yard.call("kill", "--selector", "of=test")
        assert "nothing was ended" in yard.call("kill", first).stderr
        assert first.partition("@")[0] in yard.call("show", first).stdout
        assert yard.call("explain", first).returncode == 0
    finally:
        lab.end(dev)
