"""Kills ranks of jobs at random instants and counts how the jobs go on. Not a test of the suite:
run it for as long as the time allows.

  WEFT_BINARY=build/release/bin/weft WEFT_FAULTS_DIR=/tmp/kills \\
      tests/faults/random_kills.py --kind one,pair,start,staggered --count 20 \\
      --plan dp,fsdp,tp,pp --transport shm,tcp --spares 0,1 --nodes 1,2,3 [-n 2:4] [--seed 1]

  one         one rank, at a random instant of training
  pair        two ranks (or the newcomer of the first), 0 to 0.6 s apart
  start       one rank, in the first second of its process
  staggered   all ranks, 30 to 100 ms apart

Each combination of the lists is a job, one after another. With several --nodes, each node is a
launcher with --ranks processes, which counts as a host of its own. They meet at an endpoint, or at
the first node (--meet master).

A trial is right if the job ends with exit code 0, with the weights of a run without a fault, and if
each step is in its metrics once. Under tp, weights are not compared if the number of ranks has
changed. The time is that from the last kill until steps follow that need all ranks. A trial in
which the job ended before the last kill is done again. A job that is wrong or slow keeps its
folder, and is shown on stderr. Prints one JSON line for each kind and job.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import statistics
import sys
import time

import harness

TEXT = ["model.name=gpt", "model.layers=2", "model.width=32", "model.heads=2", "model.sequence=32",
        "data.name=text", "data.tokenizer=bytes", "optimizer.name=adamw", "train.batch=8"]
IMAGES = ["model.hidden=[512,256]", "train.batch=32"]
# Ranks by default, steps and settings. The steps take about a second without a fault.
PLANS = {
    "dp": (2, 250, IMAGES),
    "fsdp": (2, 250, [*IMAGES, "parallel.dp=1", "parallel.fsdp=RANKS", "parallel.zero_stage=3"]),
    "tp": (2, 300, [*TEXT, "parallel.tp=2", "parallel.dp=HALF"]),
    "pp": (2, 300, [*TEXT, "parallel.pp=2", "parallel.dp=HALF", "parallel.micro_batches=2",
                    "parallel.cuts=[2]"]),
}
SETTINGS = ["train.epochs=1000", "train.checkpoint_steps=50", "train.eval_every=0",
            "train.log_every=1"]
LIMIT = 120  # seconds of a job
SLOW = 3  # seconds of a recovery
REDRAWS = 5  # of a trial whose job had ended before its last kill


class Case:
    """One combination of the lists."""

    def __init__(self, plan, transport, nodes, spares, options):
        self.plan, self.transport, self.nodes, self.spares = plan, transport, nodes, spares
        self.options, self.range = options, options.n
        ranks, steps, self.settings = PLANS[plan]
        self.ranks = options.ranks or max(1, ranks // nodes)
        # A spare is ready some seconds after training has begun.
        self.steps = options.steps or (4 * steps if spares else steps)

    def name(self):
        ranks = self.range.replace(":", "-") if self.range else self.ranks
        meet = f"-{self.options.meet}" if self.nodes > 1 else ""
        return f"{self.plan}-{self.transport}-nodes{self.nodes}{meet}-n{ranks}-spares{self.spares}"

    def params(self):
        return {"plan": self.plan, "transport": self.transport, "nodes": self.nodes,
                "ranks": self.range or self.ranks, "spares": self.spares}

    def all_ranks(self):
        most = int(self.range.partition(":")[2]) if self.range else self.ranks
        return self.nodes * most

    def training(self, folder):
        """The words of `weft train` but the number of ranks."""
        text = folder / "text"
        text.write_bytes(b"The weft crosses the warp. " * 400)
        recipe = harness.RECIPE
        settings = [*SETTINGS, f"train.max_steps={self.steps}", *self.settings]
        if "model.name=gpt" in settings:
            recipe = harness.TEXT_RECIPE
            settings.append(f"data.file={text}")
        (folder / "recipe.toml").write_text(recipe)
        if self.range and self.plan != "tp":
            settings.append("train.reproducible=true")  # the same weights with fewer ranks
        for word, ranks in (("RANKS", self.all_ranks()), ("HALF", self.all_ranks() // 2)):
            settings = [one.replace(word, str(ranks)) for one in settings]
        settings.append(f"run.dir={folder}/runs")
        return [str(folder), *(word for one in settings for word in ("--set", one))]

    def commands(self, folder):
        """The words of each node's launcher."""
        flags = ["-n", self.range or str(self.ranks)]
        if not self.range:
            flags += ["--max-replacements", "20"]
        if self.spares:
            flags += ["--spares", str(self.spares)]
        recipe, *settings = self.training(folder)
        if self.nodes == 1:
            return [["train", recipe, *flags, *settings]]
        secret = folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        flags += ["--nnodes", str(self.nodes), "--secret-file", str(secret)]
        if self.options.meet == "endpoint":
            meet = ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "kills"]
            return [["train", recipe, *flags, *meet, *settings]] * self.nodes
        meet = ["--master-addr", "127.0.0.1", "--master-port", str(port), "--node-rank"]
        program = [harness.WEFT, "train", recipe, *settings]
        return [["run", *flags, *meet, str(node), *program] for node in range(self.nodes)]


