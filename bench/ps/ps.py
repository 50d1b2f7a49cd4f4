#!/usr/bin/env python3
"""Measures the parameter server beside torch.distributed.rpc, in interleaved rounds: weft over
shared memory and TCP (bench/README.md).

    ./dev bench ps
    ./dev bench ps --rounds 3 --seconds 2 --json

"update": pushes and pulls of the parameters of an MLP, as updates a second of two workers. "pull",
"push": rows of 64 floats of an embedding table, as rows a second. In a round, each participant runs
once, and its values are verified. A figure is the median over the rounds, a ratio the median of the
ratios in each round. The first participant changes from round to round."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
OPS = {"update": "updates/s", "pull": "rows pulled/s", "push": "rows pushed/s"}
# Participant: settings of weft_bench_ps or weft_bench_ps_rows.
DENSE = {
    "weft": ["transport=local", "servers=1"],
    "weft-2-servers": ["transport=local", "servers=2"],
    "weft-2-servers-backup": ["transport=local", "servers=2", "backup=1"],
    "weft-tcp": ["transport=tcp", "servers=1"],
    "weft-tcp-bf16": ["transport=tcp", "servers=1", "push=bf16", "pull=bf16"],
    "weft-tcp-int8": ["transport=tcp", "servers=1", "push=int8:64", "pull=bf16"],
}
WITH_ROWS = ("weft", "weft-2-servers", "weft-2-servers-backup", "weft-tcp")
ROWS = {name: DENSE[name] for name in WITH_ROWS}
# Participant: arguments of torch_rpc.py.
TORCH = {"torch-rpc": [], "torch-rpc-tcp": ["--tcp"]}


def commands_of(options):
    """The command of each operation and participant."""
    numbers = {"rows": options.rows, "floats": 64, "batch": options.batch}
    commands = {}
    for op in options.ops.split(","):
        size = {"parameters": options.parameters} if op == "update" else numbers
        words = [f"{name}={value}" for name, value in size.items()]
        words.append(f"seconds={options.seconds}")
        program = "weft_bench_ps" if op == "update" else "weft_bench_ps_rows"
        for name, settings in (DENSE if op == "update" else ROWS).items():
            command = [str(pathlib.Path(options.bin) / program), *settings, *words]
            commands[op, name] = command if op == "update" else [*command, f"op={op}"]
        for name, arguments in TORCH.items():
            command = [sys.executable, str(HERE / "torch_rpc.py"), f"--op={op}", *arguments]
            commands[op, name] = command + [f"--{word}" for word in words]
    if options.only:
        kept = options.only.split(",")
        commands = {key: words for key, words in commands.items() if key[1] in kept}
    return commands


def measure(words):
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"failed: {' '.join(words)}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if not answer["verified"]:
        sys.exit(f"wrong values: {' '.join(words)}")
    return answer["per_second"]


def peer_of(name):
    """The peer over the same transport."""
    return "torch-rpc-tcp" if name.startswith("weft-tcp") else "torch-rpc"


def lines_of(options, rates):
    """JSON lines of the rates, and of the ratios to the peer."""
    for (op, name), values in rates.items():
        params = {"op": op, "impl": name, "workers": 2}
        if op == "update":
            params["parameters"] = options.parameters
        else:
            params |= {"rows": options.rows, "floats": 64, "batch": options.batch}
        line = {"bench": "ps", "params": params, "unit": OPS[op], "runs": len(values)}
        yield {**line, "value": statistics.median(values), "rounds": values}
        peer = rates.get((op, peer_of(name)))
        if not name.startswith("weft") or not peer:
            continue
        ratios = [own / other for own, other in zip(values, peer)]
        against = {**line, "params": {**params, "against": peer_of(name)}, "unit": "times faster"}
        yield {**against, "value": statistics.median(ratios), "rounds": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bench/ps", help="folder of weft_bench_ps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--ops", default=",".join(OPS), help="update, pull, push")
    parser.add_argument("--parameters", type=int, default=235146)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=4096, help="rows of a call")
    parser.add_argument("--only", help="names of participants, separated by commas")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    options = parser.parse_args()
    if unknown := [op for op in options.ops.split(",") if op not in OPS]:
        parser.error(f"no operation '{unknown[0]}'; there are {', '.join(OPS)}")
    commands = commands_of(options)
    rates = {key: [] for key in commands}
    for number in range(options.rounds):
        keys = list(commands)
        for key in keys[number % len(keys) :] + keys[: number % len(keys)]:
            rates[key].append(measure(commands[key]))
    lines = list(lines_of(options, rates))
    if options.json:
        for line in lines:
            print(json.dumps(line))
        return
    ratios = {
        (line["params"]["op"], line["params"]["impl"]): line["value"]
        for line in lines
        if line["unit"] == "times faster"
    }
    for (op, name), values in rates.items():
        ratio = f"{ratios[op, name]:6.2f}x {peer_of(name)}" if (op, name) in ratios else ""
        print(f"{name:24} {statistics.median(values):12.0f} {OPS[op]:14} {ratio}".rstrip())


if __name__ == "__main__":
    main()
