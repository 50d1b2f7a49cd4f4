"""Trains a recipe for a benchmark: `weft train --json` in a temporary run folder."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from processes import without_launchers  # noqa: E402


@contextlib.contextmanager
def trained(weft, recipe, ranks, settings=(), environment=None):
    """`environment`: variables beside those of this process. Yields the result that the run prints,
    and the folder that contains the run folder. If training fails, ends the benchmark with the last
    line of stderr."""
    with tempfile.TemporaryDirectory() as runs:
        words = [*settings, f'run.dir="{runs}"']
        command = [weft, "train", recipe, "-n", str(ranks), "--json"]
        command += [part for word in words for part in ("--set", word)]
        variables = without_launchers(keep="WEFT_") | (environment or {})
        ran = subprocess.run(command, capture_output=True, text=True, env=variables)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}: {ran.stderr.strip().splitlines()[-1]}")
        yield json.loads(ran.stdout.strip().splitlines()[-1]), runs
