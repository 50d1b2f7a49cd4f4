#!/usr/bin/env python3
"""api.py ROOT [--check]: writes the API reference into docs. docs/api has a page for each public
header (cmake/public_headers.txt), made of its comments and declarations. --check writes nothing,
and names the pages that differ."""

import pathlib
import re
import runpy
import sys

import headers

LIST = "cmake/public_headers.txt"
# Names in a sentence that a page shows as code: call(), a::b, kConstant, snake_case.
CODE = re.compile(
    r"(?<![\w`/.])(?:[A-Za-z_][\w:]*(?:<[\w:, ]*>)?\(\)|\w+(?:::\w+)+(?:\(\))?"
    r"|k[A-Z]\w+|[a-z]\w*_\w+(?![/.]\w))"
)
FILE = re.compile(r"(`[^`]*`|(?:weft|docs|examples|bench)/[\w./-]*\w|\b\w+\.(?:h|cc)\b)")
FRAME = re.compile("[─│┌└├┐┘]")  # characters of a diagram
BULLET = re.compile(r"(- |\d+\. )")
TYPES = ("class", "struct", "enum")
FRONT = """# API reference

A page for each public header, made of its comments. A program includes `<weft/weft.h>`; most need
no other header. Names are in namespace `weft`, or in a namespace below it that the page gives.
[Recipe keys](../recipe-keys.md) lists the keys of recipes and of `weft::train::load_options()`.
"""


def escape(text):
    return re.sub(r"([\\*_<>\[\]#|])", r"\\\1", text)


def code_block(items):
    return "```cpp\n" + "\n".join(item.code for item in items) + "\n```\n"


def runs_of(items, splits):
    """Divides the items into runs. splits(run, item): whether the item begins a new run."""
    run = []
    for item in items:
        if run and splits(run, item):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


class Writer:
    """Converts comments to Markdown. `links`: {header: file of its page}."""

    def __init__(self, links):
        self.links = links

    def file(self, name):
        if name in self.links:
            return f"[{name}]({self.links[name]})"
        if re.match(r"(docs|examples)/", name):
            return f"[{name}](../../{name})"  # from docs/api
        return f"`{name}`"

    def sentence(self, text):
        """Converts a line of a comment: names become code, headers and pages become links."""
        parts = FILE.split(text)
        for at, part in enumerate(parts):
            if at % 2:
                parts[at] = part if part[0] == "`" else self.file(part)
                continue
            pieces, last = [], 0
            for match in CODE.finditer(part):
                pieces += [escape(part[last : match.start()]), f"`{match[0]}`"]
                last = match.end()
            parts[at] = "".join(pieces) + escape(part[last:])
        return "".join(parts)

    def prose(self, comment):
        """Converts a comment to paragraphs and lists. Indented lines of the comment are kept."""
        out, figure, listed, before = [], False, False, ""
        lines = comment.splitlines()
        for at, line in enumerate(lines):
            indent = len(line) - len(line.lstrip())
            drawn = bool(FRAME.search(line))
            if not line.strip():
                following = next((later for later in lines[at:] if later.strip()), "")
                if figure and not following.startswith("  "):
                    out.append("```")
                    figure = False
                out.append("")
                listed = False
            elif figure and (indent >= 2 or drawn):
                out.append(line)
            elif drawn or (not listed and indent >= 2 and (not before or before.endswith(":"))):
                out += ["", "``` { .text .figure }", line]
                figure = True
            else:
                if figure:
                    out += ["```", ""]
                    figure = False
                bullet = BULLET.match(line)
                if bullet and not listed:
                    out.append("")
                listed = bool(bullet) or (listed and indent > 0)
                lead = bullet[1] if bullet else "    " if listed else ""
                out.append(lead + self.sentence(line[bullet.end() if bullet else 0 :].strip()))
            before = line.strip()
        return "\n".join(out + (["```"] if figure else [])) + "\n"


