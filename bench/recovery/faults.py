#!/usr/bin/env python3
"""Measures how weft survives faults: runs `weft chaos` and prints one JSON line a job.

    bench/recovery/faults.py [--weft build/release/bin/weft] [--short] CASE ...

A line has all times from a fault to the next finished step, and to the report of the rank. It also
says whether the last checkpoint has the bytes of an undisturbed run. --short runs one job of a few
faults for each case, to try the commands."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CNN = ["train", "fashion-mnist", "--set", "train.eval_every=0", "--set", "train.epochs=1000"]


def cnn(ranks, steps, *options):
    return ["--", *CNN, "-n", ranks, "--set", f"train.max_steps={steps}", *options]


def of_kills(kills):
    """A rank is killed again and again; a new process or a spare replaces it."""
    for ranks in (2, 4):
        for spares in (0, 1):
            yield (
                {"ranks": ranks, "spares": spares},
                ["--kills", kills, *cnn(ranks, 150 + 100 * kills, "--spares", spares)],
            )


def of_shrinking(jobs):
    """A rank is killed and not replaced."""
    for ranks in (2, 4):
        for seed in range(jobs):
            options = ["--max-replacements", 0, "--min-ranks", 1]
            yield (
                {"ranks": ranks, "seed": seed + 1},
                ["--kills", 1, "--seed", seed + 1, "--weights", "any", *cnn(ranks, 250, *options)],
            )


def of_stops(stops):
    """A rank is stopped with SIGSTOP."""
    for ranks in (2, 4):
        yield (
            {"ranks": ranks},
            ["--faults", "stop", "--kills", stops, *cnn(ranks, 150 + 100 * stops)],
        )


def of_forms(kills):
    """Kills over all forms of parallelism."""
    yield {"ranks": 4}, ["--kills", kills, "--plans", "all"]


# The jobs of a case, by a number of faults or of jobs. The last is that of --short.
CASES = {
    "kills": (of_kills, 30, 3),
    "shrinking": (of_shrinking, 8, 1),
    "stops": (of_stops, 15, 2),
    "forms": (of_forms, 200, 17),
}


def chaos(weft, arguments):
    """The report of `weft chaos`. Code 1 means that it found problems, which the report has."""
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as folder:
        words = [weft, "chaos", "--json", "-o", f"{folder}/chaos", *map(str, arguments)]
        ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ran.returncode not in (0, 1) or not ran.stdout:
        sys.exit(f"{' '.join(words)}: exit code {ran.returncode}: {ran.stderr[-1000:]}")
    return json.loads(ran.stdout)


def line_of(case, params, plan):
    faults = [fault for fault in plan["faults"] if fault["reached"]]
    times = [fault["next_step_s"] for fault in faults if fault["next_step_s"] is not None]
    return {
        "bench": "faults",
        "params": {"case": case, "plan": plan["name"], **params},
        "value": statistics.median(times) if times else None,
        "unit": "s",
        "faults": len(faults),
        "recovered": sum(not fault["problem"] for fault in faults),
        "next_step_s": times,
        "named_s": [fault["named_s"] for fault in faults if fault["named_s"] is not None],
        "redone_steps": [fault["redone"] for fault in faults],
        "same_weights": plan["same_digest"],
        "steps": plan["steps"],
        "wall_s": plan["wall_s"],
        "goodput": plan["goodput"],
        "undisturbed_step_s": plan["undisturbed_step_s"],
        "calm_step_s": plan["calm_step_s"],
        "interrupted": plan["interrupted"],
        "problems": plan["problems"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default=str(ROOT / "build/release/bin/weft"))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("cases", nargs="+", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; {', '.join(CASES)}")
    for case in options.cases:
        jobs, number, short = CASES[case]
        for params, arguments in jobs(short if options.short else number):
            for plan in chaos(options.weft, arguments)["plans"]:
                print(json.dumps(line_of(case, params, plan)), flush=True)


if __name__ == "__main__":
    main()
