"""What stands on torch.distributed gives over weft what it gives over Gloo."""

import copy
import os
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ranks


def block(width=32):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), block(), block(), nn.Linear(32, 4))


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)


def train(forward, optimizer, rank, steps=3):
    losses = []
    for step in range(steps):
        images, labels = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(module):
    return {name: whole(tensor) for name, tensor in module.state_dict().items()}


def ddp(rank, world, hook=None, state=None, **options):
    module = DistributedDataParallel(model(), **options)
    if hook is not None:
        module.register_comm_hook(state, hook)
    losses = train(module, torch.optim.AdamW(module.parameters(), lr=1e-2), rank)
    return {"losses": losses, **weights(module.module)}


def ddp_half(rank, world):
    return ddp(rank, world, default_hooks.fp16_compress_hook)


def ddp_power_sgd(rank, world):
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=3
    )
    return ddp(rank, world, powerSGD_hook.powerSGD_hook, state)


def ddp_views(rank, world):
    return ddp(rank, world, gradient_as_bucket_view=True, static_graph=True)


def fsdp2(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    module = model()
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    losses = train(module, torch.optim.AdamW(module.parameters(), lr=1e-2), rank)
    return {"losses": losses, **weights(module)}


def tensor_parallel(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    module = parallelize_module(
        model(),
        mesh,
        {
            f"{layer}.{part}": ColwiseParallel() if part == 0 else RowwiseParallel()
            for layer in (1, 2)
            for part in (0, 2)
        },
    )
    losses = train(module, torch.optim.SGD(module.parameters(), lr=0.1), 0)
    moved = (
        distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0)])
        .redistribute(mesh, [Shard(1)])
        .redistribute(mesh, [Replicate()])
    )
    return {"losses": losses, "moved": moved.to_local(), **weights(module)}