class Trial:
    def __init__(self, folder, case):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.case, self.jobs = folder, case, []
        self.commands = case.commands(folder)
        for node, words in enumerate(self.commands):
            env = {"WEFT_TRANSPORT": "tcp"} if case.transport == "tcp" else {}
            if case.nodes > 1:
                env["WEFT_HOST_ID"] = f"host{node}"
            own = folder / f"node{node}"
            own.mkdir()
            self.jobs.append(harness.Job(own, *words, env=env))

    def ranks(self):
        """Rank -> process id of the processes that run now."""
        found = {}
        for job in self.jobs:
            for pid, _ in job.processes():
                rank = rank_of(pid)
                if rank is not None:
                    found[rank] = pid
        return found

    def runs(self):
        return all(job.process.poll() is None for job in self.jobs)

    def until(self, condition, seconds):
        limit = time.monotonic() + seconds
        while self.runs() and time.monotonic() < limit:
            if condition():
                return True
            time.sleep(0.002)
        return False

    def steps(self):
        """Number of steps in the metrics."""
        try:
            return (self.folder / "runs/run/metrics.jsonl").read_bytes().count(b'"loss":')
        except OSError:
            return 0

    def saved(self):
        return sorted((self.folder / "runs/run/ckpt").glob("step-*"))

    def is_ready(self):
        """A checkpoint is there, and the spares."""
        wanted = self.case.spares
        return self.saved() and all(job.err().count("a spare is ready") >= wanted
                                    for job in self.jobs)

    def digest(self):
        saved = self.saved()
        if not saved:
            return None
        files = sorted(one for one in saved[-1].iterdir() if one.suffix == ".safetensors")
        whole = hashlib.sha256(b"".join(one.name.encode() + one.read_bytes() for one in files))
        return saved[-1].name + " " + whole.hexdigest()[:16]

    def err(self):
        return "".join(job.err() for job in self.jobs)

    def goes_on(self, seconds):
        """Waits for steps that need all ranks: a step that was under way at the last kill may still
        end without the lost rank. After a restart, steps are there again from a checkpoint on."""
        first = least = self.steps()

        def new_steps():
            nonlocal least
            now = self.steps()
            least = min(least, now)
            return now > least if least < first else now >= first + 2

        return self.until(new_steps, seconds) or self.steps() == self.case.steps

    def end(self, seconds=LIMIT):
        """The exit codes; None for a launcher that hangs."""
        limit = time.monotonic() + seconds
        while (any(job.process.poll() is None for job in self.jobs)
               and time.monotonic() < limit):
            time.sleep(0.005)
        codes = [job.process.poll() for job in self.jobs]
        for job in self.jobs:
            job.clean()
        return codes

    def may_differ(self):
        """The number of ranks has changed, which changes sums."""
        sizes = {int(n) for n in re.findall(r"training goes on .*ranks=(\d+)", self.err())}
        reproducible = "train.reproducible=true" in self.commands[0]
        return bool(sizes - {self.case.all_ranks()}) and not reproducible


def rank_of(pid):
    """The rank of a process; None of other processes, and of spares."""
    try:
        name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    if name.startswith("weft rank "):
        return int(name.rpartition(" ")[2])
    found = re.search(rb"(?:^|\0)RANK=(\d+)\0", environment)  # of a program of weft run
    return int(found[1]) if found and name == "weft" else None


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def disturb(kind, trial, draw):
    """Kills as `kind` says. When the last one was killed; None if the job ended before."""
    wait = draw.uniform(0, 1.0 if kind == "start" else 0.4)
    begun = trial.ranks if kind == "start" else trial.is_ready
    if not trial.until(begun, 30):
        return None
    time.sleep(wait)
    ranks = sorted(trial.ranks().items())
    if not ranks:
        return None
    draw.shuffle(ranks)
    if kind == "staggered":
        killed, at = True, 0.0
        for number, (_, pid) in enumerate(ranks):
            time.sleep(draw.uniform(0.03, 0.1) if number > 0 else 0)
            killed, at = kill(pid) and killed, time.monotonic()
    else:
        killed, at = kill(ranks[0][1]), time.monotonic()
    if kind == "pair":
        time.sleep(draw.uniform(0, 0.6))
        now = trial.ranks()
        killed = bool(now) and kill(now[draw.choice(sorted(now))]) and killed
        at = time.monotonic()
    return at if killed and trial.steps() < trial.case.steps else None


