"""Writes update_reference.inc: weights after 5 and 100 steps of PyTorch's optimizers, and of Lion
in pytorch-optimizer (CPU, float32, one tensor at a time).

Run with a Python that has torch and pytorch-optimizer 3.5 or newer:
python update_reference.py > update_reference.inc

Initial weights and gradients are formulas of the index and the step, whose values are exact in
float32. update_test.cc has the same formulas."""

import torch
from pytorch_optimizer import Lion

COUNT = 8


def initial_weights():
    return [(0.5 + 0.25 * i) * (-1 if i % 2 else 1) for i in range(COUNT)]


def gradients(step):
    return [((i * 7 + step * 5) % 11 - 5) / 8 for i in range(COUNT)]


def run(name, make, l1=0.0):
    weight = torch.tensor(initial_weights(), dtype=torch.float32, requires_grad=True)
    optimizer = make([weight], foreach=False)
    for step in range(1, 101):
        weight.grad = torch.tensor(gradients(step), dtype=torch.float32)
        if l1:
            weight.grad += l1 * weight.detach().sign()
        optimizer.step()
        if step in (5, 100):
            values = weight.detach().tolist()
            assert (
                min(abs(v) for v in values) > 0.02
            ), f"{name}: too near zero for a relative tolerance"
            print(f'    {{"{name}", {step}, {{{", ".join(f"{v:.9g}" for v in values)}}}}},')


def main():
    sgd, rms, ada = torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad
    adam, adamw = torch.optim.Adam, torch.optim.AdamW
    print(f"// Written by update_reference.py with PyTorch {torch.__version__.split('+')[0]}.")
    run("sgd", lambda p, **k: sgd(p, lr=0.01, **k))
    run("sgd momentum", lambda p, **k: sgd(p, lr=0.01, momentum=0.9, **k))
    run("sgd dampening", lambda p, **k: sgd(p, lr=0.01, momentum=0.9, dampening=0.5, **k))
    run(
        "sgd nesterov decay",
        lambda p, **k: sgd(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01, **k),
    )
    run("sgd l1 l2", lambda p, **k: sgd(p, lr=0.01, weight_decay=0.01, **k), l1=0.02)
    run("rmsprop", lambda p, **k: rms(p, lr=0.001, **k))
    run(
        "rmsprop momentum", lambda p, **k: rms(p, lr=0.001, alpha=0.95, eps=1e-6, momentum=0.5, **k)
    )
    run(
        "rmsprop centered decay",
        lambda p, **k: rms(p, lr=0.001, centered=True, weight_decay=0.01, **k),
    )
    run(
        "rmsprop centered momentum",
        lambda p, **k: rms(p, lr=0.001, centered=True, momentum=0.5, **k),
    )
    run("adagrad", lambda p, **k: ada(p, lr=0.01, **k))
    run(
        "adagrad lr_decay decay",
        lambda p, **k: ada(
            p, lr=0.01, lr_decay=0.01, weight_decay=0.01, initial_accumulator_value=0.1, **k
        ),
    )
    run("adam", lambda p, **k: adam(p, lr=0.001, **k))
    run(
        "adam decay amsgrad",
        lambda p, **k: adam(
            p, lr=0.002, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.01, amsgrad=True, **k
        ),
    )
    run("adamw", lambda p, **k: adamw(p, lr=0.001, weight_decay=0.1, **k))
    run(
        "adamw amsgrad l1",
        lambda p, **k: adamw(p, lr=0.001, weight_decay=0.05, amsgrad=True, **k),
        l1=0.02,
    )
    run("lion", lambda p, **k: Lion(p, lr=0.001, betas=(0.9, 0.99)))
    run("lion decay", lambda p, **k: Lion(p, lr=0.002, betas=(0.95, 0.98), weight_decay=0.1))


if __name__ == "__main__":
    main()
