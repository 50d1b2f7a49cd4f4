"""Trains for some seconds with `weft train`, and measures step time, peak memory and traffic."""

import collections
import contextlib
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402

STOPPED = 128 + signal.SIGTERM  # exit code of a run that a signal ended
POLL_S = 0.25
START_S = 120  # until the first step, with a plan = "auto" before it
END_S = 60  # from the signal to the end of the processes
LEAST_STEPS = 16
SKIP = 1 / 3  # share of the steps at the start that do not count


class Failed(Exception):
    """A run that ended with an error."""


# The figures of a run:
#   step_s    median seconds of a step
#   memory    peak bytes of a rank's process; the mean over the ranks
#   traffic   bytes of a step that a rank sends, or reads from other ranks; the mean
#   losses    one for each step
#   config    the run's configuration
Trained = collections.namedtuple("Trained", "step_s memory traffic losses steps config log")


def settings(keys):
    return [part for key in keys for part in ("--set", key)]


def children_of(parent):
    """Processes below `parent`, at any depth."""
    parents = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(folder.name)] = int(words[1])
    found = {parent}
    while more := {child for child, of in parents.items() if of in found} - found:
        found |= more
    return found - {parent}


def is_rank(process):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{process}/comm").read_text().startswith("weft rank ")
    return False


def peak_bytes(process):
    """The peak of the memory of a process, with its part of pages that several processes use (PSS);
    0 if it has ended."""
    folder, found = pathlib.Path(f"/proc/{process}"), {}
    with contextlib.suppress(OSError, KeyError):  # an ended process has no memory
        text = (folder / "status").read_text() + (folder / "smaps_rollup").read_text()
        for words in map(str.split, text.splitlines()):
            if words[0] in ("VmHWM:", "VmRSS:", "Pss:"):
                found[words[0]] = int(words[1]) << 10
        # Pages that are given back are no shared ones.
        return found["Pss:"] + found["VmHWM:"] - found["VmRSS:"]
    return 0


def records_of(folder):
    """Records of steps. The last line may be incomplete."""
    records = []
    with contextlib.suppress(OSError):
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
    return [record for record in records if "samples_per_s" in record]


def traffic_of(records):
    """Bytes that a rank sends or reads from other ranks in a step, the mean over the ranks; None
    if they are not counted."""
    moved = [record["sent_mb"] + record["shared_mb"] for record in records if "sent_mb" in record]
    return 1e6 * statistics.median(moved) if moved else None


def step_seconds(records, batch):
    """The median over the steps after those that warm up."""
    seconds = [batch / record["samples_per_s"] for record in records]
    return statistics.median(seconds[int(SKIP * len(seconds)) :])


def last_line(log):
    lines = log.strip().splitlines()
    return lines[-1] if lines else "no message"


def end(processes):
    """Stops the run, and waits for the end of its processes."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    until = time.monotonic() + END_S
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)


class Watch:
    """What is seen while the processes train."""

    def __init__(self, folder, processes, seconds):
        self.folder, self.processes, self.seconds = folder, processes, seconds
        # Of each process. A planned run forgets the peak of its measurements.
        self.peaks, self.ranks, self.begin = {}, set(), None

    def look(self):
        for process in self.processes:
            ranks = set(filter(is_rank, children_of(process.pid)))
            for one in ranks | {process.pid}:
                self.peaks[one] = peak_bytes(one) or self.peaks.get(one, 0)
            self.ranks |= ranks

    def memory(self):
        """Bytes of a rank: the mean. Without a launcher, the commands are the ranks."""
        return statistics.mean(
            peak for one, peak in self.peaks.items() if not self.ranks or one in self.ranks
        )

    def until_done(self):
        """Returns when the run has trained for long enough, or has ended."""
        given_up = time.monotonic() + START_S + self.seconds
        while time.monotonic() < given_up:
            time.sleep(POLL_S)
            self.look()
            steps = len(records_of(self.folder))
            if steps and self.begin is None:
                self.begin = time.monotonic()
            if any(process.poll() is not None for process in self.processes):
                return
            trained = 0 if self.begin is None else time.monotonic() - self.begin
            if trained >= self.seconds and steps >= LEAST_STEPS:
                return
        raise Failed(f"no {LEAST_STEPS} steps in {START_S + self.seconds:.0f} s")


def train(commands, batch, seconds, environments=None):
    """Runs the commands at once, which train one job in the folder that `{runs}` stands for, and
    stops them. `environments`: variables of each command beside those of this process. Raises
    Failed with the last line of stderr."""
    with tempfile.TemporaryDirectory(prefix="weft-planning-") as place:
        runs, log = pathlib.Path(place), pathlib.Path(place) / "log"
        processes = []
        with log.open("w") as err:
            for i, command in enumerate(commands):
                words = [word.replace("{runs}", str(runs)) for word in command]
                variables = without_launchers(keep="WEFT_")
                variables |= environments[i] if environments else {}
                processes.append(
                    subprocess.Popen(
                        words,
                        env=variables,
                        stdout=subprocess.DEVNULL,
                        stderr=err,
                        start_new_session=True,
                    )
                )
            watch = Watch(runs / "run", processes, seconds)
            try:
                watch.until_done()
            finally:
                end(processes)
        text = log.read_text(errors="replace")
        if any(process.returncode not in (0, STOPPED) for process in processes):
            raise Failed(last_line(text))
        records = records_of(runs / "run")
        if len(records) < LEAST_STEPS:
            raise Failed(f"{len(records)} steps, which are too few; {last_line(text)}")
        return Trained(
            step_s=step_seconds(records, batch),
            memory=watch.memory(),
            traffic=traffic_of(records),
            losses=[math.nan if record["loss"] is None else record["loss"] for record in records],
            steps=len(records),
            config=tomllib.loads((runs / "run/config.toml").read_text()),
            log=text,
        )


def command_of(weft, recipe, keys, ranks=None):
    command = [weft, "train", recipe, *([] if ranks is None else ["-n", str(ranks)])]
    return command + settings([*keys, 'run.dir="{runs}"', 'run.name="run"'])
