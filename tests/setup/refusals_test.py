"""Set-up on machines that cannot build weft: one line each that says what is wrong and what to
do."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOAD = (
    "set -euo pipefail; root=$PWD; . tools/machine.sh; . tools/setup.sh; . tools/torch.sh; "
    ". tools/build.sh; "
)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("tools", "cmake"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "build").mkdir()

    def run_bash(self, script, **environment):
        """Runs a script after the set-up's own have been loaded. Returns the exit code and stderr's
        lines."""
        done = subprocess.run(
            ["bash", "-c", LOAD + script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "WEFT_TORCH": "", "WEFT_VENV": ".venv", **environment},
        )
        return done.returncode, done.stderr.splitlines()

    def assert_refused(self, script, *words, **environment):
        code, lines = self.run_bash(script, **environment)
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 1, lines)
        for word in ("[weft] ", *words):
            self.assertIn(word, lines[0])

    def make_torch(self, version):
        """A folder that looks like a libtorch of that version. Its libraries are empty."""
        torch = self.folder / "libtorch"
        header = torch / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        major, minor, patch = version.split(".")
        header.write_text(
            f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n"
            f"#define TORCH_VERSION_PATCH {patch}\n"
        )
        (torch / "lib").mkdir()
        for name in ("libtorch_cpu.so", "libc10.so"):
            (torch / "lib" / name).touch()
        return torch

    def test_a_Torch_DIR_without_a_libtorch(self):
        self.assert_refused(
            "weft_setup_torch", "Torch_DIR=/nowhere", "no libtorch", Torch_DIR="/nowhere"
        )

    def test_a_Torch_DIR_that_is_too_old(self):
        torch = self.make_torch("2.12.1")
        self.assert_refused("weft_setup_torch", "2.12.1", "too old", "2.13", Torch_DIR=str(torch))

    def test_a_libtorch_that_lost_a_library(self):
        torch = self.make_torch("2.14.0")
        (torch / "lib/libc10.so").unlink()
        self.assert_refused("weft_setup_torch", "libc10.so", "missing", Torch_DIR=str(torch))

    def test_a_libtorch_that_is_new_enough_is_taken(self):
        torch = self.make_torch("2.14.0")
        code, lines = self.run_bash(
            'weft_setup_torch; [[ $WEFT_TORCH_ROOT = "$Torch_DIR" ]]', Torch_DIR=str(torch)
        )
        self.assertEqual(code, 0, lines)

    def test_little_disk(self):
        self.assert_refused(
            "weft_check_disk 99999999 'weft needs 99999999 GB'", "GB are free", "weft needs"
        )

    def test_little_memory(self):
        self.assert_refused(
            "weft_memory_mib() { echo 2048; }; weft_check_memory", "2.0 GB of memory", "2.6 GB",
            "swap"
        )

    def test_a_compiler_that_was_killed(self):
        (self.folder / "build.log").write_text(
            "[1/9] Building\nc++: fatal error: Killed signal terminated program cc1plus\n"
        )
        self.assert_refused("weft_explain_build build.log", "ran out of memory", "WEFT_JOBS=1")

    def test_a_full_disk(self):
        (self.folder / "build.log").write_text(
            "[1/9] Building\nx.s: fatal error: No space left on device\n"
        )
        self.assert_refused("weft_explain_build build.log", "disk is full")

    def test_a_constraint_of_pip(self):
        said = (
            "ERROR: Cannot install\\n    The user requested torch==2.15.0\\n"
            "    The user requested (constraint) torch<=2.14.1\\n"
        )
        code, lines = self.run_bash(
            f"failing() {{ printf '{said}' >&2; false; }}; weft_step 'installing libtorch' failing "
            f"|| exit 1"
        )
        self.assertEqual(code, 1)
        self.assertIn("allows only torch<=2.14.1, and weft needs torch==2.15.0", lines[-1])

    def test_no_network(self):
        refusal = "echo 'ERROR: Could not connect to the index' >&2; false"
        script = f"failing() {{ {refusal}; }}; weft_step 'installing libtorch' failing || exit 1"
        code, lines = self.run_bash(script)
        self.assertEqual(code, 1)
        self.assertIn("connect this machine to the network", lines[-1])

    def test_jobs_take_1536_MiB_each(self):
        code, lines = self.run_bash(
            'weft_memory_mib() { echo 4000; }; nproc() { echo 64; }; [[ $(weft_jobs) = 2 ]]'
        )
        self.assertEqual(code, 0, lines)


if __name__ == "__main__":
    unittest.main()
