"""Tables written by Rollyard, read by the Python readers people use.

    python3 tests/e2e/read_tables.py

makes one virtual environment per reader version under target/ and runs this file and
read_loaders.py in each with pytest. Under pytest, the tables are those at ROLLYARD_SAMPLE_TABLE, or are made with cargo.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Run in every environment.
READERS = [__file__, str(ROOT / "tests" / "e2e" / "read_loaders.py")]
JOB = "j0000000000007"
# Groups 3 and 6 were dropped with two members each; the others have four.
ROWS_OF_GROUP = {1: 4, 2: 4, 3: 2, 4: 4, 5: 4, 6: 2}


def make_tables(directory):
    command = ["cargo", "run", "--quiet", "-p", "datasets", "--example", "sample_table", "--", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True)


def main():
    import shutil

    import environments

    tables = ROOT / "target" / "e2e-sample-table"
    shutil.rmtree(tables, ignore_errors=True)
    make_tables(tables)
    failed = []
    for name in environments.NAMES:
        python = environments.make(name)
        print(f"--- {name}", flush=True)
        run = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *READERS, *sys.argv[1:]]
        if subprocess.run(run, env=os.environ | {"ROLLYARD_SAMPLE_TABLE": str(tables)}).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed under {', '.join(failed)}")


if __name__ == "__main__":
    main()
    sys.exit(0)

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets  # noqa: E402
import pyarrow as pa  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    made = os.environ.get("ROLLYARD_SAMPLE_TABLE")
    if made is None:
        made = tmp_path_factory.mktemp("tables")
        make_tables(made)
    return Path(made)


@pytest.fixture(params=["fresh", "golden-v1"])
def job_dir(request, fresh):
    """The same rows, written by this version and by the first one."""
    return (fresh if request.param == "fresh" else ROOT / "tests" / "golden" / "v1") / JOB


def manifest(table_dir):
    return [json.loads(line) for line in (table_dir / "manifest.jsonl").read_text().splitlines()]


def shards(table_dir):
    """Sealed shards are those in the manifest."""
    return [table_dir / f"{line['shard']}.arrows" for line in manifest(table_dir)]


def batches(table_dir):
    for path in shards(table_dir):
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            yield from reader


def rows(table_dir):
    return [row for batch in batches(table_dir) for row in batch.to_pylist()]


ARROW_TYPES = {
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "utf8": pa.string(),
    "binary": pa.binary(),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
    "dictionary<int8, utf8>": pa.dictionary(pa.int8(), pa.string()),
    "dictionary<int16, utf8>": pa.dictionary(pa.int16(), pa.string()),
}


def arrow_type(text):
    """The type that docs/tables.md names."""
    text = text.removesuffix(" (JSON)")
    if text in ARROW_TYPES:
        return ARROW_TYPES[text]
    outer, inner = re.fullmatch(r"(list|struct)<(.*)>", text).groups()
    if outer == "list":
        return pa.list_(arrow_type(inner))
    fields, depth, start = [], 0, 0
    for at, letter in enumerate(inner + ","):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            name, kind = inner[start:at].strip().split(" ", 1)
            fields.append(pa.field(name, arrow_type(kind)))
            start = at + 1
    return pa.struct(fields)


def documented(table):
    text = (ROOT / "docs" / "tables.md").read_text()
    section = text.split(f"<!-- columns of {table} -->\n")[1].split("<!-- end -->")[0]
    for line in section.splitlines()[2:]:
        name, kind, null = [cell.strip().replace("\\", "") for cell in line.split("|")[1:4]]
        yield pa.field(name, arrow_type(kind), nullable=null == "yes")


# Added since the golden tables were written, without a new version: nullable and behind those of their class, as
# docs/tables.md says. `steps` has one class.
ADDED_LATER = {"steps": ["memory_held_peak_bytes"]}


@pytest.mark.parametrize("table", ["trajectories", "turns", "steps", "artifacts"])
def test_schema_is_the_documented_one(request, job_dir, table):
    fields, later = list(documented(table)), ADDED_LATER.get(table, [])
    assert later == [field.name for field in fields[len(fields) - len(later) :] if field.nullable]
    if "golden" in request.node.callspec.id:
        fields = [field for field in fields if field.name not in later]
    for path in shards(job_dir / table):
        schema = pa.ipc.open_stream(path.read_bytes()).schema
        assert schema.remove_metadata() == pa.schema(fields)
        assert [field.nullable for field in schema] == [field.nullable for field in fields]
        assert schema.metadata[b"rollyard.schema"] == f"{table}/1".encode()
        assert schema.metadata[b"rollyard.job"] == JOB.encode()
        assert {b"rollyard.writer", b"rollyard.spec_hash", b"rollyard.seqs"} <= schema.metadata.keys()


@pytest.mark.parametrize("table", ["trajectories", "turns", "steps", "artifacts"])
def test_manifest_describes_the_files(job_dir, table):
    lines = manifest(job_dir / table)
    assert [(line["seq_min"], line["seq_max"]) for line in lines] == [(1, 2), (3, 3), (4, 6)]
    for line, path in zip(lines, shards(job_dir / table)):
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == line["sha256"]
        assert sum(batch.num_rows for batch in pa.ipc.open_stream(data)) == line["rows"]
    assert {path.name for path in (job_dir / table).glob("*.arrows*")} == {path.name for path in shards(job_dir / table)}


def test_one_batch_holds_one_group_in_every_table(job_dir):
    for table in ["trajectories", "turns", "steps", "artifacts"]:
        groups = list(batches(job_dir / table))
        assert len(groups) == 6
        for seq, batch in enumerate(groups, start=1):
            assert set(batch.column("seq").to_pylist()) <= {seq}
    assert [batch.num_rows for batch in batches(job_dir / "turns")] == [0] * 6
    assert [batch.num_rows for batch in batches(job_dir / "trajectories")] == list(ROWS_OF_GROUP.values())


def test_memory_mapped_batches_are_not_copied(job_dir):
    for table in ["trajectories", "steps", "artifacts"]:
        for path in shards(job_dir / table):
            with pa.memory_map(str(path)) as source:
                # The whole mapped file as one buffer: column buffers must lie inside it.
                whole = source.read_buffer(source.size())
                source.seek(0)
                for batch in pa.ipc.open_stream(source):
                    for column in batch.columns:
                        parts = [column, column.dictionary] if pa.types.is_dictionary(column.type) else [column]
                        for buffer in (b for part in parts for b in part.buffers() if b is not None and b.size):
                            assert whole.address <= buffer.address < whole.address + whole.size
                            assert (buffer.address - whole.address) % 64 == 0


def test_rows_say_what_happened(job_dir):
    trajectories = rows(job_dir / "trajectories")
    assert len(trajectories) == sum(ROWS_OF_GROUP.values())
    first = trajectories[:4]
    assert [row["trajectory_id"] for row in first] == [f"{JOB}-g1-s{sample}" for sample in range(4)]
    assert [row["status"] for row in first] == ["completed", "truncated", "failed", "cancelled"]
    assert [row["stop_reason"] for row in first] == ["stop", "agent_timeout", None, "cancelled"]
    assert [row["failure_domain"] for row in first] == [None, "agent", "node", "scheduler"]
    assert [row["failure_code"] for row in first] == [None, "agent_timeout", "node_lost", "cancelled"]
    assert [row["reward"] for row in first] == [1.0, 0.5, None, None]
    assert [row["attempt"] for row in first] == [1, 0, 0, 0]
    assert [row["node_id"] for row in first] == ["node-odd", "node-odd", "node-gone", ""]
    assert first[0]["reward_components"] == [
        {"name": "tests_passed", "value": 4.0, "weight": None},
        {"name": "style", "value": 0.25, "weight": None},
    ]
    assert [row["reward_components"] for row in first[1:]] == [[], None, None]
    assert first[0]["created_at"] == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert (first[0]["dur_queue_ms"], first[0]["dur_env_ms"], first[0]["dur_grade_ms"]) == (500, 3000, 3000)
    assert json.loads(first[0]["task_row"]) == {"question": "1 + 1 = ?"}
    for row in trajectories:
        assert (row["reward"] is None) == (not row["reward_valid"])
        assert not row["trainable"]
        assert all(row[name] is None for name in ["token_ids", "loss_mask", "logprobs", "policy_spans", "prompt_len"])
        assert row["group_closed_as"] == ("dropped" if row["seq"] % 3 == 0 else "short")


def test_steps_keep_every_attempt(job_dir):
    steps = [row for row in rows(job_dir / "steps") if row["trajectory_id"] == f"{JOB}-g1-s0"]
    assert [(row["step_name"], row["attempt"], row["node_id"]) for row in steps] == [
        ("agent", 0, "node-gone"),
        ("agent", 1, "node-odd"),
        ("grade", 0, "node-odd"),
    ]
    assert [row["exit_code"] for row in steps] == [None, 0, 0]
    assert [row["cpu_ms"] for row in steps] == [None, 2500, 2500]
    assert steps[1]["stdout_artifact"] == f"sha256:{hashlib.sha256(b'hello from group 1' + bytes([10])).hexdigest()}"


def test_small_artifacts_are_inline(job_dir):
    for row in rows(job_dir / "artifacts"):
        assert row["uri"] == f"sha256:{row['sha256']}"
        if row["name"] == "patch":
            assert hashlib.sha256(row["inline"]).hexdigest() == row["sha256"]
            assert len(row["inline"]) == row["size"]
        else:
            assert row["inline"] is None and row["size"] == 1 << 30


def test_dictionaries_change_between_batches(job_dir):
    shard = shards(job_dir / "trajectories")[2]
    with pa.ipc.open_stream(shard.read_bytes()) as reader:
        nodes = [batch.column("node_id") for batch in reader]
    assert [node.dictionary.to_pylist() for node in nodes] == [
        ["node-even", "node-gone", ""],
        ["node-odd", "node-gone", ""],
        ["node-gone", ""],
    ]
    assert nodes[2].to_pylist() == ["node-gone", ""]


def check_hugging_face(dataset, table_dir, expected):
    assert dataset.num_rows == len(expected)
    # Those of the shards, which are the documented ones.
    assert dataset.column_names == pa.ipc.open_stream(shards(table_dir)[0].read_bytes()).schema.names
    # Dictionaries become strings; everything else keeps its value, nulls included.
    assert dataset.to_list() == expected


@pytest.mark.parametrize("table", ["trajectories", "steps", "artifacts"])
def test_hugging_face_maps_a_shard(job_dir, table):
    for path in shards(job_dir / table):
        expected = [row for batch in pa.ipc.open_stream(path.read_bytes()) for row in batch.to_pylist()]
        check_hugging_face(datasets.Dataset.from_file(str(path)), job_dir / table, expected)


@pytest.mark.parametrize("table", ["trajectories", "steps", "artifacts"])
def test_hugging_face_concatenates_shards(job_dir, table):
    parts = [datasets.Dataset.from_file(str(path)) for path in shards(job_dir / table)]
    check_hugging_face(datasets.concatenate_datasets(parts), job_dir / table, rows(job_dir / table))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("table", ["trajectories", "steps", "artifacts"])
def test_hugging_face_loads_a_table(job_dir, table, streaming, tmp_path):
    files = [str(path) for path in shards(job_dir / table)]
    loaded = datasets.load_dataset(
        "arrow", data_files=files, split="train", cache_dir=str(tmp_path), streaming=streaming
    )
    if streaming:
        assert list(loaded) == rows(job_dir / table)
    else:
        check_hugging_face(loaded, job_dir / table, rows(job_dir / table))


def test_an_empty_table_is_read_as_one(job_dir):
    for path in shards(job_dir / "turns"):
        dataset = datasets.Dataset.from_file(str(path))
        assert (dataset.num_rows, dataset.column_names) == (0, [field.name for field in documented("turns")])


def test_a_cut_shard_yields_the_batches_before_the_cut(job_dir):
    data = shards(job_dir / "trajectories")[2].read_bytes()
    read = []
    with pytest.raises((pa.ArrowInvalid, OSError)):
        for batch in pa.ipc.open_stream(data[: len(data) - 1000]):
            read.append(batch.num_rows)
    assert read == [4, 4]
