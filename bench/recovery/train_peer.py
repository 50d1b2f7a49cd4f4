#!/usr/bin/env python3
"""The training program of the peers in recovery.py: the CNN of recipes/fashion-mnist, on random
images of that size, by data parallelism over Gloo.

    torchrun … train_peer.py torchrun --folder F --batch 64 --save-every 100
    train_peer.py torchft --folder F --replica 1      # with TORCHFT_LIGHTHOUSE

Each process appends "TIME PID STEP" to F/times for each step that it finishes; TIME is of
CLOCK_MONOTONIC. It trains until it is killed. With torchrun, rank 0 saves a checkpoint every N
steps, and all ranks start from the newest one."""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import torch_models  # noqa: E402


class Times:
    """A line for each finished step, in one write, so that a killed process leaves whole lines."""

    def __init__(self, folder):
        self._file = os.open(folder / "times", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, step):
        line = f"{time.monotonic():.6f} {os.getpid()} {step}\n"
        os.write(self._file, line.encode())


def batch_of(options, rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(options.batch, 1, 28, 28, generator=generator)
    return images, torch.randint(0, 10, (options.batch,), generator=generator)


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def under_torchrun(options):
    dist.init_process_group("gloo")
    net = torch_models.cnn()
    optimizer = sgd(net)
    checkpoint = options.folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    times = Times(options.folder)
    while True:
        train_step(model, optimizer, *batch_of(options, dist.get_rank(), step))
        step += 1
        times.add(step)
        if dist.get_rank() == 0 and step % options.save_every == 0:
            saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, options.folder / "checkpoint.new")
            os.replace(options.folder / "checkpoint.new", checkpoint)


def under_torchft(options):
    import datetime

    import torchft

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = torch_models.cnn()
    plain = sgd(net)

    def load(state):
        net.load_state_dict(state["net"])
        plain.load_state_dict(state["optimizer"])

    def save():
        return {"net": net.state_dict(), "optimizer": plain.state_dict()}

    # A lost replica is noticed by a failed operation or by its heartbeat, whichever is first.
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=options.timeout)),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        timeout=datetime.timedelta(seconds=options.timeout),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica{options.replica}",
        hostname="127.0.0.1",
    )
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, plain)
    times = Times(options.folder)
    while True:
        before = manager.current_step()
        train_step(model, optimizer, *batch_of(options, options.replica, before))
        if manager.current_step() > before:
            times.add(manager.current_step())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("how", choices=("torchrun", "torchft"))
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank in a step")
    parser.add_argument("--save-every", type=int, default=100, help="torchrun: steps")
    parser.add_argument("--replica", type=int, default=0, help="torchft: number of this process")
    parser.add_argument("--timeout", type=float, default=5, help="torchft: seconds of an operation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    {"torchrun": under_torchrun, "torchft": under_torchft}[options.how](options)


if __name__ == "__main__":
    main()
