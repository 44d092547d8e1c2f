"""A node short of memory takes idle sandboxes down, and from when on is up to who started it."""

import json
import pathlib
import time

import lab

MIB = 1 << 20


def machine() -> int:
    """All the memory of this machine, in bytes."""
    (line,) = [line for line in open("/proc/meminfo") if line.startswith("MemTotal:")]
    return int(line.split()[1]) * 1024


def is_frozen(yard) -> bool:
    groups = [pathlib.Path(group) for group in lab.census(yard.data).get("cgroups", [])]
    events = [group / "cgroup.events" for group in groups]
    return any("frozen 1" in file.read_text() for file in events if file.exists())


def test_idle_sandboxes_go_down_from_the_mark_that_was_given(yard):
    # More than is available, whatever else runs here.
    low, ok = machine() - 64 * MIB, machine() - 32 * MIB
    pressed = ["--pressure-low", str(low), "--pressure-ok", str(ok), "--pressure-stall", "50", "--pressure-parks", "2"]
    for options, expected in [([], False), (pressed, True)]:
        dev = yard.start("dev", *options)
        try:
            lab.wait_until(lambda: yard.call("nodes", "--output", "quiet", ok=False).stdout, "a node")
            sandbox = yard.call(
                "sandbox", "create", "--cpu", "10m", "--memory", "16Mi", "--limit-memory", "128Mi", "--limit-disk", "16Mi",
                "--limit-pids", "64", "--park-after", "10m", "--label", "of=test",
            ).stdout.strip()  # fmt: skip
            if expected:
                lab.wait_until(lambda: is_frozen(yard), "it is frozen long before its time")
            else:
                time.sleep(5)
                assert not is_frozen(yard), "the node has memory enough"
            assert yard.call("exec", sandbox, "echo", "back").stdout == "back\n"
            yard.call("kill", sandbox)
        finally:
            lab.end(dev)
    (log,) = [log.read_text() for log in yard.directory.glob("dev-*.log") if "stall=50%" in log.read_text()]
    assert f"low={low // 1024}Ki ok={ok // 1024}Ki stall=50% parks=2" in log


def test_marks_that_could_not_work_are_refused_before_anything_starts(yard):
    served = ["executor", "--name", "a", "--scheduler", yard.socket]
    for options, why in [
        (["--pressure-low", "256Mi"], "--pressure-low 256Mi: below 512Mi"),
        (["--pressure-low", "2Gi", "--pressure-ok", "1Gi"], "--pressure-ok 1Gi: not above --pressure-low, 2Gi"),
        (["--pressure-ok", "64Ti"], "--pressure-ok 64Ti: never available"),
        (["--pressure-parks", "257"], "--pressure-parks 257: not 1 to 256 (PARKS_MAX)"),
    ]:
        done = yard.call("--output", "json", *served, *options, ok=False)
        error = json.loads(done.stderr.splitlines()[-1])
        assert done.returncode == 2 and error["error"]["code"] == "pressure_refused", done.stderr
        assert why in done.stderr, done.stderr
    assert not (yard.data / "node").exists()
