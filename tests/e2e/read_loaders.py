"""Who loads what: every form of a table in every Python reader, each with the outcome that
docs/tables.md promises, errors included: a reader that starts to work is noticed.

Run by read_tables.py, once per environment. Columns as in the tables: ids, enums as dictionaries
that change from batch to batch, flat token lists.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import pyarrow as pa
import pyarrow.dataset
import pytest
from read_tables import ADDED_LATER

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("ROLLYARD_BIN", ROOT / "target/debug/rollyard"))
GOLDEN = ROOT / "tests" / "golden" / "v1" / "j0000000000007"
OLD = int(datasets.__version__.split(".")[0]) == 3
GROUPS, MEMBERS, TOKENS = 4, 8, 500
BIG = ["token_ids", "loss_mask", "logprobs"]


def sample(extra=()):
    """Batches as a shard has them, one a group. `extra` names a column type that shards avoid."""
    for group in range(GROUPS):
        rows = range(group * MEMBERS, (group + 1) * MEMBERS)
        # Another dictionary in every batch, of another order and length.
        nodes = [f"node-{group}", "node-all", *[f"more-{n}" for n in range(group)]]
        keys = [None if row % 5 == 4 else row % 2 for row in rows]
        tokens = [[(row * TOKENS + at) % 50_000 for at in range(TOKENS)] for row in rows]
        columns = {
            "seq": pa.array([group + 1] * MEMBERS, pa.int64()),
            "trajectory_id": pa.array([f"t-{row}" for row in rows]),
            "node_id": pa.DictionaryArray.from_arrays(pa.array(keys, pa.int16()), pa.array(nodes)),
            "reward": pa.array([None if row % 3 == 2 else row / 8 for row in rows], pa.float32()),
            "created_at": pa.array([1_767_225_600_000_000 + row for row in rows], pa.timestamp("us", tz="UTC")),
            "token_ids": pa.array(tokens, pa.list_(pa.int32())),
            "loss_mask": pa.array([[at % 2 for at in range(TOKENS)] for _ in rows], pa.list_(pa.uint8())),
            "logprobs": pa.array([[-at / 4 for at in range(TOKENS)] for _ in rows], pa.list_(pa.float32())),
        }
        if "large_list" in extra:
            columns["large"] = pa.array(tokens, pa.large_list(pa.int32()))
        if "string_view" in extra:
            columns["view"] = pa.array([f"view of {row}, long enough to be apart" for row in rows], pa.string_view())
        if "map" in extra:
            columns["map"] = pa.array([[("a", row)] for row in rows], pa.map_(pa.string(), pa.int64()))
        yield pa.RecordBatch.from_pydict(columns)


def plain(batch):
    """As exports have it: dictionaries decoded."""
    columns = {}
    for field in batch.schema:
        column = batch.column(field.name)
        columns[field.name] = column.dictionary_decode() if pa.types.is_dictionary(field.type) else column
    return pa.RecordBatch.from_pydict(columns)


def write(path, form):
    """`stream`, `file` or `parquet`, then a codec or an extra column, such as `stream+zstd`."""
    kind, _, option = form.partition("+")
    codec = option if option in ("lz4", "zstd") else None
    batches = list(sample({option}))
    if kind == "parquet":
        import pyarrow.parquet

        table = pa.Table.from_batches([plain(batch) for batch in batches])
        pyarrow.parquet.write_table(table, path, compression="zstd")
        return
    if kind == "file":
        batches = [plain(batch) for batch in batches]
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with make(str(path), batches[0].schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for batch in batches:
            writer.write_batch(batch)


def mapped(path):
    """Where the file is in this process's memory."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            start, end = line.split()[0].split("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges


def zero_copied(table, path):
    """The big columns whose values lie in the mapped file, in every chunk."""
    ranges = mapped(path)
    found = []
    for name in BIG:
        values = [chunk.values.buffers()[1] for chunk in table.column(name).chunks]
        inside = (any(start <= value.address < end for start, end in ranges) for value in values)
        if values and all(inside):
            found.append(name)
    return found


