"""Trains a text recipe with weft and the same GPT with plain PyTorch. Prints the differences of the
losses: of the training steps, and of the held-out part at the end. Exits with 1 if a difference
exceeds the bounds below.

    losses.py --weft build/release/bin/weft [--steps 60] [-n 2] [RECIPE [SETTING ...]]

PyTorch uses weft's initial weights (`weft export` of a run without steps) and weft's tokens. The
model, the order of the windows and the learning rate are implemented here again, as described in
the headers (base/random.h, data/text/windows.h, optim/learning_rate.h). Needs torch and
safetensors. RECIPE is a text recipe of family gpt2 with AdamW (default: recipes/licenses). A
SETTING is key=value and overrides the recipe. Dropout is always off."""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

FIRST_STEPS, FIRST_BOUND = 10, 1e-4  # bound for the losses of the first steps, in nats
# Bounds for all steps and for the held-out part. float32 sums have another order, so the losses
# drift apart.
BOUND, HELD_OUT_BOUND = (
    1e-2,
    1e-3,
)
MASK = 0xFFFFFFFF


class Philox:
    """The generator of base/random.h: Philox 4x32-10 at (seed, stream, index)."""

    def __init__(self, seed, stream, index):
        self.key, self.counter, self.words = (
            [seed & MASK, seed >> 32],
            [0, stream, index & MASK, index >> 32],
            [],
        )

    def u32(self):
        if not self.words:
            counter, key = list(self.counter), list(self.key)
            for _ in range(10):
                even, odd = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
                counter = [
                    odd >> 32 ^ counter[1] ^ key[0],
                    odd & MASK,
                    even >> 32 ^ counter[3] ^ key[1],
                    even & MASK,
                ]
                key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
            self.words = counter[::-1]
            self.counter[0] += 1
        return self.words.pop()

    def below(self, bound):
        """A uniform number below the bound (Lemire, 2019)."""
        while True:
            low = self.u32()
            product = (low | self.u32() << 32) * bound
            if product & (1 << 64) - 1 >= (1 << 64) % bound:
                return product >> 64


def permutation(count, seed, epoch):
    order, random = list(range(count)), Philox(seed, 0xFFFFFFFF, epoch)
    for left in range(count, 1, -1):
        other = random.below(left)
        order[left - 1], order[other] = order[other], order[left - 1]
    return order


class Gpt(torch.nn.Module):
    """GPT-2 with functional operations, on weights with the names of the package transformers."""

    def __init__(self, folder):
        super().__init__()
        self.config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.nn.Parameter(w.clone()) for name, w in weights.items()}
        )

    def w(self, name):
        return self.weights["transformer/" + name.replace(".", "/")]

    def norm(self, x, name):
        return F.layer_norm(
            x,
            x.shape[-1:],
            self.w(name + ".weight"),
            self.w(name + ".bias"),
            self.config["layer_norm_epsilon"],
        )

    def linear(self, x, name):
        return x @ self.w(name + ".weight") + self.w(name + ".bias")

    def forward(self, tokens):
        x = self.w("wte.weight")[tokens] + self.w("wpe.weight")[: tokens.shape[1]]
        for i in range(self.config["n_layer"]):
            at = f"h.{i}."
            heads = [
                part.view(*part.shape[:2], self.config["n_head"], -1).transpose(1, 2)
                for part in self.linear(self.norm(x, at + "ln_1"), at + "attn.c_attn").chunk(3, -1)
            ]
            y = (
                F.scaled_dot_product_attention(*heads, is_causal=True)
                .transpose(1, 2)
                .reshape(x.shape)
            )
            x = x + self.linear(y, at + "attn.c_proj")
            x = x + self.linear(
                F.gelu(self.linear(self.norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh"),
                at + "mlp.c_proj",
            )
        return self.norm(x, "ln_f") @ self.w("wte.weight").T


class Text:
    """The tokens.bin of a run (data/text/token_file.h), in the windows of data/text/windows.h."""

    def __init__(self, path, config):
        header = path.read_bytes()[:64]
        assert header[:8] == b"WEFTTOK1"
        width, end = int.from_bytes(header[12:16], "little"), int.from_bytes(
            header[32:36], "little", signed=True
        )
        self.tokens = numpy.fromfile(path, dtype={2: "<u2", 4: "<u4"}[width], offset=64).astype(
            numpy.int64
        )
        self.length, self.seed, self.batch = (
            config["model.sequence"],
            config["train.seed"],
            config["train.batch"],
        )
        count = len(self.tokens)
        cut = count - math.floor(count * config["data.validation"] + 0.5)
        ends = numpy.flatnonzero(self.tokens[cut - 1 :] == end)
        cut = min(cut + int(ends[0]), count) if len(ends) else count
        if count - cut <= self.length:
            cut = min(int(count * (1 - config["data.validation"])), count - self.length - 1)
        self.cut = cut
        self.windows = (cut - self.length) // self.length
        self.per_epoch = -(-self.windows // self.batch)

    def at(self, begin, end):
        rows = [self.tokens[b : min(b + self.length + 1, end)] for b in begin]
        rows = [
            numpy.pad(row, (0, self.length + 1 - len(row)), constant_values=-100) for row in rows
        ]
        rows = torch.from_numpy(numpy.stack(rows))
        return rows[:, :-1].clamp(min=0), rows[:, 1:]

    def batches(self):
        epoch = 0
        while True:
            order = permutation(self.windows, self.seed, epoch)
            shift = Philox(self.seed, 0x7465, epoch).below(self.length)
            for first in range(0, self.windows, self.batch):
                yield self.at(
                    [shift + row * self.length for row in order[first : first + self.batch]],
                    self.cut,
                )
            epoch += 1

    def held_out(self):
        rows = (len(self.tokens) - self.cut - 2) // self.length + 1
        for first in range(0, rows, self.batch):
            yield self.at(
                [
                    self.cut + row * self.length
                    for row in range(first, min(rows, first + self.batch))
                ],
                len(self.tokens),
            )


def rate_at(time, config):
    """The learning rate: half of a cosine over all epochs, times a linear warm-up."""
    assert (
        config["schedule.name"] == "cosine"
        and config["schedule.period_epochs"] == 0
        and config["schedule.reference_batch"] == 0
    )
    low, warmup = config["schedule.minimum"], config["schedule.warmup_epochs"]
    rate = low + (config["optimizer.lr"] - low) * 0.5 * (
        1 + math.cos(math.pi * min(time / config["train.epochs"], 1))
    )
    return rate * time / warmup if time < warmup else rate


def loss_of(model, batch, reduction="mean"):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction=reduction)


def train_by_torch(folder, text, config, steps):
    model = Gpt(folder)
    decays = config["optimizer.decay_vectors"]
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() > 1 or decays],
            "weight_decay": config["optimizer.weight_decay"],
        },
        {
            "params": [p for p in model.parameters() if p.dim() <= 1 and not decays],
            "weight_decay": 0,
        },
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]],
        betas=tuple(config["optimizer.betas"]),
        eps=config["optimizer.eps"],
    )
    losses = []
    for step, batch in zip(range(steps), text.batches()):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step / text.per_epoch, config)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        batches = list(text.held_out())
        total = sum(loss_of(model, batch, "sum").item() for batch in batches)
        return losses, total / sum((batch[1] >= 0).sum().item() for batch in batches)


