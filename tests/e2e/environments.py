"""Makes the virtual environments of the Python tests under target/, one per reader version:

    python3 tests/e2e/environments.py
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["datasets3", "datasets5"]
PACKAGE = ROOT / "datasets" / "python" / "pyproject.toml"


def make(name):
    """The interpreter of the environment, made if it is missing or its pins changed."""
    environment = ROOT / "target" / f"venv-{name}"
    python = environment / "bin" / "python"
    requirements = ROOT / "tests" / "e2e" / f"requirements-{name}.txt"
    # A finished environment is marked with the pins it was made from.
    mark, pins = environment / "rollyard-pins", requirements.read_text()
    if "datasets/python" in pins:
        pins += PACKAGE.read_text()
    if not mark.exists() or mark.read_text() != pins:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "-r", str(requirements)]
        subprocess.run(pip, cwd=ROOT, check=True)
        mark.write_text(pins)
    return python


if __name__ == "__main__":
    for each in NAMES:
        print(make(each))
