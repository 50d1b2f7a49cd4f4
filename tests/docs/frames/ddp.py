import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dataset = TensorDataset(torch.randn(256, 4), torch.arange(256) % 10)


def Net():
    return torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.LogSoftmax(1))


# BLOCK
# A group that DDP still holds, also in a cycle of references, may abort when the process ends.
del model, optimizer
gc.collect()
dist.destroy_process_group()
