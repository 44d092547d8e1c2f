import os
import pathlib
import signal
import tempfile

import pytest

import lab

# Started in the background of a shell without job control, this and every program would ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def yard():
    """A yard in a short path (Unix socket paths are at most 107 bytes). Its census must end empty."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: the container backend needs root")
    assert lab.BINARY.exists(), f"{lab.BINARY} is not built: run `make build`"
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))
    yield lab.Yard(directory)
    lab.assert_census_empty(directory)
    # A broker takes its socket away when it ends, which no census sees.
    lab.wait_until(lambda: lab.removed(directory), f"{directory} is removed")


@pytest.fixture
def client(monkeypatch, yard):
    """Of a yard of its own that the client starts. Sandboxes labelled `of=test` are killed at the end."""
    ry = pytest.importorskip("rollyard", reason="pip install -e datasets/python")
    monkeypatch.setenv("ROLLYARD_BIN", str(lab.BINARY))
    monkeypatch.delenv("ROLLYARD_YARD", raising=False)
    with ry.Client(data_dir=yard.data) as client:
        yield client
        client.kill_sandboxes({"of": "test"})


@pytest.fixture
def sandbox(client):
    with client.sandbox(labels={"of": "test"}, **lab.SMALL) as sandbox:
        yield sandbox
