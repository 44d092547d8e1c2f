"""Sandboxes that a client creates: from Python, against the real binary."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import lab
import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

CREATES = int(os.environ.get("ROLLYARD_CREATES", "100"))
AT_ONCE = int(os.environ.get("ROLLYARD_CREATES_AT_ONCE", "50"))
COMMANDS = int(os.environ.get("ROLLYARD_SHELL_COMMANDS", "500"))


def test_a_sandbox_is_created_used_and_ended(client):
    with client.sandbox(labels={"of": "test", "run": "a"}, env={"WHO": "me"}, **lab.SMALL) as sandbox:
        told = sandbox.info()
        assert (told.state, told.labels["run"], told.adopted) == ("running", "a", False)
        assert told.node and sandbox.id.endswith(f"@{told.node}")
        assert told.expires_at > told.started_at
        done = sandbox.exec('echo "$WHO"; echo bad >&2; exit 3')
        assert (done.exit_code, done.text, done.stderr, done.ok) == (3, "me\n", b"bad\n", False)
        assert sandbox.run(["printf", "%s|", "a b", "c"], stdin=b"").text == "a b|c|"
        assert sandbox.run("cat", stdin=b"in\0\xff").stdout == b"in\0\xff"
        with pytest.raises(ry.CommandError) as failed:
            sandbox.run("echo why >&2; exit 9")
        assert (failed.value.code, failed.value.result.exit_code) == ("command_failed", 9)
        assert "why" in failed.value.message
        # The name without its node is enough.
        assert client.open_sandbox(sandbox.id.partition("@")[0]).run("echo here").text == "here\n"
        assert not list(client.jobs()), "it is no job of the lists"
    assert sandbox.info().state == "ended" and sandbox.info().failure is None
    assert sandbox.kill() is False, "it had ended"
    with pytest.raises(ry.SandboxGone):
        sandbox.exec("true")


def test_one_that_fails_to_start_says_why_and_leaves_nothing(client):
    with pytest.raises(ry.Error) as refused:
        client.sandbox("dir:/nowhere", labels={"of": "test"}, **lab.SMALL)
    assert "/nowhere" in str(refused.value)
    with pytest.raises(ry.Error) as refused:
        client.sandbox(labels={"of": "test"}, memory="100Ti", start_timeout=5)
    assert refused.value.code and not list(client.sandboxes())


def test_the_same_key_gives_the_same_sandbox(client):
    first = client.sandbox(key="k-1", labels={"of": "test"}, **lab.SMALL)
    again = client.sandbox(key="k-1", labels={"of": "test"}, **lab.SMALL)
    assert (again.id, again.created.adopted, first.created.adopted) == (first.id, True, False)
    with pytest.raises(ry.RequestError) as refused:
        client.sandbox(key="k-1", labels={"of": "other"}, **lab.SMALL)
    assert refused.value.code == "idempotency_request_mismatch"
    with ThreadPoolExecutor(8) as pool:
        same = set(pool.map(lambda _: client.sandbox(key="k-2", labels={"of": "test"}, **lab.SMALL).id, range(8)))
    assert len(same) == 1
    assert len(list(client.sandboxes())) == 2


def test_actions_are_recorded_and_never_done_twice(sandbox):
    first = sandbox.exec("echo x >> f; cat f", action_id="one")
    again = sandbox.exec("echo x >> f; cat f", action_id="one")
    assert (first.text, first.repeated, again.text, again.repeated) == ("x\n", False, "x\n", True)
    assert sandbox.read("f") == b"x\n"
    with pytest.raises(ry.ActionConflict):
        sandbox.exec("echo y >> f", action_id="one")
    # Several that ask at once wait for the one that runs.
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: sandbox.exec("sleep 0.3; echo x >> g; cat g", action_id="two"), range(8)))
    assert {result.text for result in results} == {"x\n"}
    assert sum(not result.repeated for result in results) == 1


def test_a_deadline_kills_the_whole_tree(sandbox):
    done = sandbox.exec("setsid sleep 987 & sleep 987", timeout=0.5)
    assert (done.timed_out, done.exit_code) == (True, None)
    assert "987" not in sandbox.run("ps ax 2>/dev/null || true; cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text


def test_captured_output_is_capped_and_says_so(sandbox):
    done = sandbox.exec("head -c 3000000 /dev/zero", output_bytes_max=1000)
    assert (len(done.stdout), done.stdout_bytes, done.capture_truncated) == (1000, 3000000, True)


def test_a_shell_keeps_its_state(sandbox):
    shell = sandbox.shell()
    shell.run("cd /tmp; export A=1; f() { echo f-$A; }")
    assert shell.run("pwd; f").text == "/tmp\nf-1\n"
    done = shell.exec("(exit 4)")
    assert done.exit_code == 4
    assert shell.run("printf 'no end of line'; printf err >&2").text == "no end of line"
    assert sandbox.shell("other").run("echo ${A:-none}").text == "none\n"


def test_thousands_of_commands_in_one_shell_are_exact(sandbox):
    shell = sandbox.shell()
    shell.run("n=0")
    # Of the shell itself, which is what might grow.
    size = "while read -r k v _; do if [ $k = VmRSS: ]; then echo $v; fi; done < /proc/$$/status"
    first = 0
    for number in range(1, COMMANDS + 1):
        done = shell.run(f"n=$((n + 1)); echo $n; echo e{number} >&2")
        assert (done.stdout, done.stderr) == (b"%d\n" % number, b"e%d\n" % number)
        if number == COMMANDS // 5:
            first = int(shell.run(size).text)
    assert int(shell.run(size).text) <= first * 1.5 + 512, "KiB of the shell"


def test_files_are_written_read_listed_and_removed(sandbox, tmp_path):
    big = os.urandom(3_000_000)
    told = sandbox.write("/tmp/big", big, mode=0o640)
    assert (told.kind, told.size, told.mode & 0o777, told.name) == ("file", len(big), 0o640, "big")
    assert sandbox.read("/tmp/big") == big
    assert sandbox.run("wc -c < /tmp/big").text.strip() == str(len(big))
    sandbox.write("note", "text")
    assert sandbox.read("note", version=sandbox.stat("note").version) == b"text"
    sandbox.write("note", "other")
    with pytest.raises(ry.FileError) as refused:
        sandbox.read("note", version=told.version)
    assert refused.value.code == "path_changed"
    sandbox.mkdir("d")
    for name in ("c", "a", "b"):
        sandbox.write(f"d/{name}", name)
    assert [file.name for file in sandbox.list("d")] == ["a", "b", "c"]
    sandbox.run("ln -s /etc/passwd d/link")
    link = next(file for file in sandbox.list("d") if file.name == "link")
    assert (link.kind, link.symlink_target) == ("symlink", "/etc/passwd")
    for path in ("d/link", "../../etc/passwd", "/nothing/here"):
        with pytest.raises(ry.FileError):
            sandbox.read(path)
    assert sandbox.remove("d") is True and sandbox.remove("d") is False
    sandbox.download("/tmp/big", tmp_path / "big")
    assert (tmp_path / "big").read_bytes() == big
    (tmp_path / "script").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "script").chmod(0o755)
    sandbox.upload(tmp_path / "script", "/tmp/script")
    assert sandbox.run(["/tmp/script"]).text == "ran\n"
    with pytest.raises(ry.FileError):
        sandbox.download("/nothing", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "script"], "nothing partial stays"


def test_a_process_with_streams(sandbox):
    with sandbox.start("cat; echo err >&2; exit 5") as process:
        for _ in range(50):
            process.write(b"x" * 10_000)
        process.close_stdin()
        written = list(process)
        assert b"".join(piece.data for piece in written if piece.stream == "stdout") == b"x" * 500_000
        assert b"".join(piece.data for piece in written if piece.stream == "stderr") == b"err\n"
    assert (process.end.exit_code, process.end.signal) == (5, None)
    with sandbox.start(["sleep", "1000"]) as process:
        process.signal(signal.SIGTERM)
        assert process.wait().signal == signal.SIGTERM
    with sandbox.start("sleep 1000", timeout=0.5) as process:
        assert process.wait().timed_out


def test_a_wait_for_a_process_has_an_end_and_the_process_runs_on(client, sandbox):
    script = "echo one; read x; echo $x; exit 3"
    with sandbox.start(script) as process:
        pieces = iter(process)
        assert next(pieces).data == b"one\n"
        for timeout in (0, 0.2, "300ms"):
            with pytest.raises(ry.StillRunning) as still:
                process.wait(timeout=timeout)
            assert still.value.code == "still_running" and isinstance(still.value, TimeoutError)
        assert "300ms" not in str(still.value) and "0.3 s, and runs on" in str(still.value)
        process.write(b"two\n")
        # What came while nobody read it is not lost.
        assert next(pieces).data == b"two\n"
        assert process.wait(timeout=60).exit_code == 3
        assert process.wait(timeout=0).exit_code == 3

    async def twin():
        async with ry.AsyncClient(client.url, start=False) as other:
            box = other.open_sandbox(sandbox.id)
            async with await box.start(script) as process:
                pieces = aiter(process)
                assert (await anext(pieces)).data == b"one\n"
                for timeout in (0, 0.2):
                    with pytest.raises(ry.StillRunning):
                        await process.wait(timeout=timeout)
                await process.write(b"two\n")
                assert (await anext(pieces)).data == b"two\n"
                assert (await process.wait(timeout=60)).exit_code == 3
                assert (await process.wait(timeout=0)).exit_code == 3

    asyncio.run(twin())


def read_until(pieces, word):
    """What is written comes in pieces of any size."""
    text = b""
    while word not in text:
        text += next(pieces).data


def test_a_process_has_a_terminal(sandbox):
    with sandbox.start("stty size; read x; stty size; tty; echo got $x", pty=(99, 33)) as process:
        process.resize(77, 22)
        process.write(b"word\n")
        text = b"".join(piece.data for piece in process).decode()
    assert process.end.exit_code == 0
    assert "22 77" in text and "/dev/pts/" in text and "got word" in text, text
    # Ctrl-C is the terminal's business.
    with sandbox.start("trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done", pty=(80, 24)) as process:
        pieces = iter(process)
        read_until(pieces, b"ready")
        process.write(b"\x03")
        text = b"".join(piece.data for piece in pieces)
    assert b"caught" in text and process.end.exit_code == 3


def test_a_process_ends_with_its_stream_unless_it_is_detached(sandbox):
    def runs(mark):
        return mark in sandbox.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").text

    with sandbox.start(["sleep", "9871"]):
        assert runs("sleep 9871")
    lab.wait_until(lambda: not runs("sleep 9871"), "the process ends with its stream")
    with sandbox.start(["sleep", "9872"], detach=True):
        pass
    time.sleep(0.5)
    assert runs("sleep 9872")


SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 8123))
print("up", flush=True)
while True:
    peer, _ = server.accept()
    data = b""
    while piece := peer.recv(65536):
        data += piece
    peer.sendall(data[::-1])
    peer.close()
"""


