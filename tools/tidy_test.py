"""tools/tidy checks every source with the settings of the tree, also the file of a unity build."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/calls"\n'


class Tidy(unittest.TestCase):
    def test_a_unity_file_gets_the_settings_of_the_tree_too(self):
        with tempfile.TemporaryDirectory() as name:
            build = pathlib.Path(name).resolve()
            unity = build / "weft/base/Unity/unity_0.cxx"
            unity.parent.mkdir(parents=True)
            part, alone = ROOT / "weft/base/random.cc", ROOT / "weft/base/config.cc"
            unity.write_text(f'#include "{part}"\n')
            database = [{"file": str(unity)}, {"file": str(alone)}]
            (build / "compile_commands.json").write_text(json.dumps(database))
            (build / "clang-tidy").write_text(RECORD)
            (build / "clang-tidy").chmod(0o755)
            command = [sys.executable, ROOT / "tools/tidy", build / "clang-tidy", build]
            subprocess.run(command, check=True)
            calls = (build / "calls").read_text().splitlines()
        self.assertEqual(len(calls), 2)
        for call in calls:
            self.assertIn(f"--config-file={ROOT}/.clang-tidy", call)


if __name__ == "__main__":
    unittest.main()
