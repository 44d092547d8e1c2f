"""Runs the declared files of a repair task on hidden cases and writes the reward.

The verdict is formed in this process alone. The code under test runs in a child that gets only the
declared files and the inputs, in an empty folder, without site packages, start-up files or the
environment; this process reads what it answers and compares it with values the child never had.
An exit code alone decides nothing. The same file lies in every task: `check.py --sync` copies it.
"""

import ctypes
import json
import os
import pathlib
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

WORKSPACE = pathlib.Path(os.environ.get("REPAIR_WORKSPACE", "/workspace"))
VERDICT = pathlib.Path(os.environ.get("REPAIR_VERIFIER", "/logs/verifier"))
TESTS = pathlib.Path(__file__).resolve().parent
PRISTINE = TESTS / "pristine"

RUN_SECONDS = 10
MAX_SOURCE_BYTES = 64 * 1024
MAX_INPUT_BYTES = 60 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
MAX_WRITTEN_BYTES = 1024 * 1024
MAX_TREE_FILES = 100
NOBODY = 65534
PR_SET_CHILD_SUBREAPER = 36
# CAP_CHOWN, CAP_SETGID and CAP_SETUID: what it takes to run the code as somebody else.
CAPABILITIES = 1 << 0 | 1 << 6 | 1 << 7

# Answers requests over the module at argv[1]. Descriptor 1 is moved out of the way of prints.
DRIVER = r"""
import importlib.util, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
folder, name = sys.argv[1:]
sys.path.insert(0, folder)
requests = json.load(sys.stdin)
spec = importlib.util.spec_from_file_location(name, os.path.join(folder, name + ".py"))
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
def answer(request):
    made = getattr(module, request["call"])(*request["args"], **request["named"])
    if request["then"] is None:
        return made
    return [getattr(made, method)(*args) for method, *args in request["then"]]
for request in requests:
    try:
        line = {"value": repr(answer(request))}
    except Exception as error:
        line = {"raises": type(error).__name__}
    answers.write(json.dumps(line) + "\n")
    answers.flush()
"""


class Raises:
    """Expected instead of a value: an exception of this class name."""

    def __init__(self, name):
        self.name = name


def call(name, *args, **named):
    """A function of the module and its arguments."""
    return {"call": name, "args": args, "named": named, "then": None}


def session(name, args, *then):
    """An object of the module, and the method calls to make on it, each `(method, argument, ..)`."""
    return {"call": name, "args": args, "named": {}, "then": then}


def grade_module(files, cases):
    """Grades `files`, of which the first is the module called. `cases`: pairs of request and expected value."""
    with Sandbox(files, written_bytes=0) as sandbox:
        if sandbox.missing:
            return verdict(0, len(cases), f"not handed in: {sandbox.missing}")
        name = files[0].removesuffix(".py")
        requests = json.dumps([request for request, _ in cases])
        command = [sys.executable, "-I", "-S", "-B", "-c", DRIVER, str(sandbox.program), name]
        answered = sandbox.run(command, sandbox.work, requests).stdout.splitlines()
        right = 0
        for (request, expected), line in zip(cases, answered):
            right += line == expected_line(expected)
        return verdict(right, len(cases), f"{right} of {len(cases)} hidden cases")


def expected_line(expected):
    if isinstance(expected, Raises):
        return json.dumps({"raises": expected.name})
    return json.dumps({"value": repr(expected)})


def script(*commands, files=None, stdout=None, tree=None, status=None):
    """Runs of the script, each `argv` or `(argv, stdin)`, in a folder holding `files`.

    Expected: the joined standard output, the folder afterwards, the last exit code; None is not compared.
    """
    assert stdout is not None or tree is not None, "an exit code alone decides nothing"
    return {"commands": commands, "files": files or {}, "stdout": stdout, "tree": tree, "status": status}


def grade_script(files, cases):
    """Grades `files`, of which the first is the script run by /bin/sh."""
    with Sandbox(files, written_bytes=MAX_WRITTEN_BYTES) as sandbox:
        if sandbox.missing:
            return verdict(0, len(cases), f"not handed in: {sandbox.missing}")
        right = sum(sandbox.script_case_holds(files[0], number, case) for number, case in enumerate(cases))
        return verdict(right, len(cases), f"{right} of {len(cases)} hidden cases")


