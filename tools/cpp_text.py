"""Reads C++ sources as text, for the checks of this folder."""

import re
import subprocess

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


def blank(text, instead=""):
    """The text with comments and literals replaced, line for line."""
    return COMMENT_OR_TEXT.sub(lambda match: instead + "\n" * match[0].count("\n"), text)


def sources(root, *folders):
    """Names of the C++ files of these folders that git knows and that exist."""
    names = subprocess.run(
        ["git", "-C", root, "ls-files", *folders], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for name in names if name.endswith((".h", ".cc")) and (root / name).exists()]
