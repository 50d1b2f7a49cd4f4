"""mnist_after.cc differs from mnist_before.cc by four changed or added lines at most, and the
examples stay short."""

import difflib
import pathlib
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Examples(unittest.TestCase):
    def test_data_parallelism_takes_four_lines(self):
        before = (HERE / "mnist_before.cc").read_text().splitlines()
        after = (HERE / "mnist_after.cc").read_text().splitlines()
        changed = [
            line
            for line in difflib.ndiff(before, after)
            if line.startswith("+ ") and line.strip() != "+"
        ]
        self.assertLessEqual(len(changed), 4, changed)
        self.assertGreater(len(changed), 0)

    def test_each_is_at_most_eighty_lines(self):
        for file in HERE.glob("*.cc"):
            self.assertLessEqual(len(file.read_text().splitlines()), 80, file.name)


if __name__ == "__main__":
    unittest.main()
