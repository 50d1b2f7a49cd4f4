#!/usr/bin/env python3
"""Training steps of PyTorch, driven over stdin (bench/README.md): DistributedDataParallel over Gloo with its defaults ("ddp"), and
the same program without communication, where each rank takes its own optimiser step and meets the others in a barrier ("alone").

    torch_training.py --ranks 2
"""

import driven

RANKS = driven.start()

import ctypes  # noqa: E402
import gc  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import torch_models  # noqa: E402

DEFAULTS = {"model": "", "optimizer": "sgd", "mode": "ddp", "batch": 0, "steps": 10, "warmup": 3, "drop": False}
MIB = 2**20


def memory_mb(field):
    """VmRSS or VmHWM (the peak) of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


def megabytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / MIB


class Job:
    """A model, its optimiser and its batch: what stays between two commands for the same case."""

    def __init__(self, model, optimizer, mode, batch):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # What a job before this one left behind isn't this one's peak.
        reset_peak()
        self.rss_before = memory_mb("VmRSS")
        torch.manual_seed(1)
        self.module = torch_models.MODELS[model][0]()
        self.images, self.labels = torch_models.fixed_batch(batch, RANKS.rank)
        self.alone = mode == "alone"
        self.forward = self.module if self.alone else nn.parallel.DistributedDataParallel(self.module)
        self.optimizer = torch_models.optimizer(optimizer, self.module.parameters())
        self.losses = []  # The first and the last.

    def step(self):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.forward(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        if self.alone:
            RANKS.barrier.wait()  # DDP's ranks wait for each other in every step, so its rival must too.
        return loss.detach()

    def run(self, warmup, steps):
        """Milliseconds of each of the steps after the warm-up."""
        times = []
        RANKS.barrier.wait()
        for _ in range(warmup + steps):
            start = driven.now()
            loss = self.step()
            times.append((driven.now() - start) * 1e3)
            self.losses = [*self.losses[:1], loss]
        return times[warmup:]

    def parameters_agree(self):
        """Whether every rank has rank 0's parameters, bit for bit. The same answer on all ranks."""
        mine = torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()]).view(torch.int32)
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        agree = torch.tensor([int(torch.equal(mine, theirs))])
        dist.all_reduce(agree, op=dist.ReduceOp.MIN)
        return bool(agree.item())

    def state_mb(self):
        """Bytes that this rank holds for training, by what they are; DDP's buckets are a second copy of the gradients."""
        parameters = list(self.module.parameters())
        state = {
            "weights": megabytes(parameters) + megabytes(self.module.buffers()),
            "gradients": megabytes(p.grad for p in parameters if p.grad is not None),
            "optimizer": megabytes(t for s in self.optimizer.state.values() for t in s.values() if torch.is_tensor(t)),
            "buckets": 0.0 if self.alone else megabytes(parameters),
        }
        return {key: round(value, 2) for key, value in state.items()}


class Training:
    def __init__(self):
        self.jobs = {}

    def carry_out(self, command):
        command = driven.take(command, DEFAULTS)
        if command["drop"]:
            self.jobs.clear()
            return {"impl": "pytorch", "dropped": True}
        self.check(command)
        case = tuple(command[key] for key in ("model", "optimizer", "mode", "batch"))
        if case not in self.jobs:
            self.jobs[case] = Job(*case)
        job = self.jobs[case]
        times = job.run(command["warmup"], command["steps"])
        memory = [None] * RANKS.size
        dist.all_gather_object(memory, [memory_mb("VmRSS"), memory_mb("VmHWM"), job.rss_before])
        rss, peak, before = ([round(value, 1) for value in column] for column in zip(*memory))
        answer = {"impl": f"pytorch-{command['mode']}", **{key: command[key] for key in ("model", "optimizer", "batch")}}
        answer.update(ranks=RANKS.size, step_ms=[round(ms, 4) for ms in times], median_ms=driven.median(times, 4))
        answer.update(rss_mb=rss, peak_rss_mb=max(peak), peak_rss_mb_per_rank=peak, rss_before_mb=before, state_mb=job.state_mb())
        answer.update(loss_first=job.losses[0].item(), loss_last=job.losses[-1].item(), parameters=self.count(job))
        if command["mode"] == "ddp":
            answer["verified"] = job.parameters_agree()
            if not answer["verified"]:
                answer["error"] = "the ranks' parameters differ"
        return answer

    @staticmethod
    def count(job):
        return sum(parameter.numel() for parameter in job.module.parameters())

    @staticmethod
    def check(command):
        choices = {"model": tuple(torch_models.MODELS), "optimizer": ("sgd", "adamw"), "mode": ("ddp", "alone")}
        for key, known in choices.items():
            if command[key] not in known:
                raise driven.BadCommand(f"{key} must be one of {', '.join(known)}, got '{command[key]}'")
        if command["steps"] < 1:
            raise driven.BadCommand("steps must be at least 1")
        command["batch"] = command["batch"] or torch_models.MODELS[command["model"]][1]


def main():
    torch.set_num_threads(1)
    RANKS.init_gloo()
    RANKS.serve("pytorch", Training().carry_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
