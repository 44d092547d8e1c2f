import os
import pathlib
import shutil
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
    shutil.rmtree(directory)
