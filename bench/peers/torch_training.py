#!/usr/bin/env python3
"""Measures training steps of PyTorch over Gloo; driven over stdin (bench/README.md). The modes:

    ddp          DistributedDataParallel and the optimizer with their defaults
    ddp-tuned    gradient_as_bucket_view, fused optimizer
    fsdp2        fully_shard, fused optimizer
    zero1, zero3 DeepSpeed's ZeRO with DeepSpeedCPUAdam
    alone        without communication: each rank takes its own optimizer step, then a barrier
    alone-tuned  like alone, with the fused optimizer
    reference    every rank trains on the batches of all ranks

Rank 0 starts the other ranks: torch_training.py --ranks 2."""

import driven

RANKS = driven.start()

import ctypes  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import torch_models  # noqa: E402

# Mode: its name in answers.
MODES = {
    "ddp": "pytorch-ddp",
    "ddp-tuned": "pytorch-ddp-tuned",
    "alone": "pytorch-alone",
    "alone-tuned": "pytorch-alone-tuned",
    "reference": "pytorch-reference",
    "fsdp2": "pytorch-fsdp2",
    "zero1": "deepspeed-zero1",
    "zero3": "deepspeed-zero3",
}
DEFAULTS = {
    "model": "",
    "optimizer": "sgd",
    "mode": "ddp",
    "batch": 0,
    "steps": 10,
    "warmup": 3,
    "drop": False,
}
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


def fully_shard(module):
    """Shards each transformer block as a unit, as PyTorch's own examples do. The remaining
    parameters belong to the root unit.
    """
    from torch.distributed.fsdp import fully_shard as shard

    for block in getattr(module, "blocks", []):
        shard(block)
    return shard(module)


class DeepSpeed:
    """A DeepSpeed engine with the methods of a PyTorch module and of its optimizer."""

    def __init__(self, module, optimizer, stage, batch):
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # Compiled at first use.

        # This op would be compiled at first use, and serves inference only.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        config = {
            "train_micro_batch_size_per_gpu": batch,
            "gradient_accumulation_steps": 1,
            "steps_per_print": 10**9,
        }
        if optimizer == "adamw":
            optimizer = DeepSpeedCPUAdam(module.parameters(), lr=1e-3, adamw_mode=True)
        else:
            optimizer = torch_models.optimizer(optimizer, module.parameters())
        # By default, DeepSpeed 0.19.8 clips gradients to a norm of 1; the other systems do not.
        config.update(
            zero_optimization={"stage": stage},
            zero_allow_untested_optimizer=True,
            gradient_clipping=0.0,
        )
        self.engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=config, dist_init_required=False
        )

    def __call__(self, inputs):
        return self.engine(inputs)

    def zero_grad(self):
        pass  # step() zeroes the gradients.

    def step(self):
        self.engine.step()


