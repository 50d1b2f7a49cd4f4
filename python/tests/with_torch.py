"""Runs a test script. Exits with 77, which ctest reports as skipped, when this Python cannot import
torch.

Usage: with_torch.py SCRIPT ARGUMENT...
"""

import os
import sys

try:
    import torch  # noqa: F401
except (ImportError, OSError) as error:  # OSError: a CUDA build without its CUDA packages
    print(f"skipped: {sys.executable} cannot import torch: {str(error).splitlines()[0]}")
    sys.exit(77)

os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
