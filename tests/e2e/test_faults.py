"""Bad input and broken machines: each has a code, a place and a remedy, and nothing is lost."""

import json
import shutil
import subprocess

import lab
import pytest

HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()


def refused(done: subprocess.CompletedProcess, code: str, *words: str):
    text = done.stderr + done.stdout
    assert done.returncode != 0, text
    assert code in text, text
    assert "Traceback" not in text and "panicked" not in text, text
    for word in words:
        assert word in text, text


def test_a_spec_error_names_file_line_and_nearest_name(yard):
    spec = yard.spec(HELLO.replace("timeout: 30s", "tiemout: 30s"))
    done = yard.call("run", spec, ok=False)
    assert done.returncode == 2
    refused(done, "unknown_field", "job.yaml:", "timeout")
    assert not yard.table.exists()


def test_a_step_larger_than_any_node_is_said_with_both_sizes(yard):
    process = yard.start("dev")
    try:
        lab.wait_until(lambda: yard.listens(), "the yard listens")
        big = HELLO.replace(
            "defaults: {image: host, timeout: 30s}",
            'defaults: {image: host, timeout: 30s, resources: {request: {memory: 900Gi}, limit: {memory: 900Gi}}}',
        )
        assert big != HELLO
        submitted = yard.json("submit", yard.spec(big), "--table", yard.table)
        job = submitted["job"]["id"]

        def said():
            text = yard.call("explain", job).stdout
            return text if "too_big_for_yard" in text else None

        text = lab.wait_until(said, "explain says too_big_for_yard")
        assert "900Gi" in text
        yard.call("cancel", job)
    finally:
        lab.end(process)


def test_a_second_scheduler_on_the_same_data_is_refused(yard):
    process = yard.start("dev")
    try:
        lab.wait_until(lambda: yard.listens(), "the yard listens")
        refused(yard.call("scheduler", ok=False), "data_dir_locked")
        yard.call("submit", yard.spec(HELLO), "--table", yard.table, "--wait")
    finally:
        lab.end(process)
    assert len(yard.rows()) == 4


def test_a_corrupt_database_is_refused_and_kept(yard):
    yard.call("run", yard.spec(HELLO), "--table", yard.table)
    database = yard.data / "yard.db"
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    garbage = b"this is not a database, but it is long enough to be read as a page" * 64
    database.write_bytes(garbage)
    refused(yard.call("run", yard.spec(HELLO), "--table", yard.table, ok=False), "database_corrupt", "yard.db")
    assert database.read_bytes() == garbage, "nothing was deleted"


def test_an_image_that_is_on_no_node_holds_the_job_with_its_path(yard):
    spec = HELLO.replace("image: host", "image: 'dir:/nowhere/at/all'")
    done = yard.call("run", yard.spec(spec), "--table", yard.table, ok=False)
    assert "refused_by_every_node" in done.stderr and "dir:/nowhere/at/all" in done.stderr
    assert "rollyard explain" in done.stderr and "rollyard cancel" in done.stderr
    assert yard.rows() == [], "nobody is to blame yet: nothing is recorded"


def test_a_row_whose_image_is_on_no_node_ends_alone(yard):
    rows = [{"n": "6", "want": "42", "img": image} for image in ("host", "dir:/nowhere/at/all", "host", "host")]
    spec = HELLO.replace("image: host", "image: '${row.img}'").replace("group: {size: 4}", "group: {size: 1}")
    spec = spec.replace('[{n: "6", want: "42"}]', json.dumps(rows))
    yard.call("run", yard.spec(spec), "--table", yard.table)
    rows = yard.rows()
    assert len(rows) == 4
    bad = [row for row in rows if row["failure_code"]]
    assert [(row["failure_code"], row["failure_domain"], row["reward"]) for row in bad] == [("not_found", "task", None)]
    for words in ("refused_by_every_node", "dir:/nowhere/at/all"):
        assert words in bad[0]["failure_message"], bad[0]["failure_message"]
    assert [row["reward"] for row in rows if not row["failure_code"]] == [1.0] * 3


def test_an_image_that_cannot_be_a_root_is_the_tasks_failure_at_the_first_try(yard):
    bare = yard.directory / "bare"
    bare.mkdir()
    yard.call("run", yard.spec(HELLO.replace("image: host", f"image: 'dir:{bare}'")), "--table", yard.table, ok=False)
    rows = yard.rows()
    assert len(rows) == 4
    for row in rows:
        assert row["failure_code"] == "not_found" and row["failure_domain"] == "task"
        assert row["reward"] is None and row["attempt"] == 0
        assert str(bare) in row["failure_message"] and "/bin/sh" in row["failure_message"]


