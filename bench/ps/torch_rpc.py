#!/usr/bin/env python3
"""The peer of the bench of the parameter server: torch.distributed.rpc (TensorPipe). One server and
some workers, as processes.

    torch_rpc.py [--op update|pull|push] [--workers 2] [--parameters 235146] [--rows 200000]
                 [--floats 64] [--batch 4096] [--seconds 3] [--tcp]

update: a worker sends its gradient in one call and gets the values as the answer, as in PyTorch's
tutorial on parameter servers, with one flat tensor.
pull, push: rows of one tensor, by index_select and index_add_. A worker has two calls outstanding.
--tcp: TensorPipe's TCP transport only, instead of its choice within a host.

Prints one JSON object. "verified": the values after the run are those of SGD with all gradients,
and pulled rows were right before it."""

import argparse
import collections
import json
import os
import socket
import threading
import time
import warnings

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

LR = 1.0 / 1024
BATCHES = 32
OUTSTANDING = 2


class Server:
    values = None
    lock = threading.Lock()


@torch.no_grad()
def update_and_fetch(gradient):
    with Server.lock:
        Server.values.add_(gradient, alpha=-LR)
        return Server.values.clone()


# No lock: pulls are measured without pushes.
def pull_rows(rows):
    return Server.values.index_select(0, rows)


@torch.no_grad()
def push_rows(rows, gradients):
    with Server.lock:
        Server.values.index_add_(0, rows, gradients, alpha=-LR)


def pattern(count):
    return (torch.arange(count) % 5 - 2).float()


def first_values(options):
    if options.op == "update":
        return torch.zeros(options.parameters)
    return torch.ones(options.rows, options.floats)


def batches_of(options, worker):
    generator = torch.Generator().manual_seed(worker + 1)
    size = (options.batch,)
    return [torch.randint(options.rows, size, generator=generator) for _ in range(BATCHES)]


class Updates:
    def __init__(self, options, worker):
        self.gradient = pattern(options.parameters)
        self.given = torch.empty_like(self.gradient)

    def operate(self):
        self.given.copy_(self.gradient)
        rpc.rpc_sync("process0", update_and_fetch, args=(self.given,))

    def finish(self):
        pass


class Rows:
    def __init__(self, options, worker):
        self.pushes = options.op == "push"
        self.batches = batches_of(options, worker)
        self.gradients = pattern(options.floats).repeat(options.batch, 1)
        self.outstanding = collections.deque()
        self.calls = 0
        ones = torch.ones(options.batch, options.floats)
        for rows in self.batches:
            if not torch.equal(rpc.rpc_sync("process0", pull_rows, args=(rows,)), ones):
                raise SystemExit("wrong rows before the run")

    def operate(self):
        if len(self.outstanding) == OUTSTANDING:
            self.outstanding.popleft().wait()
        rows = self.batches[self.calls % BATCHES]
        self.calls += 1
        call, args = (push_rows, (rows, self.gradients)) if self.pushes else (pull_rows, (rows,))
        self.outstanding.append(rpc.rpc_async("process0", call, args=args))

    def finish(self):
        while self.outstanding:
            self.outstanding.popleft().wait()


def expected_values(options, counts):
    values = first_values(options).double()
    if options.op == "update":
        return (values - LR * sum(counts) * pattern(options.parameters)).float()
    pushes = torch.zeros(options.rows, dtype=torch.double)
    for worker in range(options.workers if options.op == "push" else 0):
        for number, rows in enumerate(batches_of(options, worker)):
            uses = float((counts[worker] + BATCHES - 1 - number) // BATCHES)
            pushes.index_add_(0, rows, torch.full((options.batch,), uses, dtype=torch.double))
    return (values - LR * pushes[:, None] * pattern(options.floats)).float()


def process(rank, options, port, ready, go, stop, counts, verified):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="You are using a Backend")  # torch's own use of it
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    # The kernel's choice of the interface is not reliable in a container without a network.
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=60)
    if options.tcp:
        backend = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=4, rpc_timeout=60, _transports=["uv"], _channels=["basic"]
        )
    Server.values = first_values(options)
    rpc.init_rpc(
        f"process{rank}", rank=rank, world_size=options.workers + 1, rpc_backend_options=backend
    )
    if rank > 0:
        work = (Updates if options.op == "update" else Rows)(options, rank - 1)
        ready.release()
        go.wait()
        while not stop.is_set():
            work.operate()
            counts[rank - 1] += 1
        work.finish()
    rpc.shutdown()
    if rank == 0:
        verified.value = torch.equal(Server.values, expected_values(options, list(counts)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--op", choices=["update", "pull", "push"], default="update")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=235146)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--floats", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--tcp", action="store_true")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    ready, go, stop = context.Semaphore(0), context.Event(), context.Event()
    counts = context.Array("q", options.workers, lock=False)
    verified = context.Value("b", False, lock=False)
    shared = (options, port, ready, go, stop, counts, verified)
    processes = [
        context.Process(target=process, args=(rank, *shared), daemon=True)
        for rank in range(options.workers + 1)
    ]
    for one in processes:
        one.start()
    for _ in range(options.workers):
        if not ready.acquire(timeout=200):  # a busy machine takes long for the imports
            raise SystemExit("torch_rpc.py: the workers do not start")
    go.set()
    time.sleep(0.3)  # warm-up
    start, before = time.monotonic(), sum(counts)
    time.sleep(options.seconds)
    after, seconds = sum(counts), time.monotonic() - start
    stop.set()
    for one in processes:
        one.join(60)
    each = 1 if options.op == "update" else options.batch
    print(
        json.dumps(
            {
                "impl": "torch-rpc",
                "op": options.op,
                "transport": "tcp" if options.tcp else "local",
                "workers": options.workers,
                "per_second": each * (after - before) / seconds,
                "verified": after > before and bool(verified.value),
            }
        )
    )


if __name__ == "__main__":
    main()
