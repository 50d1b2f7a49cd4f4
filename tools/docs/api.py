#!/usr/bin/env python3
"""api.py ROOT OUT: the API reference: a Markdown page for each public header (cmake/public_headers.txt), made of its comments and declarations.

The headers of weft have one form: a comment of // stands above what it is about. So a small reader is enough. pages(root) gives the
pages; other scripts write them."""
import pathlib
import re
import runpy

LIST = "cmake/public_headers.txt"
KEPT_PRIVATE = re.compile(r"^(internal|detail)$")
# What a sentence names and a page shows as code: call(), a::b, snake_case, kConstant.
CODE = re.compile(r"""(?x) (?<![\w`/.]) (?: [A-Za-z_][\w:]*(?:<[\w:, ]*>)?\(\) | \w+(?:::\w+)+(?:\(\))? | k[A-Z]\w+ | [a-z]\w*_\w+ (?![/.]\w) )""")


class Item:
    """A comment, the declaration below it (either may be empty), and for a class the items in it."""

    def __init__(self, comment, code="", kind="", name="", items=()):
        self.comment, self.code, self.kind, self.name, self.items = comment, code, kind, name, list(items)
        self.spaced = True  # A blank line stands above it.


def end_of_braces(text, at):
    """The place after the brace that closes the one at text[at]."""
    depth = 0
    for match in re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'|[{}]").finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    raise ValueError("a brace that nothing closes: " + text[at:at + 60])


def declaration(text, at):
    """(The declaration at text[at] without a body, what is in its braces, the place after it)"""
    paren = 0
    code, called = "", False
    while True:
        char = text[at]
        if text.startswith("//", at):
            at = text.index("\n", at)
            continue
        paren += (char == "(") - (char == ")")
        called = called or (char == ")" and paren == 0)
        if paren == 0 and char == ";":
            return code + ";", None, at + 1
        if paren == 0 and char == "{":
            after = end_of_braces(text, at)
            inside = text[at + 1:after - 1]
            if re.match(r"(template\s*<.*>\s*)?(class|struct|enum|namespace)\b", code, re.DOTALL) and not called:
                semicolon = re.compile(r"\s*;").match(text, after)
                return code.strip(), inside, semicolon.end() if semicolon else after
            if called and not re.search(r"=\s*$", code):  # the body of a function
                return re.split(r"\)\s*:\s(?!:)", code.strip() + " ")[0].strip().removesuffix(":") + closing(code) + ";", "", after
            code, at = code + text[at:after], after
            continue
        code, at = code + char, at + 1


def closing(code):
    """The parenthesis that cutting a constructor's initializers has taken."""
    return ")" if re.search(r"\)\s*:\s(?!:)", code) else ""


def items_of(text, in_class="", shown=True):
    """The items of a header, or of what is in the braces of a namespace or class."""
    at, found = 0, []
    while True:
        at = re.compile(r"\s*").match(text, at).end()
        if at == len(text):
            return found
        comment = ""
        if text.startswith("//", at):
            block = re.compile(r"(?:[ \t]*//[^\n]*\n)+").match(text, at)
            comment = "\n".join(re.sub(r"^\s*// ?", "", line) for line in block[0].splitlines())
            at = block.end()
            if re.match(r"[ \t]*(\n|$)", text[at:]):
                found.append(Item(comment))
                continue
            at = re.compile(r"\s*").match(text, at).end()
        if label := re.compile(r"(public|protected|private):").match(text, at):
            shown, at = label[1] == "public", label.end()
            continue
        if text.startswith("#", at):
            end = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?").match(text, at).end()
            macro = re.match(r"#define (\w+\([^)]*\))", text[at:end])
            if macro:
                found.append(Item(comment, macro[1], "macro", macro[1].split("(")[0]))
            at = end
            continue
        spaced = bool(re.search(r"\n[ \t]*\n\s*$", text[:at])) or not found or bool(found[-1].kind == "")
        column = at - text.rfind("\n", 0, at) - 1
        code, inside, after = declaration(text, at)
        if trailing := re.compile(r"[ \t]*// ?([^\n]*)").match(text, after):
            comment, after = trailing[1] + ("\n" + comment if comment else ""), trailing.end()
            while more := re.compile(r"\n[ \t]{12,}// ?([^\n]*)").match(text, after):
                comment, after = comment + "\n" + more[1], more.end()
        source, at = text[at:after], after
        if shown:
            found += named(Item(comment, dedent(code, column)), inside, dedent(source, column), in_class, spaced)


