"""The package `rollyard`, against the real binary."""

import asyncio
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import lab
import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

PACKAGE = lab.ROOT / "datasets" / "python"
HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()
FAMILIES = [
    ry.SpecError,
    ry.RequestError,
    ry.NotFoundError,
    ry.NotAvailableError,
    ry.BusyError,
    ry.UnreachableError,
    ry.TableError,
    ry.JobEndedError,
    ry.CommandError,
    ry.StillRunning,
    ry.OutcomeUnknown,
    ry.ActionConflict,
    ry.SandboxGone,
    ry.StartError,
    ry.ClaimLost,
    ry.FileError,
]


@pytest.fixture
def program(monkeypatch, yard):
    """The yard's directories, and the binary where the package looks for it."""
    monkeypatch.setenv("ROLLYARD_BIN", str(lab.BINARY))
    monkeypatch.delenv("ROLLYARD_YARD", raising=False)
    monkeypatch.setenv("ROLLYARD_DATA_DIR", str(yard.data))
    monkeypatch.chdir(yard.directory)
    return yard


@pytest.fixture
def client(program):
    with ry.Client() as client:
        yield client


def hello_job(name="hello", **fields):
    job = ry.Job(name, tasks={"inline": [{"n": "6", "want": "42"}]}, image="host", timeout="30s", **fields)
    job.step("work", env={"N": "${row.n}"}, run="echo $((N * 7)) > answer", outputs=[{"name": "answer", "path": "answer"}])
    return job.step(
        "grade",
        needs=["work"],
        env={"WANT": "${row.want}"},
        grader={"reward_file": "/logs/verifier/reward.txt"},
        inputs=[{"artifact": "work.answer", "path": "/in/answer"}],
        run='if grep -qx "$WANT" /in/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt',
    )


def sleeping_job(name="sleeper", seconds=600):
    job = ry.Job(name, tasks={"inline": [{"n": "1"}]}, image="host", timeout="1h")
    return job.step("work", run=f"echo awake; sleep {seconds}")


def test_a_builder_a_dict_and_a_file_give_the_same_job(client, program):
    builder = hello_job(group=2)
    job = client.submit(builder, table="out")
    done = job.wait(timeout=lab.HANG_S)
    assert (done.state, done.went_well, done.final) == ("finished", True, True)
    assert (done.counts.rollouts_total, done.counts.rollouts_valid) == (2, 2)
    assert (done.rewards.mean, done.rewards.count, done.rewards.pass_at_k[1]) == (1.0, 2, 1.0)
    assert done.table_root == str(program.directory.resolve() / "out")
    assert job.counts() == done.counts

    path = program.directory / "same.json"
    path.write_text(json.dumps(builder.spec()))
    hashes = {done.spec_hash}
    for spec in (builder.spec(), path, str(path)):
        again = client.submit(spec, table="out")
        assert again.id != job.id and not again.resumed, "a finished job is not resumed"
        hashes.add(again.wait(timeout=lab.HANG_S).spec_hash)
    assert len(hashes) == 1
    assert len(list(client.jobs())) == 4


def test_rows_and_batches_are_those_of_the_sealed_groups(client):
    job = client.submit(hello_job(group=2), table="out")
    job.wait(timeout=lab.HANG_S)
    rows = list(job.rows())
    assert [row["reward"] for row in rows] == [1.0, 1.0]
    assert {row["job_id"] for row in rows} == {job.id}
    assert [batch.num_rows for batch in job.record_batches("steps")] == [4]
    table = job.table()
    assert (len(table), table.to_arrow().num_rows, list(table)) == (2, 2, rows)
    with pytest.raises(ry.TableError) as refused:
        job.table("turnips")
    assert refused.value.code == "no_tables"


