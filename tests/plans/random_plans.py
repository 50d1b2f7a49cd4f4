#!/usr/bin/env python3
"""Trains small models under random plans, and compares losses and weights with one process. Not a
test of the suite: run it for as long as the time allows.

    tests/plans/random_plans.py --weft build/release/bin/weft [--count 50] [--seed 1] [--keep DIR]

A trial draws a model, an optimizer, a clipping, axes, stage, schedule, placement, micro-batches,
recomputation and a transport. Some trials end in the middle and are resumed under another plan. A
trial is right if every step's loss and the weights at the end are those of one process, up to
rounding, or if the plan is refused in one line with exit code 2. Prints each trial that is wrong,
and a count."""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402

STEPS = 8
LIMIT = 90  # seconds of a job
LOSS = 2e-4  # largest relative difference of a loss
WEIGHTS = 0.02  # largest distance of the weights over the length of their way
COMMON = {
    "train.max_steps": STEPS,
    "train.epochs": 100,
    "train.eval_every": 0,
    "train.log_every": 1,
    "train.checkpoint_every": 0,
    "schedule.name": "constant",
}
GPT = {
    "model.name": "gpt", "model.layers": 4, "model.width": 32, "model.heads": 4,
    "model.sequence": 32, "data.name": "text", "data.tokenizer": "bytes",
}
IMAGES = {"data.name": "shapes"}
# Optimizer, learning rate, settings of its own.
OPTIMIZERS = (
    ("sgd", 0.05, {}),
    ("sgd", 0.05, {"optimizer.nesterov": True}),
    ("sgd", 0.05, {"optimizer.l1": 1e-4}),
    ("rmsprop", 0.001, {}),
    ("adagrad", 0.01, {}),
    ("adam", 0.002, {}),
    ("adamw", 0.002, {}),
    ("lion", 0.0005, {}),
    ("lars", 0.5, {}),
    ("lamb", 0.005, {}),
    ("adafactor", 0.01, {}),
    ("muon", 0.02, {}),
)

# Parameters without influence on the loss, whose gradients are rounding errors: a constant for all
# keys, or for all channels before a LayerNorm.
IDLE = re.compile(r"(k_proj|key|mlp_tokens\.fc2)\.bias$")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "zb_v", "automatic")


class Draw(random.Random):
    def some(self, chance, keys):
        return keys if self.random() < chance else {}


def model_of(draw):
    """Keys of a model and its data."""
    kind = draw.choice(("gpt", "gpt", "gpt", "vit", "mixer", "mlp", "cnn", "lstm"))
    if kind == "gpt":
        keys = dict(GPT)
        keys |= draw.some(0.3, {"model.family": "llama"})
        keys |= draw.some(0.2, {"model.kv_heads": 2})
        keys |= draw.some(0.2, {"model.experts": 4, "model.experts_balance": 0.0})
        keys |= draw.some(0.15, {"data.pack_documents": True})
        keys |= draw.some(0.25, {"train.recompute": draw.choice(("full", "selective"))})
        return keys
    if kind == "lstm":
        keys = GPT | {"model.name": "lstm", "model.layers": 2}
        return keys | draw.some(0.5, {"model.tied": False})
    if kind in ("vit", "mixer"):
        keys = {"model.name": kind, "model.layers": 4, "model.width": 32, "model.heads": 4}
        if kind == "mixer":
            del keys["model.heads"]
        return IMAGES | keys | draw.some(0.2, {"train.recompute": "full"})
    return IMAGES | {"model.name": kind} | ({"model.hidden": [48, 32]} if kind == "mlp" else {})


def training_of(draw):
    """Keys that count in one process too."""
    name, rate, own = draw.choice(OPTIMIZERS)
    keys = {"optimizer.name": name, "optimizer.lr": rate, **own}
    keys["train.batch"] = draw.choice((8, 12, 16))
    keys["train.seed"] = draw.randrange(1, 1000)
    keys |= draw.some(0.3, {"optimizer.max_grad_norm": draw.choice((0.05, 0.5))})
    keys |= draw.some(0.3, {"optimizer.weight_decay": 0.05})
    keys |= draw.some(0.2, {"optimizer.decay_vectors": False})
    return keys


def divisors(number):
    return [one for one in range(1, number + 1) if number % one == 0]


def plan_of(draw, keys):
    """Number of ranks, and keys of how they train."""
    ranks = draw.choice((2, 2, 3, 4, 4, 4))
    left, plan = ranks, {}
    axes = ["dp", "fsdp"]
    if keys["model.name"] in ("gpt", "vit", "mixer"):
        axes += ["tp", "tp", "pp"]
    else:
        axes += ["pp"]
    if keys["model.name"] == "gpt":
        axes += ["cp"] + (["ep", "ep"] if "model.experts" in keys else [])
    draw.shuffle(axes)
    for axis in dict.fromkeys(axes):
        size = draw.choice(divisors(left))
        left //= size
        plan[f"parallel.{axis}"] = size
    plan["parallel.dp"] = plan["parallel.dp"] * left
    if plan["parallel.fsdp"] > 1:
        plan["parallel.zero_stage"] = draw.choice((1, 2, 3))
    if plan["parallel.pp"] > 1:
        plan["parallel.schedule"] = draw.choice(SCHEDULES)
    plan |= draw.some(0.5, {"parallel.micro_batches": draw.choice((1, 2, 4))})
    plan |= draw.some(0.5, {"parallel.weights": draw.choice(("shared", "private"))})
    plan |= draw.some(0.15, {"parallel.overlap_forward": False})
    plan |= draw.some(0.15, {"parallel.bucket_mb": 0.02})
    plan |= draw.some(0.1, {"parallel.context": "heads"})
    plan |= draw.some(0.1, {"train.compare_steps": 2})
    return ranks, plan, draw.choice(("", "", "tcp"))


