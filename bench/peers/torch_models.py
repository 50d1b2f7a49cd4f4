"""The models of the training benchmarks, with the same layers as weft's models."""

import torch
from torch import nn


def mlp():
    """784-256-128-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def cnn():
    """conv32-pool-conv64-pool-fc128-fc10 on 1x28x28."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


def resnet18():
    """The layout for 224x224 images (stem 7x7/2, max-pool 3x3/2), with inputs of 1x28x28 and 10
    classes. It has 11,175,370 parameters.
    """
    stem = [
        nn.Conv2d(1, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


VOCABULARY, SEQUENCE = 96, 128


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        return self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )


class GptBlock(nn.Module):
    """A block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder-only transformer with learned positions and an untied head (Radford et al.
    2019).
    """

    def __init__(self, layers, width, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQUENCE, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt128():
    return Gpt(layers=4, width=128, heads=4)


def gpt384():
    return Gpt(layers=6, width=384, heads=6)


# Name: (model, batch size of each rank).
MODELS = {
    "mlp": (mlp, 64),
    "cnn": (cnn, 64),
    "resnet18": (resnet18, 32),
    "gpt-128": (gpt128, 8),
    "gpt-384": (gpt384, 4),
}


def optimizer(name, parameters, fused=None):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=fused)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=fused)


def fixed_batch(size, rank, model="cnn"):
    """Images or tokens, and their labels. They are generated with a seed that depends on the
    rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if model.startswith("gpt"):
        text = torch.randint(VOCABULARY, (size, SEQUENCE + 1), generator=generator)
        return text[:, :-1], text[:, 1:]
    return torch.randn(size, 1, 28, 28, generator=generator), torch.randint(
        10, (size,), generator=generator
    )


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
