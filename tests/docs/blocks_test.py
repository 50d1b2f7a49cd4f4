#!/usr/bin/env python3
"""blocks_test.py PART --weft WEFT [--blocks PROGRAM] [--python-path FOLDER] [-v]: tests the code blocks of the pages.

PART is sh, run, cpp, python or rest. A block that no part can test fails, unless a comment above it says why (tests/docs/README.md)."""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import blocks

ROOT = blocks.ROOT
# Programs of blocks that are not weft's: their words are not checked, apart from a weft command among them.
OTHERS = {"cd", "chmod", "cmake", "ctest", "export", "grep", "head", "ls", "scontrol", "pip", "python", "sh", "ss"}
LAUNCHERS = {"mpirun", "mpirun.mpich", "srun", "salloc", "torchrun"}  # a weft command may follow
WORDS = {"RECIPE": "shapes", "RUN": "run", "NAME": "name", "FOLDER": "folder"}  # stand for the reader's own
SECONDS = 100


class Failure(Exception):
    pass


def call(words, cwd=ROOT, **more):
    """The output of a command that has to succeed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("env", {})}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS, **more)
    if done.returncode != 0:
        shown = words if isinstance(words, str) else shlex.join(map(str, words))
        raise Failure(f"{shown}\nended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def commands_of(text):
    """The words of each command of a shell block, without its comments."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;()<>")
        words.whitespace_split, words.commenters = True, "#"
        command = []
        for word in [*words, ";"]:
            if re.fullmatch(r"[&|;()]+", word):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


class Checker:
    """Checks commands of weft against its own help, without running them."""

    def __init__(self, weft):
        self.weft, self.helps = weft, {}

    def help(self, *commands):
        if commands not in self.helps:
            self.helps[commands] = call([self.weft, *commands, "--help"])
        return self.helps[commands]

    def flags(self, commands):
        return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", self.help(*commands).partition("Examples:")[0]))

    def check(self, words):
        """How many commands of weft there are among the words of one command."""
        if words[0] == "./dev":
            verb = next(word for word in words[1:] if not word.startswith("-"))
            if not re.search(rf"(^|\s){verb}  ", call([ROOT / "dev", "help"])):
                raise Failure(f"./dev has no verb {verb}")
            return 1
        start = next((i for i, word in enumerate(words) if "=" not in word or word.startswith("-")), 0)
        first = words[start]
        if script := [after for word, after in zip(words, words[1:]) if word == "-c" and first in ("sh", "srun")]:
            return sum(self.check(command) for command in commands_of(script[0]))
        among = words[start:] if first in LAUNCHERS else [first]
        at = next((i for i, word in enumerate(among, start) if word == "weft" or word.endswith("bin/weft")), None)
        if at is None:
            if first not in OTHERS | LAUNCHERS and not first.startswith("./"):
                raise Failure(f"{first}: not a command of weft, nor one that the test knows")
            return 0
        self.check_weft([word for word in words[at + 1:] if word not in (">", "<", ">>")])
        return 1

    def check_weft(self, words):
        commands = [words[0]]
        if f"\n  {words[0]} " not in self.help() and words[0] not in ("--help", "--version"):
            raise Failure(f"weft has no command {words[0]}")
        if words[0].startswith("--"):
            return
        if len(words) > 1 and re.search(rf"^  {re.escape(words[1])} ", self.help(words[0]).partition("Subcommands:")[2], re.MULTILINE):
            commands.append(words[1])
        known = self.flags(commands) | {"--help"}
        for at, word in enumerate(words[len(commands):], len(commands)):
            if words[0] == "run" and not word.startswith("-") and not self.takes_value(commands, words[at - 1]):
                self.check(words[at:]) if word == "weft" else None
                break
            if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in known:
                raise Failure(f"weft {' '.join(commands)} has no flag {word}")
        if commands == ["train"]:
            self.check_recipe(words[1:])

    def takes_value(self, commands, word):
        return word in self.flags(commands) and bool(re.search(rf"{word}[\w,-]* (TEXT|INT|FLOAT|UINT)", self.help(*commands)))

    def check_recipe(self, words):
        """The recipe exists and has the keys."""
        recipe = next((word for before, word in zip(["", *words], words) if not word.startswith("-") and not self.takes_value(["train"], before)), None)
        if recipe is None:
            raise Failure("weft train without a recipe")
        settings = [word for before, word in zip(words, words[1:]) if before == "--set"]
        sets = [word for setting in settings for word in ("--set", setting)]
        call([self.weft, "train", WORDS.get(recipe, recipe), *sets, "--dry-run"])


