#!/usr/bin/env python3
"""Measures all published figures, which README.md and docs/ show (./dev bench publish).

    bench/publish.py [--list] [PART ...]

Writes bench/results/DATE-COMMIT/PART.jsonl. Its first line describes the measurement: commit,
commands, machine, versions, pinning, and how much the speed of a core varied before and after it
(speed_spread). The other lines are the output of the commands. A part that has a file is not
measured again, so an interrupted command can be repeated. There must be no uncommitted changes."""

import argparse
import datetime
import json
import multiprocessing
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
BIN = "build/release/bin"
WEFT = f"{BIN}/weft"
PYTHON = ".venv/bin/python"
WITH_TORCH = f"{PYTHON} python/tests/with_torch.py"  # a Python that imports torch
DDP = f"PYTHONPATH=build/release/python {WITH_TORCH} python/bench/ddp.py"
NETWORK = f"{WITH_TORCH} bench/network/network.py --json --bin build/release/bench/network"
MIB = 1 << 20

STRATEGIES = f"{PYTHON} bench/strategies/strategies.py --weft {WEFT}"
RECOVERY = ".venv-bench/bin/python bench/recovery/recovery.py"
KILLS = (
    f"WEFT_BINARY=$PWD/{WEFT} WEFT_FAULTS_DIR=$(mktemp -d) {PYTHON}"
    " tests/faults/random_kills.py --plan dp,fsdp,tp,pp --transport shm,tcp"
)
RECOMPUTE = "build/release/bench/recompute/weft_bench_recompute"
PINNED = "ranks of weft and of the MPIs are bound to a core each; Gloo's are not, which is faster"
FREE = "no rank is bound; each has one thread"
HOSTS = "each rank is bound to a core; a network namespace for each host"

