#!/usr/bin/env python3
"""Times the README's two commands as a new user runs them: in a fresh clone of HEAD, without a
compiler cache, with the newest torch of the public package index.

    bench/clone/clone.py [--folder FOLDER] [--keep]

Prints JSON lines, and the output of the commands on stderr. Takes about half an hour and 5 GB of
disk. Debian's packages are installed already: their time is that of the network. Nothing else may
run on the machine. Fails if a command fails, so a red suite has no time."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST = "bin/weft train recipes/fashion-mnist -n 2"
SECOND = "./dev test"
LOCAL = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX", "Torch_DIR")

# What a line of a command's output says: the name of the figure and its unit.
SAID = (
    (re.compile(r"\[weft\] installing libtorch .* (\d+) s$"), "libtorch", "s"),
    (re.compile(r"\[weft\] installing what its CPU part needs.* (\d+) s$"), "libtorch", "s"),
    (re.compile(r"\[weft\] built \S+ in (\d+) s$"), "compiling", "s"),
    (re.compile(r"Total Test time \(real\) = +([\d.]+) sec"), "tests", "s"),
    (re.compile(r"tests passed, \d+ tests failed out of (\d+)$"), "number of tests", "tests"),
    (re.compile(r"^not run: (\d+) tests? skipped"), "skipped tests", "tests"),
)
TORCH = re.compile(r"\[weft\] libtorch (\S+):")
TRAINING = re.compile(r"\[rank 0\] training ")


class Heard:
    """What the lines of a command's output say, with the seconds at which they came."""

    def __init__(self):
        self.figures, self.torch, self.training_at = {}, None, None

    def line(self, text, seconds):
        for pattern, name, unit in SAID:
            if found := pattern.search(text):
                value = float(found[1])
                # Two steps install libtorch. A summary that is printed twice counts once.
                value += self.figures.get(name, (0, unit))[0] if name == "libtorch" else 0
                self.figures[name] = value, unit
        if found := TORCH.search(text):
            self.torch = found[1]
        if self.training_at is None and TRAINING.search(text):
            self.training_at = seconds

    def all(self, seconds):
        """Every figure of a command that took so many seconds."""
        found = dict(self.figures)
        if self.training_at is not None:
            found["before training"] = self.training_at, "s"
            found["training"] = seconds - self.training_at, "s"
        found["together"] = seconds, "s"
        return found


def environment():
    env = {name: value for name, value in os.environ.items() if name not in LOCAL}
    return {
        **env,
        "CCACHE_DISABLE": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "",
    }


def run(command, folder):
    """Runs a command to its end. Returns what its output says, and its seconds."""
    heard, start = Heard(), time.monotonic()
    process = subprocess.Popen(
        command.split(),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for text in process.stdout:
        sys.stderr.write(text)
        heard.line(text.rstrip("\n"), time.monotonic() - start)
    if process.wait() != 0:
        sys.exit(f"clone: exit code {process.returncode} of: {command}")
    return heard, time.monotonic() - start


def disk_gb(folder):
    """Gigabytes of 10^9 bytes that the clone occupies."""
    command = ["du", "-s", "--block-size=1", folder]
    return int(subprocess.run(command, capture_output=True, check=True).stdout.split()[0]) / 1e9


def measure(folder):
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, folder], check=True)
    torch = None
    for name, command in (("first", FIRST), ("second", SECOND)):
        heard, seconds = run(command, folder)
        torch = heard.torch or torch
        figures = {**heard.all(seconds), "disk": (disk_gb(folder), "GB")}
        for what, (value, unit) in figures.items():
            params = {"command": name, "what": what, "torch": torch}
            line = {"bench": "clone", "params": params, "value": value, "unit": unit, "runs": 1}
            print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, help="clone to here; it must not exist")
    parser.add_argument("--keep", action="store_true", help="keep the clone")
    options = parser.parse_args()
    folder = options.folder
    if not folder:
        parent = pathlib.Path(tempfile.mkdtemp(prefix="weft-clone-"))
        parent.chmod(0o755)  # tests of limits run as another user
        folder = parent / "weft"
    try:
        measure(folder)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
