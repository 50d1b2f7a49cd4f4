"""Kills ranks of jobs at random instants and counts how the jobs go on. Not a test of the suite:
run it for as long as the time allows.

  WEFT_BINARY=build/release/bin/weft WEFT_FAULTS_DIR=/tmp/kills \\
      tests/faults/random_kills.py [--kind one,pair,start,staggered] [--count 20] [--seed 1]

  one         one rank, at a random instant of training
  pair        two ranks (or the newcomer of the first), 0 to 0.6 s apart
  start       one rank, in the first second of the job
  staggered   all ranks, 30 to 100 ms apart

A trial is right if the job ends with exit code 0, with the weights of a run without a fault, and if
each step is in its metrics once. The time is that from the last kill to the next step.
"""

import argparse
import hashlib
import json
import pathlib
import random
import shutil
import signal
import statistics
import os
import time

import harness

STEPS = 250
SETTINGS = [
    "train.epochs=1000", "train.batch=32", f"train.max_steps={STEPS}",
    "train.checkpoint_steps=50", "train.eval_every=0", "train.log_every=1",
    "model.hidden=[512,256]"
]
LIMIT = 60  # seconds of a job


class Trial:
    def __init__(self, folder, words, env):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text(harness.RECIPE)
        options = [word for one in SETTINGS for word in ("--set", one)]
        self.folder = folder
        self.job = harness.Job(folder, "train", folder, *words, *options, env=env)

    def ranks(self):
        """Rank -> process id of the processes that run now."""
        found = {}
        for pid, _ in self.job.processes():
            try:
                name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            if name.startswith("weft rank "):
                found[int(name.rpartition(" ")[2])] = pid
        return found

    def runs(self):
        return self.job.process.poll() is None

    def until(self, condition, seconds):
        limit = time.monotonic() + seconds
        while self.runs() and time.monotonic() < limit:
            if condition():
                return True
            time.sleep(0.002)
        return False

    def metrics(self):
        return self.folder / "runs/run/metrics.jsonl"

    def size(self):
        try:
            return self.metrics().stat().st_size
        except OSError:
            return 0

    def digest(self):
        saved = sorted((self.folder / "runs/run/ckpt").glob("step-*"))
        if not saved:
            return None
        files = sorted(one for one in saved[-1].iterdir() if one.suffix == ".safetensors")
        whole = hashlib.sha256(b"".join(one.name.encode() + one.read_bytes() for one in files))
        return saved[-1].name + " " + whole.hexdigest()[:16]

    def steps(self):
        lines = self.metrics().read_text(errors="replace").splitlines() if self.size() else []
        return sum('"loss":' in line for line in lines)

    def end(self, seconds=LIMIT):
        """The exit code; None for a job that hangs."""
        self.until(lambda: False, seconds)
        code = self.job.process.poll()
        if code is None:
            for pid, _ in self.job.processes():
                os.kill(pid, signal.SIGKILL)
            self.job.process.wait()
        return code


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def disturb(kind, trial, draw):
    """Kills as `kind` says. When the last one was killed; None if the job ended before."""
    if kind == "start":
        time.sleep(draw.uniform(0, 1.0))
    else:
        if not trial.until(lambda: list(trial.folder.glob("runs/run/ckpt/step-*")), 20):
            return None
        time.sleep(draw.uniform(0, 0.5))
    ranks = list(trial.ranks().items())
    if not ranks:
        return None
    draw.shuffle(ranks)
    if kind == "staggered":
        for _, pid in ranks:
            kill(pid)
            time.sleep(draw.uniform(0.03, 0.1))
        return time.monotonic()
    victim, pid = ranks[0]
    kill(pid)
    if kind == "pair":
        time.sleep(draw.uniform(0, 0.6))
        now = trial.ranks()
        choice = draw.choice(sorted(now)) if now else None
        if choice is not None:
            kill(now[choice])
    return time.monotonic()


def run(kind, number, arguments, wanted):
    draw = random.Random(f"{arguments.seed}/{kind}/{number}")
    env = {"WEFT_TRANSPORT": arguments.transport} if arguments.transport else {}
    folder = pathlib.Path(harness.WORK) / "random_kills" / kind
    trial = Trial(folder, arguments.words, env)
    killed = disturb(kind, trial, draw)
    before, seconds = trial.size(), None
    if killed and trial.until(lambda: trial.size() not in (before, 0), 40):
        seconds = time.monotonic() - killed
    code = trial.end()
    wrong = []
    if code != 0:
        wrong.append("hangs" if code is None else f"exit code {code}")
    elif trial.digest() != wanted:
        wrong.append(f"other weights: {trial.digest()}")
    elif trial.steps() != STEPS:
        wrong.append(f"{trial.steps()} steps")
    result = {"kind": kind, "number": number, "code": code, "seconds": seconds, "wrong": wrong}
    if wrong:
        kept = folder.parent / f"{kind}-{number}.err"
        shutil.copy(folder / "err", kept)
        result["err"] = str(kept)
    print(json.dumps(result), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", default="one,pair,start,staggered")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", default="")
    parser.add_argument("words", nargs="*", default=[])
    arguments = parser.parse_args()
    arguments.words = arguments.words or ["-n", "2", "--max-replacements", "20"]
    harness.private_folders()
    trial = Trial(pathlib.Path(harness.WORK) / "random_kills" / "undisturbed", arguments.words, {})
    if trial.end() != 0:
        raise SystemExit("the job without a fault fails:\n" + trial.job.err())
    wanted = trial.digest()
    for kind in arguments.kind.split(","):
        results = [run(kind, number, arguments, wanted) for number in range(arguments.count)]
        times = sorted(one["seconds"] for one in results if one["seconds"] is not None)
        right = sum(not one["wrong"] for one in results)
        summary = {"kind": kind, "trials": len(results), "right": right}
        if times:
            summary["median_s"] = round(statistics.median(times), 3)
            summary["p99_s"] = round(times[min(len(times) - 1, int(len(times) * 0.99))], 3)
        print(json.dumps({"summary": summary}), flush=True)


if __name__ == "__main__":
    main()
