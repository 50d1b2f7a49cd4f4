#!/usr/bin/env python3
"""Computes the training time to an accuracy over a link: the number of steps to the accuracy, which
does not depend on the link, times the duration of a step over that link.

    C="powersgd:4 int8:64 topk:0.01"
    # Count the steps: train with two ranks on this host.
    bench/compression/time_to_accuracy.py --codecs "none $C" > steps.jsonl
    # Time the steps at 1 Gbit/s.
    bench/compression/shaped_link.py --impls "none pytorch-ddp $C" > link.jsonl
    bench/compression/time_to_accuracy.py --table steps.jsonl link.jsonl

All codecs train the recipe with SETTINGS below. The test set is evaluated every --eval-steps.
PyTorch's DDP computes the same gradients as "none", so the table uses the steps of "none" for
it."""

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from train_recipe import trained  # noqa: E402

SETTINGS = ["train.epochs=5"]


def evaluations(path):
    """(step, accuracy) of each evaluation, in order."""
    records = [json.loads(line) for line in open(path)]
    return [(record["step"], record["accuracy"]) for record in records if "accuracy" in record]


def train(args, codec):
    settings = [
        "comm.transport=tcp",
        f'parallel.codec="{codec}"',
        f"train.seed={args.seed}",
        f"train.eval_steps={args.eval_steps}",
        "train.checkpoint_every=0",
        "train.checkpoint_minutes=0",
        "run.name=run",
        *SETTINGS,
    ]
    with trained(args.weft, args.recipe, 2, settings) as (_, runs):
        return evaluations(f"{runs}/run/metrics.jsonl")


def steps_to(args, codec):
    seen = train(args, codec)
    reached = [step for step, accuracy in seen if accuracy >= args.target]
    params = {
        "codec": codec,
        "recipe": args.recipe,
        "settings": SETTINGS,
        "ranks": 2,
        "seed": args.seed,
        "target": args.target,
        "eval_steps": args.eval_steps,
        "evaluations": seen,
    }
    return {
        "bench": "steps_to_accuracy",
        "params": params,
        "value": reached[0] if reached else None,
        "unit": "steps",
        "runs": 1,
    }


def medians(lines, bench, key):
    """{codec or participant: median of its values}, without those that have no value."""
    values = {}
    for line in lines:
        if line["bench"] == bench and line["value"] is not None:
            values.setdefault(line["params"][key], []).append(line["value"])
    return {name: statistics.median(of_name) for name, of_name in values.items()}


def table(steps_file, link_file):
    link = [json.loads(line) for line in open(link_file)]
    steps = medians([json.loads(line) for line in open(steps_file)], "steps_to_accuracy", "codec")
    times = medians(link, "shaped_link", "impl")
    if "none" not in steps or "pytorch-ddp" not in times:
        sys.exit("the table needs the steps of none and the times of pytorch-ddp")
    steps["pytorch-ddp"] = steps["none"]
    rate = next(line["params"]["rate"] for line in link if line["bench"] == "shaped_link")
    seconds = {impl: steps[impl] * times[impl] / 1e3 for impl in times if impl in steps}
    print(
        f"| {rate} | steps | ms a step | seconds | against PyTorch DDP |\n| --- | --- | --- | --- "
        f"| --- |"
    )
    for impl, of_impl in sorted(seconds.items(), key=lambda item: item[1]):
        print(
            f"| `{impl}` | {steps[impl]:.0f} | {times[impl]:.1f} | {of_impl:.0f} | "
            f"{seconds['pytorch-ddp'] / of_impl:.2f} times faster |"
        )
    for impl in sorted(set(times) - set(steps)):
        print(f"| `{impl}` | not reached | {times[impl]:.1f} | | |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--recipe", default="fashion-mnist-resnet18")
    parser.add_argument("--codecs", default="none powersgd:4 int8:64 topk:0.01")
    parser.add_argument("--target", type=float, default=0.90)
    parser.add_argument(
        "--eval-steps",
        type=int,
        default=134,
        help="between looks at the test set; a seventh of an epoch",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--table",
        nargs=2,
        metavar=("STEPS", "LINK"),
        help="print the table of these results instead of training",
    )
    args = parser.parse_args()
    if args.table:
        return table(*args.table)
    for codec in args.codecs.split():
        print(json.dumps(steps_to(args, codec)), flush=True)


if __name__ == "__main__":
    main()