# Parts that need nothing that a user does not have.
ALONE = {"clone", "faults", "goodput", "random-kills", "recovery-cost"}
# Part: its title, pinning, commands. Each command prints JSON lines on stdout.
PARTS = {
    "clone": (
        "the README's two commands in a fresh clone",
        FREE,
        ["python3 bench/clone/clone.py"],
    ),
    "all-reduce": (
        "all-reduce in shared memory, 2 ranks",
        PINNED,
        [f"{WEFT} bench collectives --json --rounds 5"],
    ),
    "all-reduce-4": (
        "all-reduce in shared memory, 4 ranks",
        FREE,
        [
            f"{WEFT} bench collectives --json --rounds 5 --ranks 4"
            f" --sizes {256 << 10},{25 * MIB},{100 * MIB}"
        ],
    ),
    "ordinary-memory": (
        "all-reduce of ordinary memory on near and on far cores, 2 ranks",
        PINNED,
        [
            f"{WEFT} bench collectives --json --rounds 5 --cores near,far"
            f" --impls weft-ordinary,openmpi,openmpi5,mpich"
            f" --sizes {64 << 10},{256 << 10},{MIB},{4 * MIB},{25 * MIB}"
        ],
    ),
    "collectives": (
        "other collectives in shared memory, 2 ranks",
        PINNED,
        [
            f"{WEFT} bench collectives --json --rounds 5 --sizes {25 * MIB}"
            " --ops all_gather,reduce_scatter,broadcast,all_to_all,barrier"
        ],
    ),
    "messages": ("messages in shared memory", PINNED, [f"{WEFT} bench p2p --json --rounds 5"]),
    "network": (
        "all-reduce over TCP between two hosts (network namespaces)",
        HOSTS,
        [
            f"{NETWORK} --sizes 1024,{256 << 10},{MIB},{25 * MIB}",
            f"{NETWORK} --sizes {25 * MIB} --rate 1gbit --rounds 3",
        ],
    ),
    "training": (
        "training steps with data parallelism",
        FREE,
        [f"{WEFT} bench training --json --rounds 7"],
    ),
    "sharded": (
        "training steps of GPTs with data parallelism and ZeRO",
        FREE,
        [
            f"{WEFT} bench sharded --json --rounds 7 --impls weft,weft-zero1,weft-zero2,weft-zero3"
            ",weft-alone,pytorch-ddp,pytorch-ddp-tuned,pytorch-alone,pytorch-alone-tuned"
            ",pytorch-fsdp2,deepspeed-zero1,deepspeed-zero3"
        ],
    ),
    "tensor": (
        "tensor parallelism, two ranks beside one",
        FREE,
        [f"{WEFT} bench tensor --json --models gpt-384 --rounds 5"],
    ),
    "pipeline": (
        "pipelines of two stages beside their bounds",
        FREE,
        [f"{WEFT} bench pipeline --json --rounds 5"],
    ),
    "context": (
        "context parallelism, two ranks beside one",
        FREE,
        ["build/release/bench/context/weft_bench_context rounds=5"],
    ),
    "recompute": (
        "activation checkpointing",
        "one process of one thread",
        [
            f"{RECOMPUTE} rounds=5",
            f"{RECOMPUTE} rounds=5 sequence=1024 dropout=10",
        ],
    ),
    "linear": (
        "time of linear models to a duality gap, beside LIBLINEAR and scikit-learn",
        "weft's two ranks are bound to a core each; every other participant is free, with as many"
        " threads as its name says",
        [".venv-bench/bin/python bench/linear/linear.py --json"],
    ),
    "recovery": (
        "kills of ranks of weft, torchrun and torchft",
        FREE,
        [
            f"{RECOVERY} --ranks 2 --rounds 1 --kills 5",
            f"{RECOVERY} --ranks 4 --rounds 1 --kills 3",
        ],
    ),
    "faults": (
        "faults of ranks of weft: kills with and without spares, over all forms of parallelism",
        FREE,
        [f"{PYTHON} bench/recovery/faults.py kills shrinking stops forms"],
    ),
    "random-kills": (
        "kills of one rank, of two, and of all, at random instants: about 40 minutes",
        FREE,
        [
            f"{KILLS} --kind one,pair --count 25",
            f"{KILLS} --kind start,staggered --count 7",
            f"{KILLS} --kind one --count 7 --spares 1",
        ],
    ),
    "goodput": (
        "a kill a minute, beside minutes of the undisturbed job in turn: about 14 minutes",
        FREE,
        [f"{PYTHON} bench/recovery/goodput.py"],
    ),
    "recovery-cost": (
        "what readiness for faults costs while none happens",
        FREE,
        [f"{PYTHON} bench/recovery/cost.py"],
    ),
    "strategies": (
        "strategies beside synchronous training, over the whole recipe",
        FREE,
        [f"{STRATEGIES} accuracy --epochs 5 --eval-steps 234"],
    ),
    "strategies-codecs": (
        "strategies with codecs",
        FREE,
        [f"{STRATEGIES} codecs --epochs 3 --eval-steps 234"],
    ),
    "strategies-link": (
        "strategies over links of limited rates",
        "each rank has a network namespace of its own",
        [f"{STRATEGIES} link --epochs 4 --eval-steps 234 --rates '1gbit 100mbit'"],
    ),
    "strategies-periods": (
        "elastic averaging beside DOWNPOUR at periods from 1 to 64",
        FREE,
        [f"{STRATEGIES} periods --epochs 2 --eval-steps 469"],
    ),
    "strategies-slow": (
        "strategies with a worker that is four times slower",
        FREE,
        [f"{STRATEGIES} slow --epochs 3 --eval-steps 117"],
    ),
    "ps": (
        "parameter server beside torch.distributed.rpc, two workers",
        FREE,
        [f"{WITH_TORCH} bench/ps/ps.py --json --rounds 3 --seconds 2"],
    ),
    "optimizers": (
        "optimizers on recipes/fashion-mnist",
        FREE,
        [f"{STRATEGIES} optimizers --ranks 2 --epochs 3 --eval-steps 117"],
    ),
    "planning": (
        "predictions of weft plan beside training on this machine",
        FREE,
        [f"{PYTHON} bench/planning/planning.py --weft {WEFT} --live layouts"],
    ),
    "planning-unequal": (
        "plans for two ranks, one of them at half speed",
        FREE,
        [f"{PYTHON} bench/planning/planning.py --weft {WEFT} --live unequal"],
    ),
    "startup": (
        "from the command to the first step",
        FREE,
        [f"{WEFT} bench startup --json"],
    ),
    "python": (
        "PyTorch's DDP over the plug-in and over Gloo",
        FREE,
        [
            f"{DDP} --json /dev/stdout --quiet",
            f"{DDP} --json /dev/stdout --quiet --views",
        ],
    ),
    "choice": (
        "the algorithm that weft chooses over TCP beside the best one, 4 ranks",
        FREE,
        [
            f"{WEFT} bench calibrate --worlds 4",
            f"{WEFT} bench collectives --verify --worlds 4 --rounds 3 --json",
        ],
    ),
    "accuracy": (
        "accuracy of recipes/fashion-mnist at 1, 2 and 4 ranks",
        FREE,
        [f"{PYTHON} bench/accuracy.py --weft {WEFT}"],
    ),
    "checkpoint": (
        "cost of a checkpoint each minute",
        FREE,
        [f"{PYTHON} bench/checkpoint/overhead.py --weft {WEFT} --json /dev/stdout --quiet"],
    ),
    "codecs-link": (
        "a training step of ResNet-18 with codecs over a link of 1 Gbit/s",
        HOSTS,
        [
            f"{WITH_TORCH} bench/compression/shaped_link.py --weft {WEFT} --rounds 3 --steps 12"
            " --impls 'none pytorch-ddp bf16 topk:0.01 int8:64 powersgd:4'"
        ],
    ),
    "codecs-accuracy": (
        "accuracy of recipes/fashion-mnist with codecs",
        FREE,
        [f"{PYTHON} bench/compression/convergence.py --weft {WEFT} --epochs 2"],
    ),
    "codecs-auto": (
        "the codec chosen by auto beside none",
        HOSTS,
        [f"{PYTHON} bench/compression/auto_cost.py --weft {WEFT} --rounds 3 --most 9"],
    ),
    "codecs-time": (
        "steps to an accuracy with codecs",
        FREE,
        [
            f"{PYTHON} bench/compression/time_to_accuracy.py --weft {WEFT}"
            " --codecs 'none powersgd:4 int8:64 topk:0.01'"
        ],
    ),
}


