"""Many trivial rollouts through one long-lived yard: no leak, flat memory."""

import os
import pathlib

import lab

ROLLOUTS = int(os.environ.get("ROLLYARD_SOAK", "200"))
PER_JOB = 100
ROWS = ", ".join(f'{{n: "{n}"}}' for n in range(PER_JOB))

SPEC = """\
apiVersion: rollyard/v1
kind: RolloutJob
name: soak
tasks: {from: {inline: [%s]}}
admission: {max_running: %d}
defaults:
  image: host
  timeout: 30s
  resources: {request: {cpu: 10m, memory: 8Mi}, limit: {cpu: "1", memory: 64Mi, disk: 8Mi, pids: 32}}
steps:
  - {name: work, run: "true"}
output: {table: ./out, shard: {flush: 1s}}
"""


def resources(pid: int) -> dict[str, int]:
    """Of the yard and its broker."""
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    total = {"fds": 0, "rss_kib": 0}
    for each in pids:
        total["fds"] += len(os.listdir(f"/proc/{each}/fd"))
        status = pathlib.Path(f"/proc/{each}/status").read_text()
        total["rss_kib"] += int(status.split("VmRSS:")[1].split()[0])
    return total


def test_rollouts_in_a_row_and_at_once_leave_nothing_and_memory_stays_flat(yard):
    process = yard.start("dev")
    try:
        lab.wait_until(lambda: yard.listens(), "the yard listens")
        parallel = yard.spec(SPEC % (ROWS, 80), "parallel.yaml")
        one_by_one = yard.spec(SPEC % (ROWS, 1), "one-by-one.yaml")
        samples = []
        jobs = max(4, ROLLOUTS // PER_JOB)
        for n in range(jobs):
            yard.call("submit", one_by_one if n % 2 else parallel, "--table", yard.table, "--wait")
            lab.wait_until(
                lambda: not lab.census(yard.data).get("cgroups"), "no cgroup is left while the yard goes on"
            )
            samples.append(resources(process.pid))
        rows = yard.rows()
        assert len(rows) == jobs * PER_JOB == len({row["trajectory_id"] for row in rows})
        assert {row["status"] for row in rows} == {"completed"}
        # The first two jobs fill pools and caches.
        warm, last = samples[1], samples[-1]
        assert last["fds"] <= warm["fds"] + 8, samples
        assert last["rss_kib"] <= warm["rss_kib"] * 1.25 + 16 * 1024, samples
        # Capacity is restored to the unit.
        for node in yard.json("nodes"):
            assert node["sandboxes"] == node["cpu_used_milli"] == node["memory_used_bytes"] == 0, node
    finally:
        lab.end(process)
