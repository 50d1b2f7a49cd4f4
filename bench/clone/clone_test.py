#!/usr/bin/env python3
"""What bench/clone/clone.py reads in the output of the two commands."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import clone

FIRST = (
    (1, "[weft] installing libtorch of torch 2.15.0 into .venv (550 MB to download) … 60 s"),
    (2, "[weft] installing what its CPU part needs: cuda-toolkit[cudart,cupti]==13.2.2 … 4 s"),
    (3, "[weft] libtorch 2.15.0: /clone/.venv/lib/python3.11/site-packages/torch"),
    (4, "[weft] building release 3/9 … 10 s"),
    (300, "[weft] built release in 296 s"),
    (301, '[rank 0] training fashion-mnist ranks=2 mesh="dp 2"'),
    (302, "[rank 1] training fashion-mnist"),
)
SECOND = (
    (500, "[weft] built release in 480 s"),
    (900, "Total Test time (real) = 397.25 sec"),
    (901, "not run: 8 tests skipped (8 no Python here imports torch); left out: 45 slow"),
    (902, "100% tests passed, 0 tests failed out of 797"),
)


class Clone(unittest.TestCase):
    def heard(self, lines, seconds):
        heard = clone.Heard()
        for at, text in lines:
            heard.line(text, at)
        return heard, {name: value for name, (value, _) in heard.all(seconds).items()}

    def test_the_first_command_installs_compiles_and_trains(self):
        heard, figures = self.heard(FIRST, 391)
        self.assertEqual(heard.torch, "2.15.0")
        self.assertEqual(
            figures,
            {
                "libtorch": 64,
                "compiling": 296,
                "before training": 301,
                "training": 90,
                "together": 391,
            },
        )

    def test_the_second_command_compiles_and_tests(self):
        _, figures = self.heard((*SECOND, SECOND[-1]), 903)
        self.assertEqual(
            figures,
            {
                "compiling": 480,
                "tests": 397.25,
                "skipped tests": 8,
                "number of tests": 797,
                "together": 903,
            },
        )

    def test_commands_run_without_caches_and_local_wheels_and_a_failure_has_no_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "said.py")
            script.write_text(
                "import os, sys\n"
                "print('[weft] built release in', len(os.environ['CCACHE_DISABLE']), 's')\n"
                "sys.exit('PIP_CONSTRAINT' in os.environ or os.environ['PIP_FIND_LINKS'] != '')\n"
            )
            with mock.patch.dict(os.environ, {"PIP_CONSTRAINT": "/x", "PIP_FIND_LINKS": "/x"}):
                heard, _ = clone.run(f"{sys.executable} {script}", folder)
            self.assertEqual(heard.figures["compiling"], (1, "s"))
            with self.assertRaises(SystemExit):
                clone.run("false", folder)


if __name__ == "__main__":
    unittest.main()
