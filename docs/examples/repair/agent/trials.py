"""Runs the visible tests on a candidate: in a forked child for Python, in a copied folder for shell.

Every trial has a bound on processor time, so that an endless candidate costs little and a busy
machine does not change which candidates pass.
"""

import importlib.abc
import importlib.util
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import dataclass, field

# Many times what a trial takes: a few milliseconds in a fork, some tens with a shell's processes.
PYTHON_CPU_SECONDS = 0.1
SHELL_CPU_SECONDS = 0.3
TRIAL_WALL_SECONDS = 10
MAX_MEMORY_BYTES = 192 * 1024 * 1024
MAX_REPORT_BYTES = 256 * 1024


@dataclass(frozen=True)
class Outcome:
    """Which visible tests pass and which do not; `hits` counts lines reached as {file: {line: [failed, passed]}}.

    `endless`: the trial was ended at its bound.
    """

    passed: frozenset
    failed: frozenset
    hits: dict = field(default_factory=dict, compare=False)
    endless: bool = False

    def complete(self):
        return bool(self.passed) and not self.failed

    def better_than(self, other):
        return self.passed > other.passed

    def suspicion(self, edit):
        """Ochiai's measure of the lines of an edit: 1 if exactly the failing tests reach them, 0 if none does."""
        lines = self.hits.get(edit.file)
        if lines is None:
            return 1.0
        best = 0.0
        for line in edit.lines:
            failed, passed = lines.get(str(line), (0, 0))
            if failed:
                best = max(best, failed / math.sqrt(len(self.failed) * (failed + passed)))
        return best


class Candidate(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the modules under change from memory."""

    def __init__(self, workspace, sources):
        self.sources = {name.removesuffix(".py"): (str(workspace / name), source) for name, source in sources.items()}

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        path, source = self.sources[module.__name__]
        exec(compile(source, path, "exec"), module.__dict__)


class Recorder(unittest.TestResult):
    """Names of the tests that pass and fail, and the lines of the changed files that each reaches."""

    def __init__(self, files, tracing):
        super().__init__()
        self.files = files
        self.tracing = tracing
        self.reached = set()
        self.hits = {name: {} for name in files.values()}
        self.passed = set()
        self.failed = set()

    def startTest(self, test):
        super().startTest(test)
        self.reached = set()
        if self.tracing:
            sys.settrace(self.enter)

    def stopTest(self, test):
        sys.settrace(None)
        failed = any(test is other for other, _ in self.failures + self.errors)
        (self.failed if failed else self.passed).add(test.id())
        for path, line in self.reached:
            counts = self.hits[self.files[path]].setdefault(str(line), [0, 0])
            counts[0 if failed else 1] += 1
        super().stopTest(test)

    def enter(self, frame, event, _):
        if frame.f_code.co_filename not in self.files:
            return None
        return self.line

    def line(self, frame, event, _):
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line


class PythonTrials:
    """`python3 -m unittest MODULE..` in a child forked from this process, which spares the start-up."""

    def __init__(self, workspace, command):
        self.workspace = workspace
        self.modules = [word for word in command[command.index("unittest") + 1 :] if not word.startswith("-")]

    def run(self, sources, tracing=False):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                self.report(sources, tracing, writing)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read(MAX_REPORT_BYTES)
        os.waitpid(child, 0)
        if not text:
            return Outcome(frozenset(), frozenset(["ended without a report"]), endless=True)
        report = json.loads(text)
        return Outcome(frozenset(report["passed"]), frozenset(report["failed"]), report["hits"])

    def report(self, sources, tracing, writing):
        bound_this_process()
        silence()
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self.workspace))
        sys.meta_path.insert(0, Candidate(self.workspace, sources))
        files = {str(self.workspace / name): name for name in sources}
        result = Recorder(files, tracing)
        unittest.defaultTestLoader.loadTestsFromNames(self.modules).run(result)
        report = {"passed": sorted(result.passed), "failed": sorted(result.failed), "hits": result.hits}
        os.write(writing, json.dumps(report).encode())

    def close(self):
        pass


def bound_this_process():
    signal.setitimer(signal.ITIMER_PROF, PYTHON_CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, TRIAL_WALL_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def silence():
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


class ShellTrials:
    """`sh CHECK` in a copy of the workspace. Its lines `ok NAME` and `not ok NAME` are the tests."""

    def __init__(self, workspace, command):
        self.command = command
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trial-"))
        for path in workspace.iterdir():
            if path.is_file():
                shutil.copyfile(path, self.folder / path.name)

    def run(self, sources, tracing=False):
        for name, source in sources.items():
            (self.folder / name).write_bytes(source)
        report = self.folder / "report"
        with open(report, "wb") as output:
            child = subprocess.Popen(
                ["/bin/sh", "-c", 'ulimit -f 2048; exec "$@"', "trial", *self.command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            ended = wait_within_bounds(child)
        passed, failed = set(), set()
        for line in report.read_bytes()[:MAX_REPORT_BYTES].decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "ok":
                passed.add(rest)
            elif line.startswith("not ok "):
                failed.add(line.removeprefix("not ok ").partition(":")[0])
        if not ended or child.returncode != 0:
            failed.add("exit")
        return Outcome(frozenset(passed - failed), frozenset(failed), endless=not ended)

    def close(self):
        shutil.rmtree(self.folder)


def wait_within_bounds(child):
    """False if the session of `child` had to be ended for its processor or wall time."""
    begun = time.monotonic()
    pause = 0.005
    while child.poll() is None:
        elapsed = time.monotonic() - begun
        slow = elapsed > SHELL_CPU_SECONDS and session_cpu_seconds(child.pid) > SHELL_CPU_SECONDS
        if slow or elapsed > TRIAL_WALL_SECONDS:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return False
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return True


def session_cpu_seconds(session):
    ticks = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
