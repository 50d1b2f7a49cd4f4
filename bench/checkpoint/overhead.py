#!/usr/bin/env python3
"""Measures the cost of checkpoints in a training run: the time that training stops for each one,
and the slowdown of steps while it is written.

    overhead.py --weft build/release/bin/weft [-n 2] [--minutes 1] [--run-minutes 5]
                [--json FILE] [RECIPE [SETTING ...]]

Trains RECIPE (default: recipes/licenses) for about --run-minutes, with a checkpoint every
--minutes. The overhead is a share of the training time: it consists of the stops, and of the time
by which steps during a write exceed the median step. A SETTING is key=value and overrides the
recipe."""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402


def train(args, runs, steps):
    command = [args.weft, "train", args.recipe, "-n", str(args.n)]
    settings = [
        f"train.max_steps={steps}",
        "train.epochs=1000000",
        f"train.checkpoint_minutes={args.minutes}",
        "train.log_every=5",
        "train.checkpoint_every=0",
        "train.eval_every=0",
        "train.keep=1",
        f'run.dir="{runs}"',
        "run.name=run",
        *args.settings,
    ]
    for setting in settings:
        command += ["--set", setting]
    run = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=without_launchers(keep="WEFT_") | {"WEFT_LOG_LEVEL": "debug"},
    )
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    records = [json.loads(line) for line in open(pathlib.Path(runs) / "run/metrics.jsonl")]
    speeds = [record["samples_per_s"] for record in records if "samples_per_s" in record]
    batch = int(re.search(r"batch=(\d+)", run.stderr)[1])
    saves = [
        (int(folder), float(stall), float(whole))
        for folder, stall, whole in re.findall(
            r"step-(\d+)\S* .*?stall_ms=([\d.e+]+) .*?whole_ms=([\d.e+]+)", run.stderr
        )
    ]
    return [batch / speed for speed in speeds], saves


def slower_steps(seconds, first, whole_s, median):
    """Seconds by which the steps during a write exceed the median step."""
    lost = passed = 0.0
    for step in seconds[first:]:
        if passed >= whole_s:
            break
        passed += step
        lost += step - median
    return lost


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--weft", required=True)
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--run-minutes", type=float, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("recipe", nargs="?", default="recipes/licenses")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_intermixed_args()

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=pathlib.Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    with tempfile.TemporaryDirectory() as runs:
        warm = statistics.median(train(args, f"{runs}/first", 20)[0])
        seconds, saves = train(args, runs, max(20, round(60 * args.run_minutes / warm)))
    # The checkpoint at the end of the run delays no step, so it does not count.
    saves = [save for save in saves if save[0] < len(seconds)]
    if not saves:
        sys.exit("the run ended before its first checkpoint: give more --run-minutes")
    median = statistics.median(seconds)
    lost = [slower_steps(seconds, step, whole / 1e3, median) for step, _, whole in saves]
    total = sum(seconds) + sum(stall for _, stall, _ in saves) / 1e3
    overhead = (sum(stall for _, stall, _ in saves) / 1e3 + sum(lost)) / total
    out = open(os.devnull, "w") if args.quiet else sys.stdout
    print(
        f"{len(seconds)} steps of {1e3 * median:.1f} ms (median), {total:.0f} s, {len(saves)} "
        f"checkpoints",
        file=out,
    )
    for (step, stall, whole), slower in zip(saves, lost):
        print(
            f"step {step:6}: training stopped {stall:7.1f} ms, written after {whole:8.1f} ms, "
            f"steps meanwhile {1e3 * slower:+8.1f} ms",
            file=out,
        )
    print(f"overhead {100 * overhead:.2f} % of the run", file=out)
    if args.json:
        line = {
            "bench": "checkpoint_overhead",
            "params": {
                "ranks": args.n,
                "minutes": args.minutes,
                "recipe": pathlib.Path(args.recipe).name,
                "settings": args.settings,
            },
            "value": overhead,
            "unit": "of the run",
            "steps": len(seconds),
            "median_ms": 1e3 * median,
            "saves": [
                {"step": step, "stall_ms": stall, "whole_ms": whole, "slower_ms": 1e3 * slower}
                for (step, stall, whole), slower in zip(saves, lost)
            ],
            "commit": commit.strip(),
            "date": datetime.date.today().isoformat(),
        }
        with open(args.json, "a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