def test_yaml_with_relative_tables_and_a_file_of_rows(client, program):
    (program.directory / "specs").mkdir()
    rows = program.directory / "specs" / "rows.jsonl"
    rows.write_text("".join(json.dumps({"n": str(n), "want": str(7 * n)}) + "\n" for n in range(3)))
    text = HELLO.replace('{inline: [{n: "6", want: "42"}]}', "{jsonl: rows.jsonl}").replace("size: 4", "size: 1")
    spec = program.directory / "specs" / "job.yaml"
    spec.write_text(text)
    job = client.submit(spec)
    done = job.wait(timeout=lab.HANG_S)
    # As the command line has it: tables from the working directory, files from the spec's folder.
    assert done.table_root == str(program.directory.resolve() / "out")
    assert done.counts.rollouts_valid == 3
    assert sorted(row["task_id"] for row in job.rows())
    rows.unlink()
    with pytest.raises(ry.SpecError) as refused:
        client.submit(spec)
    assert refused.value.code == "read_failed"


def test_a_spec_without_a_table_gets_the_folder_out(client, program):
    spec = hello_job().spec()
    assert "output" not in spec
    job = client.submit(spec)
    assert job.info().table_root == str(program.directory.resolve() / "out")
    job.wait(timeout=lab.HANG_S)


def test_only_files_that_the_spec_names_are_sent(program):
    from rollyard import errors, flow, spec

    secret = program.directory / "secret"
    secret.write_text("not for the yard")
    document = spec.document(hello_job())
    steps = flow.submit(document, table="/t", new=True, key=None, on_this_machine=True)
    assert next(steps).method == "Submit"
    asked = errors.make("file_missing", "send it", details=[str(secret)])
    with pytest.raises(ry.SpecError):
        steps.throw(asked)


def test_refusals_have_a_class_a_code_and_details(client):
    with pytest.raises(ry.SpecError) as refused:
        client.submit({"apiVersion": "rollyard/v1", "kind": "RolloutJob", "name": "x", "stpes": []}, table="out")
    error = refused.value
    assert error.code == "spec_invalid" and error.hint and "stpes" in error.message
    assert {problem["code"] for problem in error.details} >= {"unknown_field", "missing_field"}
    with pytest.raises(ry.NotFoundError) as refused:
        client.job("j0000000000007").info()
    assert refused.value.code == "not_found"
    with pytest.raises(ry.SpecError) as refused:
        client.submit("nowhere.yaml")
    assert refused.value.code == "read_failed"
    with pytest.raises(ry.RequestError) as refused:
        client.submit(hello_job(), n=8)
    assert "n: not of this spec" in str(refused.value)
    with pytest.raises(ry.RequestError):
        client.job("j0000000000007").explain("j0000000000008-g0-s0")
    with pytest.raises(ry.NotAvailableError):
        ry.Client(project="mine")
    for url, code in [("unix:here", "bad_yard"), ("http://10.0.0.1:1", "bad_yard"), ("https://y", "not_available_yet")]:
        with pytest.raises(ry.Error) as refused:
            ry.Client(url)
        assert refused.value.code == code, url
    first = client.submit(hello_job("one"), table="out", key="the-same")
    assert client.submit(hello_job("one"), table="out", key="the-same").id == first.id
    with pytest.raises(ry.RequestError) as refused:
        client.submit(hello_job("two"), table="out", key="the-same")
    assert refused.value.code == "idempotency_request_mismatch"
    first.wait(timeout=lab.HANG_S)


def test_an_unfinished_job_goes_on_and_can_be_cancelled(client):
    job = client.submit(sleeping_job(), table="out")
    again = client.submit(sleeping_job(), table="out")
    assert (again.id, again.resumed) == (job.id, True)
    other = client.submit(sleeping_job(), table="out", new=True)
    assert other.id != job.id
    assert {info.id for info in client.jobs(unfinished_only=True)} == {job.id, other.id}
    assert any("run" in line or "step" in line for line in job.explain())
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.2)
    assert job.cancel("enough").state in ("cancelling", "cancelled")
    other.cancel()
    with pytest.raises(ry.JobEndedError) as ended:
        job.wait(timeout=lab.HANG_S)
    assert ended.value.code == "job_ended" and ended.value.job.state == "cancelled"
    assert "enough" in ended.value.message


