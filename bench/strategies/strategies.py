#!/usr/bin/env python3
"""Trains recipes/fashion-mnist with each strategy and each optimizer (docs/strategies.md,
docs/optimizers.md), and prints JSON lines.

    bench/strategies/strategies.py --weft build/release/bin/weft accuracy [--ranks 4] [--epochs 5]
    bench/strategies/strategies.py --weft build/release/bin/weft periods [--ranks 4] [--epochs 2]
    bench/strategies/strategies.py --weft build/release/bin/weft link [--rates "1gbit 100mbit"]
    bench/strategies/strategies.py --weft build/release/bin/weft slow [--ranks 4]
    bench/strategies/strategies.py --weft build/release/bin/weft codecs [--ranks 4] [--epochs 3]
    bench/strategies/strategies.py --weft build/release/bin/weft optimizers [--epochs 2]

"accuracy": all rules with the same samples, ranks and epochs. A line has the accuracy at the end,
the curve, and what a rank sends and shares in a step.

"periods": DOWNPOUR and elastic averaging without and with momentum (EASGD, EAMSGD), all
asynchronous, at periods of 1 to 64 steps. DOWNPOUR adds 1 / workers of each change, and, as in its
paper, whole changes (strategy.lr = workers).

"link": the time to an accuracy over links of given rates, with two ranks. It is the number of
steps to the accuracy, which does not depend on the link, times the mean duration of a step over the
link between two network namespaces. Needs root, ip and tc.

"slow": the time to an accuracy where the last rank computes four times slower: it sleeps after each
forward and backward. It is the number of steps to the accuracy times the mean duration of a step,
without evaluations.

"codecs": as "accuracy", rules with and without a codec of what they exchange.

"optimizers": each optimizer and Adasum, with the same samples.

--only takes names of rules or optimizers. A curve has at most 60 points: "curve" has steps and test
accuracy, "losses" the test loss at the same steps, "at_s" the time of training until then, without
evaluations."""

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

RING = "strategy.graph=ring"
# Of the case "accuracy": name in the table, strategy, settings.
RULES = (
    ("sync", "sync", []),
    ("backup workers", "sync", ["strategy.backup=1"]),
    ("local SGD", "local_sgd", ["strategy.period=16"]),
    # Its workers drift apart as far as those of EAMSGD with a period of 8.
    ("local SGD, long period", "local_sgd", ["strategy.period=32"]),
    ("post-local SGD", "local_sgd", ["strategy.period=16", "strategy.sync_steps=938"]),
    ("AdaComm", "local_sgd", ["strategy.period=16", "strategy.adapt_steps=469"]),
    ("slow momentum", "slow_momentum", ["strategy.period=16"]),
    # Five epochs have 98 exchanges: too few for a momentum of 0.9.
    ("DiLoCo", "diloco", ["strategy.period=48", "strategy.momentum=0.5"]),
    ("EAMSGD", "easgd", ["strategy.period=8"]),
    ("EAMSGD, short period", "easgd", ["strategy.period=2"]),
    ("D-PSGD", "gossip", [RING]),
    ("SGP", "gossip", ["strategy.graph=exponential"]),
    ("DOWNPOUR", "downpour", []),
    ("SSP", "downpour", ["strategy.staleness=8"]),
    # With momentum, the corrected gradient is the velocity, which is about ten times as large.
    ("DC-ASGD", "downpour", ["strategy.delay_compensation=0.0004"]),
    ("EAMSGD, asynchronous", "easgd_async", ["strategy.period=8"]),
    ("AD-PSGD", "ad_psgd", []),
)
PERIODS = (1, 4, 16, 64)
NO_MOMENTUM = ["optimizer.momentum=0", "optimizer.lr=0.2"]
# Of the case "slow", as above.
WITH_A_SLOW_RANK = (
    ("sync", "sync", []),
    ("backup", "sync", ["strategy.backup=1"]),
    ("ssp", "downpour", ["strategy.staleness=8"]),
    ("downpour", "downpour", []),
    ("easgd_async", "easgd_async", ["strategy.period=8"]),
    ("easgd_async, short period", "easgd_async", ["strategy.period=2"]),
    ("ad_psgd", "ad_psgd", []),
)
# Of the case "codecs".
WITH_CODECS = (
    ("D-PSGD", "gossip", [RING]),
    ("CHOCO-SGD, 8 bits", "gossip", [RING, "strategy.codec=int8:64"]),
    ("CHOCO-SGD, a tenth", "gossip", [RING, "strategy.codec=topk:0.1"]),
    ("CHOCO-SGD, signs", "gossip", [RING, "strategy.codec=sign:1024"]),
    ("local SGD", "local_sgd", ["strategy.period=16"]),
    ("local SGD, 8 bits", "local_sgd", ["strategy.period=16", "strategy.codec=int8:64"]),
    ("local SGD, a tenth", "local_sgd", ["strategy.period=16", "strategy.codec=topk:0.1"]),
)
# Of the case "link".
OVER_A_LINK = tuple(rule for rule in RULES if rule[0] in ("sync", "local SGD", "DiLoCo"))
# Optimizer: its settings beside the name. Weight decay is the recipe's unless the rule has its own.
OPTIMIZERS = {
    "sgd": [],
    "rmsprop": ["optimizer.lr=0.001", "optimizer.momentum=0"],
    "adagrad": ["optimizer.lr=0.02"],
    "adam": ["optimizer.lr=0.001", "optimizer.weight_decay=0"],
    "adamw": ["optimizer.lr=0.001", "optimizer.weight_decay=0.01"],
    "lion": ["optimizer.lr=0.0003", "optimizer.betas=[0.9,0.99]", "optimizer.weight_decay=0.1"],
    # Vectors take the rate as it is, so the trust is larger than for large batches.
    "lars": ["optimizer.lr=0.05", "optimizer.trust=0.02"],
    "lamb": [
        "optimizer.lr=0.005",
        "optimizer.eps=1e-6",
        "optimizer.weight_decay=0.01",
        "optimizer.decay_vectors=false",
    ],
    "adafactor": ["optimizer.lr=0.02", "optimizer.weight_decay=0"],
    "muon": [
        "optimizer.lr=0.02",
        "optimizer.momentum=0.95",
        "optimizer.betas=[0.9,0.95]",
        "optimizer.eps=1e-10",
        "optimizer.adam_lr=0.05",
        "optimizer.weight_decay=0.01",
    ],
}
SLOWDOWN = 4
BATCH = 64  # of the recipe
RECIPE = "fashion-mnist"
NO_CHECKPOINTS = ["train.checkpoint_every=0", "train.checkpoint_minutes=0"]
SKIP = 48  # steps at the start of a timed run that do not count; a multiple of the periods
POINTS = 60


