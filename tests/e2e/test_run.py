"""`rollyard run`: a spec in, a table out."""

import collections
import math

import lab

HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()


def test_hello_gives_four_rewarded_rollouts(yard):
    yard.call("run", yard.spec(HELLO), "--table", yard.table)
    rows = yard.rows()
    assert len(rows) == 4
    assert {row["reward"] for row in rows} == {1.0}
    assert {row["status"] for row in rows} == {"completed"}
    assert {row["group_closed_as"] for row in rows} == {"full"}
    assert sorted(row["sample_index"] for row in rows) == [0, 1, 2, 3]
    assert all(row["reward_valid"] and not row["trainable"] for row in rows)
    steps = yard.rows("steps")
    assert collections.Counter(step["step_name"] for step in steps) == {"work": 4, "grade": 4}
    assert all(step["exit_code"] == 0 and not step["oom"] and not step["timed_out"] for step in steps)
    assert len(yard.rows("artifacts")) == 4
    assert yard.rows("turns") == []


def test_a_finished_spec_runs_again_as_a_new_job(yard):
    spec = yard.spec(HELLO)
    yard.call("run", spec, "--table", yard.table)
    yard.call("run", spec, "--table", yard.table)
    assert len({row["job_id"] for row in yard.rows()}) == 2


def test_the_forty_tell_every_kind_of_end_apart(yard):
    spec = lab.ROOT / "docs/examples/forty.yaml"
    done = yard.call("run", spec, "--table", yard.table)
    rows = yard.rows()
    assert len(rows) == 40
    codes = collections.Counter(row["failure_code"] for row in rows)
    for code in ["agent_timeout", "oom_guest", "pids_limit", "disk_quota"]:
        assert codes[code] > 0, codes
        assert code in done.stdout + done.stderr, f"the summary does not say {code}"
    assert codes[None] > 0
    for row in rows:
        assert (row["reward"] is not None) == row["reward_valid"]
        assert row["reward"] is None or math.isfinite(row["reward"])
        if row["failure_code"]:
            assert row["failure_domain"] == "agent" and row["failure_message"]
    rewards = {row["reward"] for row in rows if row["failure_code"] is None}
    assert rewards == {0.0, 1.0}, "some pass, some give a wrong answer"
    flooded = [step for step in yard.rows("steps") if step["capture_truncated"]]
    assert flooded, "the output flood is cut and says so"