class Job:
    """A model, its optimizer and its batch. It is kept between commands for the same case."""

    def __init__(self, model, optimizer, mode, batch):
        gc.collect()
        # The memory of previous jobs must not count in the peak of this one.
        ctypes.CDLL(None).malloc_trim(0)
        reset_peak()
        self.rss_before = memory_mb("VmRSS")
        torch.manual_seed(1)
        self.module = torch_models.MODELS[model][0]()
        self.parameters = sum(parameter.numel() for parameter in self.module.parameters())
        self.mode = mode
        of_ranks = range(RANKS.size) if mode == "reference" else [RANKS.rank]
        self.batches = [torch_models.fixed_batch(batch, rank, model) for rank in of_ranks]
        self.alone = mode in ("alone", "alone-tuned", "reference")
        self.forward = self.module
        if mode == "ddp":
            self.forward = nn.parallel.DistributedDataParallel(self.module)
        elif mode == "ddp-tuned":
            self.forward = nn.parallel.DistributedDataParallel(
                self.module, gradient_as_bucket_view=True
            )
        elif mode == "fsdp2":
            self.forward = fully_shard(self.module)
        fused = mode in ("ddp-tuned", "alone-tuned", "fsdp2")
        if mode.startswith("zero"):
            sharded = DeepSpeed(self.module, optimizer, int(mode[4:]), batch)
            self.forward = self.optimizer = sharded
        else:
            self.optimizer = torch_models.optimizer(optimizer, self.module.parameters(), fused)
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        loss = sum(
            torch_models.loss_of(self.forward(inputs), labels) for inputs, labels in self.batches
        ) / len(self.batches)
        if isinstance(self.forward, DeepSpeed):
            self.forward.engine.backward(loss)
        else:
            loss.backward()
        self.optimizer.step()
        if self.alone:
            # DDP's ranks wait for each other in every step, so these ranks must do so, too.
            RANKS.barrier.wait()
        return loss.detach()

    def run(self, warmup, steps):
        """Milliseconds of each of the steps after the warm-up."""
        times = []
        self.losses = []
        RANKS.barrier.wait()
        for _ in range(warmup + steps):
            start = driven.now()
            self.losses.append(self.step())
            times.append((driven.now() - start) * 1e3)
        return times[warmup:]

    def mean_losses(self):
        """Mean over the ranks; rank 0's for the modes without communication."""
        mean = torch.stack(self.losses).float()
        if not self.alone:
            dist.all_reduce(mean)
            mean /= RANKS.size
        return mean.tolist()

    def parameters_agree(self):
        """True on all ranks if every rank has rank 0's parameters, bit for bit."""
        mine = torch.cat(
            [parameter.detach().flatten() for parameter in self.module.parameters()]
        ).view(torch.int32)
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        agree = torch.tensor([int(torch.equal(mine, theirs))])
        dist.all_reduce(agree, op=dist.ReduceOp.MIN)
        return bool(agree.item())

    def state_mb(self):
        """MiB that this rank holds for training, by kind. DDP's buckets are a second copy of the
        gradients.
        """
        if not (self.alone or self.mode.startswith("ddp")):
            return {}  # FSDP2 and DeepSpeed do not report what they hold.
        parameters = list(self.module.parameters())
        state = {
            "weights": megabytes(parameters) + megabytes(self.module.buffers()),
            "gradients": megabytes(p.grad for p in parameters if p.grad is not None),
            "optimizer": megabytes(
                t for s in self.optimizer.state.values() for t in s.values() if torch.is_tensor(t)
            ),
            "buckets": megabytes(parameters) if self.mode == "ddp" else 0.0,
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
        answer = {
            "impl": MODES[command["mode"]],
            **{key: command[key] for key in ("model", "optimizer", "batch")},
        }
        answer.update(
            ranks=RANKS.size,
            step_ms=[round(ms, 4) for ms in times],
            median_ms=driven.median(times, 4),
        )
        answer.update(
            rss_mb=rss,
            peak_rss_mb=max(peak),
            peak_rss_mb_per_rank=peak,
            rss_before_mb=before,
            state_mb=job.state_mb(),
        )
        losses = job.mean_losses()
        answer.update(
            losses=losses, loss_first=losses[0], loss_last=losses[-1], parameters=job.parameters
        )
        if command["mode"].startswith("ddp"):
            answer["verified"] = job.parameters_agree()
            if not answer["verified"]:
                answer["error"] = "the ranks' parameters differ"
        return answer

    @staticmethod
    def check(command):
        choices = {
            "model": tuple(torch_models.MODELS),
            "optimizer": ("sgd", "adamw"),
            "mode": tuple(MODES),
        }
        for key, known in choices.items():
            if command[key] not in known:
                raise driven.BadCommand(
                    f"{key} must be one of {', '.join(known)}, got '{command[key]}'"
                )
        if command["mode"].startswith("zero") and importlib.util.find_spec("deepspeed") is None:
            raise driven.BadCommand(f"{sys.executable} has no deepspeed")
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
