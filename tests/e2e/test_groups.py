"""Set-up once per group, members that fork from it, and what a crash costs: nothing that was finished."""

import collections
import signal

import lab
import pytest
import rollyard as ry

GROUPS = """
apiVersion: rollyard/v1
kind: RolloutJob
name: groups
tasks: {from: {inline: [{n: "1"}, {n: "2"}, {n: "3"}]}}
group: {size: 4}
defaults: {image: host, timeout: 60s, retry: {limit: 5, backoff: 100ms, max_backoff: 1s},
           resources: {request: {cpu: 100m, memory: 64Mi}, limit: {cpu: 1, memory: 128Mi, disk: 32Mi, pids: 64}}}
steps:
  - name: setup
    per: group
    env: {N: "${row.n}"}
    run: |
      mkdir -p tree/deep && echo "$N" > tree/number && echo old > tree/deep/old && ln -s number tree/link
      cat /proc/sys/kernel/random/uuid > once
  - name: work
    needs: [setup]
    env: {S: "${rollout.sample_index}"}
    run: |
      sleep SLEEP
      test -f tree/deep/old && rm -rf tree/deep && mkdir tree/deep && echo "$S" > tree/deep/new
      test ! -e mine && echo "$S" > mine
      cat once > token
    outputs: [{name: token, path: token}]
  - name: more
    needs: [work]
    env: {S: "${rollout.sample_index}"}
    run: |
      sleep SLEEP
      test ! -e tree/deep/old && test "$(cat tree/deep/new)" = "$S" && test "$(cat mine)" = "$S"
      echo "$(cat token) $(cat tree/link) $S" > answer
    outputs: [{name: answer, path: answer}]
  - name: grade
    needs: [more]
    from: setup
    grader: {reward_file: /logs/verifier/reward.txt}
    inputs: [{artifact: more.answer, path: /in/answer}]
    env: {N: "${row.n}", S: "${rollout.sample_index}"}
    run: |
      # It starts from the set-up: its files, and nothing of any member.
      test -f tree/deep/old && test ! -e mine && test "$(cat once) $N $S" = "$(cat /in/answer)" && r=1 || r=0
      echo "$r" > /logs/verifier/reward.txt
"""


def spec(sleep: str = "0") -> str:
    return GROUPS.replace("SLEEP", sleep)


def check(yard, groups: int = 3, size: int = 4) -> None:
    rows = yard.rows()
    assert sorted((row["group_id"], row["sample_index"]) for row in rows) == sorted(
        {(row["group_id"], sample) for row in rows for sample in range(size)}
    ), "no group loses or repeats a member"
    assert len(rows) == groups * size
    assert [row["reward"] for row in rows] == [1.0] * len(rows), [row["failure_message"] for row in rows]
    steps = yard.rows("steps")
    done = collections.Counter(
        (step["group_id"], step["trajectory_id"], step["step_name"]) for step in steps if step["failure_code"] is None
    )
    assert set(done.values()) == {1}, "a finished step never runs again"
    setups = [step for step in steps if step["step_name"] == "setup" and step["failure_code"] is None]
    assert len(setups) == groups and all(step["trajectory_id"] is None for step in setups)
    assert len({step["ckpt_out"] for step in setups}) == groups and None not in {step["ckpt_out"] for step in setups}
    for row in rows:
        assert row["group_closed_as"] == "full" and row["group_valid"] == size and not row["superseded"]


def test_set_up_runs_once_a_group_and_members_fork_from_it(yard):
    yard.call("run", yard.spec(spec()), "--table", yard.table)
    check(yard)
    (job,) = [path.name for path in yard.table.iterdir()]
    assert "ended well" in yard.call("explain", f"{job}-g0-s1/setup").stdout, "a member's set-up is its group's"


def test_a_set_up_that_fails_ends_its_group_and_no_other(yard):
    text = spec().replace("mkdir -p tree/deep", 'test "$N" != 2\n      mkdir -p tree/deep')
    yard.call("run", yard.spec(text), "--table", yard.table)
    rows = yard.rows()
    failed = [row for row in rows if row["failure_code"]]
    assert len(rows) == 12 and len(failed) == 4
    assert {row["failure_code"] for row in failed} == {"setup_failed"}
    assert {row["failure_domain"] for row in failed} == {"task"} and {row["reward"] for row in failed} == {None}
    assert len({row["group_id"] for row in failed}) == 1


