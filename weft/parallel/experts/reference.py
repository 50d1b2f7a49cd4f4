"""Writes reference.inc: what routers and layers of experts give, computed token by token in plain
PyTorch (float64), for mixture_test.cc.

Run with a Python that has torch: python reference.py > reference.inc

Weights and inputs are sines of the index, as wave() of the tests: x[i] = sin(0.7 i + phase). All is
computed as the papers define it, with loops over tokens and experts: no sorting, no grouping, no
dispatch."""

import math

import torch
import torch.nn.functional as F

WIDTH, HIDDEN = 4, 6


def wave(sizes, phase):
    n = math.prod(sizes)
    return (torch.arange(n, dtype=torch.float64) * 0.7 + phase).sin().view(sizes)


def choose(row, k):
    """The k largest, the smaller number first where two are equal."""
    return sorted(range(len(row)), key=lambda e: (-row[e].item(), e))[:k]


def weights_of(row, chosen, over_all):
    return (
        torch.stack([row.softmax(0)[e] for e in chosen])
        if over_all
        else torch.stack([row[e] for e in chosen]).softmax(0)
    )


def places(choices, factor, experts):
    """kept[token][choice] of one sequence: first choices of all tokens, then second ones (GShard,
    algorithm 1)."""
    k, tokens = len(choices[0]), len(choices)
    kept = [[True] * k for _ in range(tokens)]
    if factor == 0:
        return kept
    capacity = max(1, math.ceil(factor * k * tokens / experts))
    used = [0] * experts
    for j in range(k):
        for t in range(tokens):
            e = choices[t][j]
            kept[t][j] = used[e] < capacity
            used[e] += 1
    return kept


def layer(case):
    x = wave([2, 5, WIDTH], 0.3).requires_grad_()  # two sequences of five tokens
    E, k = case["experts"], case["k"]
    router = (2 * wave([E, WIDTH], 1.1)).requires_grad_()
    gate, up = (
        wave([E, HIDDEN, WIDTH], 0.5).requires_grad_(),
        wave([E, HIDDEN, WIDTH], 0.9).requires_grad_(),
    )
    down = wave([E, WIDTH, HIDDEN], 1.7).requires_grad_()
    wanted, dropped, outputs = [0] * E, [0] * E, []
    for sequence in x:
        logits = sequence @ router.t()
        choices = [choose(row, k) for row in logits]
        kept = places(choices, case["factor"], E)
        for t, token in enumerate(sequence):
            y = torch.zeros(WIDTH, dtype=torch.float64)
            for j, e in enumerate(choices[t]):
                wanted[e] += 1
                if not kept[t][j]:
                    dropped[e] += 1
                    continue
                h = (
                    F.silu(gate[e] @ token) * (up[e] @ token)
                    if case["gated"]
                    else F.gelu(up[e] @ token)
                )
                y = y + weights_of(logits[t], choices[t], case["over_all"])[j] * (down[e] @ h)
            outputs.append(y)
    y = torch.stack(outputs).view(2, 5, WIDTH)
    logits = (x @ router.t()).view(-1, E)
    shares = torch.tensor(wanted, dtype=torch.float64) / (10 * k)
    balance = E * (shares * logits.softmax(-1).mean(0)).sum()  # Switch, eq. 4 to 6
    z = logits.logsumexp(-1).square().mean()  # ST-MoE, eq. 5
    auxiliary = 0.5 * balance + 0.25 * z
    ((y * wave([2, 5, WIDTH], 2.3)).sum() + auxiliary).backward()
    sums = [(t.grad * wave(list(t.shape), 0.1)).sum() for t in (x, router, up, down)]
    return (
        wanted,
        dropped,
        [auxiliary.detach(), (y.detach() * wave([2, 5, WIDTH], 0.6)).sum(), *sums],
        y.detach(),
    )


CASES = [
    {"name": "switch", "experts": 4, "k": 1, "over_all": True, "gated": False, "factor": 0},
    {
        "name": "switch, capacity 0.5",
        "experts": 4,
        "k": 1,
        "over_all": True,
        "gated": False,
        "factor": 0.5,
    },
    {"name": "mixtral", "experts": 4, "k": 2, "over_all": False, "gated": True, "factor": 0},
    {
        "name": "gshard, capacity 0.5",
        "experts": 4,
        "k": 2,
        "over_all": False,
        "gated": True,
        "factor": 0.5,
    },
    {
        "name": "three of eight, capacity 0.5",
        "experts": 8,
        "k": 3,
        "over_all": True,
        "gated": True,
        "factor": 0.5,
    },
]


def main():
    print(f"// Written by reference.py with PyTorch {torch.__version__.split('+')[0]}.")
    print(
        "// name, experts, top k, over all, gated, capacity factor; wanted; dropped; auxiliary, "
        "output and gradients times waves, first token"
    )
    for case in CASES:
        wanted, dropped, sums, y = layer(case)
        numbers = lambda values: "{" + ", ".join(f"{float(v):.17g}" for v in values) + "}"
        flags = f'{str(case["over_all"]).lower()}, {str(case["gated"]).lower()}'
        head = f'"{case["name"]}", {case["experts"]}, {case["k"]}, {flags}, {case["factor"]}'
        whole = lambda values: "{" + ", ".join(map(str, values)) + "}"
        print(
            f"    {{{head},\n     {whole(wanted)}, {whole(dropped)},\n     {numbers(sums)},\n"
            f"     {numbers(y[0, 0])}}},"
        )


main()
