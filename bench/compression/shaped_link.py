#!/usr/bin/env python3
"""Measures training steps of ResNet-18 (7x7 stem) on two ranks over a link of a given rate: weft
with each codec, and PyTorch's DistributedDataParallel over Gloo, in turn.

The ranks are in two network namespaces, joined by a veth pair shaped to the rate. Prints one JSON
line for each measurement. Needs root, ip and tc.

    bench/compression/shaped_link.py --impls "none pytorch-ddp powersgd:4" --rounds 2 > link.jsonl
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NAMES = [f"weft-codecs-{os.getpid()}-{host}" for host in "ab"]
DEVICES = [f"wc{os.getpid()}-{host}" for host in "ab"]
ADDRESSES, PORT = ["10.213.0.1", "10.213.0.2"], 29871
PHASES = ["data", "forward", "backward", "communication", "optimizer"]


def run(command):
    subprocess.run(command, shell=True, check=True)


def join_namespaces(rate):
    for name in NAMES:
        run(f"ip netns add {name}")
    run(
        f"ip link add {DEVICES[0]} netns {NAMES[0]} type veth peer name {DEVICES[1]} netns "
        f"{NAMES[1]}"
    )
    for name, address, device in zip(NAMES, ADDRESSES, DEVICES):
        run(f"ip -n {name} addr add {address}/24 dev {device}")
        run(f"ip -n {name} link set lo up")
        run(f"ip -n {name} link set {device} up")
        if rate:
            run(
                f"tc -n {name} qdisc add dev {device} root tbf rate {rate} burst 256kb latency "
                f"100ms"
            )


def remove_namespaces():
    for name in NAMES:
        subprocess.run(f"ip netns del {name}", shell=True, stderr=subprocess.DEVNULL)


def start(commands, timeout):
    """Runs one command for each rank, in its namespace. Returns rank 0's stdout and stderr."""
    ranks = []
    for rank, command in enumerate(commands):
        environment = dict(
            without_launchers(keep="WEFT_"),
            RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR=ADDRESSES[0],
            MASTER_PORT=str(PORT),
            OMP_NUM_THREADS="1",
            WEFT_HOST_ID=NAMES[rank],
            GLOO_SOCKET_IFNAME=DEVICES[rank],
        )
        ranks.append(
            subprocess.Popen(
                ["ip", "netns", "exec", NAMES[rank], *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"{rank.args[3:6]}: {output[1].strip()[-2000:]}")
    for line in outputs[0][1].splitlines():
        if "codec = auto" in line or "gradients are sent in" in line:
            print(line.strip(), file=sys.stderr)
    return outputs[0]


def settings(args, impl, runs):
    """Arguments of `weft train` for a timed run. "none+wait": without overlap_forward."""
    codec, overlap = impl.removesuffix("+wait"), not impl.endswith("+wait")
    words = [
        f"train.batch={2 * args.batch}",
        f"train.max_steps={args.skip + args.steps}",
        "train.checkpoint_every=0",
        "train.checkpoint_minutes=0",
        "train.eval_every=0",
        "train.log_every=100",
        f'parallel.codec="{codec}"',
        f"parallel.overlap_forward={str(overlap).lower()}",
        f'run.dir="{runs}"',
        "run.name=run",
    ]
    return [part for word in words for part in ("--set", word)]


def read_steps(args, runs):
    """Seconds of each step, and the median milliseconds of each phase."""
    steps = [json.loads(line) for line in open(f"{runs}/run/metrics.jsonl")]
    steps = [step for step in steps if "samples_per_s" in step][args.skip :]
    phases = {
        phase: round(statistics.median(step[phase + "_ms"] for step in steps), 1)
        for phase in PHASES
    }
    return [2 * args.batch / step["samples_per_s"] for step in steps], phases


def weft_steps(args, impl):
    """The result of read_steps(), and rank 0's log."""
    with tempfile.TemporaryDirectory() as runs:
        _, log = start(
            [
                [
                    args.weft,
                    "train",
                    args.recipe,
                    "--set",
                    "comm.transport=tcp",
                    "--set",
                    f'comm.interface="{address}"',
                    *settings(args, impl, runs),
                ]
                for address in ADDRESSES
            ],
            args.timeout,
        )
        return *read_steps(args, runs), log


def ddp_steps(args):
    command = [
        sys.executable,
        __file__,
        "--worker",
        "--batch",
        str(args.batch),
        "--steps",
        str(args.steps),
        "--skip",
        str(args.skip),
    ]
    printed, log = start([command, command], args.timeout)
    return json.loads(printed.strip().splitlines()[-1]), None, log


def worker(args):
    import time

    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(HERE.parent / "peers"))
    import torch_models

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch_models.resnet18(), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    images, labels = torch.randn(args.batch, 1, 28, 28), torch.randint(0, 10, (args.batch,))
    times = []
    for _ in range(args.skip + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps(times[args.skip :]))
    dist.barrier()


def line_of(args, impl, times, phases):
    params = {
        "impl": impl,
        "model": "resnet18",
        "batch": args.batch,
        "ranks": 2,
        "rate": args.rate,
        "steps": len(times),
    }
    if phases:
        params["phases_ms"] = phases
    ordered = sorted(times)
    return {
        "bench": "shaped_link",
        "params": params,
        "value": round(1e3 * statistics.median(times), 1),
        "unit": "ms a step",
        "runs": 1,
        "p95": round(1e3 * ordered[int(0.95 * (len(ordered) - 1))], 1),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--recipe", default="fashion-mnist-resnet18")
    parser.add_argument(
        "--impls",
        default="none pytorch-ddp bf16 int8:64 powersgd:4",
        help="codecs, with +wait behind: without overlap_forward; pytorch-ddp",
    )
    parser.add_argument("--rate", default="1gbit", help="as tc writes it; empty: not shaped")
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--skip",
        type=int,
        default=8,
        help="steps at the start: buckets are planned, weft tunes them",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    args.weft = str(pathlib.Path(args.weft).resolve())
    try:
        join_namespaces(args.rate)
        for _ in range(args.rounds):
            for impl in args.impls.split():
                times, phases, _ = (
                    ddp_steps(args) if impl == "pytorch-ddp" else weft_steps(args, impl)
                )
                print(json.dumps(line_of(args, impl, times, phases)), flush=True)
    finally:
        remove_namespaces()


if __name__ == "__main__":
    main()
