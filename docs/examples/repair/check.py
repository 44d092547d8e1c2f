#!/usr/bin/env python3
"""Checks every repair task, each in a folder of its own under /tmp.

For each task: its layout and task.toml; the visible tests on the broken tree fail, or pass where
task.toml says so; the hidden tests give reward 0 on the broken tree and 1 after the reference fix,
from the declared files alone. With `--agent` it also runs the search agent on each task and grades
what it hands in; with `--misdeeds` it checks that no misdeed of the agent changes a reward.

    check.py                        the table of the tasks
    check.py --agent 2 lru-cache    two samples of one task
    check.py --misdeeds             every misdeed, on a task the agent fails and on one it solves
    check.py --sync                 copies harness.py into every task
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

sys.dont_write_bytecode = True

from harness import adopt_orphans, end_children

HERE = pathlib.Path(__file__).resolve().parent
TASKS = HERE / "tasks"
AGENT = HERE / "agent" / "repair.py"
RUN_SECONDS = 60
PATH = "/usr/bin:/bin"
MISDEEDS = ["edit_tests", "plant_modules", "write_reward", "fill_disk", "fork_bomb", "write_loop", "read_answers"]
# The status with which a sample that misbehaved ends.
MISBEHAVED = 3
# What task.toml has to hold; None is any value.
KEYS = {
    ("schema_version",): "1.4",
    ("task", "name"): None,
    ("task", "version"): None,
    ("metadata", "language"): None,
    ("metadata", "topic"): None,
    ("metadata", "visible_tests_before"): None,
    ("agent", "timeout_sec"): None,
    ("verifier", "timeout_sec"): None,
    ("verifier", "environment_mode"): "separate",
    ("verifier", "network_mode"): "no-network",
    ("environment", "cpus"): None,
    ("environment", "memory_mb"): None,
    ("environment", "storage_mb"): None,
    ("environment", "workdir"): "/workspace",
    ("environment", "network_mode"): "no-network",
}
LAYOUT = ["instruction.md", "environment/files", "tests/test.sh", "tests/hidden.py", "solution/solve.sh"]


class Fault(Exception):
    """A task is not as it should be."""


def require(holds, what):
    if not holds:
        raise Fault(what)


class Trial:
    """A workspace with the broken tree of a task, and a place for a verdict."""

    def __init__(self, task):
        self.task = task
        self.root = pathlib.Path(tempfile.mkdtemp(prefix=f"repair-{task.name}-"))
        self.workspace = self.root / "workspace"
        self.verifier = self.root / "logs/verifier"
        self.home = self.root / "home"
        shutil.copytree(task / "environment/files", self.workspace)
        self.verifier.mkdir(parents=True)
        self.home.mkdir()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root)

    def run(self, command, workspace=None):
        return subprocess.run(
            command,
            cwd=workspace or self.workspace,
            env={
                "PATH": PATH,
                "HOME": str(self.home),
                "PYTHONDONTWRITEBYTECODE": "1",
                "REPAIR_WORKSPACE": str(workspace or self.workspace),
                "REPAIR_VERIFIER": str(self.verifier),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_SECONDS,
        )

    def reward(self, declared):
        """Grades the declared files alone, in a fresh workspace, as a grade step does."""
        fresh = self.root / "fresh"
        fresh.mkdir()
        for name in declared:
            if (self.workspace / name).is_file():
                shutil.copyfile(self.workspace / name, fresh / name)
        shutil.rmtree(self.verifier)
        self.verifier.mkdir()
        done = self.run(["sh", self.task / "tests/test.sh"], fresh)
        shutil.rmtree(fresh)
        reward_file = self.verifier / "reward.json"
        require(reward_file.is_file(), f"no reward.json; the grader said: {done.stderr[-400:]}")
        return json.loads(reward_file.read_text())["reward"]


def declared_files(task):
    """Names of the declared files, after a look at task.toml and the layout."""
    for part in LAYOUT:
        require((task / part).exists(), f"{part} is missing")
    with open(task / "task.toml", "rb") as file:
        config = tomllib.load(file)
    for path, wanted in KEYS.items():
        value = config
        for key in path:
            require(isinstance(value, dict) and key in value, f"task.toml: {'.'.join(path)} is missing")
            value = value[key]
        require(wanted in (None, value), f"task.toml: {'.'.join(path)} is {value!r}, expected {wanted!r}")
    require("docker_image" not in config["environment"], "task.toml: docker_image, but the job names the image")
    require(not (task / "environment/Dockerfile").exists(), "environment/Dockerfile, but the job names the image")
    require(config["task"]["name"] == f"repair/{task.name}", "task.toml: task.name is not repair/ and the folder")
    require(config["metadata"]["visible_tests_before"] in ("fail", "pass"), "visible_tests_before: fail or pass")
    artifacts = config.get("artifacts", [])
    require(artifacts, "task.toml: no artifacts, so nothing could be graded")
    names = [name.removeprefix("/workspace/") for name in artifacts]
    require(all("/" not in name for name in names), "task.toml: artifacts are plain files of /workspace")
    check_files(task, names)
    return names, config["metadata"]["visible_tests_before"]


def check_files(task, declared):
    given = {path.name: path for path in (task / "environment/files").iterdir()}
    for name in declared:
        require(name in given, f"{name} is declared but not in environment/files")
        require(f"`{name}`" in instruction(task), f"instruction.md does not name {name}")
    pristine = task / "tests/pristine"
    for path in pristine.iterdir() if pristine.is_dir() else []:
        same = path.name in given and path.read_bytes() == given[path.name].read_bytes()
        require(same, f"tests/pristine/{path.name} is not the file of environment/files")
        require(path.name not in declared, f"tests/pristine/{path.name} would hide what the agent hands in")
    same = (task / "tests/harness.py").read_bytes() == (HERE / "harness.py").read_bytes()
    require(same, "tests/harness.py is not harness.py: run check.py --sync")
    graded = next(line for line in (task / "tests/hidden.py").read_text().splitlines() if line.startswith("FILES = "))
    require(json.loads(graded.removeprefix("FILES = ")) == declared, "hidden.py grades other files than declared")


def instruction(task):
    return (task / "instruction.md").read_text()


def visible_command(task):
    line = next((line for line in instruction(task).splitlines() if line.startswith("- Visible tests: `")), None)
    require(line, "instruction.md has no line `- Visible tests: `")
    return shlex.split(line.split("`")[1])


def check_task(task):
    """The words of a table row; raises Fault."""
    declared, expected = declared_files(task)
    with Trial(task) as trial:
        command = visible_command(task)
        before = "pass" if trial.run(command).returncode == 0 else "fail"
        require(before == expected, f"visible tests {before} on the broken tree, expected {expected}")
        broken = trial.reward(declared)
        require(broken == 0.0, f"hidden tests give {broken} on the broken tree, expected 0")
        solved = trial.run(["sh", task / "solution/solve.sh"])
        require(solved.returncode == 0, f"solve.sh failed: {solved.stderr[-400:]}")
        for path in (task / "environment/files").iterdir():
            same = path.read_bytes() == (trial.workspace / path.name).read_bytes()
            require(same or path.name in declared, f"solve.sh changed {path.name}, which is not declared")
        after = trial.run(command)
        require(after.returncode == 0, f"visible tests fail after the fix: {(after.stdout + after.stderr)[-400:]}")
        fixed = trial.reward(declared)
        require(fixed == 1.0, f"hidden tests give {fixed} after the fix, expected 1")
        return [before, str(broken), str(fixed)]


def run_agent(task, sample, misbehave=None):
    """Reward and words of one sample of the search agent. What it left running is ended before it is graded."""
    declared, _ = declared_files(task)
    with Trial(task) as trial:
        command = ["python3", AGENT, "--instruction", task / "instruction.md", "--workspace", trial.workspace]
        command += ["--sample", str(sample), "--root", trial.root]
        if misbehave:
            command += ["--misbehave", f"{sample}:{misbehave}"]
        done = trial.run(command)
        end_children()
        require(done.returncode == (MISBEHAVED if misbehave else 0), f"the agent failed: {done.stderr[-800:]}")
        return trial.reward(declared), done.stdout.strip().splitlines()


def check_tasks(tasks):
    print(f"{'task':20} {'visible':8} {'broken':7} {'fixed':6} seconds")
    failed = 0
    for task in tasks:
        begun = time.monotonic()
        try:
            words = check_task(task)
        except Fault as fault:
            failed += 1
            print(f"{task.name:20} FAULT: {fault}")
            continue
        print(f"{task.name:20} {words[0]:8} {words[1]:7} {words[2]:6} {time.monotonic() - begun:.2f}")
    print(f"{len(tasks)} tasks, {failed} with faults")
    return failed == 0


def check_agent(tasks, samples):
    solved = 0
    for task in tasks:
        for sample in range(samples):
            used = os.times()
            reward, words = run_agent(task, sample)
            now = os.times()
            cpu = now.children_user + now.children_system - used.children_user - used.children_system
            solved += reward == 1.0
            print(f"{task.name:20} sample {sample}  reward {reward}  cpu {cpu:.2f} s  {words[-1] if words else ''}")
    print(f"{solved} of {len(tasks) * samples} rewarded")
    return True


# What an agent may hand in as cache.py so that grading itself goes wrong. No line of it is a fix.
HOSTILE = {
    "answers_before_asked": 'import os\nos.write(1, b\'{"value": "None"}\\n\' * 99)\nos._exit(0)\n',
    "writes_the_reward": "import pathlib\npathlib.Path('REWARD').write_text('{\"reward\": 1.0}')\n",
    "leaves_a_writer": """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            try:
                with open('REWARD', 'w') as file:
                    file.write('{"reward": 1.0}')
            except OSError:
                time.sleep(0.01)
    os._exit(0)
