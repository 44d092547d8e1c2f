"""Sandboxes that are saved and end on their node, to come back at the next call: from Python, against the
real binary."""

import contextlib
import json
import signal
import subprocess
import sys
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


def test_an_idle_sandbox_is_parked_by_itself_if_that_is_asked_and_so_is_its_fork(client, yard):
    create = ("sandbox", "create", "--label", "of=test", "--memory", "16Mi", "--limit-disk", "16Mi", "--cpu", "10m")
    told = yard.call(*create, "--park-after", "1s", "--idle-mode", "checkpoint").stdout.strip()
    asked = client.sandbox(labels={"of": "test"}, park_after=1, idle_mode="checkpoint", **lab.SMALL)
    for sandbox in (client.open_sandbox(told), asked):
        sandbox.write("f", "kept\n")
        lab.wait_until(lambda: sandbox.info().state == "parked", "it is parked")
        assert sandbox.read("f") == b"kept\n"
    (fork,) = asked.fork(1, labels={"of": "test"})
    lab.wait_until(lambda: fork.info().state == "parked", "its fork is parked")
    assert fork.read("f") == b"kept\n"
    with pytest.raises(ry.Error) as refused:
        client.sandbox(idle_mode="park")
    assert "`idle_mode`" in str(refused.value), refused.value
    for wrong, argument in (({"memory_limit": "1GB"}, "`memory_limit`"), ({"timeout": "8d"}, "`timeout`")):
        with pytest.raises(ry.RequestError) as refused:
            client.sandbox(**wrong)
        assert f"field {argument}" in refused.value.message, refused.value
    wrong = yard.call("sandbox", "create", "--memory", "4Gi", ok=False).stderr
    assert "`--memory`" in wrong and "`--limit-memory` of at least the request" in wrong, wrong


def test_a_parked_sandbox_ends_by_its_deadlines_and_by_a_kill(client):
    idle = client.sandbox(idle_timeout=3, labels={"of": "test"}, **lab.SMALL)
    short = client.sandbox(timeout=3, labels={"of": "test"}, **lab.SMALL)
    killed = client.sandbox(labels={"of": "test"}, **lab.SMALL)
    for sandbox in (idle, short, killed):
        assert sandbox.pause(park=True).rung == "parked"
        assert sandbox.info().state == "parked", "whoever is told so finds it so"
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


CALLER = """
import rollyard as ry
with ry.Client({url!r}, start=False) as client:
    client.open_sandbox({id!r}).run("echo begun > f; sleep 5; echo done >> f")
"""


def test_it_is_not_parked_under_an_action_that_nobody_waits_for(client, sandbox):
    """Its caller is gone; what it began is seen through."""
    caller = subprocess.Popen([sys.executable, "-c", CALLER.format(url=client.url, id=sandbox.id)])
    lab.wait_until(lambda: sandbox.exec("cat f").text.startswith("begun"), "it works")
    caller.kill()
    caller.wait(timeout=lab.HANG_S)

    def parks():
        try:
            return sandbox.pause(park=True).rung == "parked"
        except ry.Error as refused:
            assert refused.code == "version_conflict", refused
            return False

    lab.wait_until(parks, "it is parked")
    assert sandbox.read("f") == b"begun\ndone\n"


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


# Of everything but what is mounted, as this user sees it: kind, mode, owner, names of one file, size, time,
# content, target and attributes.
LOOK = r"""
import hashlib, json, os, stat
seen, names = {}, {}
def look(path):
    found = os.lstat(path)
    told = seen[path] = {"mode": oct(found.st_mode), "owner": [found.st_uid, found.st_gid], "attributes": {}}
    is_dir, is_file, is_link = (kind(found.st_mode) for kind in (stat.S_ISDIR, stat.S_ISREG, stat.S_ISLNK))
    if is_link:
        told["target"] = os.readlink(path)
    elif is_file:
        names.setdefault((found.st_dev, found.st_ino), []).append(path)
        told |= {"links": found.st_nlink, "size": found.st_size, "time": found.st_mtime_ns}
    # What this user may not read, the other one may.
    if not (is_dir or is_file) or not os.access(path, os.R_OK):
        return
    told["attributes"] = {name: os.getxattr(path, name).hex() for name in os.listxattr(path)}
    if is_file:
        with open(path, "rb") as file:
            told["content"] = hashlib.sha256(file.read()).hexdigest()
    elif os.access(path, os.X_OK):
        for name in sorted(os.listdir(path)):
            child = os.path.join(path, name)
            if child not in ("/proc", "/dev", "/sys", "/usr"):
                look(child)
look("/")
for same in names.values():
    for path in same:
        seen[path]["names"] = sorted(same)
print(json.dumps(seen))
"""


def look(sandbox) -> dict[str, dict]:
    """Every path as both users see it."""
    seen = {}
    for user in ("rollout", "root"):
        told = json.loads(sandbox.run(["python3", "-"], stdin=LOOK.encode(), user=user).text)
        seen |= {f"{user} {path}": what for path, what in told.items()}
    assert len(seen) > 100
    return seen