def test_a_port_is_forwarded(sandbox):
    sandbox.write("serve.py", SERVE)
    with sandbox.start("python3 -u serve.py") as server:
        read_until(iter(server), b"up")
        with sandbox.forward(8123) as local:
            data = os.urandom(1_000_000)
            for _ in range(3):
                with socket.create_connection(local.address, timeout=lab.HANG_S) as peer:
                    sender = threading.Thread(target=lambda: (peer.sendall(data), peer.shutdown(socket.SHUT_WR)))
                    sender.start()
                    got = b""
                    while piece := peer.recv(65536):
                        got += piece
                    sender.join()
                assert got == data[::-1]
        with sandbox.forward(9) as local, socket.create_connection(local.address, timeout=lab.HANG_S) as peer:
            with pytest.raises(ConnectionResetError):
                if not peer.recv(1):
                    raise ConnectionResetError
    with pytest.raises(OSError):
        socket.create_connection(local.address, timeout=1)


def test_a_forwarded_connection_that_is_cut_leaves_no_trace(sandbox, caplog):
    """Its peer still sends when the port closes."""
    serve = "import socket; s = socket.create_server(('127.0.0.1', 8124)); print('up', flush=True)\n"
    sandbox.write("cut.py", serve + "while True: s.accept()[0].close()\n")
    with sandbox.start("python3 -u cut.py") as server:
        read_until(iter(server), b"up")
        with sandbox.forward(8124) as local:
            for _ in range(20):
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(local.address, timeout=lab.HANG_S) as peer,
                ):
                    for _ in range(50):
                        peer.sendall(bytes(1 << 16))
    gc.collect()
    assert not caplog.records, caplog.text


