"""Groups, forks and refills under kills of everything: no finished step runs again, no group loses or
repeats a member, nothing is left. 100 rollouts here, 2,000 in `make soak`."""

import collections
import os
import random
import signal
import time

import lab

ROLLOUTS = int(os.environ.get("ROLLYARD_GROUP_SOAK", "100"))
GROUPS, SIZE = 25, 4
# Between two kills. More kills than work hold the job, as they should: its ends are then mostly lost nodes.
PAUSES_S = (0.5, 5.0)

SPEC = """
apiVersion: rollyard/v1
kind: RolloutJob
name: group-soak
tasks: {from: {inline: [%s]}}
group: {size: 4, refill_limit: 3}
admission: {max_running: 24}
defaults: {image: host, timeout: 60s, retry: {limit: 1, backoff: 100ms, max_backoff: 200ms},
           resources: {request: {cpu: 50m, memory: 32Mi}, limit: {cpu: 1, memory: 128Mi, disk: 16Mi, pids: 64}}}
steps:
  - name: setup
    per: group
    retry: {limit: 10}
    env: {N: "${row.n}"}
    run: 'mkdir tree; echo "$N" > tree/n; cat /proc/sys/kernel/random/uuid > tree/once'
  - name: work
    needs: [setup]
    env: {S: "${rollout.sample_index}"}
    run: 'test ! -e mine; echo "$S" > mine; rm tree/n; mkdir tree/n; sleep 0.05'
  - name: more
    needs: [work]
    isolate: fresh
    env: {S: "${rollout.sample_index}"}
    run: 'test "$(cat mine)" = "$S"; test -d tree/n; sleep 0.05; cp tree/once answer'
    outputs: [{name: answer, path: answer}]
  - name: grade
    needs: [more]
    from: setup
    inputs: [{artifact: more.answer, path: /in/answer}]
    grader: {}
    run: 'test -f tree/n; test ! -e mine; cmp -s tree/once /in/answer && r=1 || r=0; echo $r > /logs/verifier/reward.txt'
output: {table: ./out, shard: {flush: 1s}}
""" % ", ".join(f'{{n: "{n}"}}' for n in range(GROUPS))


class Machines:
    """A scheduler and two executors, any of which may be killed and comes back."""

    def __init__(self, yard):
        self.yard = yard
        self.processes = {}
        for name in ("scheduler", "n1", "n2"):
            self.start(name)

    def start(self, name):
        if name == "scheduler":
            self.processes[name] = self.yard.start("scheduler", "--listen", self.yard.socket)
            lab.wait_until(lambda: self.yard.listens(), "the scheduler listens")
        else:
            self.processes[name] = self.yard.start(
                "executor", "--name", name, "--scheduler", self.yard.socket, data=self.yard.directory / name
            )

    def kill(self, name):
        lab.end(self.processes[name], signal.SIGKILL)
        self.start(name)

    def end(self):
        for process in self.processes.values():
            lab.end(process)


def test_kills_of_everything_lose_and_repeat_nothing(yard):
    rng = random.Random(lab.seed())
    machines = Machines(yard)
    kills = collections.Counter()
    try:
        for job in range(max(1, ROLLOUTS // (GROUPS * SIZE))):
            key = ("--idempotency-key", f"soak-{job}")
            submit = ("--yard", yard.socket, "submit", *key, yard.spec(SPEC), "--table", yard.table, "--wait")
            waiting = yard.start(*submit)
            while (ended := waiting.poll()) != 0:
                if ended is not None:
                    # Its scheduler went away.
                    waiting = yard.start(*submit)
                time.sleep(rng.uniform(*PAUSES_S))
                name = rng.choice(["scheduler", "n1", "n2"])
                machines.kill(name)
                kills[name] += 1
                assert sum(kills.values()) < 100 * (job + 1), yard.call("ps", ok=False).stdout
            check(yard, job + 1)
        print(f"{sum(kills.values())} kills: {dict(kills)}")

        def free():
            nodes = yard.json("--yard", yard.socket, "nodes")
            return all(n["sandboxes"] == n["cpu_used_milli"] == n["memory_used_bytes"] == 0 for n in nodes)

        lab.wait_until(free, "the ledger is empty")
    finally:
        machines.end()


def check(yard, jobs: int):
    rows = [row for row in yard.rows() if not row["superseded"]]
    members = collections.Counter((row["group_id"], row["sample_index"]) for row in rows)
    assert set(members.values()) == {1} and len(members) == jobs * GROUPS * SIZE
    for row in rows:
        assert row["reward"] == 1.0 or (row["reward"] is None and row["failure_domain"] in {"node", "sandbox", "scheduler"}), row
    steps = yard.rows("steps")
    attempts = [(s["group_id"], s["trajectory_id"], s["step_name"], s["attempt"]) for s in steps]
    assert len(attempts) == len(set(attempts)), "an attempt has two rows"
    done = collections.Counter(key[:3] for key, step in zip(attempts, steps) if step["failure_code"] is None)
    assert set(done.values()) == {1}, "a finished step never runs again"
    assert sum(key[2] == "setup" for key in done) == jobs * GROUPS, "set-up once a group"
