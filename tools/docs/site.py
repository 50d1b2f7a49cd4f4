#!/usr/bin/env python3
"""site.py ROOT OUT: builds the documentation site of docs/*.md into OUT, with the API reference. Needs MkDocs Material.

Pages link to files of the tree (../bench/README.md, ../examples/regroup.cc), so that they also work where the tree is shown. A copy of
what is linked becomes part of the site: Markdown as pages, sources as pages that show them, folders as lists. Links are rewritten in
the copy. A broken link fails the build."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import api

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]*)(#[^)\s]*)?\)")
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".py": "python", ".toml": "toml", ".sh": "bash", ".cmake": "cmake"}
LONGEST = 60_000  # characters of a source that a page shows


class Site:
    def __init__(self, root, stage):
        self.root, self.stage, self.done, self.waiting = root, stage, set(), []

    def place(self, path):
        """The page of a file of the tree, below the stage; it is staged as well."""
        if path.is_dir():
            path = path / "README.md" if (path / "README.md").exists() else path
        name = path.relative_to(self.root).as_posix()
        if path not in self.done:
            self.done.add(path)
            self.waiting.append(path)
        if name == "README.md":
            return "index.md"
        if name.startswith("docs/"):
            return name.removeprefix("docs/")
        return name if path.suffix == ".md" else name + (".md" if path.is_file() else "/index.md")

    def rewrite(self, text, source, page):
        """The text with each relative link as it is in the site."""
        def moved(match):
            target = match[2]
            if not target or re.match(r"[a-z]+:", target) or (page.startswith("api/") and "/" not in target):
                return match[0]
            path = (source.parent / target).resolve()
            if not path.exists():
                sys.exit(f"{source.relative_to(self.root)}: {target} leads nowhere")
            up = "../" * page.count("/")
            return f"{match[1]}{up}{self.place(path)}{match[3] or ''})"

        fenced, lines = False, text.split("\n")
        for at, line in enumerate(lines):
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("    "):
                lines[at] = LINK.sub(moved, line)
        return "\n".join(lines)

    def write(self, page, text):
        (self.stage / page).parent.mkdir(parents=True, exist_ok=True)
        (self.stage / page).write_text(text)

    def add(self, path):
        """Stages a page, a picture, a source or the list of a folder."""
        name, page = path.relative_to(self.root).as_posix(), self.place(path)
        if path.suffix in (".svg", ".png"):
            (self.stage / name.removeprefix("docs/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.stage / name.removeprefix("docs/"))
        elif path.suffix == ".md":
            self.write(page, self.rewrite(path.read_text(), path, page))
        elif path.is_dir():
            files = subprocess.run(["git", "-C", str(self.root), "ls-files", name], capture_output=True, text=True, check=True).stdout.split()
            self.write(page, hidden(f"# {name}\n\nFiles of this folder:\n\n" + "\n".join(f"- `{file}`" for file in files)))
        else:
            text = path.read_text()[:LONGEST]
            fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=2) + 1)
            self.write(page, hidden(f"# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"))

    def fill(self):
        shutil.rmtree(self.stage, ignore_errors=True)
        for path in sorted((self.root / "docs").glob("*.md")):
            self.place(path)
        for name, text in api.pages(self.root).items():
            self.write("api/" + name, self.rewrite(text, self.root / "docs/api" / name, "api/" + name))
        while self.waiting:
            path = self.waiting.pop()
            if path != self.root / "README.md":  # the front page is docs/index.md
                self.add(path)
        shutil.copytree(self.root / "tools/docs/site/assets", self.stage / "assets", dirs_exist_ok=True)


def hidden(text):
    """A page that search leaves out."""
    return "---\nsearch:\n  exclude: true\n---\n" + text


def main():
    root, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    stage = out.parent / (out.name + "_pages")
    Site(root, stage).fill()
    config = (root / "tools/docs/site/mkdocs.yml").read_text()
    made = stage.parent / (out.name + ".yml")
    reference = "      - api/index.md\n"
    config = config.replace(reference, reference + "\n".join(api.navigation(root)) + "\n")
    made.write_text(config.replace("STAGE", str(stage)).replace("OUT", str(out)))
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet", "-f", str(made)],
                           env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if built.returncode != 0:
        sys.exit("the site was not built")
    print(f"{out}/index.html")


if __name__ == "__main__":
    main()