def test_quantities_are_numbers_or_text(client):
    numbers = {"cpu": 0.01, "memory": 16 << 20, "memory_limit": 128 << 20, "disk_limit": "16Mi", "idle_timeout": "1m30s"}
    with client.sandbox(labels={"of": "test"}, start_timeout=60, **numbers) as sandbox:
        with pytest.raises(ry.CommandError):
            sandbox.run("sleep 60", timeout="200ms")
        with pytest.raises(ry.CommandError, match="give text") as refused:
            sandbox.exec(["echo a"])
        assert refused.value.code == "command_not_started"
    bad = [
        ("timeout", "1.5h"),
        ("timeout", ""),
        ("idle_timeout", 0),
        ("idle_timeout", "0s"),
        ("park_after", True),
        ("start_timeout", [1]),
        ("cpu", -1),
        ("cpu", 0.0001),
        ("cpu_limit", b"1"),
        ("memory", 1.5),
        ("disk_limit", False),
    ]
    for name, value in bad:
        with pytest.raises(ry.RequestError, match=f"`{name}` is"):
            client.sandbox(**{name: value})


def test_run_warns_of_output_that_is_not_kept(sandbox):
    with pytest.warns(ry.TruncatedWarning, match="100 of 1000 bytes"):
        done = sandbox.run("head -c 1000 /dev/zero", output_bytes_max=100)
    assert done.capture_truncated and sandbox.exec("head -c 9 /dev/zero", output_bytes_max=3).capture_truncated


