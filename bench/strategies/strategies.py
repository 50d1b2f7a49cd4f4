#!/usr/bin/env python3
"""Trains recipes/fashion-mnist with each strategy (docs/strategies.md), and prints JSON lines.

    bench/strategies/strategies.py --weft build/release/bin/weft accuracy [--ranks 4] [--epochs 5]
    bench/strategies/strategies.py --weft build/release/bin/weft periods [--ranks 4]
    bench/strategies/strategies.py --weft build/release/bin/weft link [--rate 100mbit]

"accuracy": all strategies with the same samples, ranks and epochs. A line has the accuracy at the
end, the curve, and what a rank sends and shares in a step.

"periods": DOWNPOUR and elastic averaging with momentum (EAMSGD), both asynchronous, at periods of 1
to 64 steps, two epochs each.

"link": the time to an accuracy over a link of a given rate, with two ranks. It is the number of
steps to the accuracy, which does not depend on the link, times the mean duration of a step over the
link between two network namespaces. Needs root, ip and tc."""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent / "compression"))
import shaped_link  # noqa: E402
from train_recipe import trained  # noqa: E402

# Strategy: its settings beside the name.
STRATEGIES = {
    "sync": [],
    "local_sgd": ["strategy.period=16"],
    "slow_momentum": ["strategy.period=16"],
    "diloco": ["strategy.period=48"],
    "easgd": ["strategy.period=8"],
    "gossip": ["strategy.period=1"],
    "downpour": ["strategy.period=1"],
    "easgd_async": ["strategy.period=8"],
}
ON_ONE_HOST = {"downpour", "easgd_async"}
PERIODS = (1, 4, 16, 64)
RECIPE = "fashion-mnist"
NO_CHECKPOINTS = ["train.checkpoint_every=0", "train.checkpoint_minutes=0"]
SKIP = 48  # steps at the start of a timed run that do not count; a multiple of the periods


def records_of(runs):
    return [json.loads(line) for line in open(f"{runs}/run/metrics.jsonl")]


def curve_of(records):
    return [(record["step"], record["accuracy"]) for record in records if "accuracy" in record]


def mean_of(records, key):
    values = [record[key] for record in records if key in record]
    return statistics.mean(values) if values else None


def name_of(strategy):
    return f'strategy.name="{strategy}"'


def train(args, strategy, settings, ranks, epochs):
    """Trains on this host. Returns the result and the records of the run."""
    words = [name_of(strategy), *settings, f"train.epochs={epochs}", *NO_CHECKPOINTS]
    words += [f"train.eval_steps={args.eval_steps}", "run.name=run"]
    with trained(args.weft, RECIPE, ranks, words) as (result, runs):
        return result, records_of(runs)


def tell(strategy, settings, params, value, unit):
    params = {"strategy": strategy, "settings": settings, **params}
    line = {"bench": "strategies", "params": params, "value": value, "unit": unit, "runs": 1}
    print(json.dumps(line), flush=True)


def tell_accuracy(args, case, strategy, settings, epochs):
    result, records = train(args, strategy, settings, args.ranks, epochs)
    params = {"case": case, "ranks": args.ranks, "epochs": result["epochs"]}
    params |= {"curve": curve_of(records), "seconds": result["seconds"]}
    params |= {key: mean_of(records, key) for key in ("sent_mb", "shared_mb")}
    tell(strategy, settings, params, result["accuracy"], "accuracy")


def accuracy(args):
    for strategy in args.strategies:
        tell_accuracy(args, "accuracy", strategy, STRATEGIES[strategy], args.epochs)


def periods(args):
    for period in PERIODS:
        for strategy in ("downpour", "easgd_async"):
            tell_accuracy(args, "periods", strategy, [f"strategy.period={period}"], 2)


def steps_to(args, strategy):
    """Steps to the accuracy, with two ranks of this host; None: not reached."""
    _, records = train(args, strategy, STRATEGIES[strategy], 2, args.epochs)
    return next((step for step, value in curve_of(records) if value >= args.target), None)


def step_ms(args, strategy):
    """Mean time of a step over the link."""
    words = [name_of(strategy), *STRATEGIES[strategy], *NO_CHECKPOINTS]
    words += [f"train.max_steps={SKIP + args.steps}", "train.eval_every=0", "train.log_every=100"]
    words += ["comm.transport=tcp", "run.name=run"]
    with tempfile.TemporaryDirectory() as runs:
        words.append(f'run.dir="{runs}"')
        commands = []
        for address in shaped_link.ADDRESSES:
            of_rank = [*words, f'comm.interface="{address}"']
            settings = [part for word in of_rank for part in ("--set", word)]
            commands.append([args.weft, "train", RECIPE, *settings])
        shaped_link.start(commands, timeout=300)
        steps = [record for record in records_of(runs) if "samples_per_s" in record][SKIP:]
    return 1e3 * statistics.mean(64 / step["samples_per_s"] for step in steps)


def link(args):
    try:
        shaped_link.join_namespaces(args.rate)
        for strategy in args.strategies:
            if strategy in ON_ONE_HOST:
                continue
            steps, ms = steps_to(args, strategy), step_ms(args, strategy)
            params = {"case": "link", "ranks": 2, "rate": args.rate, "target": args.target}
            params |= {"steps": steps, "step_ms": ms}
            value = None if steps is None else steps * ms / 1e3
            tell(strategy, STRATEGIES[strategy], params, value, "s")
    finally:
        shaped_link.remove_namespaces()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("case", choices=("accuracy", "periods", "link"))
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--strategies", default=" ".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=4, help="of accuracy")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eval-steps", type=int, default=134)
    parser.add_argument("--rate", default="100mbit", help="of the link, as tc writes it")
    parser.add_argument("--steps", type=int, default=96, help="that are timed over the link")
    parser.add_argument("--target", type=float, default=0.90, help="accuracy, of link")
    args = parser.parse_args()
    args.strategies = args.strategies.split()
    if unknown := set(args.strategies) - set(STRATEGIES):
        parser.error(f"--strategies: there is no {', '.join(sorted(unknown))}")
    args.weft = str(pathlib.Path(args.weft).resolve())
    {"accuracy": accuracy, "periods": periods, "link": link}[args.case](args)


if __name__ == "__main__":
    main()
