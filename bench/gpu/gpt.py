#!/usr/bin/env python3
"""Trains the GPT-2 of gpt_main.cc with PyTorch, or reduces tensors; the arguments are the same.

More of them: mode=ddp|alone|compiled (DistributedDataParallel; no communication; no communication
and torch.compile), backend=nccl|gloo."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

VOCABULARY = 50304


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, sequence):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(sequence, width))
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def set_weights(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            phase = float(p.numel() % 97)
            values = ((torch.arange(p.numel()) % 1009).float() * 0.37 + phase).sin() * 0.02
            if p.dim() == 1 and "norm" in name and "weight" in name:
                values = values + 1
            p.copy_(values.view(p.shape))


def tokens_of(batch, sequence, rank, step):
    first = (rank + 64 * step) * batch * (sequence + 1)
    return ((torch.arange(batch * (sequence + 1)) + first) * 7919 % VOCABULARY).view(
        batch, sequence + 1
    )


def train(arguments, rank, device):
    batch, sequence = int(arguments["batch"]), int(arguments["sequence"])
    sizes = [int(arguments[name]) for name in ("layers", "width", "heads")]
    model = Gpt(*sizes, sequence)
    set_weights(model)
    model.to(device)
    # As weft's AdamW with its defaults: weight decay 0.01 for all parameters.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    forward = model
    if arguments["mode"] == "ddp":
        forward = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif arguments["mode"] == "compiled":
        forward = torch.compile(model)
    losses, times, parts, done, timed, mark = [], [], [0.0, 0.0, 0.0], 0, False, 0.0

    def end_part(part):
        nonlocal mark
        if timed:
            wait(device)
            parts[part] += (time.perf_counter() - mark) * 1e3 / int(arguments["steps"])
            mark = time.perf_counter()

    def step():
        nonlocal done, mark
        mark = time.perf_counter()
        tokens = tokens_of(batch, sequence, rank, done).to(device)
        done += 1
        with torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=arguments["precision"] == "bf16"
        ):
            logits = forward(tokens[:, :-1].contiguous())
            loss = F.cross_entropy(
                logits.view(-1, VOCABULARY), tokens[:, 1:].contiguous().view(-1)
            )
        end_part(0)
        loss.backward()
        end_part(1)
        optimizer.step()
        optimizer.zero_grad()
        end_part(2)
        return loss.detach()

    for _ in range(5):
        losses.append(step().item())
    for _ in range(int(arguments["windows"])):
        wait(device)
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        for _ in range(int(arguments["steps"])):
            loss = step()
        wait(device)
        times.append((time.perf_counter() - start) * 1e3 / int(arguments["steps"]))
    losses.append(loss.item())
    timed = True
    for _ in range(int(arguments["steps"])):
        step()
    if rank == 0:
        result = {"impl": "pytorch-" + arguments["mode"], "ms": times, "losses": losses}
        print(json.dumps(dict(result, parts_ms=parts)))


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reduce(arguments, rank, device):
    for mib in (1, 25, 100):
        data = torch.empty(mib << 18, device=device)
        times = []
        for i in range(12):
            data.fill_(rank + 1)
            wait(device)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            wait(device)
            if i >= 2:
                times.append((time.perf_counter() - start) * 1e3)
        world = dist.get_world_size()
        assert data.eq(world * (world + 1) / 2).all(), "wrong sum"
        if rank == 0:
            print(json.dumps({"impl": arguments["backend"], "mib": mib, "ms": times}))


def main():
    arguments = dict(
        what="train", device="cuda", mode="ddp", backend="nccl", layers="12", width="768",
        heads="12", sequence="1024", batch="16", steps="10", windows="4", precision="bf16",
    )  # fmt: skip
    arguments.update(text.split("=", 1) for text in sys.argv[1:])
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device(arguments["device"])
    if device.type == "cuda":
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    if arguments["mode"] == "ddp":
        dist.init_process_group(arguments["backend"])
    if arguments["what"] == "reduce":
        reduce(arguments, rank, device)
    else:
        train(arguments, rank, device)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
