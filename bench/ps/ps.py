#!/usr/bin/env python3
"""Measures updates (a push and a pull) per second of the parameter server, in interleaved rounds:
weft over shared memory and TCP, and torch.distributed.rpc (bench/README.md).

    ./dev bench ps
    ./dev bench ps --rounds 3 --seconds 2 --json

In a round, each participant runs once. The figure is the median over the rounds."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# impl: settings of weft_bench_ps.
WEFT = {
    "weft": ["transport=local", "servers=1"],
    "weft-2-servers": ["transport=local", "servers=2"],
    "weft-2-servers-backup": ["transport=local", "servers=2", "backup=1"],
    "weft-tcp": ["transport=tcp", "servers=1"],
    "weft-tcp-bf16": ["transport=tcp", "servers=1", "push=bf16", "pull=bf16"],
    "weft-tcp-int8": ["transport=tcp", "servers=1", "push=int8:64", "pull=bf16"],
}
# impl: arguments of torch_rpc.py.
TORCH = {"torch-rpc": [], "torch-rpc-tcp": ["--tcp"]}


def measure(words):
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"failed: {' '.join(words)}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if not answer["verified"]:
        sys.exit(f"wrong values: {' '.join(words)}")
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bench/ps", help="folder of weft_bench_ps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--parameters", type=int, default=235146)
    parser.add_argument("--only", help="names of participants, separated by commas")
    parser.add_argument("--json", action="store_true", help="one line for each participant")
    options = parser.parse_args()
    common = [f"parameters={options.parameters}", f"seconds={options.seconds}"]
    commands = {
        name: [str(pathlib.Path(options.bin) / "weft_bench_ps"), *words, *common]
        for name, words in WEFT.items()
    }
    for name, words in TORCH.items():
        commands[name] = [sys.executable, str(HERE / "torch_rpc.py"), *words]
        commands[name] += [f"--parameters={options.parameters}", f"--seconds={options.seconds}"]
    if options.only:
        commands = {name: commands[name] for name in options.only.split(",")}
    rates = {name: [] for name in commands}
    for number in range(options.rounds):
        names = list(commands)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates[name].append(measure(commands[name])["updates_per_s"])
    for name, values in rates.items():
        median = statistics.median(values)
        if options.json:
            line = {"impl": name, "op": "ps", "parameters": options.parameters}
            print(json.dumps({**line, "updates_per_s": median, "rounds": values}))
        else:
            print(f"{name:24} {median:10.0f} updates/s")


if __name__ == "__main__":
    main()