def judge(trial, codes, wanted):
    if any(code is None for code in codes):
        return ["hangs"]
    if any(codes):
        return [f"exit codes {codes}"]
    if trial.steps() != trial.case.steps:
        return [f"{trial.steps()} steps"]
    if trial.digest() != wanted and not trial.may_differ():
        return [f"other weights: {trial.digest()}"]
    return []


def attempt(kind, number, case, wanted, options):
    """One trial; None if its job had ended before the last kill."""
    draw = random.Random(f"{options.seed}/{kind}/{number}")
    folder = pathlib.Path(harness.WORK) / "random_kills" / f"{kind}-{case.name()}"
    trial = Trial(folder, case)
    killed = disturb(kind, trial, draw)
    seconds = time.monotonic() - killed if killed and trial.goes_on(options.limit) else None
    codes = trial.end(options.limit)
    wrong = judge(trial, codes, wanted)
    if killed is None and not wrong:
        return None
    result = {"kind": kind, "number": number, "codes": codes, "seconds": seconds, "wrong": wrong}
    if wrong or seconds is None or seconds > options.slow:
        kept = folder.with_name(f"kept-{folder.name}-{number}")
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)
        result |= {"kept": str(kept), "load": os.getloadavg()[0]}
        result["commands"] = [shlex.join([harness.WEFT, *words]) for words in trial.commands]
    if wrong or "kept" in result or options.verbose:
        print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def run(kind, number, case, wanted, options):
    for draw in range(REDRAWS):
        result = attempt(kind, f"{number}.{draw}", case, wanted, options)
        if result:
            return result
    raise SystemExit(f"{kind} {case.name()}: the jobs end before the last kill; raise --steps")


def summary(kind, case, results):
    times = sorted(one["seconds"] for one in results if one["seconds"] is not None)
    line = {"params": {"kind": kind, **case.params()}, "trials": len(results),
            "right": sum(not one["wrong"] for one in results)}
    if times:
        line |= {"median_s": round(statistics.median(times), 3), "max_s": round(times[-1], 3),
                 "times_s": [round(one, 3) for one in times]}
    return json.dumps(line)


def undisturbed(case):
    trial = Trial(pathlib.Path(harness.WORK) / "random_kills" / "undisturbed", case)
    if any(code != 0 for code in trial.end()):
        raise SystemExit(f"{case.name()}: the job without a fault fails:\n" + trial.err())
    return trial.digest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", default="one,pair,start,staggered")
    parser.add_argument("--count", type=int, default=20, help="trials of each kind and job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", default="dp", help=",".join(PLANS))
    parser.add_argument("--transport", default="shm", help="shm,tcp")
    parser.add_argument("--nodes", default="1", help="numbers of nodes on loopback")
    parser.add_argument("--meet", choices=("endpoint", "master"), default="endpoint")
    parser.add_argument("--ranks", type=int, default=0, help="of a node")
    parser.add_argument("-n", default="", metavar="MIN:MAX", help="ranks of a node")
    parser.add_argument("--spares", default="0", help="numbers of warm spares of a node")
    parser.add_argument("--steps", type=int, default=0, help="of a job")
    parser.add_argument("--slow", type=float, default=SLOW, help="seconds of a slow recovery")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a job")
    parser.add_argument("--verbose", action="store_true", help="print each trial")
    options = parser.parse_args()
    harness.private_folders()
    harness.make_images()
    lists = [options.plan.split(","), options.transport.split(","),
             map(int, options.nodes.split(",")), map(int, options.spares.split(","))]
    wrong = 0
    for values in itertools.product(*lists):
        case = Case(*values, options)
        wanted = undisturbed(case)
        for kind in options.kind.split(","):
            results = [
                run(kind, number, case, wanted, options) for number in range(options.count)
            ]
            wrong += sum(bool(one["wrong"]) for one in results)
            print(summary(kind, case, results), flush=True)
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