def pyarrow_mmap(path, **_):
    source = pa.memory_map(str(path))
    open_ = pa.ipc.open_stream if path.suffix == ".arrows" else pa.ipc.open_file
    table = open_(source).read_all()
    return table.to_pylist(), zero_copied(table, path)


def pyarrow_dataset(path, **_):
    kind = "parquet" if path.suffix == ".parquet" else "ipc"
    return pa.dataset.dataset(str(path), format=kind).to_table().to_pylist(), None


def hf_from_file(path, **_):
    dataset = datasets.Dataset.from_file(str(path))
    return dataset.to_list(), zero_copied(dataset.data.table, path)


def hf_load(path, cache, streaming=False):
    kind = "parquet" if isinstance(path, Path) and path.suffix == ".parquet" else "arrow"
    loaded = datasets.load_dataset(
        kind, data_files=[str(each) for each in ([path] if isinstance(path, Path) else path)], split="train", cache_dir=str(cache), streaming=streaming
    )
    return list(loaded) if streaming else loaded.to_list(), None


def hf_stream(path, cache):
    return hf_load(path, cache, streaming=True)


def polars_read(path, **_):
    import polars

    read = {".arrows": polars.read_ipc_stream, ".arrow": polars.read_ipc, ".parquet": polars.read_parquet}
    return read[path.suffix](path).to_dicts(), None


def polars_scan(path, **_):
    import polars

    scan = polars.scan_parquet if path.suffix == ".parquet" else polars.scan_ipc
    return scan(path).collect().to_dicts(), None


def duckdb_arrow(path, **_):
    import duckdb

    source = pa.memory_map(str(path))
    table = (pa.ipc.open_stream if path.suffix == ".arrows" else pa.ipc.open_file)(source).read_all()
    with duckdb.connect() as connection:
        return connection.from_arrow(table).to_arrow_table().to_pylist(), None


def duckdb_parquet(path, **_):
    import duckdb

    with duckdb.connect() as connection:
        return connection.read_parquet(str(path)).to_arrow_table().to_pylist(), None


def pandas_feather(path, **_):
    import pandas

    return pandas.read_feather(path).to_dict("records"), None


def pandas_parquet(path, **_):
    import pandas

    return pandas.read_parquet(path).to_dict("records"), None


OK = "ok"
ZERO_COPY = "zero copy"


def old(text):
    """Refused by datasets 3.6 only."""
    return text if OLD else OK


# form: {reader: OK (every value right; copied or not), ZERO_COPY, or what the error says}
NOT_A_FILE = "Not an Arrow file|not an ipc file|InvalidFooter|Not a Feather"
EMPTY = "corresponds to no data"
TABLE = {
    "stream": {
        pyarrow_mmap: ZERO_COPY,
        pyarrow_dataset: NOT_A_FILE,
        hf_from_file: ZERO_COPY,
        hf_load: OK,
        hf_stream: OK,
        polars_read: OK,
        polars_scan: NOT_A_FILE,
        duckdb_arrow: OK,
        pandas_feather: NOT_A_FILE,
    },
    "file": {
        pyarrow_mmap: ZERO_COPY,
        pyarrow_dataset: OK,
        hf_from_file: "Expected to read 1330795073 metadata bytes",
        hf_load: OK,
        hf_stream: OK,
        polars_read: OK,
        polars_scan: OK,
        duckdb_arrow: OK,
        pandas_feather: OK,
    },
    "parquet": {
        pyarrow_dataset: OK,
        hf_load: OK,
        hf_stream: OK,
        polars_read: OK,
        polars_scan: OK,
        duckdb_parquet: OK,
        pandas_parquet: OK,
    },
}
for codec in ("lz4", "zstd"):
    TABLE[f"stream+{codec}"] = TABLE["stream"] | {pyarrow_mmap: OK, hf_from_file: OK}
    TABLE[f"file+{codec}"] = TABLE["file"] | {pyarrow_mmap: OK}
