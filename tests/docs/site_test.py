#!/usr/bin/env python3
"""site_test.py ROOT OUT: builds the documentation site and checks that it is whole and offline.

MkDocs itself fails for a broken link. Exits with 77 where MkDocs is not installed."""

import html.parser
import importlib.util
import pathlib
import re
import subprocess
import sys


class Resources(html.parser.HTMLParser):
    """What a page loads: scripts, styles, pictures, frames."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.found.append(given.get("href") or "")


def breaches(root, out):
    for page in sorted(out.rglob("*.html")):
        parser = Resources()
        parser.feed(page.read_text())
        for name in filter(None, parser.found):
            if re.match(r"(https?:)?//", name):
                yield f"{page.relative_to(out)} loads {name}"
            elif not name.startswith("data:") and page.name != "404.html":
                if not (page.parent / name.partition("?")[0]).exists():
                    yield f"{page.relative_to(out)} loads {name}, which is not there"
    for page in sorted((root / "docs").glob("*.md")):
        if not (out / f"{page.stem}.html").exists():
            yield f"docs/{page.name} is not in the site"
        if page.name not in (root / "tools/docs/site/mkdocs.yml").read_text():
            yield f"docs/{page.name} is not in the navigation (tools/docs/site/mkdocs.yml)"
    listed = (root / "cmake/public_headers.txt").read_text()
    for header in re.findall(r"^weft/(\w+)\.h", listed, re.MULTILINE):
        if not (out / f"api/{header}.html").exists():
            yield f"weft/{header}.h is not in the reference"
    for page, words in (
        ("api/group.html", ["all_reduce_async", "RegroupOptions", "at_least"]),
        ("api/error.html", ["WEFT_REQUIRE", "kPeerLost"]),
        ("recipe-keys.html", ["zero_stage", "label_smoothing"]),
        ("search/search_index.js", ["var __index"]),
    ):
        for word in words:
            if word not in (out / page).read_text():
                yield f"{page} does not have {word}"


def main():
    root, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if not importlib.util.find_spec("material"):
        print("skipped: MkDocs Material is not installed; ./dev docs installs it")
        sys.exit(77)
    subprocess.run([sys.executable, root / "tools/docs/site.py", root, out], check=True)
    found = list(breaches(root, out))
    print("\n".join(found) if found else "the site is whole and offline")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
