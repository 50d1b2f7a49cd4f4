#!/usr/bin/env python3
"""Training steps of ResNet-18 (7x7 stem) on two ranks in two network namespaces, joined by a veth pair shaped to a rate: weft with each
codec, and PyTorch's DistributedDataParallel over Gloo, in turn, one JSON line each. Needs root, ip and tc.

    bench/compression/shaped_link.py --codecs "none powersgd:4" --steps 15 > bench/results/shaped-link.jsonl
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NAMES, ADDRESSES, PORT = ["weft-a", "weft-b"], ["10.213.0.1", "10.213.0.2"], 29871


def run(command):
    subprocess.run(command, shell=True, check=True)


def join_namespaces(rate):
    for name in NAMES:
        run(f"ip netns add {name}")
    run(f"ip link add weft-va netns {NAMES[0]} type veth peer name weft-vb netns {NAMES[1]}")
    for name, address, device in zip(NAMES, ADDRESSES, ["weft-va", "weft-vb"]):
        run(f"ip -n {name} addr add {address}/24 dev {device}")
        run(f"ip -n {name} link set lo up")
        run(f"ip -n {name} link set {device} up")
        if rate:
            run(f"tc -n {name} qdisc add dev {device} root tbf rate {rate} burst 256kb latency 100ms")


def remove_namespaces():
    for name in NAMES:
        subprocess.run(f"ip netns del {name}", shell=True, stderr=subprocess.DEVNULL)


def start(commands, timeout):
    """One command for each rank, in its namespace. Gives what rank 0 prints."""
    ranks = []
    for rank, command in enumerate(commands):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=ADDRESSES[0],
                           MASTER_PORT=str(PORT), OMP_NUM_THREADS="1", WEFT_HOST_ID=NAMES[rank],
                           GLOO_SOCKET_IFNAME=["weft-va", "weft-vb"][rank])
        ranks.append(subprocess.Popen(["ip", "netns", "exec", NAMES[rank], *command], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True))
    try:
        outputs = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(f"{rank.args[3:6]}: {output[1].strip()[-2000:]}")
    for line in outputs[0][1].splitlines():
        if "codec = auto" in line:
            print(line.strip(), file=sys.stderr)
    return outputs[0][0]


def weft_steps(args, codec):
    with tempfile.TemporaryDirectory() as runs:
        commands = [[args.weft, "train", "fashion-mnist-resnet18", "--set", "comm.transport=tcp", "--set",
                     f'comm.interface="{address}"', "--set", f"train.batch={2 * args.batch}", "--set",
                     f"train.max_steps={args.skip + args.steps}", "--set", "train.log_every=1", "--set", "train.checkpoint_every=0",
                     "--set", f'parallel.codec="{codec}"', "--set", f'run.dir="{runs}"', "--set", "run.name=run"]
                    for address in ADDRESSES]
        start(commands, args.timeout)
        steps = [json.loads(line) for line in open(f"{runs}/run/metrics.jsonl")]
    return [2 * args.batch / step["samples_per_s"] for step in steps if "samples_per_s" in step][args.skip:]


def ddp_steps(args):
    command = [sys.executable, __file__, "--worker", "--batch", str(args.batch), "--steps", str(args.steps), "--skip", str(args.skip)]
    return json.loads(start([command, command], args.timeout).strip().splitlines()[-1])


def worker(args):
    import time

    import torch
    import torch.distributed as dist
    sys.path.insert(0, str(HERE.parent / "peers"))
    import torch_models
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch_models.resnet18())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    images, labels = torch.randn(args.batch, 1, 28, 28), torch.randint(0, 10, (args.batch,))
    times = []
    for _ in range(args.skip + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps(times[args.skip:]))
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--codecs", default="none bf16 int8:64 int4:64 topk:0.01 powersgd:4")
    parser.add_argument("--rate", default="1gbit", help="as tc writes it; empty: not shaped")
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--skip", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--no-ddp", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    args.weft = str(pathlib.Path(args.weft).resolve())
    remove_namespaces()
    try:
        join_namespaces(args.rate)
        for _ in range(args.rounds):
            for impl in args.codecs.split() + ([] if args.no_ddp else ["pytorch-ddp"]):
                times = ddp_steps(args) if impl == "pytorch-ddp" else weft_steps(args, impl)
                line = {"bench": "shaped_link", "impl": impl, "rate": args.rate, "model": "resnet18", "batch": args.batch, "ranks": 2,
                        "median_ms": round(1e3 * statistics.median(times), 1), "steps": len(times)}
                print(json.dumps(line), flush=True)
    finally:
        remove_namespaces()


if __name__ == "__main__":
    main()
