"""Prints the known answers of models_test.cc as C++ lines: the results of the same nets in PyTorch,
filled by the same formula. Needs torch only."""

import torch
from torch import nn
import torch.nn.functional as F


def wave(shape, phase):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + phase).reshape(shape)


def fill(model):
    """Fills the parameters in their order: weights of batch norms with 1 + wave/10, biases with
    wave/10, others with wave / sqrt(fan in)."""
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            if p.dim() > 1:
                p.copy_(wave(p.shape, i) / (p[0].numel() ** 0.5))
            else:
                p.copy_(wave(p.shape, i) / 10 + (1 if name.endswith("weight") else 0))


class Block(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, s, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = (
            nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))
            if s != 1 or i != o
            else None
        )

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet18(nn.Module):
    def __init__(self, stem):
        super().__init__()
        self.conv1 = (
            nn.Conv2d(1, 64, 7, 2, 3, bias=False)
            if stem == "7x7"
            else nn.Conv2d(1, 64, 3, 1, 1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1) if stem == "7x7" else nn.Identity()
        for k, (i, o, s) in enumerate([(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]):
            setattr(self, f"layer{k + 1}", nn.Sequential(Block(i, o, s), Block(o, o, 1)))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def mlp():
    m = nn.Module()
    m.fc1, m.fc2, m.fc3 = nn.Linear(784, 256), nn.Linear(256, 128), nn.Linear(128, 10)
    m.forward = lambda x: m.fc3(F.relu(m.fc2(F.relu(m.fc1(x.flatten(1))))))
    return m


def cnn():
    m = nn.Module()
    m.conv1, m.conv2, m.fc1, m.fc2 = (
        nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Linear(3136, 128),
        nn.Linear(128, 10)
    )
    body = lambda x: F.max_pool2d(F.relu(m.conv2(F.max_pool2d(F.relu(m.conv1(x)), 2))), 2)
    m.forward = lambda x: m.fc2(F.relu(m.fc1(body(x).flatten(1))))
    return m


def numbers(values):
    return ", ".join(f"{v:.9g}" for v in values)


x, target = wave((4, 1, 28, 28), 0.5), torch.tensor([1, 3, 5, 9])
for name, model in [
    ("mlp", mlp()),
    ("cnn", cnn()),
    ("resnet18 7x7", ResNet18("7x7")),
    ("resnet18 3x3", ResNet18("3x3")),
]:
    model.double()
    fill(model)
    out = model(x)
    loss = F.cross_entropy(out, target, label_smoothing=0.1)
    loss.backward()
    first = next(model.parameters())
    norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt().item()
    count = sum(p.numel() for p in model.parameters())
    print(
        f"// {name}\n{count}, {{{numbers(out[0].tolist())}}}, {loss.item():.9g}, {norm:.9g}, "
        f"{first.grad.abs().sum().item():.9g}"
    )

x, target = wave((3, 5), 1).requires_grad_(), torch.tensor([4, 0, 2])
for name, value in [
    ("mse", F.mse_loss(x, F.one_hot(target, 5).double())),
    ("nll", F.nll_loss(x, target)),
    ("cross_entropy", F.cross_entropy(x, target)),
    ("cross_entropy 0.1", F.cross_entropy(x, target, label_smoothing=0.1)),
]:
    (grad,) = torch.autograd.grad(value, x)
    print(f"// {name}\n{value.item():.12g}, {{{numbers(grad[0].tolist())}}}")
