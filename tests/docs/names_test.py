#!/usr/bin/env python3
"""names_test.py: names in the sentences and tables of the pages exist.

Recipe keys are those of docs/recipe-keys.md, C++ names those of the public headers, and environment
variables those of the sources. Other systems' names, in the first column of from-*.md, are left
out. docs/environment.md names each variable that weft reads or sets."""

import re
import runpy
import subprocess
import sys

from blocks import ROOT, pages

TABLES = "model|data|train|optimizer|schedule|parallel|comm|run"
KEY = re.compile(rf"(?<![\w./:-])({TABLES})\.([a-z][a-z0-9_]*)(?![\w(<.])")
NAME = re.compile(r"(?<![\w:])((?:\w+::)+)(\w+)")
VARIABLE = re.compile(r"\bWEFT_[A-Z0-9_]+\b")
NOT_KEYS = {"model.safetensors", "train.toml", "train.bacth"}  # files, and an error's example
FOREIGN = ("torch::", "std::", "c10d::", "at::", "nn::")
# Pages for contributors name the code's own parts, which no public header has.
INSIDE = (
    "architecture.md", "glossary.md", "ROADMAP.md", "benchmarks.md", "ports.md", "walk.md"
)


def code_of(page):
    """(number of the line, the code in its sentences) of a page."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced or line.startswith("    "):
            continue
        if page.name.startswith("from-") and line.startswith("|"):
            line = line.split("|", 2)[2]
        for code in re.findall(r"`([^`]+)`", line):
            yield number, code


def sources():
    command = [
        "git",
        "-C",
        str(ROOT),
        "grep",
        "-hoE",
        r"\bWEFT_[A-Z0-9_]+\b",
        "--",
        "*.cc",
        "*.h",
        "*.py",
        "*.txt",
        "*.cmake",
        "*.sh",
        "dev",
        "bin/weft",
    ]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def undocumented():
    """Variables in strings of weft/, without those of tests and benches, that no table names.
    Options of CMake are no variables."""
    tests = [f":!*{end}" for end in ("_test.cc", "_bench.cc", "_main.cc", "/testing/*")]
    command = ["git", "-C", str(ROOT), "grep", "-hoE", r'"WEFT_[A-Z0-9_]+', "--", "weft/*.cc"]
    lines = subprocess.run(
        command + ["weft/*.h"] + tests, capture_output=True, text=True, check=True
    ).stdout.split()
    documented = set(VARIABLE.findall((ROOT / "docs/environment.md").read_text()))
    documented |= set(re.findall(r"option\((WEFT_\w+)", (ROOT / "CMakeLists.txt").read_text()))
    return sorted({line[1:] for line in lines} - documented)


def main():
    keys, table = set(), ""
    for line in (ROOT / "docs/recipe-keys.md").read_text().splitlines():
        table = line[3:] if line.startswith("## ") else table
        row = re.match(r"\| `([a-z0-9_]+)` \|", line)
        if row:
            keys.add(f"{table}.{row[1]}")
    headers = runpy.run_path(str(ROOT / "tools/make_public_headers"))["make"](ROOT)
    words, variables = set(re.findall(r"\w+", "\n".join(headers.values()))), sources()
    found = [f"docs/environment.md: {name} is missing" for name in undocumented()]
    count = 0
    for page in pages():
        for number, code in code_of(page):
            wrong = [
                f"{table}.{key} is no recipe key"
                for table, key in KEY.findall(code)
                if f"{table}.{key}" not in keys | NOT_KEYS
            ]
            if page.name not in INSIDE:
                unknown = [
                    space + name
                    for space, name in NAME.findall(code)
                    if name not in words and not space.startswith(FOREIGN)
                ]
                wrong += [f"{name} is in no public header" for name in unknown]
            wrong += [
                f"no source has {name}" for name in VARIABLE.findall(code) if name not in variables
            ]
            found += [f"{page.relative_to(ROOT)}:{number}: {each}" for each in wrong]
            count += 1
    print("\n".join(found) or f"{count} pieces of code have no unknown name")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
