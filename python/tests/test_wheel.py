"""A wheel is built from the clone, installed into a folder of its own, and two ranks sum with
it."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
RANK ="""
import sys, torch, torch.distributed as dist, weft_torch
dist.init_process_group("weft")
values = torch.full((100_000,), dist.get_rank() + 1.0)
dist.all_reduce(values)
assert values.eq(3).all() and weft_torch.is_shared(values), values
assert weft_torch.__file__.startswith(sys.argv[1]), weft_torch.__file__
print(f"rank {dist.get_rank()} has the sum")
dist.destroy_process_group()
"""


class Wheel(unittest.TestCase):
    def call(self, *command, **environment):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        return done.stdout

    def test_is_built_installed_and_used_by_two_ranks(self):
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        with tempfile.TemporaryDirectory() as folder:
            said = self.call(
                *pip, "wheel", "-v", str(HERE.parent), "--no-build-isolation", "--no-deps", "-w",
                folder
            )
            self.assertIn("building for torch", said)
            (wheel,) = pathlib.Path(folder).glob("weft_torch-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                files = {name for name in archive.namelist() if name.startswith("weft_torch/")}
                (metadata,) = (
                    archive.read(name).decode()
                    for name in archive.namelist()
                    if name.endswith("METADATA")
                )
            package = HERE.parent / "weft_torch"
            kinds = (".py", ".pyi", ".typed")
            names = {path.name for path in package.iterdir() if path.suffix in kinds}
            self.assertEqual(
                files, {f"weft_torch/{name}" for name in names | {"_built.py", "_C.so"}}
            )
            self.assertRegex(metadata, r"Requires-Dist: torch==\d+\.\d+\.\*")
            self.call(
                *pip, "install", "--no-index", "--no-deps", "--target", f"{folder}/site", str(wheel)
            )
            (pathlib.Path(folder) / "rank.py").write_text(RANK)
            torchrun = (
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                "2"
            )
            said = self.call(
                *torchrun, f"{folder}/rank.py", folder, PYTHONPATH=f"{folder}/site",
                OMP_NUM_THREADS="1"
            )
            self.assertIn("rank 0 has the sum", said)
            self.assertIn("rank 1 has the sum", said)


if __name__ == "__main__":
    unittest.main()
