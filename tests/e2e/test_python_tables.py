"""Tables read by the package `rollyard`: no yard, no binary."""

import hashlib
import json
import shutil

import lab
import pyarrow as pa
import pytest

ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")

JOB = lab.ROOT / "tests" / "golden" / "v1" / "j0000000000007"


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(JOB, tmp_path / JOB.name)
    return tmp_path / JOB.name


def test_a_table_is_its_sealed_shards():
    table = ry.open_table(JOB)
    assert (table.name, len(table.shards), len(table)) == ("trajectories", 3, 20)
    assert [shard.rows for shard in table.shards] == [8, 2, 10]
    assert [(shard.seq_min, shard.seq_max) for shard in table.shards] == [(1, 2), (3, 3), (4, 6)]
    assert table.schema.metadata[b"rollyard.schema"] == b"trajectories/1"
    assert [batch.num_rows for batch in table.record_batches(verify=True)] == [4, 4, 2, 4, 4, 2]
    rows = list(table)
    assert rows == table.to_arrow().to_pylist() == list(table.rows(verify=True))
    assert rows[0]["trajectory_id"] == f"{JOB.name}-g1-s0"
    assert ry.open_table(JOB / "steps").to_arrow().num_rows == 26
    assert len(ry.open_table(JOB, "turns")) == 0 and ry.open_table(JOB, "turns").to_arrow().num_rows == 0


def test_arrow_buffers_lie_in_the_mapped_file():
    table = ry.open_table(JOB)
    ranges = []
    arrow = table.to_arrow()
    for shard in table.shards:
        for line in open("/proc/self/maps"):
            if line.rstrip().endswith(str(shard.path)):
                ranges.append([int(part, 16) for part in line.split()[0].split("-")])
    for chunk in arrow.column("reward").chunks:
        assert any(start <= chunk.buffers()[1].address < end for start, end in ranges)


def test_pandas_and_datasets_get_the_same_rows():
    table = ry.open_table(JOB)
    expected = table.to_arrow().to_pylist()
    assert table.to_hf().to_list() == expected
    frame = table.to_pandas()
    assert frame["trajectory_id"].tolist() == [row["trajectory_id"] for row in expected]
    assert str(frame["status"].dtype) == "category"
    assert frame["node_id"].tolist() == [row["node_id"] for row in expected]


def rewrite(directory, change):
    """A shard with other rows, and its line."""
    lines = [json.loads(line) for line in (directory / "manifest.jsonl").read_text().splitlines()]
    path = directory / f"{lines[0]['shard']}.arrows"
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        schema, batches = reader.schema, [change(batch) for batch in reader]
    with pa.ipc.new_stream(str(path), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    lines[0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (directory / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_column_that_was_added_later_is_null_in_older_shards(copy):
    """As a job has it that went on under a later version."""
    directory, name = copy / "steps", "memory_held_peak_bytes"
    expected = [row | {name: None} for row in ry.open_table(directory)]
    lines = [json.loads(line) for line in (directory / "manifest.jsonl").read_text().splitlines()]
    path = directory / f"{lines[-1]['shard']}.arrows"
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        assert name not in reader.schema.names
        schema, batches = reader.schema.append(pa.field(name, pa.int64())), list(reader)
    with pa.ipc.new_stream(str(path), schema) as writer:
        for batch in batches:
            held = pa.array([7] * batch.num_rows, pa.int64())
            writer.write_batch(pa.RecordBatch.from_arrays([*batch.columns, held], schema=schema))
    newer = sum(batch.num_rows for batch in batches)
    for row in expected[-newer:]:
        row[name] = 7
    table = ry.open_table(directory)
    arrow = table.to_arrow()
    assert arrow.to_pylist() == expected
    assert arrow.schema.field(name).type == pa.int64() and arrow.schema.metadata[b"rollyard.schema"] == b"steps/1"
    assert table.to_hf().to_list() == expected
    assert table.to_pandas()[name].isna().sum() == len(expected) - newer


def test_rows_that_a_refill_replaced_are_left_out_unless_asked_for(copy):
    def replace_first(batch):
        at = batch.schema.get_field_index("superseded")
        flags = pa.array([row == 0 for row in range(batch.num_rows)])
        return pa.RecordBatch.from_arrays([*batch.columns[:at], flags, *batch.columns[at + 1 :]], schema=batch.schema)

    rewrite(copy / "trajectories", replace_first)
    kept, all_rows = ry.open_table(copy), ry.open_table(copy, superseded=True)
    assert (len(kept), len(all_rows)) == (18, 20)
    ids = [row["trajectory_id"] for row in kept]
    assert len(ids) == 18 and f"{JOB.name}-g1-s0" not in ids
    assert [row["trajectory_id"] for row in kept.to_hf()] == ids
    assert kept.to_arrow().num_rows == 18 and all_rows.to_hf().num_rows == 20


def test_a_table_that_grows_is_read_up_to_what_is_sealed(copy):
    manifest = copy / "trajectories" / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text(lines[0] + lines[1][: len(lines[1]) // 2])
    table = ry.open_table(copy)
    assert len(table) == 8
    manifest.write_text("".join(lines))
    assert len(table) == 8 and len(table.refresh()) == 20


def test_damage_is_named(copy):
    shard = copy / "trajectories" / "00000001-000000000003.arrows"
    data = shard.read_bytes()
    shard.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    table = ry.open_table(copy)
    with pytest.raises(ry.TableError) as refused:
        list(table.record_batches(verify=True))
    assert refused.value.code == "table_unreadable" and shard.name in refused.value.message
    shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(ry.TableError):
        list(table)
    shard.unlink()
    with pytest.raises(ry.TableError) as refused:
        list(table)
    assert "not there" in refused.value.message
    manifest = copy / "trajectories" / "manifest.jsonl"
    manifest.write_text('{"shard": "../../etc/passwd"}\n' + manifest.read_text())
    with pytest.raises(ry.TableError) as refused:
        table.refresh()
    assert "line 1" in refused.value.message


def test_what_is_no_table_is_refused_with_a_hint(tmp_path):
    for path, name in [(tmp_path, None), (JOB / "nothing", None), (JOB, "turnips"), (JOB, "events")]:
        with pytest.raises(ry.TableError) as refused:
            ry.open_table(path, name)
        assert refused.value.code == "no_tables" and refused.value.hint