@pytest.mark.parametrize("which", ["scheduler", "executor", "both"])
def test_killed_half_way_no_finished_step_runs_again(yard, which):
    rng = __import__("random").Random(lab.seed())
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")

    def executor(name):
        return yard.start("executor", "--name", name, "--scheduler", yard.socket, data=yard.directory / name)

    nodes = {name: executor(name) for name in ("n1", "n2")}
    submit = ("--yard", yard.socket, "submit", "--idempotency-key", "once", yard.spec(spec("0.3")), "--table", yard.table, "--wait")
    submitted = yard.start(*submit)
    import time

    try:
        for _ in range(3):
            time.sleep(rng.uniform(0.3, 1.5))
            if submitted.poll() is not None:
                break
            if which in ("executor", "both"):
                name = rng.choice(["n1", "n2"])
                lab.end(nodes[name], signal.SIGKILL)
                nodes[name] = executor(name)
            if which in ("scheduler", "both"):
                lab.end(scheduler, signal.SIGKILL)
                scheduler = yard.start("scheduler", "--listen", yard.socket)
        if submitted.wait(timeout=lab.HANG_S) != 0:
            # It found no scheduler when it came: ask again, for the same job.
            yard.call(*submit)
        check(yard)
    finally:
        for process in (*nodes.values(), scheduler, submitted):
            lab.end(process)


def test_a_node_that_is_lost_costs_no_finished_step_on_the_other(yard):
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")

    def executor(name):
        return yard.start("executor", "--name", name, "--scheduler", yard.socket, data=yard.directory / name)

    first, second = executor("n1"), None
    submitted = yard.start("--yard", yard.socket, "submit", yard.spec(spec("1")), "--table", yard.table, "--wait")
    try:
        lab.wait_until(lambda: len(lab.census(yard.directory).get("cgroups", [])) > 3, "members work")
        second = executor("n2")
        lab.end(first, signal.SIGKILL)
        assert submitted.wait(timeout=lab.HANG_S) == 0
        check(yard)
        assert {row["node_id"] for row in yard.rows()} >= {"n2"}
    finally:
        for process in filter(None, (first, second, scheduler, submitted)):
            lab.end(process)


def test_rows_of_replaced_rollouts_are_read_and_exported_when_asked_for(yard):
    """Without retries, what runs on a node that is lost is replaced."""
    text = spec("1").replace("retry: {limit: 5,", "retry: {limit: 0,").replace("per: group", "per: group\n    retry: {limit: 5}")
    scheduler = yard.start("scheduler", "--listen", yard.socket)
    lab.wait_until(lambda: yard.listens(), "the scheduler listens")

    def executor(name):
        return yard.start("executor", "--name", name, "--scheduler", yard.socket, data=yard.directory / name)

    nodes = [executor("n1")]
    submitted = yard.start("--yard", yard.socket, "submit", yard.spec(text), "--table", yard.table, "--wait")
    try:
        lab.wait_until(lambda: yard.json("--yard", yard.socket, "ps"), "the job is there")
        (known,) = yard.json("--yard", yard.socket, "ps")

        def works():
            shown = yard.json("--yard", yard.socket, "show", f"{known['id']}-g0-s0")
            return any(step["step"] == "work" and step["state"] == "running" for step in shown["steps"])

        lab.wait_until(works, "a member works")
        nodes.append(executor("n2"))
        lab.end(nodes[0], signal.SIGKILL)
        assert submitted.wait(timeout=lab.HANG_S) == 0
        (job,) = yard.table.iterdir()
        rows = yard.rows()
        assert sorted((row["group_id"], row["sample_index"]) for row in rows) == [
            (f"{job.name}-g{group}", sample) for group in range(3) for sample in range(4)
        ]
        assert not any(row["superseded"] for row in rows)
        for table in ("trajectories", "steps"):
            main = list(ry.open_table(job, table))
            whole = list(ry.open_table(job, table, superseded=True))
            replaced = whole[len(main) :]
            assert whole[: len(main)] == main and replaced
            ids = {row["trajectory_id"] for row in replaced}
            assert not ids & {row["trajectory_id"] for row in main}
            counts = {}
            for flags in ((), ("--all",)):
                out = yard.directory / f"copy{len(flags)}"
                (copy,) = yard.json("export", job / table, "--format", "jsonl", "--out", out, *flags)
                counts[flags] = copy["rows"]
            assert counts == {(): len(main), ("--all",): len(whole)}
        assert {row["superseded"] for row in ry.open_table(job, superseded=True)} == {False, True}
        with ry.Client(yard.socket) as client:
            known = client.job(job.name)
            told = [rollout.id for rollout in known.rollouts() if rollout.superseded]
            assert len(told) == known.counts().rollouts_superseded > 0
    finally:
        for process in (*nodes, scheduler, submitted):
            lab.end(process)
