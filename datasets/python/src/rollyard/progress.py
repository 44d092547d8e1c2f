"""One line on standard error while a job runs: rewritten on a terminal, else a line a change of
a twentieth."""

from __future__ import annotations

import sys

from .views import JobInfo


class Progress:
    def __init__(self, show: bool) -> None:
        self._show = show
        self._terminal = show and sys.stderr.isatty()
        self._last = -1

    def update(self, info: JobInfo) -> None:
        if not self._show:
            return
        counts = info.counts
        total = max(1, counts.rollouts_total)
        part = counts.rollouts_ended * 20 // total
        mean = "-" if info.rewards.mean is None else f"{info.rewards.mean:.3f}"
        line = (
            f"{info.name} {info.id}: {info.state}, {counts.rollouts_ended} of {counts.rollouts_total} "
            f"rollouts ended, {counts.steps_running} steps run, mean reward {mean}"
        )
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif part != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = part

    def say(self, text: str) -> None:
        if self._show:
            self.end()
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr, flush=True)
            self._terminal = False
