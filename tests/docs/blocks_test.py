#!/usr/bin/env python3
"""blocks_test.py PART --weft WEFT [--blocks PROGRAM] [--python-path FOLDER] [--only NAME]

Tests the code blocks of the pages. PART is sh, run, cpp, python or rest. A block that no part can
test fails, unless a comment above it says why it is skipped (README.md)."""

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import blocks
from commands import ROOT, Checker, Failure, call

sys.path.append(str(ROOT / "tests"))
import images  # noqa: E402


def scratch(weft, settings):
    """A folder to run blocks in, with the recipes and a few images. Each `weft train` in it takes
    these settings."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft_blocks_"))
    (folder / "bin").mkdir()
    (folder / "images").mkdir()
    images.write(folder / "images", 640, 64)
    for name in ("recipes", "examples"):
        (folder / name).symlink_to(ROOT / name)
    sets = " ".join("--set " + shlex.quote(setting) for setting in settings)
    script = folder / "bin/weft"
    script.write_text(
        "#!/bin/sh\n" f'[ "$1" != train ] || exec {weft} "$@" {sets}\nexec {weft} "$@"\n'
    )
    script.chmod(0o755)
    return folder


def shell(folder, text):
    path = f"{folder}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    call(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env={"PATH": path})


class Parts:
    def __init__(self, options):
        self.options, self.checker = options, Checker(options.weft)

    def of(self, block):
        """The part that tests the block; None if there is none."""
        if block.language == "sh":
            return "run" if "run" in block.options else "sh"
        if "lines-of" in block.options:
            return "rest"
        if block.language in ("cpp", "python"):
            return block.language
        return "rest" if block.language in ("toml", "text") else None

    def sh(self, block):
        if self.checker.check_text(block.text) == 0:
            raise Failure("no command of weft in it: say `run`, or why not with `skip: …`")

    def run(self, block):
        self.in_scratch(block, lambda folder: shell(folder, block.text))

    def cpp(self, block):
        """It has compiled, since the program exists. With run=N it also runs, on N ranks."""
        words = [self.options.blocks, block.name, *shlex.split(block.options.get("args", ""))]
        if "run" in block.options:
            self.in_scratch(block, lambda folder: call(self.on_ranks(block, words), cwd=folder))

    def python(self, block):
        path = [self.options.python_path, os.environ.get("PYTHONPATH")]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, path))}

        def run(folder):
            (folder / "block.py").write_text(blocks.framed(block, ".py", "# BLOCK"))
            call(self.on_ranks(block, [sys.executable, "block.py"]), cwd=folder, env=env)

        self.in_scratch(block, run)

    def rest(self, block):
        """TOML is a recipe; other lines are those of a file that has a test."""
        if block.language == "toml":
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "recipe.toml").write_text(block.text)
                # A part of a recipe has neither model nor data.
                whole = "[model]" in block.text
                rest = [] if whole else ["--set", "model.name=mlp", "--set", "data.name=shapes"]
                call([self.options.weft, "train", folder, "--dry-run", *rest])
        elif "lines-of" in block.options:
            have = (ROOT / block.options["lines-of"]).read_text()
            ours, _, theirs = block.options.get("rename", "").partition(":")
            for line in filter(None, map(str.strip, block.text.splitlines())):
                if (line.replace(ours, theirs) if ours else line) not in have:
                    raise Failure(f"not in {block.options['lines-of']}: {line}")

    def on_ranks(self, block, words):
        ranks = block.options.get("run", "1")
        return words if ranks == "1" else [self.options.weft, "run", "-n", ranks, *words]

    def in_scratch(self, block, run):
        folder = scratch(self.options.weft, block.settings)
        try:
            shell(folder, block.options.get("before", "true"))
            run(folder)
        finally:
            shutil.rmtree(folder)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["sh", "run", "cpp", "python", "rest"])
    parser.add_argument("--weft", required=True)
    parser.add_argument("--blocks")
    parser.add_argument("--python-path")
    parser.add_argument("--only", default="", help="test the blocks whose name has this")
    options = parser.parse_args()
    for name in ("weft", "blocks", "python_path"):
        if getattr(options, name):
            setattr(options, name, str(pathlib.Path(getattr(options, name)).resolve()))
    return options


def main():
    options = arguments()
    parts, counts, failures, done = Parts(options), {}, [], set()
    for block in blocks.all_blocks():
        part = "skipped" if block.skip else parts.of(block)
        chosen = part == options.part and options.only in block.name
        if chosen or part != options.part:
            counts[part] = counts.get(part, 0) + 1
        try:
            if part is None:
                raise Failure(f'no test for "{block.language}": see tests/docs/README.md')
            same = (block.language, block.text, str(block.options))  # a block of another page
            if chosen and same not in done:
                done.add(same)
                getattr(parts, part)(block)
        except (Failure, subprocess.TimeoutExpired) as error:
            failures.append(f"{block.place()}: {error}")
    print("\n".join(failures))
    tested = counts.pop(options.part, 0)
    others = ", ".join(f"{count} {part}" for part, count in sorted(counts.items(), key=str))
    print(f"{tested} blocks of {options.part} tested, {len(failures)} failed; others: {others}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
