"""`rollyard export` of a job that ran."""

import json

import lab
import pyarrow.parquet

HELLO = (lab.ROOT / "docs/examples/hello.yaml").read_text()


def refused(yard, *args):
    done = yard.call("--output", "json", "export", *args, ok=False)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert done.returncode == error["exit_code"] != 0 and done.stdout == ""
    return error


def test_a_job_goes_by_its_folder_and_by_its_id(yard):
    yard.call("run", yard.spec(HELLO), "--table", yard.table)
    (job,) = [path.name for path in yard.table.iterdir()]
    out = yard.directory / "copies"
    copies = yard.json("export", yard.table / job, "--format", "parquet", "--out", out)
    assert {copy["table"]: copy["rows"] for copy in copies} == {
        "trajectories": 4, "turns": 0, "steps": 8, "artifacts": 4,
    }
    for copy in copies:
        assert pyarrow.parquet.read_table(copy["path"]).num_rows == copy["rows"]
    # The yard has ended: what it left says where the tables are.
    by_id = yard.json("export", f"{job}/steps", "--format", "jsonl", "--out", out, "--valid")
    assert [copy["rows"] for copy in by_id] == [8]
    steps = [json.loads(line) for line in open(by_id[0]["path"])]
    assert {step["step_name"] for step in steps} == {"work", "grade"}
    told = yard.call("export", f"{job}/steps", "--format", "jsonl", "--out", out, "--overwrite", "--trainable").stdout
    assert told.splitlines()[0].split() == ["TABLE", "ROWS", "SIZE", "PATH"]
    assert (out / "steps.jsonl").read_text() == ""

    error = refused(yard, job, "--format", "parquet", "--out", out)
    assert (error["code"], error["exit_code"]) == ("output_exists", 1)
    error = refused(yard, yard.directory / "nowhere", "--format", "parquet", "--out", out)
    assert (error["code"], error["exit_code"]) == ("no_tables", 2)
    for form in ("atif", "harbor"):
        error = refused(yard, job, "--format", form, "--out", out)
        assert (error["code"], error["exit_code"]) == ("not_available_yet", 2) and form in error["message"]
    assert refused(yard, "j0000000000007", "--format", "jsonl", "--out", out)["code"] == "not_found"