def test_a_paused_sandbox_stands_still_and_the_next_call_resumes_it(sandbox):
    sandbox.run("(while :; do date +%s%N > tick; sleep 0.05; done) > /dev/null 2>&1 & sleep 0.2")
    paused = sandbox.pause()
    assert paused.rung in ("frozen", "reclaimed")
    assert sandbox.resume().version > paused.version
    with pytest.raises(ry.RequestError) as refused:
        sandbox.pause(version=paused.version)
    assert refused.value.code == "version_conflict"
    sandbox.pause()
    assert sandbox.run("echo back").text == "back\n"
    sandbox.pause()
    tick = sandbox.stat("tick").version
    sandbox.pause()
    time.sleep(0.5)
    # Asking resumed it: what it wrote since is little, and it writes on now.
    lab.wait_until(lambda: sandbox.stat("tick").version != tick, "it goes on")


def test_a_paused_sandbox_is_shown_as_paused(client, sandbox):
    sandbox.pause()
    assert sandbox.info().state == "paused"
    assert [told.state for told in client.sandboxes()] == ["paused"]


def test_forks_begin_with_its_files_and_share_nothing(client, sandbox):
    sandbox.run("echo base > f")
    forks = sandbox.fork(3, labels={"of": "test", "fork": "yes"})
    assert len({fork.id for fork in forks}) == 3
    for number, fork in enumerate(forks):
        assert fork.run(f"cat f; echo {number} > f; cat f").text == f"base\n{number}\n"
    assert [fork.run("cat f").text for fork in forks] == ["0\n", "1\n", "2\n"]
    assert sandbox.read("f") == b"base\n"
    assert {told.id for told in client.sandboxes({"fork": "yes"})} == {fork.id for fork in forks}
    assert len(client.kill_sandboxes({"fork": "yes"}).killed) == 3
    assert not list(client.sandboxes({"fork": "yes"}))


def test_a_sandbox_begins_with_a_checkpoint(client, sandbox):
    sandbox.write("kept", "1")
    checkpoint = sandbox.checkpoint()
    sandbox.write("kept", "2")
    with client.sandbox(checkpoint=checkpoint, labels={"of": "test"}, **lab.SMALL) as other:
        assert other.read("kept") == b"1"


def test_kill_by_labels_is_exact_and_complete(client):
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(
                lambda n: client.sandbox(labels={"of": "test", "run": "ab"[n % 2], "n": str(n)}, **lab.SMALL).id, range(12)
            )
        )
    decoys = {made[n] for n in range(1, 12, 2)}
    done = client.kill_sandboxes({"run": "a", "of": "test"})
    assert set(done.killed) == set(made) - decoys and not done.failed
    assert not client.kill_sandboxes({"run": "a", "of": "test"}).killed
    assert {told.id for told in client.sandboxes()} == decoys
    done = client.kill_sandboxes(ids=[made[1], "j0000000000007-g0-s0", made[1]])
    assert done.killed == [made[1]] and list(done.failed) == ["j0000000000007-g0-s0"]
    with pytest.raises(ry.RequestError):
        client.kill_sandboxes()


def test_deadlines_end_a_sandbox_paused_or_not(client):
    idle = client.sandbox(idle_timeout=1.5, labels={"of": "test"}, **lab.SMALL)
    short = client.sandbox(timeout=2, labels={"of": "test"}, **lab.SMALL)
    paused = client.sandbox(timeout=2, labels={"of": "test"}, **lab.SMALL)
    paused.pause()
    for sandbox in (idle, short, paused):
        lab.wait_until(lambda: sandbox.info().state == "ended", "its deadline")
        assert sandbox.info().failure is None
    for sandbox, cause, message in (
        (idle, "idle_timeout", "no call came for its idle timeout of 1s500ms"),
        (short, "timeout", "its timeout of 2s was over"),
        (paused, "timeout", "its timeout of 2s was over"),
    ):
        told = sandbox.info()
        assert (told.end.cause, told.end.message, str(told.end)) == (cause, message, f"{cause}: {message}")
        assert "longer" in told.end.hint and told.end.ended_at > told.created_at
        assert told.id in {one.id for one in client.sandboxes({"of": "test"}, ended=True) if one.end == told.end}
        with pytest.raises(ry.SandboxGone, match=f"has ended \\({cause}\\): {message}") as refused:
            sandbox.run("true")
        assert (refused.value.code, refused.value.hint) == ("sandbox_ended", told.end.hint)


