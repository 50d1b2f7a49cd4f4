#!/usr/bin/env python3
"""Trains a recipe at several numbers of ranks and prints the accuracy of each as a JSON line.

bench/accuracy.py --weft build/release/bin/weft [--ranks 1,2,4] [RECIPE]
"""

import argparse
import json
import subprocess
import sys
import tempfile


def train(args, ranks):
    with tempfile.TemporaryDirectory() as runs:
        command = [
            args.weft,
            "train",
            args.recipe,
            "-n",
            str(ranks),
            "--json",
            "--set",
            f'run.dir="{runs}"',
        ]
        ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ran.stderr.strip().splitlines()[-1]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("recipe", nargs="?", default="fashion-mnist")
    args = parser.parse_args()
    for ranks in map(int, args.ranks.split(",")):
        result = train(args, ranks)
        params = {
            "recipe": args.recipe,
            "ranks": ranks,
            "epochs": result["epochs"],
            "loss": result["loss"],
        }
        line = {
            "bench": "accuracy",
            "params": params,
            "value": result["accuracy"],
            "unit": "accuracy",
            "runs": 1,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
