"""Runs a test script with a Python that imports torch: this one, or that of .venv-python, which
./dev test --python makes. Exits with 77, which ctest reports as skipped, when neither does.

Usage: with_torch.py SCRIPT ARGUMENT...
"""

import os
import pathlib
import sys

OTHER = pathlib.Path(__file__).resolve().parents[2] / ".venv-python/bin/python"

try:
    import torch  # noqa: F401
except (ImportError, OSError) as error:  # OSError: a CUDA build without its CUDA packages
    if OTHER.exists() and pathlib.Path(sys.prefix) != OTHER.parents[1]:
        os.execv(OTHER, [OTHER, *sys.argv])
    print(f"{sys.executable} cannot import torch: {str(error).splitlines()[0]}")
    print("skipped: no Python here imports torch; ./dev test --python installs it")
    sys.exit(77)

os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