def flat(table, before=""):
    for key, value in table.items():
        yield from (
            flat(value, before + key + ".") if isinstance(value, dict) else [(before + key, value)]
        )


def weft(words, program):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", required=True, help="the built command")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("-n", "--ranks", default="1", help="weft's processes")
    parser.add_argument("recipe", nargs="?", default="recipes/licenses")
    parser.add_argument("settings", nargs="*")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent)
        common = [
            "train",
            words.recipe,
            "-n",
            words.ranks,
            "--progress",
            "none",
            "--set",
            f"run.dir={parent}",
        ]
        for setting in [*words.settings, "model.dropout=0"]:
            common += ["--set", setting]
        weft([*common, "--name", "start", "--set", "train.epochs=0"], words.weft)
        weft(["export", f"{parent}/start", f"{parent}/model"], words.weft)
        result = json.loads(
            weft(
                [*common, "--name", "run", "--json", "--set", f"train.max_steps={words.steps}"],
                words.weft,
            )
        )
        records = [
            json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()
        ]
        theirs = [record["loss"] for record in records if "loss" in record]
        config = dict(flat(tomllib.loads((folder / "run/config.toml").read_text())))
        assert (
            config["optimizer.name"] == "adamw"
            and config["model.family"] == "gpt2"
            and config["optimizer.max_grad_norm"] == 0
        )
        text = Text(folder / "run/tokens.bin", config)
        losses, held_out = train_by_torch(folder / "model", text, config, words.steps)
    apart = [abs(a - b) for a, b in zip(losses, theirs, strict=True)]
    for step in sorted(
        {1, 2, 5, *range(FIRST_STEPS, words.steps + 1, FIRST_STEPS), words.steps}
        & set(range(1, words.steps + 1))
    ):
        print(
            f"step {step:5}: torch {losses[step - 1]:.6f}, weft {theirs[step - 1]:.6f}, apart "
            f"{apart[step - 1]:.1e}"
        )
    first, most = max(apart[:FIRST_STEPS]), max(apart)
    print(
        f"losses of {len(apart)} steps: at most {most:.1e} apart, the first {FIRST_STEPS} at most "
        f"{first:.1e}"
    )
    print(
        f"held-out loss: torch {held_out:.6f}, weft {result['loss']:.6f}, apart "
        f"{abs(held_out - result['loss']):.1e}"
    )
    return (
        0
        if first < FIRST_BOUND and most < BOUND and abs(held_out - result["loss"]) < HELD_OUT_BOUND
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
