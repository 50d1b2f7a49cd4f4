"""DistributedDataParallel that goes on after the loss of a rank.

    weft run -n 3 --max-replacements 3 -- python elastic_ddp.py    a new process replaces it
    weft run -n 3 --min-ranks 1 -- python elastic_ddp.py           the others go on without it
    torchrun --nproc-per-node 3 --max-restarts 3 elastic_ddp.py    torchrun starts all ranks again

KILL=RANK:STEP ends that rank there, to see it."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft_torch

STEPS, BATCH = 60, 24


class Training:
    """The module, its optimizer and the step: what a lost rank must not lose."""

    def __init__(self):
        torch.manual_seed(1)
        self.module = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)
        self.step = 0

    def state(self):
        parts = {"module": self.module, "optimizer": self.optimizer}
        return {name: part.state_dict() for name, part in parts.items()} | {"step": self.step}

    def load(self, state):
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def run(self, group):
        """Trains to the end in a group that has just formed."""
        if group.source is not None:  # ranks with a state, and new ones without
            self.load(weft_torch.copy_state(self.state(), group.source))
        model = DistributedDataParallel(self.module)
        while self.step < STEPS:
            if os.environ.get("KILL") == f"{os.environ['RANK']}:{self.step}" and not NEW:
                os.kill(os.getpid(), signal.SIGKILL)
            torch.manual_seed(self.step)  # every rank draws the whole batch
            inputs = torch.randn(BATCH, 16).tensor_split(group.world_size)[group.rank]
            loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
        dist.barrier()  # no rank leaves while another still needs it


NEW = weft_torch.is_newcomer() or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
training = Training()
group = weft_torch.init_process_group()
while True:
    try:
        training.run(group)
        break
    except RuntimeError as error:
        if not weft_torch.is_loss(error):
            raise
        print(f"rank {group.rank}: {error}", flush=True)
    group = weft_torch.regroup()
    print(f"rank {group.rank} of {group.world_size} goes on", flush=True)
if group.rank == 0:
    weights = sum(float(p.detach().sum()) for p in training.module.parameters())
    print(f"{training.step} steps on {group.world_size} ranks, sum of weights {weights!r}")
dist.destroy_process_group()
