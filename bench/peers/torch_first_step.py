#!/usr/bin/env python3
"""One training step of the CNN with DistributedDataParallel, written like a user's program. It
serves to measure the time until the end of the first step.

    python3 -m torch.distributed.run --standalone --nproc-per-node 2 torch_first_step.py

It reads no commands. The harness subtracts the time at which it starts this command from the
"first_step_unix_s" that rank 0 prints."""

import json
import time

import torch
import torch.distributed as dist
from torch import nn

import torch_models


def resident_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(torch_models.cnn())
    optimizer = torch_models.optimizer("sgd", model.parameters())
    images, labels = torch_models.fixed_batch(64, rank)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    finished = time.time()
    memory = [None] * dist.get_world_size()
    dist.all_gather_object(memory, round(resident_mb(), 1))
    if rank == 0:
        print(
            json.dumps(
                {
                    "impl": "pytorch-ddp",
                    "model": "cnn",
                    "ranks": len(memory),
                    "first_step_unix_s": finished,
                    "rss_mb": memory,
                }
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
