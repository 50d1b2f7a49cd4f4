"""Trains under mpirun and by `weft train -n`, and asks for the same loss; or kills a rank and asks
for an end in time.

    training.py --mpi openmpi|mpich --mpirun PATH --ranks N [--hosts H] [--kill] -- WEFT

Gradients are summed along a fixed tree (train.reproducible), so that the weights do not depend on
what carries them. Under mpirun nothing is set but the recipe: what weft chose for itself is in its
start line."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import mpirun

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]
import images  # noqa: E402
from processes import without_launchers  # noqa: E402

SHORT = ("--set", "train.max_steps=12", "--set", "train.reproducible=true")


def loss_of(what, command, environment, folder):
    """(loss, what it said) of a training."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=100, check=False
    )
    found = re.findall(r"^.*({\"ranks\".*})", done.stdout, re.MULTILINE)
    if done.returncode != 0 or len(found) != 1:
        sys.exit(f"{what} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    result = json.loads(found[0])
    print(f"{what}: {result}")
    return result["loss"], done.stderr


def same(loss, expected, where):
    """The weights are the same bits; the loss shown is a sum over ranks, which each transport adds
    up in an order of its own."""
    if abs(loss - expected) > 1e-6 * abs(expected):
        sys.exit(f"{where} the loss is {loss}, by weft train {expected}")


def compare(arguments, hosts, folder):
    train = [arguments.program[0], "train", str(folder), "--json", *SHORT]
    arguments.program = [*train, "--name", "mpirun"]
    command, environment = mpirun.command_of(arguments, hosts, folder)
    alone = [*train, "-n", str(arguments.ranks), "--name", "alone"]
    expected, _ = loss_of("weft train", alone, environment, folder)
    loss, said = loss_of("mpirun", command, environment, folder)
    carried = "shared memory"
    if hosts:
        apart = len(hosts) == arguments.ranks
        carried = (
            f"mpi ({arguments.mpi})"
            if apart
            else f"shared memory on each of {len(hosts)} hosts, mpi between them"
        )
    if f'transport="{carried}"' not in said and f"transport={carried}" not in said:
        sys.exit(f"the start line does not say '{carried}':\n{said}")
    same(loss, expected, "under mpirun")
    if not hosts:
        arguments.program = [*train, "--name", "mpi", "--set", "comm.transport=mpi"]
        loss, _ = loss_of(
            "mpirun, transport mpi", mpirun.command_of(arguments, hosts, folder)[0], environment,
            folder
        )
        same(loss, expected, "by transport mpi")
    return 0


def ranks_of(folder):
    """The processes that train in `folder`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if os.path.basename(words[0]) == b"weft" and str(folder).encode() in words:
                found.append(int(entry))
    return found


def wait_for(condition, seconds, what):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def kill(arguments, hosts, folder):
    arguments.program = [arguments.program[0], "train", str(folder)]
    command, environment = mpirun.command_of(arguments, hosts, folder)
    steps = pathlib.Path(folder, "runs/run/metrics.jsonl")
    with open(pathlib.Path(folder, "said"), "w+", encoding="utf-8") as said:
        job = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            wait_for(
                lambda: job.poll() is not None
                or (steps.exists() and steps.read_text().count("\n") > 3),
                60,
                "the first steps",
            )
            ranks = sorted(ranks_of(folder))
            if len(ranks) != arguments.ranks:
                said.seek(0)
                sys.exit(f"{len(ranks)} ranks of {arguments.ranks} are there:\n{said.read()}")
            os.kill(ranks[-1], signal.SIGKILL)
            wait_for(
                lambda: job.poll() is not None, 20, "the end of mpirun after a rank was killed"
            )
            wait_for(lambda: not ranks_of(folder), 20, "the end of the other ranks")
        finally:
            for rank in ranks_of(folder):
                os.kill(rank, signal.SIGKILL)
            job.kill()
            job.wait()
    print(f"mpirun ended with {job.returncode}")
    return 0 if job.returncode not in (0, -signal.SIGKILL) else 1


def main():
    parser = mpirun.parser_of(__doc__)
    parser.add_argument("--kill", action="store_true")
    arguments = mpirun.parse(parser)
    for name in os.environ.keys() - without_launchers(keep=("OMPI_MCA_", "WEFT_")).keys():
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder, mpirun.hosts_of(arguments) as hosts:
        images.write(pathlib.Path(folder), 1280, 100)
        pathlib.Path(folder, "recipe.toml").write_text(images.recipe(folder))
        return (kill if arguments.kill else compare)(arguments, hosts, folder)


if __name__ == "__main__":
    sys.exit(main())