def records_of(runs):
    return [json.loads(line) for line in open(f"{runs}/run/metrics.jsonl")]


def curve_of(records):
    return [(record["step"], record["accuracy"]) for record in records if "accuracy" in record]


def seconds_at(records, steps):
    """The time of training until each of the steps, which ascend. A record of training has the
    speed since the one before it."""
    trained_ = sorted(
        (record["step"], record["samples_per_s"])
        for record in records
        if record.get("samples_per_s")
    )
    found, seconds, last = [], 0.0, 0
    for step in steps:
        while trained_ and trained_[0][0] <= step:
            at, speed = trained_.pop(0)
            seconds += (at - last) * BATCH / speed
            last = at
        found.append(round(seconds, 2))
    return found


def curves_of(records):
    """What a line has of a run's course."""
    tests = [record for record in records if "accuracy" in record]
    every = -(-len(tests) // POINTS)
    tests = tests[::-1][::every][::-1]  # with the last one
    steps = [test["step"] for test in tests]
    return {
        "curve": [(test["step"], round(test["accuracy"], 4)) for test in tests],
        "losses": [test["test_loss"] and round(test["test_loss"], 4) for test in tests],
        "at_s": seconds_at(records, steps),
    }


def mean_of(records, key):
    values = [record[key] for record in records if key in record]
    return statistics.mean(values) if values else None


def name_of(strategy):
    return f'strategy.name="{strategy}"'


def train(args, settings, ranks, epochs, environment=None):
    """Trains on this host. Returns the result and the records of the run."""
    words = [*settings, f"train.epochs={epochs}", *NO_CHECKPOINTS]
    words += [f"train.eval_steps={args.eval_steps}", "run.name=run"]
    with trained(args.weft, RECIPE, ranks, words, environment) as (result, runs):
        return result, records_of(runs)


def tell(params, value, unit):
    line = {"bench": "strategies", "params": params, "value": value, "unit": unit, "runs": 1}
    print(json.dumps(line), flush=True)


def tell_accuracy(args, case, rule, strategy, settings, more=()):
    words = [name_of(strategy), *settings, *more]
    result, records = train(args, words, args.ranks, args.epochs)
    params = {"case": case, "rule": rule, "strategy": strategy, "settings": settings}
    params |= {"ranks": args.ranks, "epochs": result["epochs"], "seconds": result["seconds"]}
    params |= {key: mean_of(records, key) for key in ("sent_mb", "shared_mb", "staleness")}
    tell(params | curves_of(records), result["accuracy"], "accuracy")


def accuracy(args):
    for rule in wanted(args, RULES):
        tell_accuracy(args, "accuracy", *rule)


def codecs(args):
    for rule in wanted(args, WITH_CODECS):
        tell_accuracy(args, "codecs", *rule)


def periods(args):
    whole = f"strategy.lr={args.ranks}"
    rules = (
        ("EAMSGD", "easgd_async", []),
        ("EASGD", "easgd_async", NO_MOMENTUM),
        ("DOWNPOUR", "downpour", [whole, *NO_MOMENTUM]),
        ("DOWNPOUR with momentum", "downpour", [whole]),
        ("DOWNPOUR of weft", "downpour", []),
    )
    for period in PERIODS:
        for rule, strategy, settings in wanted(args, rules):
            settings = [f"strategy.period={period}", *settings]
            # A rule that diverges stays in the table: it ends with the accuracy of a guess.
            tell_accuracy(args, "periods", rule, strategy, settings, ["train.max_not_finite=0"])


def optimizers(args):
    for name, settings in OPTIMIZERS.items():
        if args.only and name not in args.only:
            continue
        tell_optimizer(args, name, name, settings)
    if not args.only or "adasum" in args.only:
        tell_optimizer(args, "sgd with Adasum", "sgd", ['parallel.reduce="adasum"'])


def tell_optimizer(args, name, optimizer, settings):
    words = [f'optimizer.name="{optimizer}"', *settings]
    result, records = train(args, words, args.ranks, args.epochs)
    params = {"case": "optimizers", "rule": name, "settings": settings, "ranks": args.ranks}
    params |= {"epochs": result["epochs"], "seconds": result["seconds"]}
    params |= {"samples_per_s": result["samples_per_s"], "loss": result["loss"]}
    tell(params | curves_of(records), result["accuracy"], "accuracy")


def wanted(args, rules):
    return [rule for rule in rules if not args.only or rule[0] in args.only]


def steps_in(records, target):
    """Steps to an accuracy; None: not reached."""
    return next((step for step, value in curve_of(records) if value >= target), None)


def step_ms(args, strategy, settings):
    """Mean time of a step over the link."""
    words = [name_of(strategy), *settings, *NO_CHECKPOINTS]
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
    rules, of_host = wanted(args, OVER_A_LINK), {}
    for rule, strategy, settings in rules:  # steps do not depend on the link
        of_host[rule] = train(args, [name_of(strategy), *settings], 2, args.epochs)[1]
    for rate in args.rates.split():
        try:
            shaped_link.join_namespaces(rate)
            for rule, strategy, settings in rules:
                steps = steps_in(of_host[rule], args.target)
                ms = step_ms(args, strategy, settings)
                params = {"case": "link", "rule": rule, "strategy": strategy}
                params |= {"settings": settings, "ranks": 2, "rate": rate}
                params |= {"target": args.target, "steps": steps, "step_ms": ms}
                tell(params, None if steps is None else steps * ms / 1e3, "s")
        finally:
            shaped_link.remove_namespaces()


def slow(args):
    environment = {"WEFT_SLOW_RANK": f"{args.ranks - 1}:{SLOWDOWN}"}
    for rule, strategy, settings in wanted(args, WITH_A_SLOW_RANK):
        words = [name_of(strategy), *settings]
        result, records = train(args, words, args.ranks, args.epochs, environment)
        steps, ms = steps_in(records, args.target), 1e3 * BATCH / result["samples_per_s"]
        params = {"case": "slow", "rule": rule, "strategy": strategy, "settings": settings}
        params |= {"ranks": args.ranks, "slowdown": SLOWDOWN}
        params |= {"target": args.target, "steps": steps, "step_ms": ms}
        params |= {"accuracy": result["accuracy"], **curves_of(records)}
        tell(params, None if steps is None else steps * ms / 1e3, "s")


CASES = {
    "accuracy": accuracy,
    "codecs": codecs,
    "periods": periods,
    "link": link,
    "slow": slow,
    "optimizers": optimizers,
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--ranks", type=int, default=4, help="of all cases but link")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eval-steps", type=int, default=234)
    parser.add_argument("--rates", default="1gbit 100mbit", help="of the links, as tc writes them")
    parser.add_argument("--steps", type=int, default=96, help="that are timed over the link")
    parser.add_argument("--target", type=float, default=0.90, help="accuracy, of link and slow")
    args = parser.parse_args()
    known = {rule for rules in (RULES, WITH_CODECS, WITH_A_SLOW_RANK) for rule, *_ in rules}
    known |= {*OPTIMIZERS, "adasum", "EASGD", "DOWNPOUR with momentum", "DOWNPOUR of weft"}
    if unknown := sorted(set(args.only) - known):
        parser.error(f"--only: there is no {unknown[0]}; there are {', '.join(sorted(known))}")
    args.weft = str(pathlib.Path(args.weft).resolve())
    CASES[args.case](args)


if __name__ == "__main__":
    main()
