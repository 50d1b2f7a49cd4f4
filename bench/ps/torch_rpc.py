#!/usr/bin/env python3
"""The peer of the bench of the parameter server: torch.distributed.rpc (TensorPipe). One server and
some workers, as processes. A worker sends its gradient in one call and gets the values as the
answer, as in PyTorch's tutorial on parameter servers, with one flat tensor.

    torch_rpc.py --workers 2 --parameters 235146 --seconds 3 [--tcp]

--tcp: TensorPipe's TCP transport only, instead of its choice within a host."""

import argparse
import json
import os
import socket
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

LR = 1.0 / 1024


class Server:
    values = None
    updates = 0
    lock = threading.Lock()


@torch.no_grad()
def update_and_fetch(gradient):
    with Server.lock:
        Server.values.add_(gradient, alpha=-LR)
        Server.updates += 1
        return Server.values.clone()


def updates_and_values():
    with Server.lock:
        return Server.updates, Server.values.clone()


def gradient_of(parameters):
    return (torch.arange(parameters) % 5 - 2).float()


def process(rank, options, port, go, stop, counts):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    # The kernel's choice of the interface is not reliable in a container without a network.
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=60)
    if options.tcp:
        backend = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=4, rpc_timeout=60, _transports=["uv"], _channels=["basic"]
        )
    Server.values = torch.zeros(options.parameters)
    rpc.init_rpc(
        f"process{rank}", rank=rank, world_size=options.workers + 1, rpc_backend_options=backend
    )
    if rank > 0:
        gradient = gradient_of(options.parameters)
        given = torch.empty_like(gradient)
        go.wait()
        while not stop.is_set():
            given.copy_(gradient)
            rpc.rpc_sync("process0", update_and_fetch, args=(given,))
            counts[rank - 1] += 1
        if rank == 1:
            updates, values = rpc.rpc_sync("process0", updates_and_values)
            counts[options.workers] = updates
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=235146)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--tcp", action="store_true")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    go, stop = context.Event(), context.Event()
    counts = context.Array("q", options.workers + 1, lock=False)
    processes = [
        context.Process(target=process, args=(rank, options, port, go, stop, counts), daemon=True)
        for rank in range(options.workers + 1)
    ]
    for one in processes:
        one.start()
    go.set()
    deadline = time.monotonic() + 60
    while min(counts[: options.workers]) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    start, before = time.monotonic(), sum(counts[: options.workers])
    time.sleep(options.seconds)
    after, seconds = sum(counts[: options.workers]), time.monotonic() - start
    stop.set()
    for one in processes:
        one.join(30)
    print(
        json.dumps(
            {
                "impl": "torch-rpc",
                "transport": "tcp" if options.tcp else "local",
                "workers": options.workers,
                "parameters": options.parameters,
                "updates_per_s": (after - before) / seconds,
                "verified": after > before and counts[options.workers] > 0,
            }
        )
    )


if __name__ == "__main__":
    main()
