#!/usr/bin/env python3
"""Kills ranks of training jobs of weft, torchrun and torchft, and measures how long each takes
until all ranks have finished a step again.

    bench/recovery/recovery.py [--ranks 2] [--rounds 3] [--kills 5] [--impls weft,torchrun,…]

All train the CNN of recipes/fashion-mnist with data parallelism and the same batch. A round runs
each job once, in turn; in each job, a random rank is killed (SIGKILL) some random time after the
last recovery, and so on. Prints one JSON line a job: the times from a kill to the next finished
step, the finished steps that had to be done again, and the number of kills after which the job did
not go on. Then a table.

weft runs under `weft chaos`, which also compares the bytes of the weights with those of an
undisturbed run. torchrun runs with its defaults ("torchrun"), with restarts ("torchrun-restarts":
--max-restarts 1000), and with the flags that notice a lost process soonest ("torchrun-best":
--monitor-interval 0.05 too). torchft needs the package torchft-nightly (PYTHONPATH)."""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from faults import chaos

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from processes import without_launchers  # noqa: E402

PEER = pathlib.Path(__file__).resolve().parent / "train_peer.py"
WEFT = ROOT / "build/release/bin/weft"
BATCH = 64  # of a rank
SAVE_EVERY = 100  # steps, of torchrun's checkpoints
LIMIT = 30  # seconds until a job counts as not recovered

TORCHRUN = {
    "torchrun": [],
    "torchrun-restarts": ["--max-restarts", "1000"],
    "torchrun-best": ["--max-restarts", "1000", "--monitor-interval", "0.05"],
}
TORCHFT_LIGHTHOUSE = """
import sys, torchft._torchft as ft
server = ft.LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
print(server.address().rsplit(":", 1)[1], flush=True)
sys.stdin.read()
"""


class NotRecovered(Exception):
    pass


