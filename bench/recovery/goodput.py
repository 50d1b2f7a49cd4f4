#!/usr/bin/env python3
"""Measures how much of the undisturbed job's speed is left when a rank is killed every minute.

    bench/recovery/goodput.py [--weft build/release/bin/weft] [-n 2] [--rounds 4] [--seconds 60]

A round runs each form of the job for a minute, in turn, so that all see the same machine:

  plain   without faults, replacements and copies of the state
  cold    one rank is killed; a new process replaces it
  spare   one rank is killed; a warm spare replaces it

A minute begins when the job has trained for a while (and the spare is ready). Goodput is the number
of steps of a minute with a kill, as a share of those of the round's plain minute. Prints one JSON
line a minute, then one a form with the median of the rounds. A line of a kill also says where the
time went, in seconds against the plain step: before the kill (copies of the state), from the kill
to the next step, the ten seconds after it, and the rest."""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JOB = ["fashion-mnist", "--name", "run"]
SETTINGS = ["train.epochs=1000", "train.eval_every=0", "train.log_every=1"]
FORMS = {
    "plain": [],
    "cold": ["--max-replacements", "1000"],
    "spare": ["--max-replacements", "1000", "--spares", "1"],
}
WARM = 4  # seconds of training before a minute begins
AFTER = 10  # seconds after a recovery
LOOK = 0.02  # seconds between two looks at the metrics
LIMIT = 120  # seconds until a job that does not train counts as failed


class Job:
    def __init__(self, options, form, folder):
        self.metrics = folder / "run/metrics.jsonl"
        self.err = folder / "err"
        settings = [word for one in [*SETTINGS, f'run.dir="{folder}"'] for word in ("--set", one)]
        command = [options.weft, "train", *JOB, "-n", str(options.n), *FORMS[form], *settings]
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True
            )

    def step(self):
        """The last step in the metrics."""
        try:
            with open(self.metrics, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return 0
        for line in reversed(lines):
            if line.startswith(b"{") and b'"loss"' in line:
                return json.loads(line).get("step", 0)
        return 0

    def wait_for(self, condition, what):
        limit = time.monotonic() + LIMIT
        while not condition():
            if self.process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"goodput: no {what}: {self.err.read_text(errors='replace')[-1000:]}")
            time.sleep(LOOK)

    def ranks(self):
        """The processes of the ranks, by name."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for pid in children.read_text().split():
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            if name.startswith("weft rank "):
                found[name] = int(pid)
        return found

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT)


def minute(options, form, kill_at, draw):
    """(time, step) of each new step of a minute, from 0 on; and when a rank was killed."""
    with tempfile.TemporaryDirectory(prefix="weft-goodput-") as folder:
        job = Job(options, form, pathlib.Path(folder))
        try:
            job.wait_for(job.step, "step")
            began = time.monotonic()
            job.wait_for(lambda: time.monotonic() - began >= WARM, "training")
            if form == "spare":
                job.wait_for(lambda: b"a spare is ready" in job.err.read_bytes(), "spare")
            first, start = job.step(), time.monotonic()
            seen, killed = [(0.0, 0)], None
            while (at := time.monotonic() - start) < options.seconds:
                step = job.step() - first
                if step > seen[-1][1]:
                    seen.append((at, step))
                if form != "plain" and killed is None and at >= kill_at:
                    os.kill(draw.choice(sorted(job.ranks().values())), signal.SIGKILL)
                    killed = time.monotonic() - start
                time.sleep(LOOK)
            if job.process.poll() is not None:
                sys.exit(f"goodput: the job has ended: {job.err.read_text()[-1000:]}")
            return seen, killed
        finally:
            job.end()


def parts(seen, killed, seconds, step_s):
    """Seconds lost before the kill, from it to the next step, soon after, and later."""
    at_kill = max(step for at, step in seen if at <= killed)
    # A step that was under way at the kill may end without the lost rank.
    again = next((at for at, step in seen if at > killed and step > at_kill + 1), seconds)
    bounds = [0.0, killed, again, min(again + AFTER, seconds), seconds]

    def step_at(time_s):
        return max(step for at, step in seen if at <= time_s)

    names = ("before", "stalled", "soon_after", "later")
    lost = {}
    for name, begin, end in zip(names, bounds, bounds[1:]):
        lost[name] = round(end - begin - step_s * (step_at(end) - step_at(begin)), 3)
    return lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default=str(ROOT / "build/release/bin/weft"))
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="of a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    lines = []
    for number in range(options.rounds):
        names = list(FORMS)
        forms = names[number % len(names) :] + names[: number % len(names)]
        kill_at = draw.uniform(0.2, 0.6) * options.seconds
        runs = {form: minute(options, form, kill_at, draw) for form in forms}
        plain = runs["plain"][0][-1][1]
        for form, (seen, killed) in runs.items():
            line = {"bench": "goodput", "params": {"ranks": options.n, "form": form}}
            line["params"]["round"] = number
            line |= {"value": seen[-1][1], "unit": "steps", "seconds": options.seconds}
            if killed is not None:
                line["goodput"] = seen[-1][1] / plain
                line["lost_s"] = parts(seen, killed, options.seconds, options.seconds / plain)
            lines.append(line)
            print(json.dumps(line), flush=True)
    for form in ("cold", "spare"):
        of_form = [line for line in lines if line["params"]["form"] == form]
        line = {"bench": "goodput", "params": {"ranks": options.n, "form": form}}
        line["params"] |= {"measured": "of plain", "seconds": options.seconds}
        line |= {"value": statistics.median(one["goodput"] for one in of_form), "unit": "share"}
        line["rounds"] = [one["goodput"] for one in of_form]
        line["lost_s"] = {
            name: statistics.median(one["lost_s"][name] for one in of_form)
            for name in of_form[0]["lost_s"]
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
