"""Reads C++ sources as text, for the checks of this folder."""

import re

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


def blank(text, instead=""):
    """The text with comments and literals replaced, line for line."""
    return COMMENT_OR_TEXT.sub(lambda match: instead + "\n" * match[0].count("\n"), text)
