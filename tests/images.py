"""Small sets of images in the files of Fashion-MNIST. A rank reads them at once, while it draws the
images of the data set "shapes" for longer than a test trains."""

import pathlib
import random

SIDE = 28
NOISE = random.Random(1).randbytes(100_003)  # a prime number, so no two images are alike


def idx(shape, values):
    """An IDX file of bytes."""
    return (
        bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + values
    )


def write(folder, train, test):
    """Noise in ten classes: so many images to train on and to evaluate with."""
    for part, count in (("train", train), ("t10k", test)):
        size = count * SIDE * SIDE
        pixels = (NOISE * (size // len(NOISE) + 1))[:size]
        labels = bytes(i % 10 for i in range(count))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx((count, SIDE, SIDE), pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx((count,), labels))


def recipe(folder):
    """The small job of shapes.toml, on the images of a folder."""
    text = pathlib.Path(__file__).with_name("shapes.toml").read_text(encoding="utf-8")
    return text.replace('"shapes"', f'"fashion-mnist"\ndir = "{folder}"')