def scratch(weft, settings):
    """A folder to run blocks in: the recipes, and a weft that takes these settings with every training."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft_blocks_"))
    (folder / "bin").mkdir()
    for name in ("recipes", "examples"):
        (folder / name).symlink_to(ROOT / name)
    sets = " ".join("--set " + shlex.quote(setting) for setting in settings)
    script = f'#!/bin/sh\nif [ "$1" = train ]; then exec {weft} "$@" {sets}; fi\nexec {weft} "$@"\n'
    (folder / "bin/weft").write_text(script)
    (folder / "bin/weft").chmod(0o755)
    return folder


def run_in(folder, text):
    path = f"{folder}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    call(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env={"PATH": path})


class Parts:
    def __init__(self, options):
        self.options, self.checker = options, Checker(options.weft)

    def of(self, block):
        """The part that tests the block; None if there is none."""
        if block.language == "sh":
            return "run" if "run" in block.options else "sh"
        if block.language in ("cpp", "python"):
            return block.language
        return "rest" if block.language in ("toml", "text") or "lines-of" in block.options else None

    def sh(self, block):
        if sum(self.checker.check(command) for command in commands_of(block.text)) == 0:
            raise Failure("no command of weft in it; say `run`, or why not with `skip: …`")

    def run(self, block):
        folder = scratch(self.options.weft, block.settings)
        try:
            run_in(folder, block.options.get("before", "true"))
            run_in(folder, block.text)
        finally:
            shutil.rmtree(folder)

    def cpp(self, block):
        """It compiled, since the program exists; with run=N it also runs on N ranks, with the words of args."""
        if "run" not in block.options:
            return
        folder = scratch(self.options.weft, block.settings)
        args = shlex.split(block.options.get("args", ""))
        start = [] if block.options["run"] == "1" else [self.options.weft, "run", "-n", block.options["run"]]
        try:
            run_in(folder, block.options.get("before", "true"))
            call([*start, self.options.blocks, block.name, *args], cwd=folder)
        finally:
            shutil.rmtree(folder)

    def python(self, block):
        path = os.pathsep.join(filter(None, [self.options.python_path, os.environ.get("PYTHONPATH")]))
        folder = scratch(self.options.weft, block.settings)
        try:
            run_in(folder, block.options.get("before", "true"))
            (folder / "block.py").write_text(blocks.framed(block, ".py", "# BLOCK"))
            ranks = block.options.get("run", "1")
            start = [] if ranks == "1" else [self.options.weft, "run", "-n", ranks]
            call([*start, sys.executable, "block.py"], cwd=folder, env={"PYTHONPATH": path})
        finally:
            shutil.rmtree(folder)

    def rest(self, block):
        """TOML is a recipe; other lines are those of a file that has a test."""
        if block.language == "toml":
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "recipe.toml").write_text(block.text)
                call([self.options.weft, "train", folder, "--dry-run"])
        elif "lines-of" in block.options:
            have = (ROOT / block.options["lines-of"]).read_text()
            ours, _, theirs = block.options.get("rename", "").partition(":")
            for line in filter(str.strip, block.text.splitlines()):
                if (line.replace(ours, theirs) if ours else line).strip() not in have:
                    raise Failure(f"not in {block.options['lines-of']}: {line}")


def can_import_torch():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--weft", required=True)
    parser.add_argument("--blocks")
    parser.add_argument("--python-path", default="")
    parser.add_argument("--only", default="", help="blocks whose name has this")
    options = parser.parse_args()
    for name in ("weft", "blocks", "python_path"):
        if getattr(options, name):
            setattr(options, name, str(pathlib.Path(getattr(options, name)).resolve()))
    if options.part == "python" and not can_import_torch():
        print("skipped: this Python has no torch")
        sys.exit(77)
    parts, counts, failures = Parts(options), {}, []
    for block in blocks.all_blocks():
        part = "skipped" if block.skip else parts.of(block)
        if part is None:
            failures.append(f"{block.place()}: a block of \"{block.language}\" that no test can check: see tests/docs/README.md")
        elif part != options.part or options.only not in block.name:
            counts[part] = counts.get(part, 0) + (part != options.part)
        else:
            counts[part] = counts.get(part, 0) + 1
            try:
                getattr(parts, part)(block)
            except (Failure, subprocess.TimeoutExpired) as error:
                failures.append(f"{block.place()}: {error}")
    print("\n".join(failures))
    others = ", ".join(f"{count} {part}" for part, count in sorted(counts.items()) if part != options.part)
    print(f"{counts.get(options.part, 0)} blocks of part {options.part} tested, {len(failures)} failed; others: {others}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
