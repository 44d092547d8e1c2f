"""SIGKILL of `rollyard run` at random moments: every rollout ends exactly once, nothing is left."""

import os
import random
import signal
import time

import lab
import pytest

KILLS = int(os.environ.get("ROLLYARD_KILLS", "20"))

SPEC = """\
apiVersion: rollyard/v1
kind: RolloutJob
name: kill
tasks: {from: {inline: [%s]}}
group: {size: 4}
admission: {max_running: 6}
defaults:
  image: host
  timeout: 30s
  retry: {limit: 10, backoff: 100ms, max_backoff: 200ms}
  resources: {request: {cpu: 100m, memory: 32Mi}, limit: {cpu: "1", memory: 128Mi, disk: 16Mi, pids: 64}}
steps:
  - {name: work, env: {N: "${row.n}"}, run: "sleep 0.1; echo $((N * 7)) > answer", outputs: [{name: answer, path: answer}]}
  - name: grade
    needs: [work]
    env: {N: "${row.n}"}
    inputs: [{artifact: work.answer, path: /in/answer}]
    grader: {reward_file: /logs/verifier/reward.txt}
    run: 'if [ "$(cat /in/answer)" = $((N * 7)) ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
output: {table: ./out, shard: {rows: 8, flush: 1s}}
"""
GROUPS = 12


def test_every_rollout_ends_exactly_once_whatever_the_moment_of_the_kill(yard):
    rng = random.Random(lab.seed())
    spec = yard.spec(SPEC % ", ".join(f'{{n: "{n}"}}' for n in range(GROUPS)))
    kills = rounds = 0
    while kills < KILLS:
        process = yard.start("run", spec, "--table", yard.table)
        time.sleep(rng.uniform(0.0, 2.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            kills += 1
            # Now and then nobody takes over what it left, until the lease is over.
            if rng.random() < 0.25:
                lab.assert_census_empty(yard.data)
        else:
            assert process.returncode == 0
            check(yard)
        rounds += 1
        assert rounds < 20 * KILLS + 20, "the job ends before it can be killed"
    yard.call("run", spec, "--table", yard.table)
    check(yard)


def check(yard):
    """Per finished job: every rollout of every group exactly once, in every table."""
    by_job = {}
    for row in yard.rows():
        by_job.setdefault(row["job_id"], []).append(row)
    full = 0
    for job, rows in by_job.items():
        ids = [row["trajectory_id"] for row in rows]
        assert len(ids) == len(set(ids)), f"{job}: a rollout ended twice"
        full += len(ids) == 4 * GROUPS
        for row in rows:
            assert row["reward"] == 1.0 or row["failure_domain"] in {"node", "scheduler", "sandbox"}, row
    steps = [(s["trajectory_id"], s["step_name"], s["attempt"]) for s in yard.rows("steps")]
    assert len(steps) == len(set(steps)), "an attempt has two rows"
    assert full >= 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_orderly_stop_costs_no_try(yard, how):
    """Without retries: what ran when it was stopped is handed back, not lost."""
    text = SPEC % ", ".join(f'{{n: "{n}"}}' for n in range(3))
    spec = yard.spec(text.replace("limit: 10", "limit: 0").replace("sleep 0.1", "sleep 1"))
    for _ in range(4):
        process = yard.start("run", spec, "--table", yard.table, own_group=True)
        lab.wait_until(lambda: lab.census(yard.data).get("cgroups") or process.poll() is not None, "a sandbox")
        time.sleep(0.4)
        # As a terminal does: to the whole process group.
        os.killpg(process.pid, how)
        process.send_signal(how)  # and as `timeout` does: twice
        assert process.wait(timeout=lab.HANG_S) in (0, 130)
        lab.assert_census_empty(yard.data)
    yard.call("run", spec, "--table", yard.table)
    rows = yard.rows()
    assert {row["failure_code"] for row in rows} == {None}, rows
    assert len({row["trajectory_id"] for row in rows}) == len(rows)


def test_a_job_is_not_resumed_on_another_content_of_its_files(yard):
    rows = yard.directory / "rows.jsonl"
    rows.write_text("".join(f'{{"n": "{n}"}}\n' for n in range(GROUPS)))
    spec = yard.spec((SPEC % "").replace("{inline: []}", "{jsonl: rows.jsonl}"))
    process = yard.start("run", spec, "--table", yard.table)
    lab.wait_until(lambda: lab.census(yard.data).get("cgroups"), "a sandbox")
    assert lab.end(process, signal.SIGINT) == 130
    before = rows.read_text()
    rows.write_text('{"n": "77"}\n')
    done = yard.call("run", spec, "--table", yard.table, ok=False)
    assert done.returncode != 0 and "dataset_changed" in done.stderr and "--new" in done.stderr, done.stderr
    yard.call("run", spec, "--new", "--table", yard.table)
    assert len(yard.rows()) >= 4
    rows.write_text(before)
    yard.call("run", spec, "--table", yard.table)
    assert len(yard.rows()) == 4 + 4 * GROUPS
