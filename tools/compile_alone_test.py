"""tools/compile_alone finds a missing include, and checks again only sources that have changed."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().with_name("compile_alone")


class CompileAlone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        for name in ("tools", "weft", "build"):
            (self.root / name).mkdir()
        shutil.copy(SCRIPT, self.root / "tools")
        (self.root / "build/build.ninja").write_text("")
        # A compiler that lists its calls.
        compiler = self.root / "compiler"
        compiler.write_text(f'#!/bin/sh\necho "$@" >>{self.root}/calls\nexec c++ "$@"\n')
        compiler.chmod(0o755)
        (self.root / "weft/x.h").write_text("int x();\n")
        self.write("good", '#include "x.h"\nint good() { return x(); }\n')
        names = ("good", "other")
        self.write("other", "int other() { return 1; }\n")
        entries = [
            {
                "file": f"{self.root}/weft/{name}.cc",
                "command": f"{compiler} -o {name}.o -c {self.root}/weft/{name}.cc",
            }
            for name in names
        ]
        (self.root / "build/compile_commands.json").write_text(json.dumps(entries))

    def write(self, name, text):
        (self.root / f"weft/{name}.cc").write_text(text)

    def check(self, *sources):
        """The result, and the number of sources that were compiled."""
        (self.root / "calls").write_text("")
        command = [sys.executable, self.root / "tools/compile_alone", self.root / "build", *sources]
        self.done = subprocess.run(command, capture_output=True, text=True)
        return self.done.returncode, len((self.root / "calls").read_text().splitlines())

    def test_a_missing_include_is_an_error_until_it_is_there(self):
        self.write("other", "int other() { return x(); }\n")
        self.assertEqual(self.check(), (1, 2))
        self.assertIn("other.cc does not compile alone", self.done.stdout)
        self.assertNotIn("good.cc does not", self.done.stdout)
        self.assertEqual(self.check(), (1, 1))
        self.write("other", '#include "x.h"\nint other() { return x(); }\n')
        self.assertEqual(self.check(), (0, 1))
        self.assertEqual(list((self.root / "build").glob("*.o")), [])

    def test_a_source_is_checked_again_if_it_or_its_header_has_changed(self):
        self.assertEqual(self.check(), (0, 2))
        self.assertEqual(self.check(), (0, 0))
        self.write("other", "int other() { return 2; }\n")
        self.assertEqual(self.check(), (0, 1))
        (self.root / "weft/x.h").write_text("void x();\n")
        self.assertEqual(self.check(), (1, 1))

    def test_only_the_named_sources_are_checked(self):
        self.assertEqual(self.check(self.root / "weft/good.cc"), (0, 1))
        self.assertEqual(self.check(self.root / "weft"), (0, 1))


if __name__ == "__main__":
    unittest.main()
