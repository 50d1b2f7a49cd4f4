"""Code shared by the driven PyTorch peers: it starts the ranks, and exchanges commands and answers,
one JSON object per line (bench/README.md).

A peer is started with `--ranks N` and is rank 0. start() starts the other ranks with the same
environment variables as torchrun. Between commands every rank sleeps in a read: rank 0 reads stdin,
each other rank reads a pipe through which rank 0 forwards the commands. When stdin ends, the pipes
end too, so no rank outlives rank 0."""

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
    """The command cannot be executed. Every rank detects this by itself."""


class SpinBarrier:
    """A barrier between the processes of a host that takes a few microseconds and needs no
    collective library.

    Each rank counts its arrivals in a slot of shared memory and waits for the others' slots. It
    yields its core while it waits, so that more ranks than cores do not block each other."""

    def __init__(self, descriptor, rank, ranks):
        self._slots = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")
        self._rank = rank * 8  # Each rank has its own cache line.
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
        os.dup2(2, 1)  # Output of libraries must not be taken for an answer.
        self.rank = rank
        self.size = size
        self.barrier = SpinBarrier(descriptor, rank, size)
        self._pipes = pipes
        self._store_socket = store_socket

    def init_gloo(self):
        """Initializes torch.distributed over Gloo. Rank 0 serves the store on a socket that was
        bound before the other ranks started, so no other process can take the port.
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
        """Calls carry_out(command) on every rank for every command. Answers with the result of
        rank 0's call.
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
    """Starts the ranks. Call it before importing torch, so that all ranks import it in parallel."""
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
    """The defaults, overridden by the values of the command. Raises BadCommand for an unknown key
    or a value of another type.
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