def named(item, inside, source, in_class, spaced):
    """The item with its kind and name; nothing for what a reader of the page does not need."""
    code = item.code
    if match := re.match(r"namespace ([\w:]*)", code):
        return [] if KEPT_PRIVATE.match(match[1]) else [Item("", match[1], "namespace", match[1], items_of(inside))]
    if re.match(r"(friend|public:)|~|.*=\s*delete;|.*operator(==|=)\(", code) or (re.match(r"(class|struct) \w+;", code)):
        return []
    if match := re.match(r"(?:template\s*<.*?>\s*)?(class|struct|enum(?: class)?) ([\w:]+)", code, re.DOTALL):
        item.kind, item.name = match[1].split()[0], match[2]
        if item.kind == "enum":
            item.code = source.strip()
        else:
            item.items = items_of(inside, item.name, item.kind == "struct")
        return [item]
    if match := re.match(r"using ([\w:]+);", code):
        return [Item("", code, "alias", match[1])] if not in_class else []
    function = re.search(r"([\w~]+|operator\S+)\s*\((?!\*)", re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "", code))
    variable = re.search(r"(\w+)\s*(?:=[^=]|\{|;|\[)", code)
    item.kind = "function" if function else "field"
    item.name = (function or variable or re.match(r"(\w+)", code))[1]
    item.spaced = spaced
    return [item]


def escape(text):
    return re.sub(r"([\\*_<>\[\]#|])", r"\\\1", text)


class Page:
    """The Markdown page of one public header. `links` is header -> file of its page."""

    def __init__(self, header, text, links):
        self.header, self.links, self.names = header, links, []
        top, _, rest = text.partition("#pragma once\n")
        self.top = "\n".join(re.sub(r"^// ?", "", line) for line in top.splitlines())
        self.includes = re.findall(r'^#include "([^"]+)"', rest, re.MULTILINE)
        self.items = items_of(re.sub(r"^#include .*\n", "", rest, flags=re.MULTILINE))

    def sentence(self, text):
        """A line of a comment as Markdown: code in `…`, headers and pages as links."""
        def link(match):
            return f"[{match[0]}]({self.links[match[0]]})" if match[0] in self.links else f"`{match[0]}`"

        parts = re.split(r"(`[^`]*`|(?:weft|docs|examples|bench)/[\w./-]*\w|\b\w+\.(?:h|cc)\b)", text)
        for at, part in enumerate(parts):
            if at % 2:
                parts[at] = part if part[0] == "`" else self.page_link(part) or link(re.match(".*", part))
            else:
                pieces, last = [], 0
                for match in CODE.finditer(part):
                    pieces += [escape(part[last:match.start()]), f"`{match[0]}`"]
                    last = match.end()
                parts[at] = "".join(pieces) + escape(part[last:])
        return "".join(parts)

    def page_link(self, name):
        return f"[{name}](../../{name})" if re.match(r"(docs|examples)/", name) else None  # from docs/api

    def prose(self, comment):
        """A comment as Markdown: its paragraphs and lists, and as they stand the lines that it indents."""
        lines, out, plain, listed = comment.splitlines(), [], False, False
        for at, line in enumerate(lines):
            indent = len(line) - len(line.lstrip())
            before = lines[at - 1].strip() if at else ""
            item = re.match(r"(- |\d+\. )", line)
            if not line.strip():
                following = next((later for later in lines[at:] if later.strip()), "")
                if plain and following.startswith("  "):
                    out.append("")
                    continue
                out += ["```", ""] if plain else [""]
                plain = listed = False
            elif plain and (indent >= 2 or re.search("[─│┌└├┐┘]", line)):
                out.append(line)
            elif not listed and ((indent >= 2 and (not before or before.endswith(":"))) or re.search("[─│┌└├┐┘]", line)):
                out += ["", "``` { .text .figure }", line]
                plain = True
            else:
                if plain:
                    out += ["```", ""]
                    plain = False
                if item and not listed:
                    out.append("")
                listed = bool(item) or (listed and indent > 0)
                text = line.strip()
                out.append(item[1] + self.sentence(text[len(item[1].strip()):].strip()) if item else ("    " if listed else "") + self.sentence(text))
        return "\n".join(out + (["```"] if plain else [])) + "\n"

    def code(self, items):
        return "```cpp\n" + "\n".join(item.code for item in items) + "\n```\n"

    def members(self, item):
        """The members of a class: each run of declarations below one comment, then that comment."""
        run = []
        for member in [*item.items, None]:
            new = member is None or member.comment or not run or member.spaced
            if run and new:
                yield self.code(run)
                if run[0].comment:
                    yield self.prose(run[0].comment)
                run = []
            if member is None:
                return
            if member.kind == "":
                yield self.prose(member.comment)
            elif member.kind in ("class", "struct", "enum"):
                yield from self.type(member, item.name + "::")
            elif member.kind != "alias":
                run.append(member)

    def type(self, item, outer=""):
        level = "###" if outer else "##"
        yield f"{level} {outer}{item.name}\n"
        if not outer:
            self.names.append(item.name)
        if item.comment:
            yield self.prose(item.comment)
        yield self.code([item] if item.kind == "enum" else [Item("", item.code)])
        if item.kind != "enum":
            members = "\n".join(self.members(item)).strip()
            if members:
                yield '<div class="members" markdown>\n\n' + members + "\n\n</div>\n"

    def body(self, items, space):
        run = []
        for item in [*items, None]:
            single = item is None or item.kind not in ("function", "field", "macro")
            if run and (single or (item.spaced and (item.comment or any(before.comment for before in run)))):
                yield from self.functions(run)
                run = []
            if item is None:
                return
            if item.kind == "":
                yield "---\n\n" + self.prose(item.comment)
            elif item.kind == "namespace":
                yield from self.body(item.items, item.name)
            elif item.kind in ("class", "struct", "enum"):
                yield from self.type(item)
            elif item.kind != "alias":
                run.append(item)

    def functions(self, run):
        """Declarations that stand together, under one heading of their names."""
        names = list(dict.fromkeys(item.name for item in run))
        self.names += names
        yield "## " + ", ".join(escape(name) for name in names) + "\n"
        group = []
        for item in [*run, None]:
            if group and (item is None or item.comment):
                yield self.code(group)
                if group[0].comment:
                    yield self.prose(group[0].comment)
                group = []
            if item is not None:
                group.append(item)

    def text(self):
        spaces = [item.name for item in self.items if item.kind == "namespace" and item.name.startswith("weft") and any(i.kind != "alias" for i in item.items)]
        body = "\n".join(self.body(self.items, "")).removeprefix("---\n\n")
        head = f"# {self.header}\n\n{self.prose(self.top)}\n```cpp\n#include <{self.header}>\n```\n\n"
        if spaces:
            head += "Namespace" + ("s" if len(set(spaces)) > 1 else "") + ": " + ", ".join(f"`{s}`" for s in dict.fromkeys(spaces)) + ".\n"
        aliases = [i.name.split("::")[-1] for item in self.items if item.kind == "namespace" and item.name == "weft" for i in item.items if i.kind == "alias"]
        if aliases:
            head += "\nAlso in `weft`: " + ", ".join(f"`{name}`" for name in aliases) + ".\n"
        if self.includes:
            head += "\nIncludes " + ", ".join(f"[{name}]({self.links[name]})" for name in self.includes) + ".\n"
        return head + "\n" + body


