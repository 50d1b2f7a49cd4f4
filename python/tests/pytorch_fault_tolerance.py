#!/usr/bin/env python3
"""PyTorch's own tests of reconfigure(), test/distributed/test_c10d_fault_tolerance.py, over weft.

    python pytorch_fault_tolerance.py [FILE [TEST…]]

FILE is that file of PyTorch's sources at the tag of the installed torch (2.14 or newer). Without
it, the file is looked for in the folder that WEFT_PYTORCH_TESTS names (PyTorch's test/distributed)
and where torch is installed. If it is not there, the tests are skipped: no public wheel contains it
so far. Its text is unchanged but for ("weft", "cpu") in its list of backends. Ranks are forked, so
that no test imports torch again."""

import os
import pathlib
import sys
import types
import unittest

import torch
import torch.distributed as dist

import weft_torch  # noqa: F401

NAME = "test_c10d_fault_tolerance.py"
BACKENDS = "FAULT_TOLERANCE_BACKENDS = ["


def find():
    """The path of the file, or None."""
    named = os.environ.get("WEFT_PYTORCH_TESTS")
    package = pathlib.Path(torch.__file__).parent
    folders = [pathlib.Path(named)] if named else []
    folders += [
        package / "testing" / "_internal" / "distributed",
        package / "test" / "distributed",
        package.parent / "test" / "distributed",
    ]
    return next((str(folder / NAME) for folder in folders if (folder / NAME).exists()), None)


def load(path):
    text = open(path).read()
    assert BACKENDS in text, f"{path} has no list of backends"
    module = types.ModuleType("fault_tolerance")
    module.__file__ = path
    sys.modules[module.__name__] = module
    text = text.replace(BACKENDS, BACKENDS + '("weft", "cpu"), ')
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def skipped(why):
    print(f"skipped: {why}")
    return 77


def main():
    if not hasattr(dist, "_reconfigure"):
        return skipped(f"torch {torch.__version__} has no reconfigure(); 2.14 and newer have it")
    path = sys.argv[1] if len(sys.argv) > 1 else find()
    if path is None:
        return skipped(
            f"no {NAME} is installed with torch {torch.__version__}; set WEFT_PYTORCH_TESTS to "
            "test/distributed of PyTorch's sources"
        )
    try:
        import expecttest  # noqa: F401
    except ImportError:
        return skipped("PyTorch's tests need the package expecttest")
    module = load(path)
    suite = module.WeftFaultToleranceTest

    def fork(self):
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    suite._spawn_processes = fork
    names = sys.argv[2:] or unittest.TestLoader().getTestCaseNames(suite)
    tests = unittest.TestSuite(suite(name) for name in names)
    tests.addTests(unittest.TestLoader().loadTestsFromTestCase(module.ReconfigureContractTest))
    return 0 if unittest.TextTestRunner(verbosity=2).run(tests).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