def word(value):
    return json.dumps(value) if isinstance(value, (list, bool)) else str(value)


class Job:
    def __init__(self, options, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.options, self.folder, self.run = options, folder, folder / "runs/run"
        self.commands, self.code, self.err = [], 0, ""

    def train(self, ranks, keys, transport, resume=False):
        keys = COMMON | keys | {"run.dir": str(self.folder / "runs")}
        if keys["data.name"] == "text":
            keys["data.file"] = str(self.options.text)
        settings = [f"--set={key}={word(value)}" for key, value in keys.items()]
        command = [self.options.weft, "train", str(self.options.recipe), "-n", str(ranks)]
        command += ["--name", "run", *(["--resume"] if resume else []), *settings]
        env = without_launchers()
        if transport:
            env["WEFT_TRANSPORT"] = transport
        self.commands.append(command)
        try:
            ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
            self.code, self.err = ran.returncode, ran.stderr
        except subprocess.TimeoutExpired as error:
            self.code, self.err = None, str(error)
        return self

    def losses(self):
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines if '"loss"' in line]
        return [line["loss"] for line in found]

    def weights(self):
        """The weights of the last checkpoint, by name."""
        whole = self.folder / "whole.safetensors"
        command = [self.options.weft, "checkpoint", "convert", str(self.run), str(whole)]
        subprocess.run(command, check=True, capture_output=True)
        return tensors_of(whole)


def tensors_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, found = json.loads(data[8 : 8 + size]), {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[8 + size + begin : 8 + size + end], "<f4")
        found[name] = values.reshape(entry["shape"]).astype("f8")
    return found


def difference(alone, start, job):
    """What is wrong; empty: nothing. `start`: the weights before the first step."""
    if job.code == 2:
        lines = [line for line in job.err.splitlines() if line.startswith("weft: ")]
        return "" if lines else f"no line says why: {job.err[-500:]}"
    if job.code != 0:
        return f"exit code {job.code}: {job.err[-1500:]}"
    mine, right = job.losses(), alone.losses()
    if len(mine) != len(right):
        return f"{len(mine)} losses, not {len(right)}"
    for step, (one, other) in enumerate(zip(mine, right), 1):
        if not math.isclose(one, other, rel_tol=LOSS):
            return f"loss {one} of step {step}, not {other}"
    weights, wanted = job.weights(), alone.weights()
    if weights.keys() != wanted.keys():
        return f"other weights: {sorted(weights.keys() ^ wanted.keys())}"
    for name, value in wanted.items():
        if IDLE.search(name):
            continue
        way = numpy.linalg.norm(value - start[name]) if name in start else 0
        off = numpy.linalg.norm(weights[name] - value)
        if off > WEIGHTS * way + 1e-6 * numpy.linalg.norm(value) + 1e-6:
            return f"{name} is {off:.3g} from its place, after a way of {way:.3g}"
    return ""


def trial(options, seed):
    """(keys of the plan, what came of it: "right", "refused" or what is wrong)."""
    draw = Draw(seed)
    model = model_of(draw)
    keys = model | training_of(draw)
    plans = [plan_of(draw, keys)]
    if draw.random() < 0.4:
        plans.append(plan_of(draw, keys))
    folder = options.folder / f"trial-{seed}"
    shown = f"seed {seed}: {keys}, plans (ranks, keys, transport): {plans}"
    alone = Job(options, folder / "alone").train(1, keys, "")
    if alone.code != 0:
        return shown, f"one process: exit code {alone.code}: {alone.err[-1500:]}"
    still = {"optimizer.lr": 1e-30, "train.max_steps": 1}
    start = Job(options, folder / "start").train(1, keys | still, "")
    job = Job(options, folder / "ranks")
    for number, (ranks, plan, transport) in enumerate(plans, 1):
        end = {"train.max_steps": STEPS * number // len(plans)}
        if job.code == 0:
            job.train(ranks, keys | plan | end, transport, resume=number > 1)
    wrong = difference(alone, start.weights(), job)
    if wrong:
        return shown, "\n".join([wrong, *(shlex.join(command) for command in job.commands)])
    shutil.rmtree(folder)
    return shown, "refused: " + job.err.strip().splitlines()[-1] if job.code == 2 else "right"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default="build/release/bin/weft")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first trial")
    parser.add_argument("--keep", help="a folder for the runs of wrong trials")
    parser.add_argument("--verbose", action="store_true", help="also print trials that are right")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    options.folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="weft-plans-")).resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.text = options.folder / "text"
    options.text.write_bytes(b"".join(
        b"The %d weavers crossed warp %d and weft.\n\n" % (n * 7 % 13, n * n % 101)
        for n in range(400)
    ))
    options.recipe = options.folder / "recipe.toml"
    options.recipe.write_text("")
    counts = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        shown, result = trial(options, seed)
        kind = result[:7] if result.startswith(("right", "refused")) else "wrong"
        counts[kind] += 1
        if kind == "wrong" or options.verbose:
            print(f"{shown}\n  {result}", flush=True)
    print(json.dumps(counts))
    if not options.keep:
        shutil.rmtree(options.folder)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
