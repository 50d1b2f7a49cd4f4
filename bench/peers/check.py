#!/usr/bin/env python3
"""Drives one peer with two ranks and tiny sizes, and checks its answers against bench/README.md.
Exits with 77 if MPI is not built. python/tests/with_torch.py finds a Python for the torch peers.

    check.py ideal|mpi|torch_collectives|torch_training|torch_first_step --bin BUILT_PEERS
"""

import argparse
import json
import os
import pathlib
import select
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ANSWER_SECONDS = 60
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "ping_pong")


def require(condition, message):
    if not condition:
        sys.exit(f"check.py: {message}")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def descendants(pid):
    found = [pid]
    for parent in found:
        for children in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def cpu_seconds(pids):
    fields = [
        pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids
    ]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / os.sysconf("SC_CLK_TCK")


class Peer:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, command):
        text = command if isinstance(command, str) else json.dumps(command)
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        require(ready, f"no answer in {ANSWER_SECONDS} s to {text}")
        line = self.process.stdout.readline()
        require(line, f"the peer ended instead of answering {text}")
        return json.loads(line)

    def refuses(self, command):
        answer = self.ask(command)
        require(
            answer.get("error") and "us" not in answer and "step_ms" not in answer,
            f"{command} was answered with {answer}",
        )

    def sleeps(self):
        """Checks that a waiting peer uses no processor time, which the measured one needs."""
        pids = descendants(self.process.pid)
        before = cpu_seconds(pids)
        time.sleep(0.5)
        used = cpu_seconds(pids) - before
        require(
            used <= 0.05,
            f"the peer used {used:.2f} s of processor time in half a second of waiting",
        )

    def end(self):
        pids = descendants(self.process.pid)
        self.process.stdin.close()
        require(self.process.wait(20) == 0, f"the peer ended with {self.process.returncode}")
        deadline = time.monotonic() + 10
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        require(not left, f"processes {left} outlived the peer")


def check_values(values, median, count):
    require(
        len(values) == count and all(value > 0 for value in values),
        f"expected {count} positive times, got {values}",
    )
    require(abs(median - statistics.median(values)) < 1e-3, f"median {median} of {values}")


def check_collectives(command, impl, ops):
    peer = Peer(command)
    for op in ops:
        for size in (8, 8192, 2 << 20):
            answer = peer.ask(
                {"op": op, "bytes": size, "dtype": "f32", "iterations": 3, "warmup": 1}
            )
            wanted = {
                "impl": impl,
                "op": op,
                "bytes": size,
                "dtype": "f32",
                "ranks": 2,
                "verified": True,
            }
            require(
                {key: answer.get(key) for key in wanted} == wanted, f"expected {wanted} in {answer}"
            )
            require(
                answer["block"] == min(max(2**20 // size, 1), 100),
                f"block {answer['block']} for {size} bytes",
            )
            check_values(answer["us"], answer["median_us"], 3)
    require(
        peer.ask({"op": ops[0], "bytes": 64, "iterations": 1, "block": 7})["block"] == 7,
        "the command's block was ignored",
    )
    for size in (4096, 2 << 20):
        written = peer.ask({"op": ops[0], "bytes": size, "iterations": 3, "rewrite": 1})
        check_values(written["us"], written["median_us"], 3)
    for bad in (
        {"op": "all_reduse", "bytes": 8},
        {"op": ops[0], "bytes": 6},
        {"op": ops[0], "bytes": 8, "dtype": "f8"},
        {"size": 1},
        "{",
    ):
        peer.refuses(bad)
    peer.sleeps()
    peer.end()


def check_losses(peer):
    """Checks that each mode has the losses of one process on the batches of all ranks."""
    command = {"model": "gpt-128", "optimizer": "adamw", "batch": 1, "steps": 3, "warmup": 0}
    expected = peer.ask({**command, "mode": "reference"})
    require(expected["parameters"] == 834304, f"parameters in {expected}")
    for mode in ("ddp", "ddp-tuned", "fsdp2"):
        losses = peer.ask({**command, "mode": mode})["losses"]
        require(len(losses) == 3, f"{mode}: losses {losses}")
        for mine, right in zip(losses, expected["losses"]):
            require(
                abs(mine - right) < 1e-3 * right,
                f"{mode}: losses {losses}, one process has {expected['losses']}",
            )


def check_training(command):
    peer = Peer(command)
    parameters = {"mlp": 235146, "cnn": 421642, "resnet18": 11175370}
    for model, optimizer, mode in (
        ("mlp", "sgd", "ddp"),
        ("cnn", "sgd", "alone"),
        ("cnn", "adamw", "ddp"),
        ("resnet18", "adamw", "ddp"),
    ):
        answer = peer.ask(
            {
                "model": model,
                "optimizer": optimizer,
                "mode": mode,
                "batch": 4,
                "steps": 3,
                "warmup": 1,
            }
        )
        wanted = {
            "impl": f"pytorch-{mode}",
            "model": model,
            "optimizer": optimizer,
            "batch": 4,
            "ranks": 2,
            "parameters": parameters[model],
        }
        require(
            {key: answer.get(key) for key in wanted} == wanted, f"expected {wanted} in {answer}"
        )
        check_values(answer["step_ms"], answer["median_ms"], 3)
        require(mode == "alone" or answer["verified"] is True, f"parameters differ: {answer}")
        require(
            len(answer["rss_mb"]) == 2 and answer["peak_rss_mb"] >= max(answer["rss_mb"]) > 50,
            f"memory in {answer}",
        )
        require(
            0 < answer["loss_last"] < answer["loss_first"] < 5, f"the loss didn't fall: {answer}"
        )
    check_losses(peer)
    require(peer.ask({"drop": True}).get("dropped") is True, "drop")
    for bad in (
        {"model": "gpt"},
        {"model": "mlp", "optimizer": "lion"},
        {"model": "mlp", "steps": 0},
        {"model": 1},
        {"layers": 1},
        "{",
    ):
        peer.refuses(bad)
    peer.sleeps()
    peer.end()


def check_first_step(command):
    start = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=ANSWER_SECONDS, check=True)
    answer = json.loads(done.stdout)
    require(
        answer["impl"] == "pytorch-ddp" and answer["ranks"] == 2 and min(answer["rss_mb"]) > 50,
        f"{answer}",
    )
    require(
        start < answer["first_step_unix_s"] < time.time(),
        f"the first step's time isn't within the run: {answer}",
    )
    print(f"first step {answer['first_step_unix_s'] - start:.2f} s after the command")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "peer", choices=("ideal", "mpi", "torch_collectives", "torch_training", "torch_first_step")
    )
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path())
    arguments = parser.parse_args()
    peer = arguments.peer
    if peer == "ideal":
        check_collectives([arguments.bin / "weft_peer_ideal"], "ideal", OPS[:1])
    elif peer == "mpi":
        binary = arguments.bin / "weft_peer_mpi"
        if not binary.exists() or not shutil.which("mpirun"):
            skip("no MPI was found at build time; ./dev bench setup adds it")
        command = ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", binary]
        check_collectives(command, "openmpi", OPS)
        check_collectives([*command, "--prepared"], "openmpi-prepared", ["all_reduce"])
    elif peer == "torch_collectives":
        check_collectives(
            [sys.executable, HERE / "torch_collectives.py", "--ranks", "2"], "gloo", OPS
        )
    elif peer == "torch_training":
        check_training([sys.executable, HERE / "torch_training.py", "--ranks", "2"])
    else:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        check_first_step([sys.executable, *launcher, HERE / "torch_first_step.py"])


if __name__ == "__main__":
    main()
