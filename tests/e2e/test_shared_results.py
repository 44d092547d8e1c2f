"""One result for all steps with its key: over groups, epochs and jobs, and over the death of the yard."""

import collections
import signal
import time

import lab

SPEC = """
apiVersion: rollyard/v1
kind: RolloutJob
name: NAME
tasks: {from: {inline: [{n: "1"}, {n: "2"}, {n: "1"}]}, epochs: 2}
group: {size: 2}
defaults: {image: host, timeout: 60s, retry: {limit: 5, backoff: 100ms, max_backoff: 1s},
           resources: {request: {cpu: 100m, memory: 64Mi}, limit: {cpu: 1, memory: 128Mi, disk: 32Mi, pids: 64}}}
steps:
  - name: setup
    per: group
    env: {N: "${row.n}"}
    checkpoint: {key: "${image.digest}/${step.hash}"}
    run: |
      sleep 1
      cat /proc/sys/kernel/random/uuid > once && echo "$N" > number
  - name: build
    needs: [setup]
    checkpoint: {key: "${image.digest}/${step.hash}"}
    run: cat once number > built
  - name: work
    needs: [build]
    env: {N: "${row.n}"}
    run: test "$(cat number)" = "$N" && cat built > token
    outputs: [{name: token, path: token}]
  - name: grade
    needs: [work]
    from: image
    grader: {reward_file: /logs/verifier/reward.txt}
    inputs: [{artifact: work.token, path: /in/token}]
    run: echo 1 > /logs/verifier/reward.txt
"""


def spec(name: str) -> str:
    return SPEC.replace("NAME", name)


def check(yard, jobs: int) -> None:
    rows = yard.rows()
    assert len(rows) == jobs * 3 * 2 * 2
    assert [row["reward"] for row in rows] == [1.0] * len(rows), [row["failure_message"] for row in rows]
    steps = yard.rows("steps")
    for name in ("setup", "build"):
        mine = [step for step in steps if step["step_name"] == name and step["failure_code"] is None]
        ran = [step for step in mine if step["node_id"]]
        found = [step for step in mine if not step["node_id"]]
        assert len({step["ckpt_out"] for step in mine}) == 2 and None not in {step["ckpt_out"] for step in mine}
        assert len(ran) == 2, f"{name} ran {len(ran)} times for 2 keys"
        members = 1 if name == "setup" else 2
        assert len(ran) + len(found) == jobs * 3 * 2 * members, "every group and rollout has its row"
        assert all(step["run_ms"] is None and step["ckpt_in"] is None for step in found)
    tokens = collections.Counter(
        artifact["inline"] for artifact in yard.rows("artifacts") if artifact["name"] == "token"
    )
    assert len(tokens) == 2, "all that have a key work from one set-up"


def test_set_ups_run_as_often_as_there_are_keys_over_groups_epochs_and_jobs(yard):
    yard.call("run", yard.spec(spec("first"), "first.yaml"), "--table", yard.table)
    check(yard, jobs=1)
    yard.call("run", yard.spec(spec("second"), "second.yaml"), "--table", yard.table)
    check(yard, jobs=2)


def test_a_yard_killed_in_the_middle_shares_what_it_had_stored(yard):
    path = yard.spec(spec("killed"))
    for wait in (0.7, 1.2, 1.7, 2.2, 2.7):
        process = yard.start("run", path, "--table", yard.table)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        lab.assert_census_empty(yard.data)
    yard.call("run", path, "--table", yard.table)
    yard.call("run", yard.spec(spec("after"), "after.yaml"), "--table", yard.table)
    jobs = len(list(yard.table.glob("*/trajectories")))
    assert jobs >= 2
    check(yard, jobs)
