"""Reads a public header of weft: its comments and declarations, in order.

A small reader is sufficient, because all headers are formatted by clang-format, with // comments
above declarations. It drops bodies of functions, private members and forward declarations."""

import re

HIDDEN_NAMESPACE = re.compile(r"(internal|detail)$")
TOKENS = re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'|[{}]")
BLANK = re.compile(r"\s*")
COMMENTS = re.compile(r"(?:[ \t]*//[^\n]*\n)+")
LABEL = re.compile(r"(public|protected|private):")
DIRECTIVE = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?")
TRAILING = re.compile(r"[ \t]*// ?([^\n]*)")
TRAILING_MORE = re.compile(r"\n[ \t]{12,}// ?([^\n]*)")
SCOPE = re.compile(r"(?:template\s*<.*>\s*)?(?:class|struct|enum|namespace)\b", re.DOTALL)
TYPE = re.compile(r"(?:template\s*<.*?>\s*)?(class|struct|enum(?: class)?) ([\w:]+)", re.DOTALL)
INITIALIZERS = re.compile(r"\)\s*:\s(?!:).*", re.DOTALL)
# Declarations that a page does not show.
# ";" ends a concept, whose braces count as the body of a function.
LEFT_OUT = re.compile(
    r"friend|~|.*=\s*delete;|.*operator(==|=)\(|(template\s*<[^>]*>\s*)?(class|struct) \w+;|;$"
)


class Item:
    """A comment, the declaration below it (either may be empty), and for a class its members.

    `kind`: "" for a comment without a declaration, else namespace, class, struct, enum, alias,
    function, field or macro. `spaced`: there is a blank line above the item."""

    def __init__(self, comment, code="", kind="", name="", items=()):
        self.comment, self.code, self.kind, self.name = comment, code, kind, name
        self.items, self.spaced = list(items), True


def end_of_braces(text, at):
    """The position after the brace that closes the one at text[at]."""
    depth = 0
    for match in TOKENS.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    raise ValueError("a brace that nothing closes: " + text[at : at + 60])


def declaration(text, at):
    """(The declaration at text[at] without its body, the text in its braces, the position after it)

    The text in the braces is None for a declaration without braces, and empty for a function."""
    depth, code, called = 0, "", False
    while True:
        char = text[at]
        if text.startswith("//", at):
            at = text.index("\n", at)
            continue
        depth += (char == "(") - (char == ")")
        called = called or (char == ")" and depth == 0)
        if depth == 0 and char == ";":
            return code + ";", None, at + 1
        if depth == 0 and char == "{":
            after = end_of_braces(text, at)
            if SCOPE.match(code) and not called:
                semicolon = re.compile(r"\s*;").match(text, after)
                return (
                    code.strip(),
                    text[at + 1 : after - 1],
                    semicolon.end() if semicolon else after,
                )
            if called and not code.rstrip().endswith("="):  # the body of a function
                return INITIALIZERS.sub(")", code + " ").strip() + ";", "", after
            code, at = code + text[at:after], after
            continue
        code, at = code + char, at + 1


def dedent(code, column):
    """The declaration without the indentation of `column` blanks."""
    return re.sub(rf"(?m)^ {{1,{column}}}", "", code.strip()) if column else code.strip()


def plain(comment):
    return "\n".join(re.sub(r"^\s*// ?", "", line) for line in comment.splitlines())


def trailing_comment(text, at, comment):
    """(The comment, preceded by the trailing comment at text[at] if any, the position after it)"""
    match = TRAILING.match(text, at)
    if not match:
        return comment, at
    lines, at = [match[1]], match.end()
    while match := TRAILING_MORE.match(text, at):
        lines.append(match[1])
        at = match.end()
    return "\n".join([*lines, *filter(None, [comment])]), at


def read(text, in_class=False, shown=True):
    """The items of a header, or of the text in the braces of a namespace or class."""
    at, found = 0, []
    while (at := BLANK.match(text, at).end()) < len(text):
        spaced = not found or found[-1].kind == "" or bool(re.search(r"\n[ \t]*\n\s*$", text[:at]))
        comment = ""
        if block := COMMENTS.match(text, at):
            comment, at = plain(block[0]), block.end()
            if re.match(r"[ \t]*(\n|$)", text[at:]):
                found.append(Item(comment))
                continue
            at = BLANK.match(text, at).end()
        if label := LABEL.match(text, at):
            shown, at = label[1] == "public", label.end()
        elif text.startswith("#", at):
            end = DIRECTIVE.match(text, at).end()
            if macro := re.match(r"#define ((\w+)\([^)]*\))", text[at:end]):
                found.append(Item(comment, macro[1], "macro", macro[2]))
            at = end
        else:
            start, column = at, at - text.rfind("\n", 0, at) - 1
            code, inside, at = declaration(text, at)
            comment, at = trailing_comment(text, at, comment)
            item = Item(comment, dedent(code, column))
            item.spaced = spaced
            if shown and classify(item, inside, dedent(text[start:at], column), in_class):
                found.append(item)
    return found


def classify(item, inside, source, in_class):
    """Sets the kind, name and members of an item. Returns False if a page does not show it."""
    code = item.code
    if match := re.match(r"namespace ([\w:]*)", code):
        item.kind, item.name, item.items = "namespace", match[1], read(inside)
        return not HIDDEN_NAMESPACE.match(item.name)
    if LEFT_OUT.match(code):
        return False
    if match := TYPE.match(code):
        item.kind, item.name = match[1].split()[0], match[2]
        if item.kind == "enum":
            item.code = source.strip()
        else:
            item.items = read(inside, in_class=True, shown=item.kind == "struct")
        return True
    if match := re.match(r"using ([\w:]+);", code):
        item.kind, item.name = "alias", match[1]
        return not in_class
    bare = re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "", code)
    function = re.search(r"([\w~]+|operator\S+)\s*\((?!\*)", bare)
    field = re.search(r"(\w+)\s*(?:=[^=]|\{|;|\[)", code)
    item.kind = "function" if function else "field"
    item.name = (function or field or re.match(r"(\w+)", code))[1]
    return True
