#!/usr/bin/env python3
"""An agent that repairs small programs by search.

It reads the instruction and the workspace, ranks the lines by which tests reach them, tries small
edits in an order drawn from that ranking, and keeps the first with which every visible test passes.
An edit that mends some tests and breaks none becomes the start of a second round. It knows no
answers: a fault that no small edit mends stays, and an edit that only satisfies the visible tests
is handed in as well. The draw depends on the instruction and the sample number alone.
"""

import argparse
import os
import pathlib
import random
import re
import shlex
import sys
import time

from edits import edits_of
from misdeeds import MISDEEDS, misdeeds_of
from trials import PythonTrials, ShellTrials

# Tries of both rounds together; a sample draws how patient it is. The count and not the clock ends a
# search, so a sample repeats.
PYTHON_TRIALS = (40, 80, 160)
SHELL_TRIALS = (5, 15, 40)
# An endless candidate counts as this many, since it uses the processor as much.
ENDLESS_TRIALS = 5
FIRST_ROUND_SHARE = 0.6
# Hard stops for a machine too slow for the count.
CPU_SECONDS = 4
WALL_SECONDS = 45
MAX_SOURCE_BYTES = 64 * 1024
# Of a sample that misbehaved, so that a summary can tell it apart. No grader reads it.
MISBEHAVED = 3


class Problem:
    """What the instruction says: which files may change, and how the visible tests run."""

    def __init__(self, instruction, workspace):
        changes = re.search(r"^- Change only (.+?):", instruction, re.MULTILINE)
        tests = re.search(r"^- Visible tests: `(.+)`", instruction, re.MULTILINE)
        if not changes or not tests:
            raise ValueError("the instruction has no line `- Change only` or no line `- Visible tests`")
        self.workspace = workspace
        self.files = re.findall(r"`([^`]+)`", changes.group(1))
        self.command = shlex.split(tests.group(1))
        self.python = "unittest" in self.command

    def sources(self):
        return {name: (self.workspace / name).read_bytes()[:MAX_SOURCE_BYTES] for name in self.files}

    def trials(self):
        return (PythonTrials if self.python else ShellTrials)(self.workspace, self.command)


class Search:
    def __init__(self, problem, trials, draw):
        self.trials = trials
        self.draw = draw
        self.budget = draw.choice(PYTHON_TRIALS if problem.python else SHELL_TRIALS)
        self.used = 0
        self.until = time.monotonic() + WALL_SECONDS

    def run(self, sources):
        """The first sources with which every visible test passes, or None; and a word on why."""
        outcome = self.trials.run(sources, tracing=True)
        if outcome.complete():
            return None, "every visible test passes already: nothing to search by"
        print(f"{len(outcome.failed)} visible tests fail, {len(outcome.passed)} pass")
        steps = []
        while True:
            found, better = self.climb(sources, outcome, self.budget if steps else self.budget * FIRST_ROUND_SHARE)
            if found:
                steps.append(found.show(sources[found.file]))
                return changed(sources, found), f"mended after {self.used} trials: {'; '.join(steps)}"
            if self.used >= self.budget or self.out_of_time():
                why = "trials" if self.used >= self.budget else "time"
                return None, f"no edit found: out of {why} after {self.used} trials"
            if better is None:
                return None, f"no edit found: nothing helps after {self.used} trials"
            edit, outcome = better
            steps.append(edit.show(sources[edit.file]))
            print(f"a step: {steps[-1]}")
            sources = changed(sources, edit)

    def climb(self, sources, outcome, limit):
        """An edit that mends all, or else the one that mends most, with what came of it.

        `limit` is the count of trials past which an edit that mends something is enough.
        """
        best = None
        for edit in self.ranked(sources, outcome):
            if self.used >= (self.budget if best is None else limit) or self.out_of_time():
                break
            after = self.trials.run(changed(sources, edit))
            self.used += ENDLESS_TRIALS if after.endless else 1
            if after.complete():
                return edit, None
            if after.better_than(outcome) and (best is None or len(after.passed) > len(best[1].passed)):
                best = edit, after
        if best is not None:
            traced = self.trials.run(changed(sources, best[0]), tracing=True)
            best = best[0], traced
        return None, best

    def out_of_time(self):
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        return cpu > CPU_SECONDS or time.monotonic() > self.until

    def ranked(self, sources, outcome):
        """Edits in a drawn order in which suspicious lines and likely kinds tend to come first."""
        drawn = []
        for name, source in sources.items():
            for edit in edits_of(name, source):
                weight = outcome.suspicion(edit) ** 2 * edit.weight
                if weight > 0:
                    drawn.append((self.draw.random() ** (1 / weight), len(drawn), edit))
        return [edit for _, _, edit in sorted(drawn, reverse=True)]


def changed(sources, edit):
    return {**sources, edit.file: edit.apply(sources[edit.file])}


def repair(problem, instruction, sample):
    trials = problem.trials()
    try:
        search = Search(problem, trials, random.Random(f"{sample}\n{instruction}"))
        before = problem.sources()
        after, why = search.run(before)
    finally:
        trials.close()
    for name, source in (after or {}).items():
        if source != before[name]:
            (problem.workspace / name).write_bytes(source)
    print(why, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Repairs a small program by search.")
    parser.add_argument("--instruction", type=pathlib.Path, default="/in/instruction.md")
    parser.add_argument("--workspace", type=pathlib.Path, default="/workspace")
    parser.add_argument("--root", type=pathlib.Path, default="/", help="where misdeeds look for /logs, /tests and so on")
    parser.add_argument("--sample", type=int, default=0, help="samples of one task search in different orders")
    parser.add_argument("--misbehave", default="", metavar="SAMPLE:NAME[+NAME],..", help=", ".join(MISDEEDS))
    args = parser.parse_args()
    deeds = misdeeds_of(args.misbehave, args.sample)
    instruction = args.instruction.read_text()
    repair(Problem(instruction, args.workspace), instruction, args.sample)
    for name in deeds:
        print(f"misdeed {name}: {MISDEEDS[name](args.root, args.workspace)}", flush=True)
    return MISBEHAVED if deeds else 0


if __name__ == "__main__":
    sys.exit(main())