def test_logs_and_rollouts(client):
    job = client.submit(sleeping_job(seconds=0), table="out")
    job.wait(timeout=lab.HANG_S)
    (rollout,) = job.rollouts()
    assert (rollout.status, rollout.reward, rollout.failure) == ("completed", None, None)
    assert b"".join(chunk.data for chunk in job.logs(rollout.id)) == b"awake\n"
    assert b"".join(chunk.data for chunk in job.logs(f"{rollout.id}/work", stream="stdout")) == b"awake\n"
    assert list(job.logs(f"{rollout.id}/work", stream="stderr")) == []
    assert job.explain(f"{rollout.id}/work")


def test_the_async_client_has_the_same_names(program):
    async def work():
        async with ry.AsyncClient() as client:
            job = await client.submit(hello_job(group=2), table="out")
            done, sleeper = await asyncio.gather(
                job.wait(timeout=lab.HANG_S), client.submit(sleeping_job(), table="out")
            )
            assert done.rewards.mean == 1.0
            rows = [row async for row in job.rows()]
            assert [row["reward"] for row in rows] == [1.0, 1.0]
            assert [batch.num_rows async for batch in job.record_batches("steps")] == [4]
            rollouts = [rollout async for rollout in job.rollouts()]
            assert len(rollouts) == 2
            assert [chunk async for chunk in job.logs(f"{rollouts[0].id}/work")] == []
            waiting = asyncio.create_task(sleeper.wait())
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await sleeper.info()).state == "running", "a cancelled task does not cancel the job"
            with pytest.raises(ry.NotFoundError):
                await client.job("j0000000000007").counts()
            assert {info.id async for info in client.jobs()} == {job.id, sleeper.id}
            await sleeper.cancel()
            with pytest.raises(ry.JobEndedError):
                await sleeper.wait(timeout=lab.HANG_S)

    asyncio.run(work())


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def test_the_twins_have_the_same_names():
    assert public(ry.AsyncJobHandle) == public(ry.JobHandle)
    assert public(ry.AsyncClient) == public(ry.Client)


def test_a_running_yard_is_used_and_left_alone(program):
    dev = program.start("dev")
    try:
        lab.wait_until(lambda: program.listens(), "the yard listens")
        with ry.Client() as client:
            client.submit(hello_job(), table="out").wait(timeout=lab.HANG_S)
        assert dev.poll() is None
        with ry.Client(program.socket) as client:
            assert len(list(client.jobs())) == 1
    finally:
        lab.end(dev)


def test_without_a_yard_or_a_program_it_is_said(program, monkeypatch):
    with pytest.raises(ry.UnreachableError) as refused:
        ry.Client(start=False)
    assert refused.value.code == "yard_unreachable" and "rollyard dev" in refused.value.hint
    monkeypatch.setenv("ROLLYARD_BIN", "/nowhere/rollyard")
    with pytest.raises(ry.UnreachableError) as refused:
        ry.Client()
    assert "/nowhere/rollyard" in str(refused.value)
    with pytest.raises(ry.UnreachableError) as refused:
        list(ry.Client(program.socket).jobs())
    assert refused.value.code == "yard_unreachable"


@pytest.mark.parametrize("url", ["unix:/nowhere/yard.sock", "http://127.0.0.1:9"])
def test_a_yard_that_never_answered_is_not_waited_for(url):
    name = "j0000000000001-g0-s0"

    async def twin():
        async with ry.AsyncClient(url) as client:
            await client.sandbox()

    with ry.Client(url) as client:
        calls = [
            lambda: list(client.jobs()),
            lambda: client.submit(sleeping_job()),
            lambda: client.sandbox(),
            lambda: client.open_sandbox(name).exec("true"),
            lambda: client.open_sandbox(name).start("true"),
            lambda: client.job(name.partition("-")[0]).wait(),
            lambda: asyncio.run(twin()),
        ]
        began, said = time.monotonic(), set()
        for call in calls:
            with pytest.raises(ry.UnreachableError) as refused:
                call()
            assert refused.value.code == "yard_unreachable"
            said.add((refused.value.message, refused.value.hint))
        assert time.monotonic() - began < 10
        ((message, hint),) = said
        assert message.startswith(f"cannot reach the yard at {url}: ") and "`rollyard dev`" in hint


def script(yard, text):
    path = yard.directory / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


