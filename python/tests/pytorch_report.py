#!/usr/bin/env python3
"""Runs PyTorch's backend tests over Gloo and over weft, and compares: what Gloo passes weft has to
pass.

    python pytorch_report.py --folder build/pytorch --page docs/pytorch-tests.md

This takes some ten minutes; --reuse takes the folder's results."""

import argparse
import ast
import importlib.util
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = """# PyTorch's backend tests over weft

This page shows `torch.testing._internal.distributed.distributed_test` of torch {torch} over weft,
at {worlds} ranks, and over Gloo in the same runner. This command generates it:

    PYTHONPATH=build/release/python python3 python/tests/pytorch_report.py \\
        --folder build/pytorch --page docs/pytorch-tests.md

The module has {defined} test functions. {quoted} of them are commented out in it and {count} run:
{ranked} on ranks of a backend, and {plain} that test DDP's bucket sizes and need no ranks.
Some tests ask for a backend by name (sparse all-reduce, monitored barrier, timeouts, `all_to_all`
on CPU). There weft is accepted if Gloo or MPI is (`NAMES` in
[pytorch_suite.py](../python/tests/pytorch_suite.py)).

{summary}

A test counts as passed if it passed at one of these numbers of ranks and failed at none. The reason
for a skip is the test's own.

Other files of PyTorch's tests are not in its wheel. `test_c10d_fault_tolerance.py` runs in the
suite where it is found ([python/README.md](../python/README.md#lost-ranks)). The types of each
reduction are in [python/README.md](../python/README.md#what-is-different-from-gloo).
"""


def run(backend, options):
    """The results of all tests over a backend: {world: {test: {"result", "why"}}}."""
    path = os.path.join(options.folder, f"{backend}.json")
    if not (options.reuse and os.path.exists(path)):
        command = [
            sys.executable, os.path.join(HERE, "pytorch_suite.py"), "--backend", backend, "--world",
            options.world, "--json", path
        ]
        status = subprocess.run(command, check=False).returncode
        if status == 77:
            sys.exit(77)
    with open(path) as file:
        return json.load(file)["worlds"]


def verdict(worlds, name):
    """(result, reason) of a test over all numbers of ranks: the worst that counts, with the reason
    that most ranks give."""
    runs = [tests[name] for tests in reversed(worlds.values()) if name in tests]
    for result in ("failed", "passed", "skipped"):
        for one in runs:
            if one["result"] == result:
                return result, (
                    one["why"].strip().splitlines()[-1].strip() if one["why"].strip() else ""
                )
    return "not run", ""


def complaints(gloo, weft):
    """Where weft does less than Gloo, at each number of ranks by itself."""
    for world, tests in weft.items():
        if tests.keys() != gloo[world].keys():
            different = ", ".join(sorted(tests.keys() ^ gloo[world].keys()))
            yield f"at {world} ranks other tests ran over weft than over Gloo: {different}"
        for name, test in tests.items():
            if test["result"] == "failed":
                yield f"{name} fails over weft at {world} ranks"
            elif test["result"] != "passed" and gloo[world].get(name, {}).get("result") == "passed":
                yield (
                    f"{name} passes over Gloo at {world} ranks and is skipped over weft: "
                    f"{test['why']}"
                )


def counts_of_the_module():
    """How many test functions its text has, how many of them Python doesn't see since they stand in
    a string, how many need no ranks."""
    with open(
        importlib.util.find_spec("torch.testing._internal.distributed.distributed_test").origin
    ) as file:
        text = file.read()
    written = len(re.findall(r"^ +def test_\w+", text, re.M))
    seen = {}
    for top in ast.parse(text).body:
        seen[getattr(top, "name", "")] = sum(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            for node in ast.walk(top)
        )
    return (
        written,
        written - sum(seen.values()),
        sum(count for name, count in seen.items() if name.startswith("TestBucketCapacityConfig")),
    )


def page(gloo, weft):
    import torch

    names = sorted({name for tests in weft.values() for name in tests})
    ours, theirs = ({name: verdict(worlds, name) for name in names} for worlds in (weft, gloo))
    summary = ["| backend | passed | failed | skipped |", "| --- | --- | --- | --- |"]
    for backend, results in (("weft", ours), ("Gloo", theirs)):
        counts = [
            sum(result == wanted for result, _ in results.values())
            for wanted in ("passed", "failed", "skipped")
        ]
        summary.append(f"| {backend} | " + " | ".join(map(str, counts)) + " |")
    for text, chosen in (
        (
            "Passed by Gloo and not by weft",
            [name for name in names if theirs[name][0] == "passed" != ours[name][0]],
        ),
        (
            "Passed by weft and not by Gloo",
            [name for name in names if ours[name][0] == "passed" != theirs[name][0]],
        ),
    ):
        summary.append(f"\n{text}: " + (", ".join(f"`{name}`" for name in chosen) or "none") + ".")
    defined, quoted, plain = counts_of_the_module()
    worlds = list(weft)
    text = HEAD.format(
        torch=torch.__version__.split("+")[0],
        worlds=", ".join(worlds[:-1]) + " and " + worlds[-1] if len(worlds) > 1 else worlds[0],
        defined=defined,
        quoted=quoted,
        count=len(names),
        ranked=len(names) - plain,
        plain=plain,
        summary="\n".join(summary),
    )
    for result in ("failed", "skipped", "passed"):
        chosen = [name for name in names if ours[name][0] == result]
        if not chosen:
            continue
        passed = result == "passed"
        text += f"\n## {result.capitalize()}\n\n"
        text += f"| test | Gloo | {'at ranks' if passed else 'reason'} |\n| --- | --- | --- |\n"
        for name in chosen:
            ran = [world for world, tests in weft.items() if tests[name]["result"] == "passed"]
            last = ", ".join(ran) if passed else ours[name][1].replace("|", "/")
            text += f"| `{name}` | {theirs[name][0]} | {last} |\n"
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="for the results")
    parser.add_argument("--world", default="2,3,4")
    parser.add_argument("--page", help="the document to write")
    parser.add_argument(
        "--reuse", action="store_true", help="results that are in the folder are not made again"
    )
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    gloo, weft = (run(backend, options) for backend in ("gloo", "weft"))
    if options.page:
        with open(options.page, "w") as file:
            file.write(page(gloo, weft))
    found = list(complaints(gloo, weft))
    print("\n".join(found) or "weft passes all that Gloo passes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