def assert_same(found: dict[str, dict], expected: dict[str, dict], when: str):
    differ = {path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)}
    assert not differ, f"{when}: {[(path, found.get(path), expected.get(path)) for path in sorted(differ)]}"


# A disk in memory and one in a file.
disks = pytest.mark.parametrize("disk", ["16Mi", "300Mi"])

# Below what a park leaves, each thing that the forgeries of case 49 would delete, hide or bend.
BASE = r"""
mkdir -p dirs/opaque dirs/bent dirs/named dirs/hidden gone remade/deep swapped
for d in dirs/* gone remade remade/deep swapped; do echo below > $d/below; done
echo below > beside; echo below > deleted; echo below > body; : > empty; echo file > turned
ln -s dirs link
"""

# Tries every mark of an overlay by every way there is, and says how each ended.
FORGE = r"""
import ctypes, errno, json, os, shutil, stat
libc = ctypes.CDLL(None, use_errno=True)
RENAME_WHITEOUT, AT_FDCWD = 4, -100
def move(old, new, flags):
    if libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags):
        raise OSError(ctypes.get_errno(), new)
def ends(call, *args):
    try:
        call(*args)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
os.remove("deleted"); shutil.rmtree("gone"); os.remove("link")
shutil.rmtree("remade"); os.makedirs("remade/deep"); open("remade/above", "w").close()
shutil.rmtree("swapped"); open("swapped", "w").close()
os.remove("turned"); os.mkdir("turned")
# The names an archive of an image has for them, as files of every kind.
open(".wh.beside", "w").close(); os.mkdir(".wh.dirs"); os.symlink("/etc", ".wh.body"); os.mkfifo(".wh.empty")
os.mkdir("dirs/named/.wh..wh..opq"); open("dirs/hidden/.wh..wh..opq", "w").close()
open("dirs/hidden/.wh.below", "w").close(); open("made", "w").close(); os.link("made", "ROLLYARD.whiteout")
# The attributes of an overlay that somebody without privileges mounts, and of what a layer calls its marks.
marks = {"opaque": b"y", "whiteout": b"y", "redirect": b"/etc", "metacopy": b"", "origin": b"x", "overlay.opaque": b"y"}
forged = ["dirs/opaque", "dirs/bent", "remade", "body", "empty", "turned"]
for path in forged:
    for mark, value in marks.items():
        os.setxattr(path, "user.overlay." + mark, value)
    for kept in ("user.ROLLYARD.whiteout", "user.ROLLYARD.opaque", "user.overlayed", "user.a=%3Db"):
        os.setxattr(path, kept, b"1")
os.setxattr("dirs", "user.overlay.opaque", b"x")
tries = {}
for place in (".", "dirs/hidden", "/tmp", "/dev/shm"):
    mine = f"{place}/by{os.getuid()}"
    open(mine, "w").close()
    for kind, device in (("c", 0), ("c", os.makedev(1, 3)), ("b", os.makedev(7, 0))):
        mode = 0o666 | (stat.S_IFCHR if kind == "c" else stat.S_IFBLK)
        tries[f"{kind} {device} {place}"] = ends(os.mknod, mine + ".node", mode, device)
    tries[f"rename {place}"] = ends(move, mine, mine + ".moved", RENAME_WHITEOUT)
for path in ("remade", "dirs/opaque", "body"):
    for mark, value in marks.items():
        for space in ("trusted", "security"):
            tries[f"{space}.{mark} {path}"] = ends(os.setxattr, path, f"{space}.overlay.{mark}", value)
    tries[f"read {path}"] = ends(os.getxattr, path, "trusted.overlay.opaque")
    tries[f"remove {path}"] = ends(os.removexattr, path, "trusted.overlay.opaque")
# The one whiteout there is lies in memory that no park saves, and no way leads from there.
real = f"/dev/shm/by{os.getuid()}"
tries["real"] = "c 0" if stat.S_ISCHR(os.lstat(real).st_mode) and os.lstat(real).st_rdev == 0 else "none"
tries["rename out"], tries["link out"] = ends(os.rename, real, "beside"), ends(os.link, real, "linked")
print(json.dumps(tries))
"""


