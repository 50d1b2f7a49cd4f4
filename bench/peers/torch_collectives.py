#!/usr/bin/env python3
"""Measures torch.distributed's collectives over Gloo; driven over stdin (bench/README.md).

    torch_collectives.py --ranks 2

Rank 0 starts the other ranks."""

import driven

RANKS = driven.start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

IMPL = "gloo"
OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "barrier",
    "ping_pong",
)
# torch 2.13 renamed both.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
DEFAULTS = {
    "op": "",
    "bytes": 0,
    "dtype": "f32",
    "iterations": 10,
    "warmup": 2,
    "block": 0,
    "rewrite": 0,
}


def element(rank, index):
    """Initial values of the rank; the same as element() in command.h."""
    return (1 + index % 509 + rank).float()


class Collective:
    """One operation on one vector. The vector is kept until a command requests another length."""

    def __init__(self):
        self.data = torch.empty(0)
        self.other = torch.empty(0)  # all_to_all: the output

    def carry_out(self, command):
        command = self.prepare(command)
        answer = {
            "impl": IMPL,
            **{key: command[key] for key in ("op", "bytes", "dtype")},
            "ranks": RANKS.size,
        }
        answer.update(block=command["block"], verified=self.verify())
        if not answer["verified"]:
            return {**answer, "error": "the operation left a wrong result"}
        # Later sums grow to infinity; the time of an addition does not depend on the values.
        self.fill()
        time_calls = self.time_fresh if command["rewrite"] else self.time_block
        samples = command["warmup"] + command["iterations"]
        times = [time_calls(command["block"]) for _ in range(samples)]
        slowest = torch.tensor(times[command["warmup"] :], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        us = [round(value, 3) for value in slowest.tolist()]
        return {**answer, "us": us, "median_us": driven.median(us)}

    def prepare(self, command):
        command = driven.take(command, DEFAULTS)
        self.op, size = command["op"], command["bytes"]
        if self.op not in OPS:
            raise driven.BadCommand(f"unknown op '{self.op}'")
        if command["dtype"] != "f32":
            raise driven.BadCommand(f"dtype must be f32, got {command['dtype']}")
        if self.op != "barrier" and (size == 0 or size % (4 * RANKS.size) != 0):
            raise driven.BadCommand("bytes must be a positive multiple of 4 x ranks")
        if command["iterations"] < 1:
            raise driven.BadCommand("iterations must be at least 1")
        if self.op == "ping_pong" and RANKS.size < 2:
            raise driven.BadCommand("ping_pong needs two ranks")
        if self.data.numel() * 4 != size:
            self.data = torch.empty(size // 4)
            self.other = torch.empty(0)
        if self.op == "all_to_all" and self.other.numel() != self.data.numel():
            self.other = torch.empty_like(self.data)
        self.share = self.data.numel() // RANKS.size
        self.mine = self.data[RANKS.rank * self.share : (RANKS.rank + 1) * self.share]
        command["block"] = command["block"] or min(max(2**20 // max(size, 1), 1), 100)
        return command

    def fill(self):
        index = torch.arange(self.data.numel(), dtype=torch.int32)
        self.data.copy_(element(RANKS.rank, index))
        if self.op == "all_gather":
            self.data[index // max(self.share, 1) != RANKS.rank] = -1
        elif self.op in ("broadcast", "ping_pong") and RANKS.rank != 0:
            self.data.fill_(-1)

    def is_right(self):
        index = torch.arange(self.data.numel(), dtype=torch.int32)
        total = sum(element(rank, index) for rank in range(RANKS.size))
        if self.op == "all_reduce":
            return torch.equal(self.data, total)
        if self.op == "reduce":
            return RANKS.rank > 0 or torch.equal(self.data, total)
        if self.op == "all_to_all":
            return torch.equal(
                self.other,
                element(index // self.share, index % self.share + RANKS.rank * self.share),
            )
        if self.op == "reduce_scatter":
            return torch.equal(
                self.mine, total[RANKS.rank * self.share : (RANKS.rank + 1) * self.share]
            )
        if self.op == "all_gather":
            return torch.equal(self.data, element(index // self.share, index))
        bystander = self.op == "ping_pong" and RANKS.rank > 1
        return bystander or self.op == "barrier" or torch.equal(self.data, element(0, index))

    def verify(self):
        """Runs and checks the operation. Returns the same on all ranks."""
        self.fill()
        self.run()
        right = torch.tensor([int(self.is_right())])
        dist.all_reduce(right, op=dist.ReduceOp.MIN)
        return bool(right.item())

    def time_block(self, calls):
        RANKS.barrier.wait()
        start = driven.now()
        for _ in range(calls):
            self.run()
        us = (driven.now() - start) * 1e6 / calls
        return us / 2 if self.op == "ping_pong" else us

    def time_fresh(self, calls):
        """Like time_block(), but each rank writes its vector before each call."""
        total = 0
        for _ in range(calls):
            self.rewrite()
            RANKS.barrier.wait()
            start = driven.now()
            self.run()
            total += driven.now() - start
        us = total * 1e6 / calls
        return us / 2 if self.op == "ping_pong" else us

    def rewrite(self):
        if self.op in ("broadcast", "ping_pong") and RANKS.rank != 0:
            return
        (self.mine if self.op == "all_gather" else self.data).fill_(1 + RANKS.rank)

    def run(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.data)
        elif self.op == "all_gather":
            ALL_GATHER(self.data, self.mine)
        elif self.op == "reduce_scatter":
            REDUCE_SCATTER(self.mine, self.data)
        elif self.op == "broadcast":
            dist.broadcast(self.data, 0)
        elif self.op == "reduce":
            dist.reduce(self.data, 0)
        elif self.op == "all_to_all":
            dist.all_to_all_single(self.other, self.data)
        elif self.op == "barrier":
            dist.barrier()
        elif RANKS.rank == 0:
            dist.send(self.data, 1)
            dist.recv(self.data, 1)
        elif RANKS.rank == 1:
            dist.recv(self.data, 0)
            dist.send(self.data, 0)


def main():
    torch.set_num_threads(1)
    RANKS.init_gloo()
    RANKS.serve(IMPL, Collective().carry_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
