"""What .ci/run calls: as a user who has the package index alone."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCAL = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX", "Torch_DIR")
# python3, which finds a torch or none.
PYTHON = '#!/bin/bash\n[[ $1 != -c ]] || exit {code}\nexec {python} "$@"\n'
RECORD = '#!/bin/bash\n{ echo "$*"; env | grep -E "^(PIP_|Torch_)" | sed "s/^/  /"; } >>calls\n'


class Ci(unittest.TestCase):
    def calls(self, has_torch=True):
        """{arguments of dev: its environment}, where the caller has local wheels and Torch_DIR.
        `has_torch`: whether python3 has a torch."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / ".ci").mkdir()
            (folder / ".ci/run").write_text((ROOT / ".ci/run").read_text())
            (folder / "tools").symlink_to(ROOT / "tools")
            (folder / "dev").write_text(RECORD)
            (folder / "python3").write_text(
                PYTHON.format(code=int(not has_torch), python=sys.executable)
            )
            for script in ("dev", ".ci/run", "python3"):
                (folder / script).chmod(0o755)
            (folder / "pip.conf").write_text("[global]\ncert = /certificate\nfind-links = /here\n")
            local = {"PIP_FIND_LINKS": "/here", "PIP_CONFIG_FILE": str(folder / "pip.conf")}
            env = {**os.environ, **dict.fromkeys(LOCAL, "/here"), **local}
            env["PATH"] = f"{folder}:{env['PATH']}"
            env.pop("PIP_CERT", None)
            subprocess.run([folder / ".ci/run"], env=env, check=True, timeout=60)
            found = {}
            for line in (folder / "calls").read_text().splitlines():
                if line.startswith("  "):
                    name, _, value = line.strip().partition("=")
                    found[call][name] = value
                else:
                    call = line
                    found[call] = {}
        return found

    def test_has_no_local_wheels_and_no_torch_of_the_machine(self):
        for call, env in self.calls().items():
            with self.subTest(call):
                self.assertEqual(env["PIP_CONFIG_FILE"], "/dev/null")
                self.assertEqual(env["PIP_FIND_LINKS"], "")
                self.assertEqual(env["PIP_CERT"], "/certificate")
                self.assertFalse(set(LOCAL) & set(env), env)

    def test_builds_with_the_newest_torch_and_runs_the_python_tests_last(self):
        text = (ROOT / "tools/torch.sh").read_text()
        newest = re.search(r"^weft_torch_versions=\((\S+)", text, re.MULTILINE)[1]
        for has_torch, option in ((True, f" --torch {newest}"), (False, "")):
            calls = list(self.calls(has_torch))
            self.assertEqual(calls[-3], f"build --preset ci{option}")
            self.assertTrue(calls[-2].startswith(f"test --preset core{option} -L "), calls[-2])
            self.assertEqual(calls[-1], f"test{option} --python")


if __name__ == "__main__":
    unittest.main()