def dedent(code, column):
    """The declaration as it would stand at the start of a line."""
    return re.sub(rf"(?m)^ {{1,{column}}}", "", code.strip()) if column else code.strip()


def groups(root):
    """[(title of a group of topics, its headers)] in the order of the list."""
    found = []
    for line in (root / LIST).read_text().splitlines():
        if line.startswith("# ") and found is not None:
            found.append((line[2:], []))
        elif line.startswith("weft/"):
            found[-1][1].append(line.split()[0])
    return [(title, headers) for title, headers in found if headers]


def navigation(root):
    """The pages of the reference as lines of mkdocs.yml."""
    for title, headers in groups(root):
        yield f'      - "{title[0].upper()}{title[1:]}":'
        yield from (f"          - {header}: api/{page_name(header)}" for header in headers)


def page_name(header):
    return pathlib.Path(header).stem + ".md"


def pages(root):
    """name of a page -> its text, for the folder of the reference; "index.md" is its front."""
    texts = runpy.run_path(str(root / "tools/make_public_headers"))["make"](root)
    links = {header: page_name(header) for header in texts}
    made, front = {}, ["# API reference\n", "A page for each public header, made of its comments. A program includes `<weft/weft.h>`; most need",
                       "no other header. Names are in namespace `weft`, or in a namespace below it that the page gives.\n"]
    for title, headers in groups(root):
        front += [f"## {title[0].upper()}{title[1:]}\n", "| header | content |", "| --- | --- |"]
        for header in headers:
            page = Page(header, texts[header], links)
            made[links[header]] = page.text()
            first = re.split(r"(?<=[.:])\s", " ".join(page.top.split()))[0].rstrip(":")
            shown = ", ".join(f"`{name}`" for name in page.names[:8]) + (", …" if len(page.names) > 8 else "")
            front.append(f"| [{header}]({links[header]}) | {page.sentence(first)}{'<br>' + shown if shown else ''} |")
        front.append("")
    made["index.md"] = "\n".join(front)
    return made


if __name__ == "__main__":
    import sys
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(pathlib.Path(sys.argv[1])).items():
        (folder / name).write_text(text)