TABLE["stream+large_list"] = TABLE["stream"]
TABLE["file+large_list"] = TABLE["file"]
VIEW = "string_view"
TABLE["stream+string_view"] = TABLE["stream"] | {
    hf_from_file: VIEW if OLD else ZERO_COPY, hf_load: old(VIEW), hf_stream: old(VIEW)
}
TABLE["file+string_view"] = TABLE["file"] | {hf_load: old(VIEW), hf_stream: old(VIEW)}
MAP = "dtype equivalent|map<"
TABLE["stream+map"] = TABLE["stream"] | {hf_from_file: MAP, hf_load: MAP, hf_stream: MAP}
TABLE["file+map"] = TABLE["file"] | {hf_load: MAP, hf_stream: MAP}
TABLE["parquet+map"] = TABLE["parquet"] | {hf_load: MAP, hf_stream: MAP}

SUFFIX = {"stream": ".arrows", "file": ".arrow", "parquet": ".parquet"}
HERE = {pyarrow_mmap, pyarrow_dataset, hf_from_file, hf_load, hf_stream}
CELLS = [
    pytest.param(form, reader, expected, id=f"{form}-{reader.__name__}")
    for form, readers in TABLE.items()
    for reader, expected in readers.items()
    # polars, duckdb and pandas are tested in one environment.
    if not OLD or reader in HERE
]


