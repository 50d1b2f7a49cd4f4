"""Runs a function on N forked ranks and gives what each returned."""

import multiprocessing
import os
import signal
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import weft_torch  # noqa: F401


# of Gloo: the last to let go of a group may be a hook's closure on the group's own thread, which
# then aborts by joining itself
_kept = []


def _rank(body, rank, world, backend, store, answers, timeout):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    try:
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=world,
            timeout=timedelta(seconds=timeout)
        )
        if backend == "gloo":
            _kept.append(dist.group.WORLD)
        answer = (True, body(rank, world))
        dist.destroy_process_group()
    except Exception as error:  # the parent says which rank failed and how
        answer = (False, f"{error}\n{traceback.format_exc()}")
    torch.save(answer, answers)


def run(body, world=2, backend="weft", timeout=60, patience=120, lost=()):
    """[body(rank, world), ...] by rank; ranks in `lost` are expected to be killed and give None.
    Any other end is an error."""
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(
                target=_rank,
                args=(body, rank, world, backend, f"{folder}/store", f"{folder}/{rank}", timeout),
            )
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(patience)
        results = []
        for rank, process in enumerate(ranks):
            if rank in lost:
                assert (
                    process.exitcode == -signal.SIGKILL
                ), f"rank {rank} was to be killed and ended with {process.exitcode}"
                results.append(None)
                continue
            if process.exitcode is None:
                process.kill()
                raise AssertionError(f"rank {rank} of {world} over {backend} did not end")
            assert (
                process.exitcode == 0
            ), f"rank {rank} of {world} over {backend} ended with {process.exitcode}"
            good, answer = torch.load(f"{folder}/{rank}", weights_only=False)
            assert good, f"rank {rank} of {world} over {backend}: {answer}"
            results.append(answer)
        return results
