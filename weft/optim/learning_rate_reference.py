"""Writes learning_rate_reference.inc: the rates of PyTorch's schedulers at a few steps.

Run with a Python that has torch: python learning_rate_reference.py > learning_rate_reference.inc
"""

import torch
from torch.optim import lr_scheduler as s

TIMES = (0, 1, 4, 5, 9, 10, 19, 20, 29, 30)


def run(name, make):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = make(optimizer)
    for time in range(31):
        if time in TIMES:
            print(f'    {{"{name}", {time}, {optimizer.param_groups[0]["lr"]!r}}},')
        optimizer.step()
        scheduler.step()


def main():
    print(
        f"// Written by learning_rate_reference.py with PyTorch {torch.__version__.split('+')[0]}."
    )
    run("step", lambda o: s.StepLR(o, 10, 0.5))
    run("cosine", lambda o: s.CosineAnnealingLR(o, 30, 0.001))
    run("warmup", lambda o: s.LinearLR(o, 0.25, 1.0, 5))
    run(
        "warmup step",
        lambda o: s.ChainedScheduler([s.LinearLR(o, 0.25, 1.0, 5), s.StepLR(o, 10, 0.5)]),
    )


if __name__ == "__main__":
    main()
