#!/usr/bin/env python3
"""Measures what readiness for faults costs while none happens: copies of the state, heartbeats, and
a comparison of the weights every 100 steps.

    bench/recovery/cost.py [--weft build/release/bin/weft] [-n 2] [--rounds 5] [--steps 300]

Each round trains each recipe with the copies and without, in turn. A step's time is the mean over
all steps of a run but the first fifty, so that it contains the copies. Prints one JSON line a
recipe and form; the last one of a recipe has the median of the rounds' ratios."""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The recipe of a model, and so many times --steps.
RECIPES = {
    "cnn": ("fashion-mnist", 8),
    "resnet18": ("fashion-mnist-resnet18", 1),
    "gpt-128": ("licenses", 1),
}
READY = ["--max-replacements", "1", "--set", "train.verify_steps=100"]
LOG_EVERY, WARM = 10, 50


def step_ms(weft, recipe, ranks, steps, more):
    """The mean time of a step."""
    with tempfile.TemporaryDirectory(prefix="weft-cost-") as runs:
        settings = ["train.epochs=1000", f"train.max_steps={steps}", f"train.log_every={LOG_EVERY}"]
        settings += ["train.eval_every=0", "train.checkpoint_every=0", f'run.dir="{runs}"']
        command = [weft, "train", recipe, "-n", str(ranks), "--name", "run"]
        command += [word for one in settings for word in ("--set", one)] + more
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}: {ran.stderr.strip().splitlines()[-1]}")
        lines = (pathlib.Path(runs) / "run/metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if "samples_per_s" in record]
    warm = [record for record in records if record["step"] > WARM]
    batch = int(re.search(r"batch=(\d+)", ran.stderr)[1])
    return 1e3 * batch * statistics.mean(1 / record["samples_per_s"] for record in warm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default=str(ROOT / "build/release/bin/weft"))
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    for model, (recipe, times_steps) in RECIPES.items():
        steps = times_steps * options.steps
        times = {"plain": [], "ready": []}
        for round_ in range(options.rounds):
            forms = [("plain", []), ("ready", READY)]
            for form, more in forms if round_ % 2 == 0 else reversed(forms):
                times[form].append(step_ms(options.weft, recipe, options.n, steps, more))
        for form, values in times.items():
            line = {"bench": "recovery-cost", "params": {"model": model, "ranks": options.n}}
            line["params"]["form"] = form
            line |= {"value": statistics.median(values), "unit": "ms", "rounds": values}
            print(json.dumps(line), flush=True)
        ratios = [ready / plain for plain, ready in zip(times["plain"], times["ready"])]
        line = {"bench": "recovery-cost", "params": {"model": model, "ranks": options.n}}
        line["params"] |= {"measured": "ready / plain"}
        line |= {"value": statistics.median(ratios), "unit": "times", "rounds": ratios}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
