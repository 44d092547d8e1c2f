"""Specs as clients have them: a dict, a file, a builder, or a folder of Harbor tasks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from . import address, errors

DOCUMENT_BYTES_MAX = 8 << 20
"""Of a spec document, as the yard bounds it."""


class Job:
    """A spec, step by step: the fields are those of docs/job-spec.md.

        job = ry.Job("hello", tasks={"inline": [{"n": "6"}]}, group=4, image="host", timeout="30s")
        job.step("work", env={"N": "${row.n}"}, run="echo $((N * 7)) > answer")

    `tasks` is `{"inline": [...]}`, `{"jsonl": path}` or the whole field `tasks`; `group` a size or
    the whole field. `image`, `timeout`, `retry`, `resources` and the like go into `defaults`. A
    name that Python keeps for itself is written with an underscore behind it: `from_`.
    """

    _DEFAULTS = ("image", "timeout", "env_timeout", "start_timeout", "resources", "retry", "user", "workdir", "env")

    def __init__(
        self,
        name: str,
        *,
        tasks: Mapping[str, Any] | None = None,
        group: int | Mapping[str, Any] = 1,
        **fields: Any,
    ) -> None:
        self._spec: dict[str, Any] = {"apiVersion": "rollyard/v1", "kind": "RolloutJob", "name": name}
        if tasks is not None:
            self._spec["tasks"] = dict(tasks) if "from" in tasks else {"from": dict(tasks)}
        self._spec["group"] = {"size": group} if isinstance(group, int) else dict(group)
        fields = _named(fields)
        defaults = {key: fields.pop(key) for key in self._DEFAULTS if key in fields}
        defaults.update(fields.pop("defaults", {}))
        if defaults:
            self._spec["defaults"] = defaults
        self._spec.update(fields)
        self._spec["steps"] = []

    def step(self, name: str, **fields: Any) -> Job:
        """Adds a step and returns the job. The fields are those of `steps[]`."""
        self._spec["steps"].append({"name": name, **_named(fields)})
        return self

    def spec(self) -> dict[str, Any]:
        """A copy of the spec as a dict."""
        copied: dict[str, Any] = json.loads(_as_json(self._spec))
        return copied

    def __repr__(self) -> str:
        return f"Job({self._spec['name']!r}, {len(self._spec['steps'])} steps)"


Spec = Union[Mapping[str, Any], str, "os.PathLike[str]", Job]


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removesuffix("_"): value for key, value in fields.items()}


def _as_json(spec: Mapping[str, Any]) -> str:
    try:
        return json.dumps(spec, ensure_ascii=False, allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise errors.make("bad_spec", f"the spec is not JSON: {error}") from error


@dataclass(frozen=True)
class Document:
    """A spec as it is sent."""

    text: str
    name: str
    """Shown in errors."""
    directory: Path
    """What relative paths of client files start from."""


def document(spec: Spec) -> Document:
    """Reads what was given: a path is a file of YAML or JSON, and its folder the base of the files
    it names; for a dict and a builder that is the working directory.

    Raises `SpecError`.
    """
    if isinstance(spec, Job):
        return Document(_as_json(spec.spec()), "Job", Path.cwd())
    if isinstance(spec, Mapping):
        return Document(_as_json(spec), "dict", Path.cwd())
    path = Path(spec)
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise errors.make("read_failed", f"cannot read `{path}`: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise errors.make("not_text", f"`{path}` is not UTF-8 text") from error
    if len(data) > DOCUMENT_BYTES_MAX:
        raise errors.make("too_large", f"`{path}` is larger than {DOCUMENT_BYTES_MAX} bytes (DOCUMENT_BYTES_MAX)")
    return Document(text, str(path), path.absolute().parent)


def is_harbor(spec: Spec) -> bool:
    """A folder is a set of Harbor tasks."""
    return not isinstance(spec, (Job, Mapping)) and Path(spec).is_dir()


def harbor_arguments(
    tasks: str | os.PathLike[str],
    *,
    agent: Sequence[str] | str | None = None,
    n: int | None = None,
    image: str | None = None,
    table: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Of `rollyard run` for a folder of Harbor tasks."""
    arguments = ["--harbor", os.fspath(tasks)]
    if agent is not None:
        arguments += ["--agent", agent if isinstance(agent, str) else shlex.join(agent)]
    for name, value in (("--n", n), ("--image", image), ("--table", table)):
        if value is not None:
            arguments += [name, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return arguments


def print_harbor_spec(arguments: Sequence[str]) -> str:
    """The spec that the program builds for a folder of Harbor tasks. It runs nothing."""
    return call_program(["run", *arguments, "--print-spec"])


def call_program(arguments: Sequence[str], stdin: str = "") -> str:
    """Standard output of the program; what it refuses is raised as its error."""
    command = [address.program(), "--output", "json", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.splitlines()
    told = next((error for line in reversed(lines) if (error := errors.from_program(line))), None)
    raise told or errors.make("ended_early", f"`{shlex.join(command)}` ended with {done.returncode}: {done.stderr}")
