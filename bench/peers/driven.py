"""What the driven PyTorch peers share: starting the ranks, and one JSON command and answer a line
(bench/README.md).

A peer is started with `--ranks N` and is rank 0; start() starts the others with the environment
that torchrun would give them. Between commands every rank sleeps in a read: rank 0 of stdin, the
others of the pipe by which rank 0 passes the commands on. When stdin ends the pipes end too, so no
rank outlives rank 0."""

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time


class BadCommand(Exception):
    """The command can't be carried out; every rank finds the same reason by itself."""


class SpinBarrier:
    """A barrier of a few microseconds between the processes of a host, for timing without a
    collective library.

    Each rank counts its arrivals in a slot of shared memory and waits for the others' slots. It
    gives up its core while it waits, so that more ranks than cores don't block each other."""

    def __init__(self, descriptor, rank, ranks):
        self._slots = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")
        self._rank = rank * 8  # A cache line each.
        self._others = [other * 8 for other in range(ranks) if other != rank]

    def wait(self):
        slots = self._slots
        arrived = slots[self._rank] + 1
        slots[self._rank] = arrived
        for other in self._others:
            while slots[other] < arrived:
                os.sched_yield()


class Ranks:
    def __init__(self, rank, size, pipes, store_socket, descriptor):
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # Libraries that print must not answer.
        self.rank = rank
        self.size = size
        self.barrier = SpinBarrier(descriptor, rank, size)
        self._pipes = pipes
        self._store_socket = store_socket

    def init_gloo(self):
        """torch.distributed over Gloo. Rank 0 serves the store on the socket whose port the others
        were told: no race for it.
        """
        import torch.distributed as dist

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self.rank == 0:
            store = dist.TCPStore(
                host,
                port,
                self.size,
                True,
                master_listen_fd=self._store_socket.detach(),
                wait_for_workers=False,
            )
        else:
            store = dist.TCPStore(host, port, self.size, False)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)

    def serve(self, impl, carry_out):
        """Calls carry_out(command) on every rank for every command and answers with what rank 0's
        call returns.
        """
        for line in sys.stdin:
            for pipe in self._pipes:
                pipe.write(line)
                pipe.flush()
            try:
                command = json.loads(line)
                if command.get("quit"):
                    break
                answer = carry_out(command)
            except (BadCommand, json.JSONDecodeError) as error:
                answer = {"impl": impl, "error": str(error)}
            if self.rank == 0:
                print(json.dumps(answer), file=self._answers, flush=True)


def start():
    """Call before torch is imported, so that all ranks import it at once."""
    os.environ["OMP_NUM_THREADS"] = "1"  # torchrun's default.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:
        return Ranks(
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            [],
            None,
            int(os.environ["WEFT_PEER_BARRIER"]),
        )
    parser = argparse.ArgumentParser(
        description="A peer for weft bench; reads JSON commands on stdin (bench/README.md)."
    )
    parser.add_argument("--ranks", type=int, default=2)
    size = parser.parse_args().ranks
    store_socket = socket.create_server(("127.0.0.1", 0))
    descriptor = os.memfd_create("weft_peer_barrier", 0)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(store_socket.getsockname()[1]),
        WORLD_SIZE=str(size),
    )
    os.environ["WEFT_PEER_BARRIER"] = str(descriptor)
    pipes = []
    for rank in range(1, size):
        child = subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            text=True,
        )
        pipes.append(child.stdin)
    os.environ.update(RANK="0", LOCAL_RANK="0")
    return Ranks(0, size, pipes, store_socket, descriptor)


def take(command, defaults):
    """The command's values over the defaults; an unknown key or a value of another type is a
    BadCommand.
    """
    unknown = sorted(set(command) - set(defaults))
    if unknown:
        raise BadCommand(f"unknown key '{unknown[0]}'")
    for key, value in command.items():
        if type(value) is not type(defaults[key]):
            raise BadCommand(f"{key} must be of type {type(defaults[key]).__name__}, got {value!r}")
        if type(value) is int and value < 0:
            raise BadCommand(f"{key} must not be negative, got {value}")
    return {**defaults, **command}


def median(values, digits=3):
    return round(statistics.median(values), digits)


def now():
    return time.perf_counter()