def test_a_full_disk_under_the_data_directory_loses_nothing(yard):
    """On a tmpfs of a private mount namespace, a little above the executor's disk reserve of 2 GiB."""
    script = f"""
set -eu
mkdir -p {yard.data}
mount -t tmpfs -o size=2250m none {yard.data}
(sleep 1; dd if=/dev/zero of={yard.data}/fill bs=64k 2>/dev/null || true; sleep 16; rm {yard.data}/fill) &
{' '.join(yard.command('run', str(yard.spec(SLOW)), '--table', str(yard.table)))}
wait
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=lab.HANG_S,
        cwd=yard.directory,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing runs: The store does not take writes" in done.stderr, done.stderr
    assert done.stderr.count("WARN the store does not take writes") <= 2, "said once, not at every try"
    rows = yard.rows()
    assert len({row["trajectory_id"] for row in rows}) == len(rows) == 24
    for row in rows:
        assert row["reward"] == 1.0 or row["failure_domain"] in {"storage", "node", "sandbox"}, row


ROWS = ", ".join(['{n: "6", want: "42"}'] * 6)
SLOW = HELLO.replace('{n: "6", want: "42"}', ROWS).replace("size: 4}", "size: 4}\nadmission: {max_running: 4}").replace(
    'run: "echo', 'run: "sleep 0.5; echo'
).replace("timeout: 30s", "timeout: 30s, retry: {limit: 10, backoff: 500ms, max_backoff: 1s}")


@pytest.mark.parametrize("spec", ["", "a: [", "\t- x", "null", "[]", "{}", "\0", "&a [*a, *a]"])
def test_garbage_specs_are_refused_with_a_code(yard, spec):
    path = yard.directory / "garbage.yaml"
    path.write_bytes(spec.encode())
    done = yard.call("check", path, ok=False)
    assert done.returncode == 2, done.stderr
    assert "error[" in done.stderr + done.stdout


def test_a_table_root_removed_while_the_job_runs_is_made_again_and_the_job_ends(yard):
    spec = SLOW.replace("./out}", "./out, shard: {flush: 1s}}")
    assert spec != SLOW
    process = yard.start("run", yard.spec(spec), "--table", yard.table)
    lab.wait_until(lambda: list(yard.table.glob("*/trajectories/*.arrows")), "a first shard")
    before = {row["trajectory_id"] for row in yard.rows()}
    shutil.rmtree(yard.table)
    assert process.wait(timeout=lab.HANG_S) == 0
    after = {row["trajectory_id"] for row in yard.rows()}
    assert not before & after and len(before | after) == 24, "what was sealed is gone, the rest is there"


def test_run_says_that_the_node_is_short_of_disk(yard):
    """Less than the reserve from the start: every step is refused, and `run` says by whom and why."""
    script = f"""
mkdir -p {yard.data}
mount -t tmpfs -o size=200m none {yard.data}
exec timeout -s INT 15 {' '.join(yard.command('run', str(yard.spec(HELLO)), '--table', str(yard.table)))}
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=lab.HANG_S,
        cwd=yard.directory,
    )
    assert "node local refused it: disk of the machine" in done.stderr, done.stderr
    assert "less than the reserve of 2Gi" in done.stderr, done.stderr


def test_a_held_job_leaves_what_has_ended_in_the_tables(yard):
    """The breaker holds it long before a shard is due."""
    rows = ", ".join(['{n: "6", want: "42"}'] * 60)
    spec = HELLO.replace('{n: "6", want: "42"}', rows).replace("size: 4}", "size: 1}").replace(
        'run: "echo', 'run: "exit 3; echo'
    )
    done = yard.call("run", yard.spec(spec), "--table", yard.table, ok=False)
    assert done.returncode == 1
    refused(done, "job_ended", "is held", "step_exit", "--new")
    job = yard.json("ps")[0]
    ended = job["rollouts"]["ended"]
    assert 32 <= ended < 60 and len(yard.rows()) == ended
    again = yard.call("run", yard.spec(spec), "--table", yard.table, ok=False)
    assert again.returncode == 1 and len(yard.rows()) == ended, "nothing runs, nothing is written twice"
    yard.call("cancel", job["id"])
    seqs = [row["seq"] for row in yard.rows()]
    assert seqs == list(range(60)), "the rest ended as cancelled"


def test_an_agent_that_does_nothing_until_its_timeout_is_marked_and_one_that_prints_is_not(yard):
    rows = [{"say": ""}, {"say": "here I am"}]
    spec = f"""
apiVersion: rollyard/v1
kind: RolloutJob
name: silent
tasks: {{from: {{inline: {json.dumps(rows)}}}}}
group: {{size: 1}}
defaults: {{image: host}}
steps:
  - {{name: work, timeout: 1s, agent: {{command: [/bin/sh, -c, 'printf "%s" "$0"; exec sleep 60', "${{row.say}}"]}},
     outputs: [{{name: answer, path: answer}}]}}
  - {{name: grade, needs: [work], timeout: 30s, run: "true", grader: {{exit: {{0: 1}}}},
     inputs: [{{artifact: work.answer, path: /in/answer}}]}}
output: {{columns: [say]}}
"""
    yard.call("run", yard.spec(spec), "--table", yard.table)
    marked = {json.loads(row["task_row"])["say"]: row["extra"] for row in yard.rows()}
    assert {row["stop_reason"] for row in yard.rows()} == {"agent_timeout"}
    assert json.loads(marked[""]) == {"zero_activity": True}
    assert marked["here I am"] is None