def output(*command):
    """The output of the command on stdout and stderr; empty if it is missing or fails."""
    try:
        ran = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
    except OSError:
        return ""
    return ran.stdout if ran.returncode == 0 else ""


def first(pattern, text):
    found = re.search(pattern, text)
    return found[1] if found else "not installed"


def machine():
    cpu = first(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    kib = int(first(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text()))
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(kib / 2**20, 1),
        "last_level_cache_mib": last_level_cache(),
        "kernel": platform.release(),
    }


def last_level_cache():
    sizes = [
        int(path.read_text().rstrip("K\n")) / 1024
        for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=None)


def versions():
    of_python = "import importlib.metadata as m; print(m.version('{}'))"

    def of_peer(package):
        found = output(".venv-bench/bin/python", "-c", of_python.format(package)).strip()
        return found or "not installed"

    return {
        "torch": output(PYTHON, "-c", of_python.format("torch")).strip() or "not installed",
        "deepspeed": of_peer("deepspeed"),
        "liblinear": of_peer("liblinear-official"),
        "scikit-learn": of_peer("scikit-learn"),
        "torchft": of_peer("torchft-nightly"),
        "openmpi": first(r"\((?:Open MPI|OpenRTE)\) (\S+)", output("mpirun.openmpi", "--version")),
        "openmpi5": first(r"\(Open MPI\) (\S+)", output(".venv-bench/bin/mpirun", "--version")),
        "mpich": first(r"Version:\s+(\S+)", output("mpirun.mpich", "--version")),
        "compiler": output("g++", "--version").split("\n")[0],
        "python": platform.python_version(),
    }


def git(*arguments):
    """The output of git. Ends this program if git fails: the commit is then unknown."""
    try:
        ran = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT)
    except OSError as error:
        sys.exit(f"publish: git cannot be started: {error.strerror}")
    if ran.returncode != 0:
        why = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[0]
        sys.exit(f"publish: git {arguments[0]} fails: {why}")
    return ran.stdout.strip()


