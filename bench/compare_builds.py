#!/usr/bin/env python3
"""compare_builds.py OLD NEW [--rounds N] [--json FILE] -- WHAT [OPTION…]

Runs a bench with two builds of weft in turn. OLD and NEW are build folders, each with bin/weft. A
round runs `weft bench WHAT OPTION… --json` with both builds; the next round begins with the other
build. Prints for each case the medians over the rounds: of both builds, and of the ratio new / old.
--json appends one line for each case to FILE.

    bench/compare_builds.py ../old/build/release build/release --rounds 5 \\
        -- training --models mlp,cnn --impls weft
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys


def measure(build, what):
    """Runs the bench. Returns {case: (value, unit)} and the commit of the build."""
    run = subprocess.run(
        [build / "bin/weft", "bench", *what, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if run.returncode != 0:
        sys.exit(f"{build}/bin/weft bench {' '.join(what)}: exit code {run.returncode}")
    values, commit = {}, "unknown"
    for line in map(json.loads, run.stdout.splitlines()):
        commit = line.get("commit", commit)
        if "against" not in line["params"] and "measured" not in line["params"]:
            values[line["bench"], json.dumps(line["params"], sort_keys=True)] = (
                line["value"],
                line["unit"],
            )
    return values, commit


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("what", nargs="+")
    options = parser.parse_args()

    builds, commits = {"old": options.old.resolve(), "new": options.new.resolve()}, {}
    rounds = []
    for number in range(options.rounds):
        both = {}
        for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
            both[name], commits[name] = measure(builds[name], options.what)
        rounds.append(both)
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)

    cases = [case for case in rounds[0]["new"] if case in rounds[0]["old"]]
    print(f"old {commits['old']}, new {commits['new']}, {options.rounds} rounds")
    lines = []
    for bench, params in cases:
        old, new = ([both[name][bench, params][0] for both in rounds] for name in ("old", "new"))
        ratios = [b / a for a, b in zip(old, new) if a]
        unit = rounds[0]["new"][bench, params][1]
        words = " ".join(str(value) for value in json.loads(params).values())
        print(
            f"{bench:12} {words:44} old {statistics.median(old):10.3f} new "
            f"{statistics.median(new):10.3f} {unit:8} "
            f"new/old {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
        lines.append(
            {
                "bench": bench,
                "params": json.loads(params),
                "unit": unit,
                "rounds": options.rounds,
                "old": old,
                "new": new,
                "ratio": statistics.median(ratios),
                "old_commit": commits["old"],
                "new_commit": commits["new"],
                "date": datetime.date.today().isoformat(),
            }
        )
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
