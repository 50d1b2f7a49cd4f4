#!/usr/bin/env python3
"""Code blocks of the pages: README.md, README.zh-CN.md and the pages of docs/ that are written by hand.

  blocks.py cpp OUT.cc    writes one program of all C++ blocks; it runs the block that its argument names
  blocks.py list          lists all blocks, and how each is tested

A comment above a block says how to test it (tests/docs/README.md). Blocks of one page are numbered: "docs/install.md#2"."""
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRAMES = pathlib.Path(__file__).resolve().parent / "frames"
GENERATED = ("algorithms.md", "pipelines.md", "parallelism.md", "pytorch-tests.md")
LANGUAGES = {"sh": "sh", "bash": "sh", "cpp": "cpp", "python": "python", "toml": "toml",
             "cmake": "cmake", "text": "text"}
MARKER = re.compile(r"<!-- test: (.*?) -->$")


class Block:
    def __init__(self, name, line, language, text, marker):
        self.name, self.line, self.language, self.text = name, line, language, text
        self.page = name.partition("#")[0]
        self.skip = marker.removeprefix("skip:").strip() if marker.startswith("skip:") else ""
        words = [] if self.skip else shlex.split(marker)
        self.options = {w.partition("=")[0]: w.partition("=")[2] or True for w in words}
        self.settings = [w.partition("=")[2] for w in words if w.startswith("set=")]

    def place(self):
        return f"{self.page}:{self.line}"


def pages():
    yield from (ROOT / "README.md", ROOT / "README.zh-CN.md")
    yield from (page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED)


def blocks_of(page):
    """The fenced blocks of a page and those that are indented by four spaces."""
    name = page.relative_to(ROOT).as_posix()
    lines, at, count, marker = page.read_text().splitlines(), 0, 0, ""
    while at < len(lines):
        line, start = lines[at], at
        fence = re.match(r"\s*```+", line)
        indented = line.startswith("    ") and (at == 0 or not lines[at - 1].strip())
        at += 1
        if found := MARKER.match(line.strip()):
            marker = f"{marker} {found[1]}".strip()
        elif fence:
            while lines[at].strip() != fence[0].strip():
                at += 1
            text, at = lines[start + 1:at], at + 1
            language = LANGUAGES.get(line.strip().lstrip("`"), line.strip().lstrip("`"))
        elif indented:
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            text, language = [line[4:] for line in lines[start:at]], "sh"
        if fence or indented:
            count += 1
            yield Block(f"{name}#{count}", start + 1, language, "\n".join(text).rstrip(), marker)
        if line.strip() and not MARKER.match(line.strip()):
            marker = ""


def all_blocks():
    return [block for page in pages() for block in blocks_of(page)]


def framed(block, suffix, placeholder):
    """The lines of a block within its frame, if it has one."""
    if "frame" not in block.options:
        return block.text
    frame = (FRAMES / (block.options["frame"] + suffix)).read_text().splitlines()
    at = next(i for i, line in enumerate(frame) if line.strip() == placeholder)
    indent = frame[at][:len(frame[at]) - len(frame[at].lstrip())]
    inside = [indent + line if line and suffix == ".py" else line for line in block.text.splitlines()]
    if suffix == ".cc":  # the compiler's messages name the page
        inside = [f'#line {block.line + 1} "{block.page}"', *inside, f'#line {at + 2} "{block.options["frame"]}.cc"']
    return "\n".join(frame[:at] + inside + frame[at + 1:])


def cpp_of(block, number, includes):
    """The block in a namespace of its own, with a function run(argc, argv)."""
    text = framed(block, ".cc", "// BLOCK")
    includes += re.findall(r"^#include .*", text, re.MULTILINE)
    text = re.sub(r"(?m)^(#include .*|\s*…)$", "", text)
    takes = re.search(r"\bint main\((.*?)\)", text)
    if not takes:
        sys.exit(f"{block.place()}: neither a whole program nor in a frame")
    last = text.rindex("\n}")
    text = text[:last] + "\n  return 0;" + text[last:]
    text = re.sub(r"\bint main\(", "int program(", text)
    call = "program(argc, argv)" if takes[1].strip() else "program()"
    first = f'#line {block.line + 1} "{block.page}"'
    return (f"namespace block_{number} {{\n{first}\n{text}\n"
            f"int run([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {{ return {call}; }}\n"
            f"}}  // namespace block_{number}\n")


def write_cpp(out):
    blocks = [block for block in all_blocks() if block.language == "cpp" and not block.skip]
    includes, parts = [], []
    for number, block in enumerate(blocks):
        parts.append(cpp_of(block, number, includes))
    names = "\n".join(f'  if (name == "{block.name}") return block_{number}::run(argc - 1, argv + 1);'
                      for number, block in enumerate(blocks))
    head = "\n".join(dict.fromkeys([*includes, "#include <iostream>", "#include <string>"]))
    out.write_text(f"// Made by tests/docs/blocks.py of the pages' C++ blocks.\n{head}\n\n" + "\n".join(parts) +
                   f"\nint main(int argc, char** argv) {{\n  const std::string name = argc > 1 ? argv[1] : \"\";\n"
                   f"{names}\n  std::cerr << \"no block \" << name << '\\n';\n  return 2;\n}}\n")


def main():
    if sys.argv[1] == "cpp":
        write_cpp(pathlib.Path(sys.argv[2]))
    for block in all_blocks() if sys.argv[1] == "list" else []:
        how = f"skip: {block.skip}" if block.skip else " ".join(f"{k}={v}" for k, v in block.options.items())
        print(f"{block.place():36} {block.language:8} {how}")


if __name__ == "__main__":
    main()
