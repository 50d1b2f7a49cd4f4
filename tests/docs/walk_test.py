#!/usr/bin/env python3
"""Tests docs/walk.md: the files and functions of its tables exist, and its first walk is short."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_FILES = 15  # between `weft train` and a step of the optimizer
ROW = re.compile(r"^\| `(weft/[\w/]+\.cc)` \| `([\w:]+)` \| .+ \|$", re.MULTILINE)


def walks():
    """The rows (file, function) of each walk, by its title."""
    _, *parts = (ROOT / "docs/walk.md").read_text().split("\n## ")
    return {part.partition("\n")[0]: ROW.findall(part) for part in parts}


def defines(text, function):
    """Whether the source defines the function, in its class or outside of it, or is the one of the
    class."""
    outer, _, name = function.rpartition("::")
    inside = outer and re.search(rf"^class {outer} ", text, re.MULTILINE) and f" {name}(" in text
    return inside or re.search(rf"\b{function}(::\w+)?\(", text)


class Walk(unittest.TestCase):
    def test_the_files_have_the_functions(self):
        for title, rows in walks().items():
            self.assertGreater(len(rows), 5, title)
            for name, function in rows:
                with self.subTest(walk=title, file=name):
                    self.assertTrue((ROOT / name).is_file(), name)
                    self.assertTrue(defines((ROOT / name).read_text(), function), function)

    def test_all_rows_are_of_that_form(self):
        lines = (ROOT / "docs/walk.md").read_text().splitlines()
        rows = [line for line in lines if line.startswith("| `")]
        self.assertEqual(len(rows), sum(len(rows) for rows in walks().values()))

    def test_few_files_lie_between_a_recipe_and_a_step(self):
        files = {name for name, _ in walks()["A recipe becomes a step"]}
        self.assertLessEqual(len(files), MAX_FILES)


if __name__ == "__main__":
    unittest.main()
