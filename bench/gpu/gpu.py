#!/usr/bin/env python3
"""Measures weft on a CUDA device beside PyTorch. Prints JSON lines, then ratios.

    gpu.py --weft PATH_OF_weft_bench_gpu [--rounds 2] [--device cuda]

The cases:
    one     a GPT-2 in bf16, one rank: weft beside PyTorch without communication, with DDP over
            NCCL, and compiled
    two     the same GPT-2 with half the batch, two ranks that share the device: weft beside DDP
            over Gloo (NCCL refuses two ranks on a device)
    reduce  all-reduces of tensors on the device, two ranks, beside Gloo

Losses are compared before times: they must agree within 2 %."""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE_S = 240


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(command, ranks):
    """Runs one process for each rank. Returns the JSON lines of rank 0."""
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        names = dict(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=ranks)
        here = without_launchers(keep="WEFT_") | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        here |= {name: str(value) for name, value in names.items()}
        processes.append(subprocess.Popen(command, env=here, stdout=subprocess.PIPE, text=True))
    outputs = []
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise RuntimeError(f"{' '.join(command)} ended with {codes}")
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def close(losses, others):
    return all(abs(a - b) <= 0.02 * abs(a) for a, b in zip(losses, others, strict=True))


def show(case, results, base):
    """Prints the median times of each implementation, and the ratio of each to weft."""
    weft = statistics.median(results[base])
    for impl, times in results.items():
        median = statistics.median(times)
        print(
            f"{case:10} {impl:18} {median:9.3f} ms  ({min(times):.3f} to {max(times):.3f})"
            f"  {median / weft:6.3f} x weft"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="one,two,reduce")
    parser.add_argument("--no-compiled", action="store_true")
    parser.add_argument("arguments", nargs="*", help="of weft_bench_gpu, such as layers=2")
    given = parser.parse_args()
    python = [sys.executable, os.path.join(HERE, "gpt.py")]
    common = ["device=" + given.device, *given.arguments]
    on_gpu = given.device == "cuda"

    def weft(*more):
        return [given.weft, *common, *more]

    def torch(*more):
        return [*python, *common, *more]

    modes = ["alone", "ddp"] + ([] if given.no_compiled else ["compiled"])
    cases = {
        "one": (1, [weft("transport=nccl" if on_gpu else "transport=auto")]
                + [torch("mode=" + mode, "backend=" + ("nccl" if on_gpu else "gloo"))
                   for mode in modes]),
        "two": (2, [weft("batch=8"), torch("batch=8", "mode=ddp", "backend=gloo")]),
        "reduce": (2, [weft("what=reduce"), torch("what=reduce", "mode=ddp", "backend=gloo")]),
    }  # fmt: skip
    for case in given.only.split(","):
        ranks, commands = cases[case]
        results, losses = {}, {}
        for _ in range(given.rounds):
            for command in commands:
                for line in run(command, ranks):
                    print(json.dumps(dict(line, case=case)), flush=True)
                    name = f"{line['mib']} MiB" if "mib" in line else ""
                    results.setdefault(name, {}).setdefault(line["impl"], []).extend(line["ms"])
                    losses[line["impl"]] = line.get("losses", [])
        wrong = [impl for impl in losses if not close(losses["weft"], losses[impl])]
        if wrong:
            sys.exit(f"{case}: the losses of {wrong} and weft differ: {losses}")
        for name, result in results.items():
            show(f"{case} {name}".strip(), result, "weft")


if __name__ == "__main__":
    main()