def mesh_2d(rank, world):
    """FSDP2 over tensor parallelism, on subgroups."""
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    module = parallelize_module(
        model(), mesh["tp"], {"1.0": ColwiseParallel(), "1.2": RowwiseParallel()}
    )
    fully_shard(module, mesh=mesh["dp"])
    losses = train(module, torch.optim.AdamW(module.parameters(), lr=1e-2), rank // 2)
    return {"losses": losses, **weights(module)}


def pipeline(rank, world, schedule=ScheduleGPipe):
    layers = list(model())
    cut = len(layers) // world
    mine = nn.Sequential(
        *(layers[rank * cut :] if rank == world - 1 else layers[rank * cut : (rank + 1) * cut])
    )
    stage = PipelineStage(mine, rank, world, torch.device("cpu"))
    steps = schedule(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    images, labels = batch(0, 0)
    losses = []
    output = (
        steps.step(images)
        if rank == 0
        else steps.step(target=labels, losses=losses) if rank == world - 1 else steps.step()
    )
    found = {f"gradient.{name}": parameter.grad for name, parameter in mine.named_parameters()}
    return {
        **found,
        "losses": [loss.item() for loss in losses],
        **({"output": output.detach()} if rank == world - 1 else {}),
    }


def pipeline_1f1b(rank, world):
    return pipeline(rank, world, Schedule1F1B)


def zero_optimizer(rank, world):
    module = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = train(module, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if rank == 0 else {}
    return {
        "losses": losses,
        "moments": {key: entry["exp_avg"].clone() for key, entry in state.items()},
        **weights(module.module),
    }


def checkpoint(rank, world):
    """Saved sharded by FSDP2, loaded into a fresh one and into plain tensors."""
    mesh = init_device_mesh("cpu", (world,))
    folders = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders)
    module, other = (fully_shard(model(), mesh=mesh) for _ in range(2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = train(module, optimizer, rank)
    dcp.save({"model": module.state_dict()}, checkpoint_id=folders[0])
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folders[0])
    plain = {"model": copy.deepcopy(model()).state_dict()}
    dcp.load(plain, checkpoint_id=folders[0], no_dist=True)
    files = sorted(name for name in os.listdir(folders[0]))
    return {"losses": losses, "files": files, "plain": plain["model"], **weights(other)}


def sync_batch_norm_gradients(rank, world):
    """Autograd through collectives (torch.distributed.nn), which SyncBatchNorm uses on GPUs and has
    no CPU kernel for."""
    from torch.distributed.nn.functional import (
        all_gather, all_reduce, all_to_all_single, reduce_scatter
    )

    x = torch.full((4,), rank + 1.0, requires_grad=True)
    total = all_reduce(x * x).sum() + sum(all_gather(x * 2)).prod()
    total = (
        total
        + all_to_all_single(torch.empty(4), x**3).sum()
        + reduce_scatter(torch.empty(2), [x[:2] * world, x[2:]] + [x[:2]] * (world - 2)).sum()
    )
    total.backward()
    return {"gradient": x.grad, "total": total.detach()}


def join_uneven(rank, world):
    """DDP's join(): rank 0 has more batches than the others."""
    module = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with module.join():
        train(module, optimizer, rank, steps=2 + 2 * (rank == 0))
    return weights(module.module)


def functional(rank, world):
    """Functional collectives, compiled into graphs by torch.compile and DTensor."""
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    x = torch.arange(4.0 * world) + rank
    return {
        "all_reduce": funcol.wait_tensor(funcol.all_reduce(x, "sum", group)),
        "all_gather": funcol.wait_tensor(funcol.all_gather_tensor(x, 0, group)),
        "reduce_scatter": funcol.wait_tensor(
            funcol.reduce_scatter_tensor(
                x, "avg" if dist.get_backend() == "weft" else "sum", 0, group
            )
        )
        * (world if dist.get_backend() == "weft" else 1),
        "all_to_all": funcol.wait_tensor(funcol.all_to_all_single(x, None, None, group)),
        "coalesced": [
            funcol.wait_tensor(t) for t in funcol.all_reduce_coalesced([x, x * 2], "sum", group)
        ],
        "gathered": [
            funcol.wait_tensor(t)
            for t in funcol.all_gather_into_tensor_coalesced([x, x * 2], group)
        ],
    }


def close(case, mine, theirs, path=""):
    """Gloo adds in another order: sums differ in their last bits."""
    case.assertEqual(type(mine), type(theirs), path)
    if isinstance(mine, dict):
        case.assertEqual(mine.keys(), theirs.keys(), path)
        for key in mine:
            close(case, mine[key], theirs[key], f"{path}/{key}")
    elif isinstance(mine, list):
        case.assertEqual(len(mine), len(theirs), path)
        for index, pair in enumerate(zip(mine, theirs)):
            close(case, *pair, f"{path}/{index}")
    elif isinstance(mine, torch.Tensor):
        torch.testing.assert_close(
            mine, theirs, rtol=2e-5, atol=2e-6, msg=lambda text: f"{path}: {text}"
        )
    elif isinstance(mine, float):
        case.assertAlmostEqual(mine, theirs, places=4, msg=path)
    else:
        case.assertEqual(mine, theirs, path)


class GivesWhatGlooGives(unittest.TestCase):
    pass


def add(body, world):
    def test(self):
        mine, theirs = (ranks.run(body, world, backend) for backend in ("weft", "gloo"))
        self.assertTrue(any(answer for answer in mine), "nothing to compare")
        close(self, mine, theirs, body.__name__)

    setattr(GivesWhatGlooGives, f"test_{body.__name__}_on_{world}", test)


for _body in (
    ddp, ddp_half, ddp_power_sgd, ddp_views, fsdp2, tensor_parallel, pipeline, pipeline_1f1b,
    zero_optimizer, checkpoint
):
    add(_body, 2)
for _body in (mesh_2d, pipeline_1f1b, fsdp2, tensor_parallel, zero_optimizer, checkpoint):
    add(_body, 4)
for _body in (sync_batch_norm_gradients, join_uneven, functional, fsdp2):
    add(_body, 3 if _body is not sync_batch_norm_gradients else 2)

if __name__ == "__main__":
    unittest.main()
