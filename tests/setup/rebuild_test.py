"""bin/weft builds a command again after a change of its sources, and not otherwise."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Rebuild(unittest.TestCase):
    def setUp(self):
        """A checkout whose build only says what it builds, and whose command does nothing."""
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write("tools/build.sh", 'weft_setup() { :; }\nweft_build() { echo "builds $*"; }\n')
        for name in ("machine", "setup", "torch"):
            self.write(f"tools/{name}.sh")
        for name in ("CMakeLists.txt", "CMakePresets.json", "cmake/a.cmake"):
            self.write(name)
        self.write("build/release/bin/weft", "#!/bin/sh\n").chmod(0o755)
        self.write("bin/weft")
        shutil.copy(ROOT / "bin/weft", self.root / "bin/weft")

    def write(self, name, text=""):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def weft(self, *words):
        return subprocess.run(
            [self.root / "bin/weft", *words], capture_output=True, text=True, check=True
        ).stdout

    def test_after_a_change_of_the_sources_of_a_command(self):
        commands = {
            "train": ("weft", "weft"),
            "bench": ("bench/suite", "weft weft_bench"),
            "chaos": ("tests/chaos", "weft weft_chaos_program"),
            "plan validate": ("bench/plan_tables", "weft weft_plan_validate_program"),
        }
        sources = {folder: self.write(f"{folder}/a.cc") for folder, _ in commands.values()}
        for command, (folder, targets) in commands.items():
            with self.subTest(command):
                words = command.split()
                self.assertEqual(self.weft(*words), f"builds release {targets}\n")
                self.assertEqual(self.weft(*words), "")
                before, later = sources[folder].stat().st_mtime, time.time() + 60
                os.utime(sources[folder], (later, later))
                self.assertEqual(self.weft(*words), f"builds release {targets}\n")
                os.utime(sources[folder], (before, before))


if __name__ == "__main__":
    unittest.main()
