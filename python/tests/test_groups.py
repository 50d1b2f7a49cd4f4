"""Groups under torch.distributed: calls that Gloo takes, and calls that differ between ranks."""

import os
import time
import unittest
import unittest.mock
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ranks
import weft_torch

VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])


def shapes(rank, world):
    """Tensors of other shapes with as many elements."""
    one = torch.tensor(5.0) if rank == 0 else torch.zeros(1)
    dist.broadcast(one, 0)
    six = torch.ones(2, 3) if rank == 0 else torch.ones(6)
    dist.all_reduce(six)
    return [one.item(), six.sum().item(), list(six.shape)]


def lists(rank, world):
    """Lists of other lengths. The next call must not meet the tensor that is left."""
    try:
        dist.all_reduce_coalesced([torch.ones(3) for _ in range(2 - rank)])
        dist.all_reduce(torch.zeros(3))
    except weft_torch.Error as error:
        return [error.code, "and 1 more" in str(error)]


def of_one_device(rank, world):
    """A group whose backend is named with its device."""
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    weft_torch.monitored_barrier(wait_all_ranks=True)
    if rank == 1:
        dist.barrier()
        return ""
    said = "passed"
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=0.1))
    except RuntimeError as error:
        said = str(error)
    dist.barrier()
    return said


def longest(rank, world):
    """No timeout at all."""
    getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(timedelta.max)
    if rank == 1:
        time.sleep(0.2)  # the other one waits
    part = dist.new_group([0, 1], timeout=timedelta.max)
    sums = []
    for group in (dist.group.WORLD, part):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        sums.append(tensor[0].item())
    return sums


def merged(rank, world):
    """The groups of two ranks as one."""
    alone = [dist.new_group([number]) for number in range(world)][rank]
    store = dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    both = alone.merge_remote_group(store, world, timedelta(seconds=20), group_name="merged")
    tensor = torch.ones(3)
    both.allreduce([tensor]).wait()
    return [both.size(), tensor.tolist()]


def uncopied(rank, world):
    """States that one rank has and that cannot be copied."""
    said = []
    endless = []
    endless.append(endless)
    sharded = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (world,)), [Shard(0)])
    values = [object(), torch.eye(2).to_sparse(), torch.empty(2, device="meta"), sharded]
    for value in [*values, endless, 10**5000]:
        try:
            weft_torch.copy_state({"value": value} if rank == 0 else None, 0)
        except TypeError as error:
            said.append(str(error))
    return said


def copied_with_another_device(rank, world):
    """copy_state() where torch makes tensors on another device by default."""
    weights = torch.arange(5.0)
    torch.set_default_device("meta")
    try:
        got = weft_torch.copy_state({"weights": weights} if rank == 0 else None, 0)
    finally:
        torch.set_default_device(None)
    return got["weights"].tolist()


def mesh_with_options(rank, world):
    """A mesh whose group has a backend and options of its own."""
    mesh = init_device_mesh(
        "cpu", (world,), mesh_dim_names=("dp",),
        backend_override={"dp": ("weft", weft_torch.Options(transport="tcp"))}
    )
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=mesh.get_group("dp"))
    return tensor.tolist()


class Groups(unittest.TestCase):
    def test_only_the_number_of_elements_counts_as_over_gloo(self):
        expected = [[5.0, 12.0, [2, 3]], [5.0, 12.0, [6]]]
        self.assertEqual(ranks.run(shapes, backend="gloo"), expected)
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(ranks.run(shapes), expected)

    def test_lists_of_other_lengths_are_an_error(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(ranks.run(lists, patience=30), [["InvalidArgument", True]] * 2)

    def test_a_monitored_barrier_works_where_the_backend_is_named_with_its_device(self):
        self.assertIn("Rank 1 failed to pass", ranks.run(of_one_device, backend="cpu:weft")[0])

    def test_the_longest_timeout_is_no_timeout(self):
        self.assertEqual(ranks.run(longest, patience=60), [[4.0, 4.0]] * 2)

    def test_a_state_that_cannot_be_copied_is_an_error_of_all_ranks(self):
        kinds = ("object", "sparse tensor", "meta tensor", "DTensor")
        expected = [f"copy_state: a {kind} cannot be copied" for kind in kinds]
        both = ranks.run(uncopied, timeout=10, patience=60)
        self.assertEqual(both[0], both[1])
        self.assertEqual(both[0][:4], expected)
        for said, error in zip(both[0][4:], ("RecursionError", "ValueError"), strict=True):
            self.assertIn(f"copy_state: the state cannot be copied: {error}: ", said)

    def test_a_state_is_copied_whatever_the_default_device(self):
        self.assertEqual(ranks.run(copied_with_another_device), [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2)

    def test_a_mesh_takes_options(self):
        self.assertEqual(ranks.run(mesh_with_options), [[2.0] * 3] * 2)

    @unittest.skipIf(VERSION < (2, 14), "merges groups of Gloo only")
    def test_groups_merge(self):
        self.assertEqual(ranks.run(merged), [[2, [2.0] * 3]] * 2)


if __name__ == "__main__":
    unittest.main()
