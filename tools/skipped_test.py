"""The line that ./dev test prints about tests that did not run, from what ctest itself writes."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SKIPPED = pathlib.Path(__file__).with_name("skipped")
CMAKE = pathlib.Path(os.environ.get("WEFT_CMAKE", "cmake"))
HEAD = "cmake_minimum_required(VERSION 3.25)\nproject(x NONE)\nenable_testing()\n"


def test(name, *lines, code=0):
    said = "; ".join(f"echo '{line}'" for line in (*lines, ""))
    return (
        f'add_test(NAME {name} COMMAND sh -c "{said}; exit {code}")\n'
        f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n"
    )


# ./dev test without what sets up and builds: its last two lines.
RUN = """
set -euo pipefail
root=$PWD WEFT_VENV=.venv WEFT_WITH_PYTHON= slow= changed= only= preset=release arguments=()
set_up() { :; }
weft_build_folder() { echo build; }
weft_build() { :; }
. tools/test.sh
run_tests
"""


class Skipped(unittest.TestCase):
    def line(self, tests, *left_out):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "CMakeLists.txt").write_text(HEAD + "".join(tests))
            build = ["-S", folder, "-B", folder]
            subprocess.run([CMAKE, *build], check=True, capture_output=True)
            ctest = [CMAKE.with_name("ctest"), "--test-dir", folder, "--output-on-failure"]
            printed = subprocess.run(ctest, capture_output=True, text=True).stdout
            (folder / "printed").write_text(printed)
            log = folder / "Testing/Temporary/LastTest.log"
            command = [sys.executable, SKIPPED, folder / "printed", log, *left_out]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        (line,) = done.stdout.splitlines()
        return line

    def test_tests_and_their_single_cases_are_counted_by_their_reasons(self):
        why = "skipped: no Python here imports torch"
        line = self.line(
            (
                test("python.backend", why, code=77),
                test("python.stack", why, code=77),
                test("cli.Live", "no package prometheus_client: skipped", code=77),
                test("a.B", code=77),
                test("base.Log", "ok"),
                test("net.Zero", "zero_test.cc:3: Skipped", "needs root.", code=0),
                test("faults.All", "Ran 3 tests", "OK (skipped=2)"),
                test("base.Wrong", "skipped: a word of a test that failed", code=1),
            ),
            "slow=45",
            "for a GPU=0",
        )
        self.assertEqual(
            line,
            "not run: 4 tests skipped (2 no Python here imports torch, "
            "1 no package prometheus_client, 1 a.B, which gives no reason); "
            "3 single cases skipped (2 of faults.All, 1 needs root); left out: 45 slow",
        )

    def test_dev_test_prints_the_line_before_the_result_of_ctest(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            slow = "set_tests_properties(base.Slow PROPERTIES LABELS slow)\n"
            tests = (test("a.B", "skipped: no root", code=77), test("base.Slow"), slow, test("c.D"))
            (folder / "CMakeLists.txt").write_text(HEAD + "".join(tests))
            (folder / "tools").symlink_to(SKIPPED.parent)
            configure = [CMAKE, "-S", folder, "-B", folder / "build"]
            subprocess.run(configure, check=True, capture_output=True)
            env = {**os.environ, "WEFT_CMAKE": str(CMAKE)}
            command = ["bash", "-c", RUN]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines()[-2:],
            [
                "not run: 1 test skipped (1 no root); left out: 1 slow (./dev test --slow)",
                "100% tests passed, 0 tests failed out of 2",
            ],
        )

    def test_only_takes_a_folder_of_weft(self):
        command = ["bash", "-c", RUN.replace("only=", "only=parallel/none")]
        root = SKIPPED.parent.parent
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(
            done.stderr, "./dev test --only: there is no folder weft/parallel/none\n"
        )

    def test_where_all_tests_ran_nothing_is_counted(self):
        self.assertEqual(self.line((test("base.Log", "ok"),)), "not run: none")


if __name__ == "__main__":
    unittest.main()
