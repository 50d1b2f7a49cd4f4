"""Runs a function on N forked ranks and gives what each returned."""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import weft_torch  # noqa: F401

FORK = multiprocessing.get_context("fork")

# of Gloo: the last to let go of a group may be a hook's closure on the group's own thread, which
# then aborts by joining itself
_kept = []


def start(process):
    """Starts a process that this one forks. A fork copies the locks of all threads and only the
    thread that forks. So a lock that another thread holds at this moment stays locked in the child
    for ever: that of glibc's resolver, which a TCPStore's thread takes for each connection."""
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a process of {threads} threads must not fork ranks"
    process.start()
    return process


def shows_where_it_is():
    """In a rank: the stacks of all threads on SIGUSR1."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def join(processes, patience):
    """Waits for the ends of all processes, for `patience` seconds in all. Kills those that are
    left, after they have written their stacks, and gives their numbers."""
    end = time.monotonic() + patience
    for process in processes:
        process.join(max(0, end - time.monotonic()))
    left = [number for number, process in enumerate(processes) if process.exitcode is None]
    for number in left:
        print(f"process {number} did not end; it is here:", flush=True)
        os.kill(processes[number].pid, signal.SIGUSR1)
        processes[number].join(1)
    for number in left:
        processes[number].kill()
        processes[number].join()
    return left


def _host(told, wanted):
    wanted.close()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told.send(store.port)
    told.poll(None)  # until the parent closes its end


class StoreHost:
    """A TCPStore in a process of its own, as a launcher has it. Its threads are not in this
    process, which may fork."""

    def __init__(self):
        self._end, theirs = FORK.Pipe()
        self._process = start(FORK.Process(target=_host, args=(theirs, self._end), daemon=True))
        theirs.close()
        self.port = self._end.recv()

    def close(self):
        self._end.send("end")
        self._process.join(10)
        self._end.close()


def _rank(body, rank, world, backend, store, answers, timeout):
    shows_where_it_is()
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
        ranks = [
            start(
                FORK.Process(
                    target=_rank, args=(
                        body, rank, world, backend, f"{folder}/store", f"{folder}/{rank}", timeout
                    )
                )
            )
            for rank in range(world)
        ]
        left = join(ranks, patience)
        assert not left, f"rank {left[0]} of {world} over {backend} did not end"
        results = []
        for rank, process in enumerate(ranks):
            if rank in lost:
                assert (
                    process.exitcode == -signal.SIGKILL
                ), f"rank {rank} was to be killed and ended with {process.exitcode}"
                results.append(None)
                continue
            assert (
                process.exitcode == 0
            ), f"rank {rank} of {world} over {backend} ended with {process.exitcode}"
            good, answer = torch.load(f"{folder}/{rank}", weights_only=False)
            assert good, f"rank {rank} of {world} over {backend}: {answer}"
            results.append(answer)
        return results
