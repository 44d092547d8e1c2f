"""`rollyard retry`: what was lost is run again, and no reader meets a group twice."""

import json
import signal

import lab
import pytest

SPEC = """
apiVersion: rollyard/v1
kind: RolloutJob
name: retried
tasks: {from: {inline: [{n: "1"}, {n: "2"}]}}
group: {size: 2, on_incomplete: deliver}
defaults: {image: host, timeout: 60s, retry: {limit: 0},
           resources: {request: {cpu: 100m, memory: 64Mi}, limit: {cpu: 1, memory: 128Mi, disk: 32Mi, pids: 64}}}
steps:
  - {name: setup, per: group, run: echo set-up > base}
  - name: work
    needs: [setup]
    env: {N: "${row.n}", S: "${rollout.sample_index}"}
    run: if [ "$N" = 1 ] && [ "$S" = 0 ]; then sleep 8; fi; cat base > answer
    outputs: [{name: answer, path: answer}]
  - name: grade
    needs: [work]
    from: image
    grader: {reward_file: /logs/verifier/reward.txt}
    inputs: [{artifact: work.answer, path: /in/answer}]
    run: grep -q set-up /in/answer && echo 1 > /logs/verifier/reward.txt
"""


def lose_one(yard) -> str:
    """A job that ended, one of whose four rollouts was lost with its node."""
    path = yard.spec(SPEC)
    process = yard.start("run", path, "--table", yard.table)

    def three_ended():
        done = yard.call("--output", "json", "ps", ok=False)
        jobs = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
        return jobs and jobs[0]["rollouts"]["ended"] == 3 and jobs[0]["id"]

    job = lab.wait_until(three_ended, "three rollouts have ended")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    # Started again at once the yard would go on with it: nobody does, until its lease is over.
    lab.assert_census_empty(yard.data)
    yard.call("run", path, "--table", yard.table)
    rows = yard.rows()
    lost = [row for row in rows if row["reward"] is None]
    assert len(rows) == 4 and len(lost) == 1 and lost[0]["failure_domain"] == "node", rows
    return job


def test_a_lost_rollout_of_a_job_that_ended_is_run_again_and_replaces_its_row(yard):
    job = lose_one(yard)
    before = {row["trajectory_id"]: row for row in yard.rows()}
    dev = yard.start("dev")
    try:
        logs = lambda: [log.read_text() for log in yard.directory.glob("dev-*.log")]
        lab.wait_until(lambda: any("serving" in log for log in logs()), "the yard listens")
        reply = yard.json("retry", job, "--idempotency-key", "once")
        assert (reply["retried"], reply["job"]["state"]) == (1, "running")
        again = yard.json("retry", job, "--idempotency-key", "once")
        assert again["retried"] == 1, "the same key, the same answer"
        lab.wait_until(lambda: yard.json("show", job)["state"] == "finished", "the job has ended again")
        refused = yard.call("--output", "json", "retry", job, ok=False)
        assert refused.returncode != 0 and "retry_nothing" in refused.stdout + refused.stderr
        shown = yard.call("ps", job).stdout
        assert "failed, replaced" in shown, shown
    finally:
        lab.end(dev)
    rows = yard.rows()
    assert len(rows) == 4 and [row["reward"] for row in rows] == [1.0] * 4
    assert {row["group_closed_as"] for row in rows} == {"full"}
    new = [row for row in rows if row["refill_round"] == 1]
    assert len(new) == 1 and new[0]["trajectory_id"] not in before
    group = [row["seq"] for row in rows if row["group_id"] == new[0]["group_id"]]
    assert group == [2, 2], "the whole group is under the next seq"
    steps = yard.rows("steps")
    setups = [step for step in steps if step["step_name"] == "setup"]
    assert len(setups) == 2, "the set-up did not run again"
    replaced = lab.sealed_rows(yard.table / job / "superseded" / "trajectories")
    assert [(row["superseded"], row["sample_index"]) for row in replaced] == [(True, new[0]["sample_index"])]
    yard.call("export", str(yard.table / job), "--format", "jsonl", "--out", str(yard.directory / "copy"))
    exported = (yard.directory / "copy" / "trajectories.jsonl").read_text().splitlines()
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")
    table = ry.open_table(yard.table / job)
    assert (len(table), table.to_arrow().num_rows) == (4, 4), "the old rows of the group are left out"
    assert len(exported) == 4 and len({json.loads(line)["trajectory_id"] for line in exported}) == 4


def test_a_retry_without_a_yard_is_done_by_the_next_one_whatever_kills_it(yard):
    job = lose_one(yard)
    assert yard.json("retry", job)["retried"] == 1
    process = yard.start("run", yard.spec(SPEC), "--table", yard.table)
    lab.wait_until(lambda: "running" in yard.call("ps", job, ok=False).stdout, "the rollout runs again")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    lab.assert_census_empty(yard.data)
    yard.call("run", yard.spec(SPEC), "--table", yard.table)
    assert len([row for row in yard.rows() if row["reward"] is None]) == 1, "lost again, and ended again"
    assert yard.json("retry", job)["retried"] == 1
    yard.call("run", yard.spec(SPEC), "--table", yard.table)
    rows = yard.rows()
    assert len(rows) == 4 and [row["reward"] for row in rows] == [1.0] * 4
    assert sorted(row["refill_round"] for row in rows) == [0, 0, 0, 2]


def test_what_failed_for_the_task_is_run_again_only_if_asked_for(yard):
    spec = SPEC.replace("cat base > answer", "exit 3").replace("sleep 8", "true")
    path = yard.spec(spec)
    yard.call("run", path, "--table", yard.table, ok=False)
    job = yard.json("ps")[0]["id"]
    refused = yard.call("retry", job, ok=False)
    assert refused.returncode != 0 and "--all-failed" in refused.stderr, refused.stderr
    assert yard.json("retry", f"{job}-g1", "--all-failed")["retried"] == 2
    assert yard.json("show", job)["state"] == "running"
