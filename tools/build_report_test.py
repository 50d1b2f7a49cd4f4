#!/usr/bin/env python3
"""Tests of tools/build_report."""

import unittest

from load_script import load_script

build_report = load_script("build_report")

TEST = "weft/net/CMakeFiles/weft_net_test.dir/Unity/unity_0_cxx.cxx.o"


class Build(unittest.TestCase):
    def test_takes_the_last_entry_of_an_output(self):
        log = ["# ninja log v5", f"0\t9000\t0\t{TEST}\tab", f"100\t2600\t0\t{TEST}\tcd"]
        self.assertEqual(build_report.read_build(log), {TEST: 2.5})

    def test_leaves_out_the_configuration(self):
        log = ["0\t9000\t0\t/build/weft/cmake_install.cmake\tab",
               "0\t9000\t0\tweft/cmake_install.cmake\tab"]
        self.assertEqual(build_report.read_build(log), {})

    def test_names_kinds_and_folders(self):
        self.assertEqual(build_report.kind_of(TEST), "objects of tests and examples")
        self.assertEqual(
            build_report.kind_of("weft/net/CMakeFiles/weft_net.dir/net.cc.o"),
            "objects of libraries and commands"
        )
        self.assertEqual(
            build_report.kind_of("weft/data/CMakeFiles/weft_data.dir/cmake_pch.hxx.gch"),
            "precompiled headers"
        )
        self.assertEqual(build_report.room_of(TEST), "weft/net")


class Tests(unittest.TestCase):
    def test_reads_costs_up_to_the_list_of_failed_tests(self):
        costs = ["net.Ring 3 0.25", "train.Loop 1 2.5", "---", "net.Ring"]
        self.assertEqual(build_report.read_tests(costs), {"net.Ring": 0.25, "train.Loop": 2.5})


if __name__ == "__main__":
    unittest.main()