def told(error):
    """An error and its causes."""
    texts = []
    while error is not None and len(texts) < 10:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def same(value):
    """A value as every reader gives it: numpy arrays and NaN are pandas' forms of lists and null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        # A struct, or a map in polars; others give a map as pairs.
        return [[key, same(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [same(each) for each in value]
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def normal(rows):
    return [{name: same(value) for name, value in row.items()} for row in rows]


def expected_rows(form):
    return normal(row for batch in sample({form.partition("+")[2]}) for row in batch.to_pylist())


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    directory, made = tmp_path_factory.mktemp("forms"), {}

    def get(form):
        if form not in made:
            made[form] = directory / f"{form}{SUFFIX[form.partition('+')[0]]}"
            write(made[form], form)
        return made[form]

    return get


@pytest.mark.parametrize(("form", "reader", "expected"), CELLS)
def test_a_reader_loads_a_form_as_the_table_says(form, reader, expected, written, tmp_path):
    path = written(form)
    try:
        rows, copied = reader(path, cache=tmp_path)
    except BaseException as error:
        assert expected not in (OK, ZERO_COPY), told(error)
        assert re.search(expected, told(error), re.IGNORECASE), told(error)
        return
    assert expected in (OK, ZERO_COPY), f"{reader.__name__} reads {form} by now: change the table in docs/tables.md"
    assert normal(rows) == expected_rows(form)
    if reader in (pyarrow_mmap, hf_from_file):
        assert copied == (BIG if expected == ZERO_COPY else []), "which big columns lie in the mapped file"


def golden_rows(table):
    shards = sorted((GOLDEN / table).glob("*.arrows"))
    return shards, [row for path in shards for row in pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()]


def exported_rows(table):
    """What an export of the golden tables holds: a column that was added later is there, as null."""
    later = dict.fromkeys(ADDED_LATER.get(table, []))
    return [row | later for row in golden_rows(table)[1]]


@pytest.mark.parametrize("reader", [pyarrow_mmap, hf_from_file, hf_load, hf_stream, polars_read, duckdb_arrow])
@pytest.mark.parametrize("table", ["trajectories", "steps", "artifacts"])
def test_shards_of_the_first_version_are_read(table, reader, tmp_path):
    if OLD and reader not in HERE:
        pytest.skip("SKIPPED: tested with the newer readers")
    shards, expected = golden_rows(table)
    if reader in (hf_load, hf_stream):
        # All shards at once: one without a row is refused by itself.
        rows, _ = reader(shards, cache=tmp_path)
    elif reader in (hf_from_file, pyarrow_mmap):
        rows = [row for path in shards for row in _without_copies(reader, path)]
    else:
        rows = [row for at, path in enumerate(shards) for row in reader(path, cache=tmp_path / str(at))[0]]
    assert normal(rows) == normal(expected)


def _without_copies(reader, path):
    if reader is hf_from_file:
        return datasets.Dataset.from_file(str(path)).to_list()
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all().to_pylist()


@pytest.fixture(scope="session")
def exports(tmp_path_factory):
    """Golden tables, exported by the program."""
    assert BINARY.exists(), f"{BINARY} is not built: run `make build`"
    out = tmp_path_factory.mktemp("exports")
    for form in ("parquet", "ipc-file", "jsonl", "hf"):
        command = [str(BINARY), "export", str(GOLDEN), "--format", form, "--out", str(out / form)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


TABLES = ["trajectories", "turns", "steps", "artifacts"]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("form", "reader"),
    [
        ("ipc-file", pyarrow_dataset),
        ("ipc-file", hf_load),
        ("ipc-file", polars_read),
        ("ipc-file", polars_scan),
        ("ipc-file", pandas_feather),
        ("parquet", pyarrow_dataset),
        ("parquet", hf_load),
        ("parquet", hf_stream),
        ("parquet", polars_scan),
        ("parquet", duckdb_parquet),
        ("parquet", pandas_parquet),
    ],
)
def test_exports_are_read_by_what_reads_no_shards(form, reader, table, exports, tmp_path):
    if OLD and reader not in HERE:
        pytest.skip("SKIPPED: tested with the newer readers")
    path = exports / form / f"{table}{'.arrow' if form == 'ipc-file' else '.parquet'}"
    expected = exported_rows(table)
    if not expected and reader is hf_load:
        with pytest.raises(ValueError, match=EMPTY):
            reader(path, cache=tmp_path)
        return
    rows, _ = reader(path, cache=tmp_path)
    assert normal(rows) == normal(expected)


@pytest.mark.parametrize("table", TABLES)
def test_a_datasets_folder_is_loaded_without_a_copy(table, exports):
    loaded = datasets.load_from_disk(str(exports / "hf" / table))
    expected = exported_rows(table)
    assert normal(loaded.to_list()) == normal(expected)
    schema = pa.ipc.open_stream(golden_rows(table)[0][0].read_bytes()).schema
    assert loaded.column_names == schema.names + ADDED_LATER.get(table, [])
    # Every column lies in the mapped file: nothing was cast.
    (path,) = (exports / "hf" / table).glob("data-*.arrow")
    ranges = mapped(path)
    for column in loaded.data.table.columns:
        for chunk in column.chunks:
            for buffer in (buffer for buffer in chunk.buffers() if buffer is not None and buffer.size):
                assert any(start <= buffer.address < end for start, end in ranges), column
    # And it goes through the operations people use.
    assert loaded.select(range(min(2, len(loaded)))).num_rows == min(2, len(expected))
    assert datasets.concatenate_datasets([loaded, loaded]).num_rows == 2 * len(expected)


@pytest.mark.parametrize("table", TABLES)
def test_json_lines_keep_every_value(table, exports):
    import base64
    import json
    from datetime import datetime

    def value(found, kind):
        if found is None or kind is None:
            return found
        if pa.types.is_timestamp(kind):
            return datetime.fromisoformat(found.replace("Z", "+00:00"))
        if pa.types.is_binary(kind):
            return base64.b64decode(found, validate=True)
        return found

    kinds = {field.name: field.type for field in pa.ipc.open_stream(golden_rows(table)[0][0].read_bytes()).schema}
    later = ADDED_LATER.get(table, [])
    rows = []
    for line in (exports / "jsonl" / f"{table}.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert list(row) == list(kinds) + later
        rows.append({name: value(found, kinds.get(name)) for name, found in row.items()})
    assert rows == exported_rows(table)


def test_pandas_and_polars_keep_what_dictionaries_mean(written):
    if OLD:
        pytest.skip("SKIPPED: tested with the newer readers")
    import polars

    table = pa.ipc.open_stream(written("stream").read_bytes()).read_all()
    expected = [row["node_id"] for row in expected_rows("stream")]
    categories = table.unify_dictionaries().to_pandas()["node_id"]
    assert str(categories.dtype) == "category"
    assert [same(value) for value in categories.tolist()] == expected
    assert polars.from_arrow(table)["node_id"].to_list() == expected


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
