#!/usr/bin/env python3
"""PyTorch's own backend-generic tests (torch.testing._internal.distributed.distributed_test,
shipped in the wheel), run over weft.

    python pytorch_suite.py --world 2,3,4 --json results.json            # all of them
    python pytorch_suite.py --world 2,3,4 --json gloo.json --backend gloo    # the reference
    python pytorch_suite.py --only 'all_reduce_sum$|test_Distributed'    # some

The tests are PyTorch's text but for the words in NAMES: where one asks for a backend by name ("only
Gloo ..."), weft is let in too. Ranks are forked, so that 315 tests do not import torch a thousand
times."""

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

MODULE = "torch.testing._internal.distributed.distributed_test"
# Gates by name: what Gloo is asked, weft is asked too; and all-to-all on CPU, which the suite asks
# only of MPI.
NAMES = [
    ('BACKEND != "gloo"', 'BACKEND not in ("gloo", "weft")'),
    ('BACKEND != "mpi"', 'BACKEND not in ("mpi", "weft")'),
    ('BACKEND == "gloo"', 'BACKEND in ("gloo", "weft")'),
    ('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", "weft"})'),
    # DDP logs the name of a c10d::ProcessGroup, which is "custom" for every backend that torch does
    # not know.
    (
        '"backend_name"), dist.get_backend(group_id)',
        '"backend_name"), "custom" if BACKEND == "weft" else BACKEND',
    ),
]


def load():
    """The suite as a module, with weft in its lists of backends."""
    from torch.testing._internal.common_distributed import DistTestCases

    if os.environ["BACKEND"] == "weft":
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add("weft")
    spec = importlib.util.find_spec(MODULE)
    text = open(spec.origin).read()
    for old, new in NAMES:
        assert old in text, f"the suite has changed: it no longer says {old}"
        text = text.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    for profiled in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, profiled).append("weft")
    return module


def test_classes(module):
    """The suite proper, and the module's tests of DDP's bucket sizes, which need no ranks."""
    return [backend_class(module)] + [
        cls
        for name, cls in sorted(vars(module).items())
        if name.startswith("TestBucketCapacityConfig")
    ]


def backend_class(module):
    import torch
    from torch.testing._internal import common_distributed

    class KeepReason(logging.Handler):
        """Why a rank skipped its test: it tells only its log."""

        def __init__(self, path):
            super().__init__(logging.INFO)
            self.path = path

        def emit(self, record):
            if "skipping test" in record.msg:
                with open(self.path, "w") as file:
                    file.write(str(record.args[-1]))

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            common_distributed.logger.setLevel(logging.INFO)
            common_distributed.logger.handlers = [KeepReason(file_name + ".skip")]
            common_distributed.logger.propagate = False
            super()._run(rank, test_name, file_name, pipe, **kwargs)

        def reason(self):
            with contextlib.suppress(FileNotFoundError):
                return open(self.file_name + ".skip").read()

    return Suite


class Results(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.tests = {}

    def startTest(self, test):
        super().startTest(test)
        self.started = time.time()

    def note(self, test, result, why=""):
        name = test._testMethodName
        self.tests[name] = {
            "result": result,
            "why": why,
            "seconds": round(time.time() - self.started, 1),
        }
        print(
            f"{result:8}{self.tests[name]['seconds']:6.1f} s  "
            f"{name}{'  ' + why.splitlines()[-1] if why else ''}",
            flush=True,
        )

    def addSuccess(self, test):
        self.note(test, "passed")

    def addFailure(self, test, error):
        self.note(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSkip(self, test, why):
        self.note(test, "skipped", (getattr(test, "file_name", None) and test.reason()) or why)

    def addExpectedFailure(self, test, error):
        self.note(test, "passed", "fails as expected")


def run_world(options):
    """All tests at the world size that the environment says; gives their results."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = "90"
    if os.environ["BACKEND"] == "weft":
        import weft_torch  # noqa: F401

    import torch

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        classes = test_classes(load())
    tests = [
        (cls, name)
        for cls in classes
        for name in unittest.TestLoader().getTestCaseNames(cls)
        if re.search(options.only, name)
    ]
    if options.names:
        wanted = set(open(options.names).read().split())
        tests = [(cls, name) for cls, name in tests if name in wanted]
        missing = wanted - {name for _, name in tests}
        assert not missing, f"the suite has no {', '.join(sorted(missing))}"
    results = Results()
    unittest.TestSuite(cls(name) for cls, name in tests).run(results)
    return results.tests


def run_all(options):
    """Each world size in a process of its own: the suite reads it while it is imported."""
    everything = {}
    for world in options.world.split(","):
        with tempfile.TemporaryDirectory() as folder:
            part = os.path.join(folder, "part.json")
            environment = dict(
                os.environ, WORLD_SIZE=world, BACKEND=options.backend,
                INIT_METHOD=f"file://{folder}/init", WEFT_SUITE_PART=part
            )
            environment.setdefault("OMP_NUM_THREADS", "1")
            print(f"-- {options.backend}, {world} ranks", flush=True)
            subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment, check=False)
            with open(part) as file:
                everything[world] = json.load(file)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"backend": options.backend, "worlds": everything}, file, indent=1)
    counts = {}
    for tests in everything.values():
        for test in tests.values():
            counts[test["result"]] = counts.get(test["result"], 0) + 1
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 1 if counts.get("failed") or not counts.get("passed") else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="weft")
    parser.add_argument("--world", default="3")
    parser.add_argument("--only", default="", help="regular expression over the tests' names")
    parser.add_argument("--names", help="a file of names of tests to run")
    parser.add_argument("--json", help="where to leave the results")
    options = parser.parse_args()
    try:
        import expecttest  # noqa: F401
    except ImportError:
        print("skipped: PyTorch's tests need the package expecttest")
        return 77
    part = os.environ.get("WEFT_SUITE_PART")
    if not part:
        return run_all(options)
    with open(part, "w") as file:
        json.dump(run_world(options), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
