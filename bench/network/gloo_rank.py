#!/usr/bin/env python3
"""One rank of torch.distributed over Gloo. rank.h describes its commands.

    MASTER_ADDR=… MASTER_PORT=… RANK=… WORLD_SIZE=… GLOO_SOCKET_IFNAME=… gloo_rank.py

It reads commands on stdin, like the other ranks of bench/network."""

import sys
import time

import torch
import torch.distributed as dist


def carry_out(data, samples, warmup, block):
    rank, world = dist.get_rank(), dist.get_world_size()
    index = torch.arange(data.numel(), dtype=torch.int32) % 509 + 1
    data.copy_(index + rank)
    dist.all_reduce(data)
    if not torch.equal(data, (index * world + world * (world - 1) // 2).float()):
        return "wrong"
    data.copy_(index + rank)  # later sums grow; the time of an addition does not depend on values
    times = []
    for _ in range(warmup + samples):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(block):
            dist.all_reduce(data)
        times.append((time.perf_counter() - start) * 1e6 / block)
    return "ok " + " ".join(f"{us:.2f}" for us in times[warmup:])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = torch.empty(0)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        operation, *numbers = line.split()
        size, samples, warmup, block = map(int, numbers)
        if data.numel() * 4 != size:
            data = torch.empty(size // 4)
        print(
            (
                carry_out(data, samples, warmup, block)
                if operation == "all_reduce"
                else f"no such command: {operation}"
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
