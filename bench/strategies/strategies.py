#!/usr/bin/env python3
"""Trains recipes/fashion-mnist with each strategy (docs/strategies.md), and prints JSON lines.

    bench/strategies/strategies.py --weft build/release/bin/weft accuracy [--ranks 4] [--epochs 5]
    bench/strategies/strategies.py --weft build/release/bin/weft periods [--ranks 4]
    bench/strategies/strategies.py --weft build/release/bin/weft link [--rates "1gbit 100mbit"]
    bench/strategies/strategies.py --weft build/release/bin/weft slow [--ranks 4]

"accuracy": all strategies with the same samples, ranks and epochs. A line has the accuracy at the
end, the curve, and what a rank sends and shares in a step.

"periods": DOWNPOUR and elastic averaging with momentum (EAMSGD), both asynchronous, at periods of 1
to 64 steps, two epochs each. DOWNPOUR adds 1 / workers of each change, and, as in its paper, whole
changes (strategy.lr = workers).

"link": the time to an accuracy over links of given rates, with two ranks. It is the number of
steps to the accuracy, which does not depend on the link, times the mean duration of a step over the
link between two network namespaces. Needs root, ip and tc.

"slow": the time to an accuracy where the last rank computes four times slower: it sleeps after each
forward and backward. It is the number of steps to the accuracy times the mean duration of a step,
without evaluations."""

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
    # Two epochs have 39 exchanges: too few for a momentum of 0.9.
    "diloco": ["strategy.period=48", "strategy.momentum=0.5"],
    "easgd": ["strategy.period=8"],
    "gossip": ["strategy.period=1"],
    "downpour": ["strategy.period=1"],
    "easgd_async": ["strategy.period=8"],
    "ad_psgd": ["strategy.period=1"],
}
ON_ONE_HOST = {"downpour", "easgd_async", "ad_psgd"}
PERIODS = (1, 4, 16, 64)
# Of the case "slow": name in the table, strategy, settings.
WITH_A_SLOW_RANK = (
    ("sync", "sync", []),
    ("backup", "sync", ["strategy.backup=1"]),
    ("ssp", "downpour", ["strategy.staleness=8"]),
    ("downpour", "downpour", []),
    ("easgd_async", "easgd_async", ["strategy.period=8"]),
    ("ad_psgd", "ad_psgd", []),
)
SLOWDOWN = 4
BATCH = 64  # of the recipe
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


def train(args, strategy, settings, ranks, epochs, environment=None):
    """Trains on this host. Returns the result and the records of the run."""
    words = [name_of(strategy), *settings, f"train.epochs={epochs}", *NO_CHECKPOINTS]
    words += [f"train.eval_steps={args.eval_steps}", "run.name=run"]
    with trained(args.weft, RECIPE, ranks, words, environment) as (result, runs):
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
        for strategy, settings in (
            ("downpour", []),
            ("downpour", [f"strategy.lr={args.ranks}"]),
            ("easgd_async", []),
        ):
            settings = [f"strategy.period={period}", *settings]
            tell_accuracy(args, "periods", strategy, settings, 2)


def steps_in(records, target):
    """Steps to an accuracy; None: not reached."""
    return next((step for step, value in curve_of(records) if value >= target), None)


def steps_to(args, strategy):
    """Steps to the accuracy, with two ranks of this host."""
    _, records = train(args, strategy, STRATEGIES[strategy], 2, args.epochs)
    return steps_in(records, args.target)


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
    return 1e3 * statistics.mean(BATCH / step["samples_per_s"] for step in steps)


def link(args):
    strategies = [strategy for strategy in args.strategies if strategy not in ON_ONE_HOST]
    steps = {strategy: steps_to(args, strategy) for strategy in strategies}
    for rate in args.rates:
        try:
            shaped_link.join_namespaces(rate)
            for strategy in strategies:
                ms = step_ms(args, strategy)
                params = {"case": "link", "ranks": 2, "rate": rate, "target": args.target}
                params |= {"steps": steps[strategy], "step_ms": ms}
                value = None if steps[strategy] is None else steps[strategy] * ms / 1e3
                tell(strategy, STRATEGIES[strategy], params, value, "s")
        finally:
            shaped_link.remove_namespaces()


def slow(args):
    environment = {"WEFT_SLOW_RANK": f"{args.ranks - 1}:{SLOWDOWN}"}
    for rule, strategy, settings in WITH_A_SLOW_RANK:
        if strategy not in args.strategies:
            continue
        result, records = train(args, strategy, settings, args.ranks, args.epochs, environment)
        steps, ms = steps_in(records, args.target), 1e3 * BATCH / result["samples_per_s"]
        params = {"case": "slow", "rule": rule, "ranks": args.ranks, "slowdown": SLOWDOWN}
        params |= {"target": args.target, "steps": steps, "step_ms": ms}
        params |= {"accuracy": result["accuracy"], "curve": curve_of(records)}
        tell(strategy, settings, params, None if steps is None else steps * ms / 1e3, "s")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("case", choices=("accuracy", "periods", "link", "slow"))
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--strategies", default=" ".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=4, help="of accuracy and slow")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eval-steps", type=int, default=134)
    parser.add_argument("--rates", default="100mbit", help="of the links, as tc writes them")
    parser.add_argument("--steps", type=int, default=96, help="that are timed over the link")
    parser.add_argument("--target", type=float, default=0.90, help="accuracy, of link and slow")
    args = parser.parse_args()
    args.strategies, args.rates = args.strategies.split(), args.rates.split()
    if unknown := set(args.strategies) - set(STRATEGIES):
        parser.error(f"--strategies: there is no {', '.join(sorted(unknown))}")
    args.weft = str(pathlib.Path(args.weft).resolve())
    cases = {"accuracy": accuracy, "periods": periods, "link": link, "slow": slow}
    cases[args.case](args)


if __name__ == "__main__":
    main()
