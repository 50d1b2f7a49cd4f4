#!/usr/bin/env python3
"""DistributedDataParallel over weft beside DistributedDataParallel over Gloo: the same script, in
interleaved rounds.

    PYTHONPATH=build/release/python python3 python/bench/ddp.py [--ranks 2] [--model resnet18] \\
        [--rounds 6] [--json FILE]

Each backend has its own ranks (processes of one thread each); while one works the others sleep.
"alone" is the same step of a model of its own in the same processes, without communication but for
a barrier of the backend at its end, since DDP's ranks wait for each other too. A backend's exposed
communication is its step minus its own step alone, in each round; of several steps the median.
"silent" is DDP over weft whose hook answers without having sent anything: its step minus the one
alone is what DDP itself takes, which no backend can save."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))
BACKENDS = ("weft", "gloo")
MODES = ("ddp", "alone")


def rank_main(options):
    """A rank of one backend: for each line "mode steps" on stdin one line of times on stdout."""
    import torch
    import torch.distributed as dist
    import torch_models
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    if options.backend == "weft":
        import weft_torch  # noqa: F401
    dist.init_process_group(
        options.backend,
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.ranks,
    )
    images, labels = torch_models.fixed_batch(options.batch, options.rank)

    def job(mode):
        torch.manual_seed(1)
        module = torch_models.MODELS[options.model][0]()
        forward = (
            module
            if mode == "alone"
            else DistributedDataParallel(module, gradient_as_bucket_view=options.views)
        )
        if mode == "silent":
            forward.register_comm_hook(None, unsent)
        optimizer = torch_models.optimizer("sgd", module.parameters())

        def step():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(forward(images), labels)
            loss.backward()
            optimizer.step()
            if mode != "ddp":
                dist.barrier()
            return loss.item()

        return step, module

    def unsent(state, bucket):
        answer = torch.futures.Future()
        answer.set_result(bucket.buffer())
        return answer

    jobs = {
        mode: job(mode) for mode in (*MODES, *(["silent"] if options.backend == "weft" else []))
    }
    for line in sys.stdin:
        mode, steps = line.split()
        step, module = jobs[mode]
        times = []
        dist.barrier()
        for _ in range(int(steps)):
            start = time.perf_counter()
            loss = step()
            times.append((time.perf_counter() - start) * 1e3)
        weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        theirs = weights.clone()
        dist.broadcast(theirs, 0)
        print(
            json.dumps({"times": times, "loss": loss, "agree": torch.equal(weights, theirs)}),
            flush=True,
        )
    dist.destroy_process_group()


class Ranks:
    """The processes of one backend."""

    def __init__(self, backend, options, folder):
        command = [
            sys.executable,
            __file__,
            "--backend",
            backend,
            "--store",
            f"{folder}/{backend}",
            "--ranks",
            str(options.ranks),
        ]
        command += [
            "--model",
            options.model,
            "--batch",
            str(options.batch),
            *(["--views"] if options.views else []),
        ]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        self.processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(options.ranks)
        ]

    def run(self, mode, steps):
        """Each step's time on the rank that was slowest in it, and the last loss of rank 0."""
        for process in self.processes:
            process.stdin.write(f"{mode} {steps}\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes]
        if mode == "ddp" and not all(answer["agree"] for answer in answers):
            raise SystemExit("the ranks' weights differ")
        return [max(times) for times in zip(*(answer["times"] for answer in answers))], answers[0][
            "loss"
        ]

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(30)


def measure(options):
    """{(backend, mode): [a round's median step in ms]}"""
    with tempfile.TemporaryDirectory() as folder:
        backends = {name: Ranks(name, options, folder) for name in BACKENDS}
        losses = {name: ranks.run("ddp", 3)[1] for name, ranks in backends.items()}
        if abs(losses["weft"] - losses["gloo"]) > 1e-3 * abs(losses["gloo"]):
            raise SystemExit(f"the losses differ: {losses}")
        turns = [*((name, mode) for mode in MODES for name in BACKENDS), ("weft", "silent")]
        for name, mode in turns:
            backends[name].run(mode, 2)
        found = {turn: [] for turn in turns}
        for number in range(options.rounds):
            start = number % len(turns)
            for name, mode in turns[start:] + turns[:start]:
                found[name, mode].append(
                    statistics.median(backends[name].run(mode, options.steps)[0])
                )
        for ranks in backends.values():
            ranks.end()
    return found


def results(found):
    """(what, value, unit) of each figure."""
    rows = []
    for name in BACKENDS:
        exposed = [ddp - alone for ddp, alone in zip(found[name, "ddp"], found[name, "alone"])]
        for what, values in (
            ("step", found[name, "ddp"]),
            ("alone", found[name, "alone"]),
            ("exposed", exposed),
        ):
            rows.append((f"{what} {name}", statistics.median(values), "ms"))
    own = [silent - alone for silent, alone in zip(found["weft", "silent"], found["weft", "alone"])]
    rows.append(("DDP's own, of both", statistics.median(own), "ms"))
    medians = {what: value for what, value, _ in rows}
    # Below the noise of the machine nothing is said: an exposed time counts as 1 ms at least.
    rows.append(
        (
            "exposed, Gloo's over weft's",
            medians["exposed gloo"] / max(medians["exposed weft"], 1.0),
            "times",
        )
    )
    rows.append(
        (
            "step, Gloo's over weft's",
            statistics.median(g / w for g, w in zip(found["gloo", "ddp"], found["weft", "ddp"])),
            "times",
        )
    )
    return rows


def write(rows, options):
    host = {
        "cpu": open("/proc/cpuinfo").read().split("model name\t: ")[1].split("\n")[0],
        "cores": os.cpu_count(),
    }
    commit = subprocess.run(
        ["git", "-C", HERE, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    with open(options.json, "a") as file:
        for what, value, unit in rows:
            params = {
                "what": what,
                "model": options.model,
                "ranks": options.ranks,
                "batch": options.batch,
                "views": options.views,
            }
            line = {
                "bench": "python-ddp",
                "params": params,
                "value": round(value, 3),
                "unit": unit,
                "runs": options.rounds * options.steps,
            }
            file.write(
                json.dumps(
                    {
                        **line,
                        "commit": commit,
                        "date": datetime.now(timezone.utc).date().isoformat(),
                        "host": host,
                    }
                )
                + "\n"
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--model", default="resnet18", help="one of bench/peers/torch_models.py: mlp, cnn, resnet18"
    )
    parser.add_argument("--batch", type=int, default=32, help="a rank")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="of each kind in a round")
    parser.add_argument(
        "--views", action="store_true", help="gradient_as_bucket_view=True, for both"
    )
    parser.add_argument("--json", help="a file to append lines to")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        rank_main(options)
        return
    rows = results(measure(options))
    for what, value, unit in [] if options.quiet else rows:
        print(f"{what:28}{value:9.2f} {unit}")
    if options.json:
        write(rows, options)


if __name__ == "__main__":
    main()