class Page:
    """The page of one public header."""

    def __init__(self, header, text, writer):
        self.header, self.writer, self.names = header, writer, []
        top, _, rest = text.partition("#pragma once\n")
        self.top = headers.plain(top)
        self.includes = re.findall(r'^#include "([^"]+)"', rest, re.MULTILINE)
        self.items = headers.read(re.sub(r"^#include .*\n", "", rest, flags=re.MULTILINE))

    def commented(self, items):
        """Yields the declarations below one comment, then that comment."""
        for run in runs_of(items, lambda run, item: item.comment):
            yield code_block(run)
            if run[0].comment:
                yield self.writer.prose(run[0].comment)

    def members(self, item):
        for run in runs_of(
            item.items,
            lambda run, each: each.spaced
            or each.comment
            or each.kind in TYPES
            or run[-1].kind in ("", *TYPES),
        ):
            if run[0].kind == "":
                yield self.writer.prose(run[0].comment)
            elif run[0].kind in TYPES:
                yield from self.type(run[0], item.name + "::")
            else:
                yield from self.commented(run)

    def type(self, item, outer=""):
        yield f"{'###' if outer else '##'} {outer}{item.name}\n"
        self.names += [] if outer else [item.name]
        if item.comment:
            yield self.writer.prose(item.comment)
        yield code_block([item])
        members = "\n".join(self.members(item)).strip()
        if members:
            yield f'<div class="members" markdown>\n\n{members}\n\n</div>\n'

    def functions(self, run):
        """Yields declarations that belong together, under one heading with their names."""
        names = list(dict.fromkeys(item.name for item in run))
        self.names += names
        yield "## " + ", ".join(escape(name) for name in names) + "\n"
        yield from self.commented(run)

    def body(self, items):
        loose = ("function", "field", "macro")

        def splits(run, item):
            said = item.comment or any(each.comment for each in run)
            return item.kind not in loose or run[-1].kind not in loose or (item.spaced and said)

        for run in runs_of([item for item in items if item.kind != "alias"], splits):
            if run[0].kind == "":
                yield "---\n\n" + self.writer.prose(run[0].comment)
            elif run[0].kind == "namespace":
                yield from self.body(run[0].items)
            elif run[0].kind in TYPES:
                yield from self.type(run[0])
            else:
                yield from self.functions(run)

    def head(self):
        spaces = [item for item in self.items if item.name.startswith("weft")]
        named = [item.name for item in spaces if any(each.kind != "alias" for each in item.items)]
        aliases = [
            each.name.split("::")[-1]
            for item in spaces
            if item.name == "weft"
            for each in item.items
            if each.kind == "alias"
        ]
        yield f"# {self.header}\n"
        yield self.writer.prose(self.top)
        yield f"```cpp\n#include <{self.header}>\n```\n"
        for title, names in (("Namespace", dict.fromkeys(named)), ("Also in `weft`", aliases)):
            if names:
                yield f"{title}: " + ", ".join(f"`{name}`" for name in names) + ".\n"
        if self.includes:
            yield "Includes " + ", ".join(map(self.writer.file, self.includes)) + ".\n"

    def text(self):
        body = "\n".join(self.body(self.items)).removeprefix("---\n\n")
        return "\n".join([*self.head(), body])


def groups(root):
    """[(title of a group of topics, its headers)] in the order of the list."""
    found = []
    for line in (root / LIST).read_text().splitlines():
        if line.startswith("# "):
            found.append((line[2].upper() + line[3:], []))
        elif line.startswith("weft/"):
            found[-1][1].append(line.split()[0])
    return [(title, names) for title, names in found if names]


def page_name(header):
    return pathlib.Path(header).stem + ".md"


def navigation(root):
    """The pages of the reference as lines of mkdocs.yml."""
    for title, names in groups(root):
        yield f'      - "{title}":'
        yield from (f"          - {name}: api/{page_name(name)}" for name in names)


def pages(root):
    """{name of a page in docs: its text}. "api/index.md" is the first one of the reference."""
    texts = runpy.run_path(str(root / "tools/make_public_headers"))["make"](root)
    writer = Writer({header: page_name(header) for header in texts})
    made, front = {}, [FRONT]
    for title, names in groups(root):
        front += [f"## {title}\n", "| header | content |", "| --- | --- |"]
        for header in names:
            page = Page(header, texts[header], writer)
            made["api/" + page_name(header)] = page.text()
            first = re.split(r"(?<=[.:])\s", " ".join(page.top.split()))[0].rstrip(":")
            shown = [f"`{name}`" for name in page.names[:8]] + ["…"] * (len(page.names) > 8)
            content = "<br>".join(filter(None, [writer.sentence(first), ", ".join(shown)]))
            front.append(f"| [{header}]({page_name(header)}) | {content} |")
        front.append("")
    made["api/index.md"] = "\n".join(front)
    return {name: text.rstrip("\n") + "\n" for name, text in made.items()}


def main():
    root = pathlib.Path(sys.argv[1])
    docs, made = root / "docs", pages(root)
    left = {f"api/{page.name}" for page in (docs / "api").glob("*.md")} - made.keys()
    wrong = [name for name, text in made.items() if not same(docs / name, text)] + sorted(left)
    if "--check" in sys.argv[2:]:
        lines = [f"docs/{name} differs from the sources: tools/docs/api.py ." for name in wrong]
        print("\n".join(lines) or f"{len(made)} pages are those of the sources")
        sys.exit(1 if wrong else 0)
    (docs / "api").mkdir(exist_ok=True)
    for name in left:
        (docs / name).unlink()
    for name, text in made.items():
        (docs / name).write_text(text)


def same(path, text):
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    main()
