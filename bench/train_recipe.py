"""Trains a recipe for a benchmark: `weft train --json` in a run folder that goes away."""

import contextlib
import json
import subprocess
import sys
import tempfile


@contextlib.contextmanager
def trained(weft, recipe, ranks, settings=()):
    """The result that the run prints, and the folder of runs. Ends the benchmark with the
    last line of stderr where training fails."""
    with tempfile.TemporaryDirectory() as runs:
        words = [*settings, f'run.dir="{runs}"']
        command = [weft, "train", recipe, "-n", str(ranks), "--json"]
        command += [part for word in words for part in ("--set", word)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}: {ran.stderr.strip().splitlines()[-1]}")
        yield json.loads(ran.stdout.strip().splitlines()[-1]), runs
