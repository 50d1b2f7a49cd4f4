#!/usr/bin/env python3
"""Trains a recipe with each codec on two ranks over TCP, and compares the accuracy.

    bench/compression/convergence.py --weft build/release/bin/weft --seeds 1,2 > accuracy.jsonl
    bench/compression/convergence.py --table accuracy.jsonl

The first command trains and prints JSON lines. The second one prints the table of these lines."""

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from train_recipe import trained  # noqa: E402

CODECS = [
    "none",
    "bf16",
    "f16",
    "int8:64",
    "int8:64,stochastic",
    "int8:64,delta",
    "int4:64",
    "sign:1024",
    "topk:0.01",
    "randomk:0.1",
    "threshold:0.001",
    "powersgd:4",
]


def train(args, codec, seed):
    settings = [
        "comm.transport=tcp",
        f'parallel.codec="{codec}"',
        f"train.epochs={args.epochs}",
        f"train.seed={seed}",
        "train.checkpoint_every=0",
        "train.checkpoint_minutes=0",
        "train.eval_every=0",
    ]
    with trained(args.weft, args.recipe, args.ranks, settings) as (result, _):
        return result


def measure(args):
    for seed in args.seeds.split(","):
        for codec in args.codecs.split(" ") if args.codecs else CODECS:
            result = train(args, codec, int(seed))
            params = {
                "codec": codec,
                "recipe": args.recipe,
                "ranks": args.ranks,
                "epochs": args.epochs,
                "seed": int(seed),
                "loss": result["loss"],
                "seconds": result["seconds"],
            }
            print(
                json.dumps(
                    {
                        "bench": "convergence",
                        "params": params,
                        "value": result["accuracy"],
                        "unit": "accuracy",
                        "runs": 1,
                    }
                ),
                flush=True,
            )


def table(path, recipe, epochs):
    runs = {}
    for line in open(path):
        run = json.loads(line)
        if run["bench"] == "convergence" and (run["params"]["recipe"], run["params"]["epochs"]) == (
            recipe,
            epochs,
        ):
            runs.setdefault(run["params"]["codec"], []).append(run)
    plain = statistics.mean(run["value"] for run in runs["none"])
    print("| codec | accuracy | against none, points | test loss |\n| --- | --- | --- | --- |")
    for codec, of_codec in runs.items():
        mean = statistics.mean(run["value"] for run in of_codec)
        loss = statistics.mean(run["params"]["loss"] for run in of_codec)
        print(f"| `{codec}` | {100 * mean:.2f} % | {100 * (mean - plain):+.2f} | {loss:.3f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--recipe", default="fashion-mnist")
    parser.add_argument("--codecs", help="separated by blanks; default: one of each kind")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="1")
    parser.add_argument(
        "--table", metavar="FILE", help="print the table of these results instead of training"
    )
    args = parser.parse_args()
    table(args.table, args.recipe, args.epochs) if args.table else measure(args)


if __name__ == "__main__":
    main()
