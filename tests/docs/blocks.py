#!/usr/bin/env python3
"""The code blocks of README.md, README.zh-CN.md and of the pages of docs/ that are written by hand.

  blocks.py cpp OUT.cc    writes a program of all C++ blocks; its argument names the one to run
  blocks.py list          lists all blocks, and how each is tested

A comment above a block says how to test it (README.md here). Blocks have the name of their page and
a number: "docs/install.md#2"."""

import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRAMES = pathlib.Path(__file__).resolve().parent / "frames"
GENERATED = (
    "algorithms.md", "pipelines.md", "parallelism.md", "pytorch-tests.md", "recipe-keys.md"
)
LANGUAGES = {"bash": "sh"}
MARKER = re.compile(r"<!-- test: (.*?) -->$")
MAIN = """
int main(int argc, char** argv) {{
  const std::string name = argc > 1 ? argv[1] : "";
{choices}
  std::cerr << "no block " << name << '\\n';
  return 2;
}}
"""


class Block:
    def __init__(self, name, line, language, text, marker):
        self.name, self.line, self.text = name, line, text
        self.language = LANGUAGES.get(language, language)
        self.page = name.partition("#")[0]
        self.skip = marker.removeprefix("skip:").strip() if marker.startswith("skip:") else ""
        words = [] if self.skip else shlex.split(marker)
        self.options = {word.partition("=")[0]: word.partition("=")[2] or True for word in words}
        self.settings = [word.partition("=")[2] for word in words if word.startswith("set=")]

    def place(self):
        return f"{self.page}:{self.line}"


def pages():
    yield from (ROOT / "README.md", ROOT / "README.zh-CN.md")
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name not in GENERATED:
            yield page


def blocks_of(page):
    """The fenced blocks of a page, and those that are indented by four spaces."""
    name = page.relative_to(ROOT).as_posix()
    lines, at, count, marker = page.read_text().splitlines(), 0, 0, ""
    while at < len(lines):
        line, start = lines[at], at
        fence = re.match(r"\s*```+", line)
        indented = line.startswith("    ") and (at == 0 or not lines[at - 1].strip())
        at += 1
        if found := MARKER.match(line.strip()):
            marker = f"{marker} {found[1]}".strip()
            continue
        if fence:
            while lines[at].strip() != fence[0].strip():
                at += 1
            text, at, language = lines[start + 1 : at], at + 1, line.strip().lstrip("`")
        elif indented:
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            text, language = [line[4:] for line in lines[start:at]], "sh"
        if fence or indented:
            count += 1
            yield Block(f"{name}#{count}", start + 1, language, "\n".join(text).rstrip(), marker)
        if line.strip():
            marker = ""


def all_blocks():
    return [block for page in pages() for block in blocks_of(page)]


def framed(block, suffix, placeholder):
    """The lines of a block within its frame, if it has one."""
    if "frame" not in block.options:
        return block.text
    name = block.options["frame"] + suffix
    frame = (FRAMES / name).read_text().splitlines()
    at = next(i for i, line in enumerate(frame) if line.strip() == placeholder)
    inside = [block.text]
    if suffix == ".cc":  # the compiler's messages name the page
        inside = [line_of(block), block.text, f'#line {at + 2} "tests/docs/frames/{name}"']
    return "\n".join(frame[:at] + inside + frame[at + 1 :])


def line_of(block):
    return f'#line {block.line + 1} "{block.page}"'


def cpp_of(block, number, includes):
    """The block in a namespace of its own, with a function run(argc, argv)."""
    text = framed(block, ".cc", "// BLOCK")
    includes += re.findall(r"^#include .*", text, re.MULTILINE)
    text = re.sub(r"(?m)^(#include .*|\s*…)$", "", text)
    takes = re.search(r"\bint main\((.*?)\)", text)
    if not takes:
        sys.exit(f"{block.place()}: neither a whole program nor in a frame")
    end = text.rindex("\n}")
    text = re.sub(r"\bint main\(", "int program(", text[:end] + "\n  return 0;" + text[end:])
    call = "program(argc, argv)" if takes[1].strip() else "program()"
    unused = "[[maybe_unused]]"
    return (
        f"namespace block_{number} {{\n{line_of(block)}\n{text}\n"
        f"int run({unused} int argc, {unused} char** argv) {{ return {call}; }}\n"
        f"}}  // namespace block_{number}\n"
    )


def write_cpp(out):
    blocks = [
        block
        for block in all_blocks()
        if block.language == "cpp" and not block.skip and "lines-of" not in block.options
    ]
    includes, parts, choices = ["#include <iostream>", "#include <string>"], [], []
    for number, block in enumerate(blocks):
        parts.append(cpp_of(block, number, includes))
        run = f"return block_{number}::run(argc - 1, argv + 1);"
        choices.append(f'  if (name == "{block.name}") {run}')
    head = "\n".join(dict.fromkeys(includes))
    out.write_text(
        "// Made by tests/docs/blocks.py of the C++ blocks of the pages.\n"
        f"{head}\n\n" + "\n".join(parts) + MAIN.format(choices="\n".join(choices))
    )


def main():
    if sys.argv[1] == "cpp":
        write_cpp(pathlib.Path(sys.argv[2]))
    for block in all_blocks() if sys.argv[1] == "list" else []:
        options = " ".join(f"{name}={value}" for name, value in block.options.items())
        how = f"skip: {block.skip}" if block.skip else options
        print(f"{block.place():32} {block.language:8} {how}")


if __name__ == "__main__":
    main()