""",
    "prints_for_ever": "while True:\n    print('x' * 4096)\n",
    "sleeps": "import time\ntime.sleep(3600)\n",
    "is_not_python": "((\n",
    "equals_everything": """class Cache:
    def __init__(self, *_):
        pass

    def __getattr__(self, name):
        return lambda *_: Anything()


class Anything:
    def __eq__(self, other):
        return True

    __repr__ = lambda self: 'None'
""",
}


def check_hostile_files():
    """A file that attacks the grader gets reward 0, and so does one that is not there."""
    task = TASKS / "lru-cache"
    safe = True
    for name, source in [*HOSTILE.items(), ("is_missing", None)]:
        with Trial(task) as trial:
            handed_in = trial.workspace / "cache.py"
            handed_in.unlink()
            if source is not None:
                handed_in.write_text(source.replace("REWARD", str(trial.verifier / "reward.json")))
            reward = trial.reward(["cache.py"])
        print(f"{task.name:15} {'reward 0' if reward == 0 else 'FOOLED':11} {reward}  a file that {name}")
        safe = safe and reward == 0.0
    return safe


def check_misdeeds():
    """A failed task is where a misdeed would pay, a solved one is where it could harm."""
    adopt_orphans()
    same = check_hostile_files()
    for name, honest in [("money-rounding", 0.0), ("disk-alarm", 1.0)]:
        reward, _ = run_agent(TASKS / name, 0)
        require(reward == honest, f"{name}: the honest sample has reward {reward}, expected {honest}")
        for deed in MISDEEDS:
            reward, words = run_agent(TASKS / name, 0, deed)
            require(words[-1].startswith(f"misdeed {deed}: "), f"{name}: {deed} was not tried: {words}")
            print(f"{name:15} {'same reward' if reward == honest else 'CHANGED':11} {reward}  {words[-1]}")
            same = same and reward == honest
    return same


def main():
    parser = argparse.ArgumentParser(description="Checks the repair tasks.")
    parser.add_argument("tasks", nargs="*", help="names of tasks; all without one")
    parser.add_argument("--agent", type=int, metavar="SAMPLES", help="run the search agent instead")
    parser.add_argument("--misdeeds", action="store_true", help="check that no misdeed changes a reward")
    parser.add_argument("--sync", action="store_true", help="copy harness.py into every task")
    args = parser.parse_args()
    tasks = [TASKS / name for name in args.tasks] or sorted(path for path in TASKS.iterdir() if path.is_dir())
    if args.sync:
        for task in tasks:
            shutil.copyfile(HERE / "harness.py", task / "tests/harness.py")
        return True
    if args.misdeeds:
        return check_misdeeds()
    return check_agent(tasks, args.agent) if args.agent else check_tasks(tasks)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
