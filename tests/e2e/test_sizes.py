"""The largest sizes the docs promise, tried on the real binary.

`ROLLYARD_SIZES=full` tries each at its bound; without it those that take minutes are smaller.
"""

import json
import os

import pytest

import lab
from test_soak import resources

FULL = os.environ.get("ROLLYARD_SIZES") == "full"
MIB = 1 << 20

SPEC = """\
apiVersion: rollyard/v1
kind: RolloutJob
name: {name}
tasks: {{from: {tasks}}}
group: {{size: {size}}}
admission: {{max_running: 1024}}
defaults:
  image: host
  timeout: 60s
  resources: {{request: {{cpu: 10m, memory: 8Mi}}, limit: {{cpu: "1", memory: 256Mi, disk: 64Mi, pids: 32}}}}
steps:
{steps}
output: {{table: ./out, shard: {{flush: 1s}}}}
"""
WORK = '  - {name: work, run: "true"}'


def run(yard, steps=WORK, tasks='{inline: [{n: "1"}]}', size=1, name="sizes", ok=True):
    spec = yard.spec(SPEC.format(name=name, tasks=tasks, size=size, steps=steps))
    yard.call("run", spec, "--table", yard.table, ok=ok)
    return yard.rows()


def jsonl(yard, rows, name="rows.jsonl"):
    with (yard.directory / name).open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return f"{{jsonl: {name}}}"


def test_a_group_of_1024_is_one_group_of_1024_rows(yard):
    size = 1024 if FULL else 128
    rows = run(yard, size=size)
    assert len(rows) == size == len({row["sample_index"] for row in rows})
    assert {(row["status"], row["group_size"]) for row in rows} == {("completed", size)}


def test_ten_thousand_rows_are_ten_thousand_groups(yard):
    count = 10_000 if FULL else 300
    rows = run(yard, tasks=jsonl(yard, ({"n": str(n)} for n in range(count))))
    assert len(rows) == count == len({row["group_id"] for row in rows})
    assert {row["status"] for row in rows} == {"completed"}


def test_a_million_rows_are_a_cursor_and_a_window(yard):
    """No executor: what the rows cost the scheduler, and that a cancel does not visit them."""
    count = 1_000_000 if FULL else 100_000
    tasks = jsonl(yard, ({"n": str(n)} for n in range(count)))
    spec = yard.spec(SPEC.format(name="million", tasks=tasks, size=1, steps=WORK))
    process = yard.start("scheduler")
    try:
        lab.wait_until(lambda: yard.listens(), "the yard listens")
        yard.call("submit", spec, "--table", yard.table, "--idempotency-key", "first")
        before = resources(process.pid)["rss_kib"]
        # The window is admitted; a second job of as many rows is another cursor and window.
        for key in ("second", "third"):
            yard.call("submit", spec, "--table", yard.table, "--idempotency-key", key)
        grown = resources(process.pid)["rss_kib"] - before
        assert grown < 64 * 1024, f"{grown} KiB for two more jobs of {count} rows"
        assert len(yard.json("ps")) == 3
        for job in yard.json("ps"):
            yard.call("cancel", job["id"])
        jobs = lab.wait_until(
            lambda: (found := yard.json("ps")) and all(j["state"] == "cancelled" for j in found) and found,
            "every job is cancelled",
        )
        assert all(0 < job["rollouts"]["admitted"] <= 1024 for job in jobs), jobs
    finally:
        lab.end(process)


def test_sixteen_files_of_one_mib_reach_the_step(yard):
    (yard.directory / "one.bin").write_bytes(b"a" * MIB)
    files = "".join(f"      - {{path: /data/f{n}, from: one.bin}}\n" for n in range(16))
    work = f'  - name: work\n    run: "test $(cat /data/f* | wc -c) = {16 * MIB}"\n    files:\n{files}'
    assert [row["status"] for row in run(yard, work)] == ["completed"]


def test_sixty_four_steps_run_one_after_the_other(yard):
    needs = lambda n: f"needs: [s{n - 1}], " if n else ""
    steps = "\n".join(f'  - {{name: s{n}, {needs(n)}run: "true"}}' for n in range(64))
    assert [row["status"] for row in run(yard, steps)] == ["completed"]
    assert len(yard.rows("steps")) == 64


@pytest.mark.parametrize("over", [0, 1])
def test_an_output_of_max_bytes_is_kept_and_one_byte_more_is_refused(yard, over):
    work = (
        f'  - {{name: work, run: "head -c {16 * MIB + over} /dev/zero > big",'
        f" outputs: [{{name: big, path: big, max_bytes: 16Mi}}]}}"
    )
    [row] = run(yard, work, ok=not over)
    kept = [artifact["size"] for artifact in yard.rows("artifacts") if artifact["name"] == "big"]
    if over:
        assert (row["failure_code"], kept) == ("output_too_large", [])
    else:
        assert (row["status"], kept) == ("completed", [16 * MIB])


def test_a_task_row_of_one_mib_is_read_and_a_longer_one_is_refused(yard):
    longest = {"n": "x" * (MIB - len(json.dumps({"n": ""})))}
    rows = run(yard, tasks=jsonl(yard, [longest, {"n": "1"}]))
    assert [row["status"] for row in rows] == ["completed"] * 2
    longer = jsonl(yard, [{"n": longest["n"] + "x"}], "longer.jsonl")
    spec = yard.spec(SPEC.format(name="longer", tasks=longer, size=1, steps=WORK))
    refused = yard.call("run", spec, "--table", yard.table, ok=False)
    assert refused.returncode != 0 and "longer.jsonl" in refused.stderr, refused.stderr
    assert str(MIB) in refused.stderr.replace(",", "") or "1 MiB" in refused.stderr or "1Mi" in refused.stderr


def test_a_group_larger_than_a_shard_is_one_shard(yard):
    """Random outputs of 64 KiB, the most that is put into a row: over 64 MiB in one group."""
    size, outputs = (20, 60) if FULL else (2, 10)
    outs = ", ".join(f"{{name: o{n}, path: o{n}}}" for n in range(outputs))
    work = (
        f'  - {{name: work, outputs: [{outs}],\n'
        f'     run: "for n in $(seq 0 {outputs - 1}); do head -c 65536 /dev/urandom > o$n; done"}}'
    )
    spec = SPEC.replace("flush: 1s", "bytes: 1Mi, flush: 1s") if not FULL else SPEC
    path = yard.spec(spec.format(name="wide", tasks='{inline: [{n: "1"}]}', size=size, steps=work))
    yard.call("run", path, "--table", yard.table)
    artifacts = yard.rows("artifacts")
    assert len([a for a in artifacts if a["name"].startswith("o")]) == size * outputs
    assert {row["status"] for row in yard.rows()} == {"completed"}
    shards = list(yard.table.glob("*/artifacts/*.arrows"))
    assert len(shards) == 1, "a group is never split"
    assert shards[0].stat().st_size > (64 * MIB if FULL else MIB)