def timed_work(seconds):
    """Times of a fixed piece of work, which is repeated for so many seconds."""
    memory, times, end = bytearray(24 * MIB), [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        sum(range(500_000))
        bytes(memory)
        times.append(time.perf_counter() - start)
    return times


def spread(times):
    """The difference between the 90th and the 10th percentile, over the median."""
    ordered = sorted(times)
    at = [ordered[len(ordered) * tenth // 10] for tenth in (1, 5, 9)]
    return (at[2] - at[0]) / at[1]


def speed_spread(seconds=3):
    """How much the speed of a core varies while all of them work, though nothing else runs: other
    users of a machine take a part of its caches and memory. The largest of all cores."""
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.Pool(cores) as pool:
        return round(max(map(spread, pool.map(timed_work, [seconds] * cores, chunksize=1))), 3)


def folder_of_commit():
    changed = [
        line
        for line in git("status", "--porcelain").split("\n")
        if line and "bench/results/" not in line
    ]
    if changed:
        sys.exit(f"publish: commit your changes first, such as {changed[0].split()[-1]}")
    commit = git("rev-parse", "--short=12", "HEAD")
    begun = sorted(RESULTS.glob(f"*-{commit}"))
    return commit, begun[0] if begun else RESULTS / f"{datetime.date.today()}-{commit}"


def measure(commands):
    """The JSON lines of the commands (None if one fails), and their warnings."""
    lines, warnings = [], []
    for command in commands:
        ran = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        warnings += re.findall(r"warning: (.*)", ran.stderr)
        if ran.returncode != 0:
            print(ran.stderr[-3000:], file=sys.stderr)
            print(f"publish: exit code {ran.returncode} of: {command}", file=sys.stderr)
            return None, warnings
        lines += [line for line in ran.stdout.splitlines() if line.startswith("{")]
    return lines, warnings


def publish(part, folder, commit):
    """Measures the part and writes its file. Returns False if it could not be measured."""
    what, pinning, commands = PARTS[part]
    before = speed_spread()
    start = time.time()
    lines, warnings = measure(commands)
    if not lines:
        return False
    seconds, after = round(time.time() - start), speed_spread()
    head = {
        "part": part,
        "what": what,
        "commit": commit,
        "date": str(datetime.date.today()),
        "commands": commands,
        "pinning": pinning,
        "machine": machine(),
        "versions": versions(),
        "seconds": seconds,
        "speed_spread": [before, after],
        "warnings": warnings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{part}.new"
    aside.write_text("\n".join([json.dumps(head), *lines]) + "\n")
    aside.rename(folder / f"{part}.jsonl")
    for warning in warnings:
        print(f"  {warning}")
    print(f"  the speed of a core varied by {100 * before:.0f} % before, {100 * after:.0f} % after")
    return True


def require_peers():
    if missing := [name for name, found in versions().items() if found == "not installed"]:
        sys.exit(f"publish: not installed: {', '.join(missing)} (./dev bench setup installs them)")
    if os.geteuid() != 0 or not shutil.which("tc"):
        sys.exit("publish: network namespaces need root and iproute2: sudo ./dev bench publish")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--list", action="store_true", help="print the parts and measure nothing")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    if options.list:
        for part, (what, *_) in PARTS.items():
            print(f"{part:16} {what}")
        return 0
    commit, folder = folder_of_commit()
    if not options.parts or set(options.parts) - ALONE:
        require_peers()
    failed = []
    for part in options.parts or PARTS:
        if (folder / f"{part}.jsonl").exists():
            print(f"{part}: measured before")
            continue
        print(f"{part}: {PARTS[part][0]} …", flush=True)
        start = time.time()
        if publish(part, folder, commit):
            print(f"  {time.time() - start:.0f} s", flush=True)
        else:
            failed.append(part)
    if failed:
        print(f"publish: failed: {', '.join(failed)}", file=sys.stderr)
    print(f"publish: {folder.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
