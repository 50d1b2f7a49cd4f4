"""Ten lines of data parallelism over weft, for a launcher: torchrun, `weft run`."""

import torch
import torch.distributed as dist

import weft_torch  # noqa: F401

dist.init_process_group("weft")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{step + 1} steps over {dist.get_backend()} on {dist.get_world_size()} ranks")
dist.destroy_process_group()
