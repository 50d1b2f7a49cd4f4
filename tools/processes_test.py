"""Tests processes.py."""

import os
import pathlib
import re
import unittest
import unittest.mock

import processes

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Processes(unittest.TestCase):
    def test_no_variable_is_left_by_which_weft_finds_its_rank(self):
        text = (ROOT / "weft/comm/internal/launchers.cc").read_text(encoding="utf-8")
        names = set(re.findall(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]+)"', text)) | {"RANK"}
        self.assertIn("SLURM_PROCID", names)
        with unittest.mock.patch.dict(os.environ, dict.fromkeys(names, "1")):
            self.assertEqual(names & processes.without_launchers().keys(), set())

    def test_other_variables_stay_and_more_are_added(self):
        variables = {"PATH": "/bin", "RANK": "1", "WEFT_TRANSPORT": "tcp", "OMP_NUM_THREADS": "4"}
        with unittest.mock.patch.dict(os.environ, variables, clear=True):
            self.assertEqual(processes.environment(), {"PATH": "/bin", "OMP_NUM_THREADS": "1"})
            self.assertEqual(processes.environment(OMP_NUM_THREADS="", RANK="0"),
                             {"PATH": "/bin", "OMP_NUM_THREADS": "", "RANK": "0"})
            del variables["RANK"]
            self.assertEqual(processes.without_launchers(keep="WEFT_"), variables)


if __name__ == "__main__":
    unittest.main()
