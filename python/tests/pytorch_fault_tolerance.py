#!/usr/bin/env python3
"""PyTorch's own tests of reconfigure(), test/distributed/test_c10d_fault_tolerance.py, over weft.

    python pytorch_fault_tolerance.py FILE [TEST…]

FILE is that file of PyTorch's sources at the tag of the installed torch (2.14 or newer); the wheel
does not contain it. Its text is unchanged but for ("weft", "cpu") in its list of backends. Ranks
are forked, so that no test imports torch again."""

import sys
import types
import unittest

import torch

import weft_torch  # noqa: F401

BACKENDS = "FAULT_TOLERANCE_BACKENDS = ["


def load(path):
    text = open(path).read()
    assert BACKENDS in text, f"{path} has no list of backends"
    module = types.ModuleType("fault_tolerance")
    module.__file__ = path
    sys.modules[module.__name__] = module
    text = text.replace(BACKENDS, BACKENDS + '("weft", "cpu"), ')
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def main():
    module = load(sys.argv[1])
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
