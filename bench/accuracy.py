#!/usr/bin/env python3
"""Trains a recipe on several world sizes, and prints the accuracy of each as a JSON line.

    bench/accuracy.py --weft build/release/bin/weft [--ranks 1,2,4] [RECIPE]

The settings of the recipe are not changed."""

import argparse
import json

from train_recipe import trained


def line_of(recipe, ranks, result):
    params = {
        "recipe": recipe,
        "ranks": ranks,
        "epochs": result["epochs"],
        "loss": result["loss"],
    }
    value = result["accuracy"]
    return {"bench": "accuracy", "params": params, "value": value, "unit": "accuracy", "runs": 1}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("recipe", nargs="?", default="fashion-mnist")
    args = parser.parse_args()
    for ranks in map(int, args.ranks.split(",")):
        with trained(args.weft, args.recipe, ranks) as (result, _):
            line = line_of(args.recipe, ranks, result)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
