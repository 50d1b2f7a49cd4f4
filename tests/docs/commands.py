"""Checks the commands of shell blocks against weft's own help, without running them."""

import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import processes  # noqa: E402

# Programs that are not weft's: the test does not check their words.
OTHERS = {"cd", "chmod", "cmake", "export", "git", "grep", "head", "ls", "scontrol", "ss"}
LAUNCHERS = {"mpirun", "mpirun.mpich", "srun", "salloc", "torchrun"}  # a weft command may follow
RECIPES = {"RECIPE": "shapes"}  # a word that stands for the reader's own
SECONDS = 100


class Failure(Exception):
    pass


def call(words, cwd=ROOT, env=None):
    """The output of a command that has to succeed."""
    env = processes.environment(**(env or {}))
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", timeout=SECONDS
    )
    if done.returncode != 0:
        output = done.stdout[-2000:] + done.stderr[-3000:]
        raise Failure(f"{shlex.join(map(str, words))}\nended with {done.returncode}\n{output}")
    return done.stdout


def commands_of(text):
    """The words of each command of a shell block, without its comments."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;()<>")
        words.whitespace_split, words.commenters = True, "#"
        command = []
        for word in [*words, ";"]:
            if not re.fullmatch(r"[&|;()]+", word):
                command.append(word)
            elif command:
                yield command
                command = []


def is_weft(word):
    return word == "weft" or word.endswith("bin/weft")


class Checker:
    def __init__(self, weft):
        self.weft, self.helps, self.recipes = weft, {}, set()

    def help(self, *commands):
        if commands not in self.helps:
            text = call([self.weft, *commands, "--help"])
            self.helps[commands] = text.partition("\nExamples:")[0]
        return self.helps[commands]

    def flags(self, commands):
        return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", self.help(*commands)))

    def takes_value(self, commands, flag):
        value = rf"(?<![\w-]){re.escape(flag)}[\w,-]* (TEXT|INT|FLOAT|UINT)"
        return flag.startswith("-") and bool(re.search(value, self.help(*commands)))

    def check_text(self, text):
        """The number of weft's commands in a shell block. Throws Failure for a wrong one."""
        return sum(self.check(command) for command in commands_of(text))

    def check(self, words):
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if not words:
            return 0
        first = words[0]
        if first == "./dev":
            return self.check_dev(words[1:])
        if first in ("sh", "srun") and "-c" in words[:-1]:
            return self.check_text(words[words.index("-c") + 1])
        known = first in OTHERS | LAUNCHERS or first.startswith("./") or is_weft(first)
        if not known:
            raise Failure(f"{first}: not a command of weft, nor one that the test knows")
        among = words if first in LAUNCHERS else words[:1]
        at = next((i for i, word in enumerate(among) if is_weft(word)), None)
        if at is None:
            return 0
        self.check_weft([word for word in words[at + 1 :] if word not in (">", "<", ">>")])
        return 1

    def check_dev(self, words):
        verb = next(word for word in words if not word.startswith("-"))
        if not re.search(rf"(^|\s){verb}  ", call([str(ROOT / "dev"), "help"])):
            raise Failure(f"./dev has no verb {verb}")
        return 1

    def check_weft(self, words):
        if words[0] in ("--help", "--version"):
            return
        if f"\n  {words[0]} " not in self.help():
            raise Failure(f"weft has no command {words[0]}")
        commands, rest = words[:1], words[1:]
        nested = self.help(words[0]).partition("Subcommands:")[2]
        if rest and re.search(rf"^  {re.escape(rest[0])} ", nested, re.MULTILINE):
            commands, rest = words[:2], words[2:]
        elif nested and rest and not rest[0].startswith("-"):
            raise Failure(f"weft {words[0]} has no command {rest[0]}")
        if commands == ["run"]:
            rest = self.split_program(rest)
        known = self.flags(commands)
        for word in rest:
            if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in known:
                raise Failure(f"weft {' '.join(commands)} has no flag {word}")
        if commands == ["train"]:
            self.check_recipe(rest)

    def split_program(self, words):
        """The flags of `weft run`; checks the program behind them if it is weft."""
        for at, (before, word) in enumerate(zip(["", *words], words)):
            if not word.startswith("-") and not self.takes_value(["run"], before):
                if is_weft(word):
                    self.check_weft(words[at + 1 :])
                return words[:at]
        return words

    def check_recipe(self, words):
        """The recipe exists and has the keys."""
        pairs = list(zip(["", *words], words))
        names = [
            word
            for before, word in pairs
            if not word.startswith("-") and not self.takes_value(["train"], before)
        ]
        if not names:
            raise Failure("weft train without a recipe")
        sets = [part for before, word in pairs if before == "--set" for part in ("--set", word)]
        recipe = (RECIPES.get(names[0], names[0]), *sets)
        if recipe not in self.recipes:
            call([self.weft, "train", *recipe, "--dry-run"])
            self.recipes.add(recipe)