class Sandbox:
    """A folder with the declared files of the agent and the pristine rest; ends every process it began."""

    def __init__(self, files, written_bytes):
        self.written_bytes = written_bytes
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="grade-"))
        self.root.chmod(0o755)
        self.program = self.root / "program"
        self.work = self.root / "work"
        self.program.mkdir(mode=0o755)
        self.other_user = may_change_user()
        self.make_work(self.work)
        if self.other_user:
            VERDICT.chmod(0o700)
        if PRISTINE.is_dir():
            shutil.copytree(PRISTINE, self.program, dirs_exist_ok=True)
        self.missing = next((name for name in files if not self.take(name)), None)
        adopt_orphans()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end_children()
        shutil.rmtree(self.root)

    def make_work(self, folder):
        folder.mkdir(mode=0o755)
        if self.other_user:
            os.chown(folder, NOBODY, NOBODY)

    def take(self, name):
        """Copies one declared file if it is a plain file of a sane size."""
        try:
            source = os.open(WORKSPACE / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(source, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_SOURCE_BYTES:
                return False
            (self.program / name).write_bytes(file.read(MAX_SOURCE_BYTES))
        (self.program / name).chmod(0o644)
        return True

    def confine(self):
        """In the child, before exec: bounds, and another user than the grader's if it may be another."""
        for limit, bound in [
            (resource.RLIMIT_CPU, RUN_SECONDS),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, self.written_bytes),
        ]:
            resource.setrlimit(limit, (bound, bound))
        if self.other_user:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    def run(self, command, folder, stdin):
        """Runs one command to its end, its deadline or its output bound, then ends all it left behind."""
        data = stdin.encode()
        assert len(data) <= MAX_INPUT_BYTES, "hidden input above MAX_INPUT_BYTES"
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder)},
            start_new_session=True,
            preexec_fn=self.confine,
        )
        try:
            child.stdin.write(data)
            child.stdin.close()
        except BrokenPipeError:
            pass  # It ended without reading; what it answered is judged all the same.
        output = read_bounded(child)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        end_children()
        return subprocess.CompletedProcess(command, child.returncode, output.decode("utf-8", "replace"))

    def script_case_holds(self, name, number, case):
        folder = self.work / str(number)
        self.make_work(folder)
        for path, text in case["files"].items():
            (folder / path).write_text(text)
            if self.other_user:
                os.chown(folder / path, NOBODY, NOBODY)
        output = ""
        for command in case["commands"]:
            argv, stdin = command if isinstance(command, tuple) else (command, "")
            done = self.run(["/bin/sh", str(self.program / name), *argv], folder, stdin)
            output += done.stdout
        return (
            (case["stdout"] is None or output == case["stdout"])
            and (case["tree"] is None or read_tree(folder) == case["tree"])
            and (case["status"] is None or done.returncode == case["status"])
        )


def may_change_user():
    """Whether this process may start the code under test as a user that cannot reach the verdict."""
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return effective & CAPABILITIES == CAPABILITIES


def read_bounded(child):
    """Standard output up to the bound, until the child ended and nothing more is waiting."""
    output = b""
    deadline = time.monotonic() + RUN_SECONDS
    while len(output) < MAX_OUTPUT_BYTES and time.monotonic() < deadline:
        ended = child.poll() is not None
        ready, _, _ = select.select([child.stdout], [], [], 0 if ended else 0.05)
        if ready:
            chunk = os.read(child.stdout.fileno(), 65536)
            if not chunk:
                # The pipe is closed; leave the process the rest of its deadline to end by itself.
                try:
                    child.wait(max(0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
                break
            output += chunk
        elif ended:
            break
    child.stdout.close()
    return output


def adopt_orphans():
    """Makes this process the parent of what its children leave behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER: orphans of a run could not be ended")


def end_children():
    """Kills and reaps every descendant: orphans come back to this process, the subreaper."""
    deadline = time.monotonic() + RUN_SECONDS
    while children := children_of(os.getpid()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {children} of a run did not end")
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def children_of(parent):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry))
    return found


def read_tree(folder):
    """Name to text of every plain file; None for anything else."""
    tree = {}
    for path in sorted(folder.rglob("*"))[:MAX_TREE_FILES]:
        if path.is_dir() and not path.is_symlink():
            continue
        plain = stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_size <= MAX_WRITTEN_BYTES
        tree[str(path.relative_to(folder))] = path.read_text(errors="replace") if plain else None
    return tree


def verdict(right, total, summary):
    """Writes reward.json over whatever lies there. The reward is 1 if every case holds, else 0."""
    assert total > 0, "a task without hidden cases grades nothing"
    staged = VERDICT / ".reward.json"
    for path in [VERDICT / "reward.json", VERDICT / "reward.txt", staged]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    text = json.dumps({"reward": float(right == total), "passed_share": round(right / total, 4)})
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text + "\n")
    staged.rename(VERDICT / "reward.json")
    print(f"{summary}; the code ran as user {NOBODY if may_change_user() else os.geteuid()}")