class Job:
    """A job of a peer, in a folder whose file "times" has a line for each finished step."""

    def __init__(self, folder, ranks):
        self.folder, self.ranks = folder, ranks
        self.processes = []

    def start(self, command, **environment):
        log = open(self.folder / f"log{len(self.processes)}", "w")
        self.processes.append(
            subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=log,
                env=without_launchers(keep="WEFT_") | {"OMP_NUM_THREADS": "1"} | environment,
                start_new_session=True,
            )
        )
        return self.processes[-1]

    def steps(self):
        """(time, process, step) of each finished step."""
        try:
            lines = (self.folder / "times").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(float(t), int(pid), int(step)) for t, pid, step in map(str.split, lines)]

    def next_step(self, since, lost=None):
        """Waits until `ranks` processes other than `lost` have finished a step after `since`.
        Returns the time when the last of them had, and the smallest step."""
        limit = time.monotonic() + LIMIT
        while time.monotonic() < limit:
            first = {}
            for at, pid, step in self.steps():
                if at > since and pid != lost and pid not in first:
                    first[pid] = (at, step)
            alive = {pid: one for pid, one in first.items() if is_alive(pid)}
            if len(alive) >= self.ranks:
                return max(at for at, _ in alive.values()), min(s for _, s in alive.values())
            self.tend()
            time.sleep(0.01)
        raise NotRecovered()

    def tend(self):
        """Starts what the job's own launcher would start."""

    def has_begun(self):
        return bool(self.steps())

    def last_line(self):
        lines = (self.folder / "log0").read_text().splitlines()
        return lines[-1] if lines else "no output"

    def victims(self):
        return sorted({pid for _, pid, _ in self.steps() if is_alive(pid)})

    def end(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)

    def left(self):
        """Workers of the job, also those that have not finished a step."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if str(self.folder).encode() in words and is_alive(int(folder.name)):
                yield int(folder.name)


class Torchrun(Job):
    def __init__(self, folder, ranks, flags):
        super().__init__(folder, ranks)
        self.start(
            [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            + ["--nproc-per-node", ranks, *flags, PEER, "torchrun", "--folder", folder]
            + ["--batch", BATCH, "--save-every", SAVE_EVERY]
        )

    def tend(self):
        if self.processes[0].poll() is not None:
            raise NotRecovered()


class Torchft(Job):
    """Each rank is a replica of its own, which is started again when it ends."""

    def __init__(self, folder, ranks):
        super().__init__(folder, ranks)
        server = subprocess.Popen(
            [sys.executable, "-c", TORCHFT_LIGHTHOUSE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.server, self.port = server, server.stdout.readline().strip()
        self.replicas = [self.replica(rank) for rank in range(ranks)]

    def replica(self, rank):
        return self.start(
            [sys.executable, PEER, "torchft", "--folder", self.folder, "--batch", BATCH]
            + ["--replica", rank],
            TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{self.port}",
        )

    def tend(self):
        for rank, process in enumerate(self.replicas):
            if process.poll() is not None:
                self.replicas[rank] = self.replica(rank)

    def end(self):
        super().end()
        self.server.kill()
        self.server.wait()


def is_alive(pid):
    try:
        return (pathlib.Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1][1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def measure_peer(make, ranks, kills, numbers):
    """A job that does not recover is ended, and a new one takes the other kills."""
    times, lost = [], []
    left = kills
    while left > 0:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-recovery-"))
        job = make(folder, ranks)
        try:
            job.next_step(time.monotonic())
            while left > 0:
                time.sleep(numbers.uniform(2, 6))
                newest = max(step for _, _, step in job.steps())
                killed_at = time.monotonic()
                victim = numbers.choice(job.victims())
                os.kill(victim, signal.SIGKILL)
                left -= 1
                at, step = job.next_step(killed_at, victim)
                times.append(at - killed_at)
                lost.append(max(0, newest + 1 - step))
        except NotRecovered:
            if not job.has_begun():
                sys.exit(f"recovery: a job did not begin: {job.last_line()}")
        finally:
            job.end()
            shutil.rmtree(folder)
    return {"times_s": times, "redone_steps": lost, "not_recovered": kills - len(times)}


def measure_weft(ranks, kills, numbers, options):
    command = ["--kills", kills, "--seed", numbers.randrange(1 << 30)]
    command += ["--", "train", "fashion-mnist", "-n", ranks]
    command += ["--set", f"train.batch={BATCH * ranks}", "--set", "train.eval_every=0"]
    command += ["--set", "train.epochs=100", "--set", f"train.max_steps={300 + 300 * kills}"]
    command += ["--set", "train.reproducible=true", *options]
    (plan,) = chaos(WEFT, command)["plans"]
    recovered = [fault for fault in plan["faults"] if not fault["problem"]]
    return {
        "times_s": [fault["next_step_s"] for fault in recovered],
        "redone_steps": [fault["redone"] for fault in recovered],
        "not_recovered": len(plan["faults"]) - len(recovered),
        "same_weights": plan["same_digest"],
        "problems": plan["problems"],
    }


def measure(impl, ranks, kills, numbers):
    if impl == "weft":
        return measure_weft(ranks, kills, numbers, [])
    if impl == "weft-spare":
        return measure_weft(ranks, kills, numbers, ["--spares", 1])
    if impl == "torchft":
        return measure_peer(Torchft, ranks, kills, numbers)
    flags = TORCHRUN[impl]
    return measure_peer(lambda folder, n: Torchrun(folder, n, flags), ranks, kills, numbers)


def median(values):
    return statistics.median(values) if values else None


def summary(results, impl):
    all_of = [one for one in results if one["params"]["impl"] == impl]
    times = sorted(t for one in all_of for t in one["times_s"])
    kills = len(times) + sum(one["not_recovered"] for one in all_of)
    if not times:
        return f"{impl:18} {kills:5}         0"
    share = times[min(len(times) - 1, int(0.99 * len(times)))]
    lost = statistics.mean(n for one in all_of for n in one["redone_steps"])
    return (
        f"{impl:18} {kills:5} {len(times):9} {statistics.median(times):8.2f} {share:8.2f}"
        f" {times[-1]:8.2f} {lost:10.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5, help="of each job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--impls", default=f"weft,weft-spare,{','.join(TORCHRUN)},torchft")
    options = parser.parse_args()
    impls = options.impls.split(",")
    known = {"weft", "weft-spare", "torchft", *TORCHRUN}
    if unknown := set(impls) - known:
        parser.error(f"--impls: there is no {', '.join(sorted(unknown))}; {', '.join(known)}")
    numbers = random.Random(options.seed)
    results = []
    for _ in range(options.rounds):
        for impl in impls:
            one = {"bench": "recovery", "params": {"impl": impl, "ranks": options.ranks}}
            one |= measure(impl, options.ranks, options.kills, numbers)
            one |= {"value": median(one["times_s"]), "unit": "s"}
            results.append(one)
            print(json.dumps(one), flush=True)
    heading = "implementation     kills recovered median/s    p99/s    max/s steps redone"
    print(heading, *(summary(results, impl) for impl in impls), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
