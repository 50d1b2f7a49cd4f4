"""The line that ./dev test prints about tests that did not run."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SKIPPED = pathlib.Path(__file__).with_name("skipped")
END = "<end of output>\nTest time =   0.05 sec\n" + "-" * 58 + "\n"


def entry(number, name, output, result):
    return (
        f"{number}/4 Testing: {name}\n{number}/4 Test: {name}\nCommand: \"x\"\nOutput:\n"
        f"{'-' * 58}\n{output}\n{END}{result}\n\"{name}\" end time: now\n{'-' * 58}\n\n"
    )


class Skipped(unittest.TestCase):
    def line(self, log, *left_out):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(log)
            file.flush()
            command = [sys.executable, SKIPPED, file.name, *left_out]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        (line,) = done.stdout.splitlines()
        return line

    def test_tests_are_counted_by_their_reasons(self):
        why = "skipped: no Python here imports torch"
        log = "Start testing\n" + "".join(
            (
                entry(1, "python.backend", why, "Test Skipped."),
                entry(2, "python.stack", why, "Test Skipped."),
                entry(3, "cli.Live", "no package prometheus_client: skipped", "Test Skipped."),
                entry(4, "base.Log", "ok", "Test Passed."),
            )
        )
        self.assertEqual(
            self.line(log),
            "not run: 3 tests skipped (2 no Python here imports torch, "
            "1 no package prometheus_client)",
        )

    def test_single_cases_of_tests_that_ran_are_counted(self):
        log = "".join(
            (
                entry(1, "net.Zero", "net/zero_test.cc:3: Skipped\nneeds root.\n", "Test Passed."),
                entry(2, "faults.All", "Ran 3 tests\n\nOK (skipped=2)", "Test Passed."),
            )
        )
        self.assertEqual(
            self.line(log), "not run: 3 single cases skipped (2 of faults.All, 1 needs root)"
        )

    def test_groups_that_were_left_out_are_named_and_empty_ones_are_not(self):
        log = entry(1, "base.Log", "ok", "Test Passed.")
        self.assertEqual(self.line(log, "slow=45", "for a GPU=0"), "not run: left out: 45 slow")
        self.assertEqual(self.line(log), "not run: none")

    def test_a_skipped_test_without_a_reason_is_named(self):
        self.assertIn("a.B, which gives no reason", self.line(entry(1, "a.B", "", "Test Skipped.")))


if __name__ == "__main__":
    unittest.main()
