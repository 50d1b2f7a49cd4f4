#!/usr/bin/env python3
"""Writes the measured figures of the pages from a published run (./dev bench report).

    bench/report/report.py [--check] [FOLDER ...]

FOLDER is a folder bench/results/DATE-COMMIT (default: those that bench/results/published names, the
first one that has a part).
In each page, the text between <!-- figures: NAME --> and <!-- end of figures --> is replaced; NAME
is a key of FIGURES (tables.py). The charts (charts.py) are written to docs/pictures. --check writes
nothing. It fails if a page or a chart differs from the run, or if a commit of the run is not an
ancestor of HEAD."""

import argparse
import pathlib
import re
import subprocess
import sys

import charts
import curve_charts
from results import Missing, Results
from tables import FIGURES

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    "docs/benchmarks.md",
    "docs/compression-results.md",
    "docs/fault-tolerance-results.md",
    "docs/install.md",
    "docs/linear-models.md",
    "docs/optimizers-results.md",
    "docs/parameter-server-results.md",
    "docs/planning-results.md",
    "docs/strategies-results.md",
    "python/README.md",
    "weft/parallel/recompute/README.md",
]
REGION = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def with_figures(text, run, page):
    def figure(found):
        name = found[2]
        if name not in FIGURES:
            sys.exit(f"{page}: no figure '{name}'; there are {', '.join(FIGURES)}")
        try:
            body = FIGURES[name](run)
        except Missing as part:
            body = f"Not measured in the published run (`./dev bench publish {part}`)."
        return f"{found[1]}\n{body}\n\n{found[3]}"

    return REGION.sub(figure, text)


def published():
    results = ROOT / "bench/results"
    return [results / name for name in (results / "published").read_text().split()]


def ancestors(run):
    """Yields an error for each commit of the run that is not an ancestor of HEAD. A shallow clone
    has no history to check."""
    shallow = ["git", "-C", ROOT, "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, stdout=subprocess.PIPE, text=True).stdout.strip() == "true":
        return
    for part, head in run.heads.items():
        command = ["git", "-C", ROOT, "merge-base", "--is-ancestor", head["commit"], "HEAD"]
        if subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
            yield f"{run.files[part]}: commit {head['commit']} is not an ancestor of HEAD"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, print differences")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    options = parser.parse_args()
    run = Results(*(options.folders or published()))
    wrong = list(ancestors(run))
    files = {ROOT / page: with_figures((ROOT / page).read_text(), run, page) for page in PAGES}
    for name, chart in {**charts.CHARTS, **curve_charts.CHARTS}.items():
        file = ROOT / "docs/pictures" / name
        try:
            files[file] = chart(run)
        except Missing as part:
            if file.exists():  # else the page says that it is not measured
                wrong.append(f"no {name} without {part} (./dev bench publish {part})")
    for file, text in files.items():
        if file.exists() and file.read_text() == text:
            continue
        if options.check:
            wrong.append(
                f"{file.relative_to(ROOT)}: differs from the stored results: ./dev bench report"
            )
        else:
            file.write_text(text)
            print(f"wrote {file.relative_to(ROOT)}")
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
