#!/usr/bin/env python3
"""Checks that a step with codec = "auto" takes at most 5 % longer than with "none".

Runs both in turn over each link: in shared memory on one host, over TCP on loopback, and over a
veth pair shaped to a rate (needs root, ip and tc). Prints one JSON line for each link and recipe:
the ratio of the median steps of a round, as the median over the rounds, and the codec that auto
chose. Exits with 1 if a ratio is above --most.

    bench/compression/auto_cost.py --rounds 5 > bench/results/auto-cost.jsonl
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import shaped_link


def steps_on_host(args, codec, transport):
    """Seconds of each step of two ranks on this host, and the log, which has auto's decision."""
    with tempfile.TemporaryDirectory() as runs:
        command = [
            args.weft,
            "train",
            args.recipe,
            "-n",
            "2",
            "--set",
            f"comm.transport={transport}",
            *shaped_link.settings(args, codec, runs),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
        if result.returncode != 0:
            sys.exit(f"{codec}: {result.stderr.strip()[-2000:]}")
        return shaped_link.read_steps(args, runs)[0], result.stderr


def steps_of(args, link, codec):
    if link in ("host", "loopback"):
        return steps_on_host(args, codec, "auto" if link == "host" else "tcp")
    steps, _, log = shaped_link.weft_steps(args, codec)
    return steps, log


def decision(log):
    """The last codec that auto chose; "none" if there is no decision, as for ranks of one host."""
    found = re.findall(r"codec = auto: ([^ ]+): ", log)
    return found[-1] if found else "none"


def compare(args, link):
    """Measures rounds of none and auto; each round begins with the other one."""
    ratios, decisions, medians = [], [], {"none": [], "auto": []}
    for number in range(args.rounds):
        times = {}
        for codec in ("none", "auto") if number % 2 == 0 else ("auto", "none"):
            steps, log = steps_of(args, link, codec)
            times[codec] = statistics.median(steps)
            medians[codec].append(1e3 * times[codec])
            if codec == "auto":
                decisions.append(decision(log))
        ratios.append(times["auto"] / times["none"])
    params = {
        "link": link,
        "recipe": args.recipe,
        "batch": args.batch,
        "ranks": 2,
        "decided": decisions,
        "none_ms": round(statistics.median(medians["none"]), 1),
        "auto_ms": round(statistics.median(medians["auto"]), 1),
    }
    return {
        "bench": "auto_cost",
        "params": params,
        "value": round(statistics.median(ratios), 3),
        "unit": "times none's step",
        "runs": args.rounds,
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--recipes", default="fashion-mnist fashion-mnist-resnet18")
    parser.add_argument(
        "--links",
        default="host loopback 1gbit",
        help="host: shared memory; loopback: TCP; else a rate as tc writes it",
    )
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--skip", type=int, default=30, help="steps at the start, in which auto tries"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=float, default=1.05)
    parser.add_argument("--timeout", type=float, default=300)
    args = parser.parse_args()
    args.weft = str(pathlib.Path(args.weft).resolve())
    worst = 0.0
    for link in args.links.split():
        shaped = link not in ("host", "loopback")
        try:
            if shaped:
                shaped_link.join_namespaces(link)
            for args.recipe in args.recipes.split():
                result = compare(args, link)
                worst = max(worst, result["value"])
                print(json.dumps(result), flush=True)
        finally:
            if shaped:
                shaped_link.remove_namespaces()
    sys.exit(
        f"auto takes up to {worst} times none's step, more than {args.most}"
        if worst > args.most
        else 0
    )


if __name__ == "__main__":
    main()