SLEEPER = """
    import sys
    import rollyard as ry
    job = ry.Job("sleeper", tasks={"inline": [{"n": "1"}]}, image="host", timeout="1h").step("work", run="sleep 600")
    client = ry.Client()
    handle = client.submit(job, table="out")
    print(handle.id, client._yard.pid, flush=True)
    handle.wait()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_yard_that_was_started_ends_with_the_process_and_its_job_goes_on(program, how):
    process = subprocess.Popen(script(program, SLEEPER), stdout=subprocess.PIPE, text=True)
    job, yard_pid = process.stdout.readline().split()
    time.sleep(0.5)
    process.send_signal(how)
    assert process.wait(timeout=lab.HANG_S) != 0
    process.stdout.close()
    lab.wait_until(lambda: not pathlib.Path(f"/proc/{yard_pid}").exists(), "the yard ends")
    with ry.Client() as client:
        assert client.job(job).info().state == "running", "nobody cancelled it"
        assert client.submit(sleeping_job("sleeper"), table="out", new=True).id != job
        for info in client.jobs(unfinished_only=True):
            client.job(info.id).cancel()
            with pytest.raises(ry.JobEndedError):
                client.job(info.id).wait(timeout=lab.HANG_S)


def test_ctrl_c_in_wait_detaches(client, capsys):
    job = client.submit(sleeping_job(), table="out")
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        job.wait(progress=True)
    assert f"job {job.id} goes on in the yard" in capsys.readouterr().err
    assert job.info().state == "running"
    job.cancel()
    with pytest.raises(ry.JobEndedError):
        job.wait(timeout=lab.HANG_S)


def test_a_yard_that_cannot_start_says_why_in_the_words_of_the_program(program, monkeypatch):
    # The data directory is a file.
    program.data.write_text("in the way")
    with pytest.raises((ry.Error, OSError)):
        ry.Client()
    program.data.unlink()
    fake = program.directory / "rollyard"
    line = json.dumps({"error": {"code": "not_root", "message": "no", "causes": ["why"], "hint": "run it as root"}})
    fake.write_text(f"#!/bin/sh\necho talk >&2\necho '{line}' >&2\nexit 4\n")
    fake.chmod(0o755)
    monkeypatch.setenv("ROLLYARD_BIN", str(fake))
    with pytest.raises(ry.YardError) as refused:
        ry.Client()
    assert (refused.value.code, refused.value.message, refused.value.hint) == ("not_root", "no: why", "run it as root")


def test_a_folder_of_harbor_tasks_is_the_business_of_the_program(program, monkeypatch):
    """What is asked of it: the spec it prints is handed back to it, which packs and sends."""
    (program.directory / "tasks").mkdir()
    calls = program.directory / "calls"
    fake = program.directory / "rollyard"
    answer = json.dumps({"job": {"id": "j0000000000007"}, "resumed": True, "warnings": []})
    fake.write_text(
        "#!/bin/sh\n"
        f'for word in "$@"; do printf "%s\\n" "$word" >> {calls}; done; echo -- >> {calls}\n'
        f"case \"$*\" in *--print-spec*) echo 'the: spec';; *) cat >> {calls}; echo '{answer}';; esac\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("ROLLYARD_BIN", str(fake))
    with ry.Client(program.socket) as client:
        job = client.submit("tasks/", agent=["my agent", "--fast"], n=8, image="host")
    assert (job.id, job.resumed) == ("j0000000000007", True)
    asked, _, sent = calls.read_text().partition("--\n")
    expected = ["run", "--harbor", "tasks/", "--agent", "'my agent' --fast", "--n", "8", "--image", "host"]
    assert asked.split("\n")[:-1] == ["--output", "json", *expected, "--print-spec"]
    assert sent.split("\n") == ["--output", "json", "--yard", program.socket, "submit", "-", "--resume", "--", "the: spec", ""]


TASK = """schema_version = "1.4"
artifacts = ["/workspace/answer"]
[verifier]
environment_mode = "separate"
[environment]
network_mode = "no-network"
storage_mb = 32
memory_mb = 128
"""


def test_a_folder_of_harbor_tasks_runs_from_start_to_end(program):
    for name, want in (("a", 42), ("b", 43)):
        task = program.directory / "tasks" / name
        (task / "tests").mkdir(parents=True)
        (task / "environment").mkdir()
        (task / "task.toml").write_text(TASK)
        (task / "instruction.md").write_text("Write 42 into the file `answer`.")
        grade = f"#!/bin/sh\nif grep -qx {want} /workspace/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
        (task / "tests/test.sh").write_text(grade)
    with ry.Client() as client:
        agent = ["/bin/sh", "-c", "sed 's/[^0-9]//g' /in/instruction.md > answer"]
        job = client.submit(program.directory / "tasks", agent=agent, n=2, image="host", table="out")
        job.wait(timeout=lab.HANG_S)
        assert sorted((row["task_id"], row["reward"]) for row in job.rows()) == [("a", 1.0)] * 2 + [("b", 0.0)] * 2


def test_readme_examples_run(program):
    text = (PACKAGE / "README.md").read_text()
    first, twin, sandboxes, driven, tables, errors_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(script(program, first), capture_output=True, text=True, timeout=lab.HANG_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "1.0 4" and len(done.stdout.splitlines()) == 5
    (job,) = [path.name for path in (program.directory / "out").iterdir()]
    done = subprocess.run(script(program, tables.replace("JOB", job)), capture_output=True, text=True, timeout=lab.HANG_S)
    assert (done.returncode, done.stdout) == (0, "0 [1.0, 1.0, 1.0, 1.0]\n"), done.stderr
    done = subprocess.run(script(program, twin), capture_output=True, text=True, timeout=lab.HANG_S)
    assert (done.returncode, done.stdout) == (0, "['0', '7', '14', '21']\n"), done.stderr
    done = subprocess.run(script(program, sandboxes), capture_output=True, text=True, timeout=lab.HANG_S)
    assert (done.returncode, done.stdout) == (0, "42\n/tmp me\nstreamed\n0\n0\n"), done.stderr
    done = subprocess.run(script(program, driven), capture_output=True, text=True, timeout=lab.HANG_S)
    assert (done.returncode, done.stdout) == (0, "4\n1.0\n"), done.stderr
    done = subprocess.run(script(program, errors_), capture_output=True, text=True, timeout=lab.HANG_S)
    assert done.returncode == 0 and done.stdout.startswith("spec_invalid ["), done.stdout + done.stderr


def test_the_other_examples_of_the_documentation_run(program):
    (program.directory / "docs").symlink_to(lab.ROOT / "docs")
    (program.directory / "job.yaml").write_text(HELLO)
    for page, first_line in [("README.md", "[{'task_id': 'row-0', 'status': 'completed'"), ("docs/python.md", "1.0 []")]:
        (example,) = re.findall(r"```python\n(.*?)```", (lab.ROOT / page).read_text(), re.DOTALL)
        done = subprocess.run(script(program, example), capture_output=True, text=True, timeout=lab.HANG_S)
        assert done.returncode == 0 and done.stdout.startswith(first_line), done.stdout + done.stderr


def test_generated_modules_are_current(tmp_path):
    described = importlib.util.spec_from_file_location("generate", PACKAGE / "generate.py")
    generate = importlib.util.module_from_spec(described)
    described.loader.exec_module(generate)
    generate.generate(tmp_path)
    made = {path.name: path.read_text() for path in (tmp_path / "rollyard" / "v1").iterdir()}
    there = PACKAGE / "src" / "rollyard" / "v1"
    kept = {path.name: path.read_text() for path in there.iterdir() if path.is_file()}
    assert kept == made, "run datasets/python/generate.py"


def test_the_package_type_checks():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_code_is_documented_and_of_one_family():
    from rollyard import errors

    documented = set(re.findall(r"^### `(\w+)`", (lab.ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    codes = [code for family in errors.FAMILIES.values() for code in family]
    assert set(codes) <= documented and len(codes) == len(set(codes))
    assert list(errors.FAMILIES) == FAMILIES
    for family, of_family in errors.FAMILIES.items():
        assert all(type(errors.make(code, "m")) is family for code in of_family)
    import pickle

    error = pickle.loads(pickle.dumps(errors.make("spec_invalid", "m", "h", [1])))
    assert (error.code, error.message, error.hint, error.details) == ("spec_invalid", "m", "h", [1])
