"""Makes src/rollyard/v1 from rollout/proto: `python generate.py [FOLDER]`. Needs grpcio-tools."""

import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "rollout" / "proto"
# What clients call, and what it is made of.
FILES = ["rollyard/v1/jobs.proto", "rollyard/v1/nodes.proto", "rollyard/v1/sandboxes.proto"]


def generate(into: Path) -> None:
    """Writes the modules below `into`, as package `rollyard.v1`."""
    into.mkdir(parents=True, exist_ok=True)
    options = [f"-I{PROTO}", f"--python_out={into}", f"--pyi_out={into}", f"--grpc_python_out={into}"]
    code = protoc.main(["protoc", *options, *FILES])
    if code:
        raise SystemExit(f"protoc ended with {code}")
    # No client serves as an executor.
    (into / "rollyard" / "v1" / "nodes_pb2_grpc.py").unlink()
    (into / "rollyard" / "v1" / "__init__.py").write_text("")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "src")
