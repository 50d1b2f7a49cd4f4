#!/usr/bin/env python3
"""site.py ROOT OUT: builds the documentation site of docs, with the API reference, into OUT.

Pages link to files of the tree (../bench/README.md, ../examples/regroup.cc), so that the links also
work in a repository browser. The site gets a copy of each linked file: Markdown as a page, a source
as a page that shows it, a folder as a list. Links are rewritten in the copy. A broken link fails
the build. Needs MkDocs Material, but no network."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import api

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]*)(#[^)\s]*)?\)")
# A diagram of a page: its lines must not wrap.
DIAGRAM = re.compile(r"\A```(?:text)?\n(?=.*[─│┌└├┐┘])", re.DOTALL)
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {
    ".cc": "cpp",
    ".h": "cpp",
    ".py": "python",
    ".toml": "toml",
    ".sh": "bash",
    ".cmake": "cmake",
}
PICTURES = (".svg", ".png")
LONGEST = 60_000  # characters of a source that a page shows
REFERENCE = "      - api/index.md\n"  # in mkdocs.yml


def hidden(text):
    """The text of a page, with a header that excludes it from the search."""
    return "---\nsearch:\n  exclude: true\n---\n" + text


class Site:
    """The pages of the site in a folder, as MkDocs reads them."""

    def __init__(self, root, stage):
        self.root, self.stage, self.known, self.waiting = root, stage, set(), []

    def place(self, path):
        """The page of a file of the tree. Adds the file to the site."""
        if path.is_dir() and (path / "README.md").exists():
            path = path / "README.md"
        if path not in self.known:
            self.known.add(path)
            self.waiting.append(path)
        name = path.relative_to(self.root).as_posix()
        if name == "README.md":
            return "index.md"  # the front page is docs/index.md
        if path.is_dir():
            return name + "/index.md"
        kept = path.suffix in (".md", *PICTURES)
        return name.removeprefix("docs/") if kept else name + ".md"

    def rewrite(self, text, source, page):
        """The text, with each relative link rewritten for the site."""

        def moved(match):
            target = match[2]
            if not target or re.match(r"[a-z]+:", target):
                return match[0]
            path = (source.parent / target).resolve()
            if not path.exists():
                sys.exit(f"{source.relative_to(self.root)}: {target} leads nowhere")
            return f"{match[1]}{'../' * page.count('/')}{self.place(path)}{match[3] or ''})"

        parts = FENCED.split(text)
        return "".join(
            DIAGRAM.sub("``` { .text .figure }\n", part) if at % 2 else LINK.sub(moved, part)
            for at, part in enumerate(parts)
        )

    def write(self, page, text):
        (self.stage / page).parent.mkdir(parents=True, exist_ok=True)
        (self.stage / page).write_text(text)

    def listing(self, name):
        command = ["git", "-C", str(self.root), "ls-files", name]
        files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return f"# {name}\n\nFiles of this folder:\n\n" + "\n".join(f"- `{file}`" for file in files)

    def source(self, path, name):
        text = path.read_text()[:LONGEST]
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
        return f"# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"

    def add(self, path):
        """Writes the page of a file, or copies a picture."""
        name, page = path.relative_to(self.root).as_posix(), self.place(path)
        if path.suffix in PICTURES:
            (self.stage / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.stage / page)
        elif path.suffix == ".md":
            self.write(page, self.rewrite(path.read_text(), path, page))
        else:
            shown = self.listing(name) if path.is_dir() else self.source(path, name)
            self.write(page, hidden(shown))

    def fill(self):
        shutil.rmtree(self.stage, ignore_errors=True)
        for path in sorted((self.root / "docs").rglob("*.md")):
            self.place(path)
        while self.waiting:
            path = self.waiting.pop()
            if path != self.root / "README.md":
                self.add(path)
        shutil.copytree(self.root / "tools/docs/site/assets", self.stage / "assets")


def main():
    root, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    stage, made = out.parent / (out.name + "_pages"), out.parent / (out.name + ".yml")
    Site(root, stage).fill()
    config = (root / "tools/docs/site/mkdocs.yml").read_text()
    config = config.replace(REFERENCE, REFERENCE + "\n".join(api.navigation(root)) + "\n")
    made.write_text(config.replace("STAGE", str(stage)).replace("OUT", str(out)))
    # Without --quiet, because MkDocs would not count warnings, so that --strict had no effect.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(made)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    if built.returncode != 0:
        lines = [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join([*lines, "the site was not built"]))
    print(f"{out}/index.html")


if __name__ == "__main__":
    main()