@disks
def test_case_49_marks_of_an_overlay_are_refused_or_mean_nothing_over_a_park(client, disk):
    sandbox = client.sandbox(labels={"of": "test"}, **lab.SMALL | {"disk_limit": disk})
    sandbox.run("mkdir -p /opt/tree", user="root")
    trees = {"rollout": "/workspace", "root": "/opt/tree"}
    for user, tree in trees.items():
        sandbox.run(BASE, user=user, cwd=tree)
    park(sandbox)
    for user, tree in trees.items():
        tries = json.loads(sandbox.run(["python3", "-"], stdin=FORGE.encode(), user=user, cwd=tree).text)
        assert tries.pop("rename /dev/shm") == "done" and tries.pop("real") == "c 0", "a whiteout is tried"
        for what, how in tries.items():
            way = what.split()[0]
            refusals = {"c": "EACCES", "b": "EACCES", "rename": "EINVAL", "link": "EXDEV", "read": "ENODATA"}
            expected = "EXDEV" if what == "rename out" else refusals.get(way, "EPERM")
            assert how == expected, f"{user}: {what}"
    expected = look(sandbox)
    forged = [name for told in expected.values() for name in told["attributes"] if name.startswith("user.overlay.")]
    # Six marks on six paths and one on another, in two trees, seen by two users.
    assert len(forged) == 2 * 2 * 37
    for told in expected.values():
        told["attributes"] = {n: v for n, v in told["attributes"].items() if not n.startswith("user.overlay.")}
    for turn in range(2):
        park(sandbox)
        assert_same(look(sandbox), expected, f"after park {turn + 2}")
    for tree in trees.values():
        assert sandbox.run("find . ! -name 'by*' | sort", cwd=tree).text.split() == FORGED
        assert sandbox.run("cat beside body dirs/*/below; ls -A remade /dev/shm", cwd=tree).text == LEFT
        assert sandbox.run("stat -c %F .wh.* dirs/*/.wh.*", cwd=tree).text.splitlines() == KINDS
    park(sandbox)
    for fork in sandbox.fork(2):
        assert_same(look(fork), expected, "in a fork of a parked one")
        park(fork)
        assert_same(look(fork), expected, "in a fork that was parked")
        assert fork.kill()
    assert_same(look(sandbox), expected, "after its forks")


FORGED = """
. ./.wh.beside ./.wh.body ./.wh.dirs ./.wh.empty ./ROLLYARD.whiteout ./beside ./body ./dirs ./dirs/bent
./dirs/bent/below ./dirs/hidden ./dirs/hidden/.wh..wh..opq ./dirs/hidden/.wh.below ./dirs/hidden/below ./dirs/named
./dirs/named/.wh..wh..opq ./dirs/named/below ./dirs/opaque ./dirs/opaque/below ./empty ./made ./remade
./remade/above ./remade/deep ./swapped ./turned
""".split()
LEFT = "below\n" * 6 + "/dev/shm:\n\nremade:\nabove\ndeep\n"
KINDS = [
    "regular empty file",
    "symbolic link",
    "directory",
    "fifo",
    "regular empty file",
    "regular empty file",
    "directory",
]

# What an honest agent does to a tree, different each time.
CHANGE = r"""
set -e
echo {i} > f{i}; chmod 600 f{i}; ln f{i} h{i}; mkdir -p d{i}/sub; echo x > d{i}/sub/a; chmod 1751 d{i}
[ ! -e f{last} ] || mv f{last} g{last}
rm -rf same; mkdir same; echo {i} > same/only{i}
rm -rf swap; if [ $(({i} % 2)) = 0 ]; then mkdir -p swap/dir; else echo file > swap; fi
[ ! -e d{last} ] || mv d{last} e{last}
[ ! -e e{before} ] || rm -rf e{before}/sub
rm -f g{before}; ln -s ../nowhere{i} s{i}; ln -sfn d{i} now; mkfifo p{i}
truncate -s 4M holes{i}; printf data | dd of=holes{i} bs=1 seek=2000000 conv=notrunc 2> /dev/null
echo odd > "a b{i}"; echo odd > "$(printf 'new\nline{i}')"; touch -d '2001-02-03 04:05:06.789' timed{i}
python3 -c 'import os; os.setxattr("f{i}", "user.k{i}", b"v\0{i}"); os.setxattr("d{i}", "user.d", b"{i}")'
"""
# The same at what the image has.
CHANGE_IMAGE = [
    "rm /etc/hosts; rm -rf /var/cache",
    "echo new > /etc/hosts; mkdir /var/cache; echo new > /var/cache/new",
    "rm -rf /var/cache; mkdir /var/cache; chmod 700 /var/cache",
]


@disks
def test_case_49_an_honest_tree_comes_back_the_same_over_a_park(client, disk):
    sandbox = client.sandbox(labels={"of": "test"}, **lab.SMALL | {"disk_limit": disk})
    for i, change_image in enumerate(CHANGE_IMAGE):
        sandbox.run(CHANGE.format(i=i, last=i - 1, before=i - 2))
        sandbox.run(f"{change_image}; mkdir -p /opt/d; echo {i} >> /opt/d/log; echo {i} >> /etc/passwd", user="root")
        expected = look(sandbox)
        for turn in range(2):
            park(sandbox)
            assert_same(look(sandbox), expected, f"round {i}, park {turn}")
    assert sandbox.run("ls same; ls -d f* g* h? d? e*; stat -c %h h2").text.split() == [
        *("only2", "d2", "e0", "e1", "f2", "g1", "h0", "h1", "h2", "2"),
    ]
    park(sandbox)
    for fork in sandbox.fork(2):
        assert_same(look(fork), expected, "in a fork of a parked one")
        assert fork.kill()