def test_the_time_left_is_told_and_a_kill_with_its_reason(client):
    sandbox = client.sandbox(idle_timeout=300, timeout=900, labels={"of": "test"}, **lab.SMALL)
    told = sandbox.info()
    assert told.end is None
    assert told.expires_at - told.started_at == timedelta(seconds=900)
    left = told.idle_expires_at - datetime.now(timezone.utc)
    assert timedelta(seconds=200) < left <= timedelta(seconds=300)
    client.kill_sandboxes(ids=[sandbox.id], reason="not needed\nany more")
    told = sandbox.info()
    assert (told.state, told.end.cause, told.idle_expires_at) == ("ended", "killed", None)
    assert told.end.message == "not needed any more"
    with pytest.raises(ry.SandboxGone, match="\\(killed\\): not needed any more"):
        sandbox.run("true")


def test_a_burst_is_created_without_a_failure_or_a_retry(client):
    sent, lock = [], threading.Lock()
    do = client._do

    def counted(step):
        with lock:
            sent.append(getattr(step, "method", "pause"))
        return do(step)

    client._do = counted
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(pool.map(lambda n: burst(client, n), range(CREATES)))
    assert ends == [f"{n}\n" for n in range(CREATES)]
    assert (sent.count("Create"), sent.count("pause")) == (CREATES, 0), "no client retries"
    assert not list(client.sandboxes({"of": "burst"}))


def burst(client, number):
    with client.sandbox(labels={"of": "burst"}, **lab.SMALL) as sandbox:
        return sandbox.run(f"echo {number}").text


def test_the_async_client_does_the_same(client):
    async def one(twin, number):
        async with twin.sandbox(labels={"of": "test"}, **lab.SMALL) as sandbox:
            await sandbox.write("f", str(number))
            done = await sandbox.run("cat f")
            async with await sandbox.start("cat") as process:
                await process.write(done.stdout)
                await process.close_stdin()
                text = b"".join([piece.data async for piece in process])
            shell = sandbox.shell()
            await shell.run("A=1")
            assert (await shell.run("echo $A")).text == "1\n"
            assert [file.name async for file in sandbox.list(".") if file.name == "f"] == ["f"]
            return text

    async def work():
        async with ry.AsyncClient(client.url) as twin:
            texts = await asyncio.gather(*(one(twin, number) for number in range(8)))
            assert texts == [str(number).encode() for number in range(8)]
            kept = await twin.sandbox(labels={"of": "test"}, **lab.SMALL)
            assert [told.id async for told in twin.sandboxes({"of": "test"})] == [kept.id]
            assert await kept.kill()

    asyncio.run(work())


def test_the_twins_have_the_same_names():
    def public(cls):
        return {name for name in dir(cls) if not name.startswith("_")}

    for blocking, twin in [
        (ry.Sandbox, ry.AsyncSandbox),
        (ry.Shell, ry.AsyncShell),
        (ry.Session, ry.AsyncSession),
        (ry.Process, ry.AsyncProcess),
        (ry.Forward, ry.AsyncForward),
    ]:
        assert public(blocking) == public(twin), blocking


OWNER = """
import sys, time
import rollyard as ry
client = ry.Client({url!r})
made = [client.sandbox(idle_timeout=2, timeout=60, labels=dict(of="dead"), cpu="10m", memory="16Mi") for _ in range(5)]
print("made", flush=True)
# A signal between the look for one and a long sleep would be seen at the end of that.
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_sandboxes_of_a_dead_client_end_by_themselves(client, yard, how):
    import subprocess
    import sys

    owner = subprocess.Popen([sys.executable, "-c", OWNER.format(url=client.url)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "made\n"
    owner.send_signal(how)
    owner.wait(timeout=lab.HANG_S)
    owner.stdout.close()
    lab.wait_until(lambda: not list(client.sandboxes({"of": "dead"})), "their idle timeout")
    lab.wait_until(lambda: not lab.census(yard.data).get("cgroups"), "an empty census")
