"""Writes whole_tensor_reference.inc: weights of a matrix [3, 4] and a vector [5] after 5 and 20
steps of LARS and Adafactor in pytorch-optimizer (CPU, float32).

Run with a Python that has torch and pytorch-optimizer 4.1 or newer:
python whole_tensor_reference.py > whole_tensor_reference.inc

Initial weights and gradients are formulas of the index and the step, whose values are exact in
float32. whole_tensor_test.cc has the same formulas. The package's LAMB does not correct the second
moment for its start and clamps norms to 10, and its Muon computes in bfloat16. Both differ from
their papers, so the test has models of these two in float64 instead."""

import torch
from pytorch_optimizer import LARS, AdaFactor

SIZES = ((3, 4), (5,))


def initial_weights(first, count):
    return [(0.5 + 0.25 * i) * (-1 if i % 2 else 1) for i in range(first, first + count)]


def gradients(first, count, step):
    return [((i * 7 + step * 5) % 11 - 4.5) / 8 for i in range(first, first + count)]


def tensors(of):
    first, made = 0, []
    for size in SIZES:
        count = torch.Size(size).numel()
        made.append(torch.tensor(of(first, count), dtype=torch.float32).view(size))
        first += count
    return made


def run(name, make):
    weights = [weight.requires_grad_() for weight in tensors(initial_weights)]
    optimizer = make(weights, foreach=False)
    for step in range(1, 21):
        for weight, gradient in zip(weights, tensors(lambda f, n: gradients(f, n, step))):
            weight.grad = gradient
        optimizer.step()
        if step in (5, 20):
            values = torch.cat([weight.detach().flatten() for weight in weights]).tolist()
            assert (
                min(abs(v) for v in values) > 0.02
            ), f"{name}: too near zero for a relative tolerance"
            print(f'    {{"{name}", {step}, {{{", ".join(f"{v:.9g}" for v in values)}}}}},')


def main():
    version = torch.__version__.split("+")[0]
    print(f"// Written by whole_tensor_reference.py with PyTorch {version}.")
    lars = {"lr": 0.02, "trust_coefficient": 0.05}
    run("lars", lambda p, **k: LARS(p, **lars, **k))
    run("lars decay", lambda p, **k: LARS(p, **lars, momentum=0.8, weight_decay=0.1, **k))
    run("lars nesterov", lambda p, **k: LARS(p, **lars, nesterov=True, **k))
    plain = {"lr": 0.01, "relative_step": False, "momentum_dtype": torch.float32}
    run("adafactor", lambda p, **k: AdaFactor(p, **plain, betas=(None, 0.999), **k))
    run(
        "adafactor momentum decay",
        lambda p, **k: AdaFactor(p, **plain, betas=(0.9, 0.999), weight_decay=0.1, **k),
    )


if __name__ == "__main__":
    main()
