"""Prints the known answers of this folder's tests as C++ lines: the results of the same nets in
plain PyTorch modules, filled by the same formula. Needs torch only.

A net's attention is torch.nn.functional.multi_head_attention_forward, its other layers torch.nn's.
Parameters are filled in the order of their names, so that it does not matter in which order modules
are registered."""

import torch
import torch.nn.functional as F
from torch import nn


def chirp(shape, phase):
    """Values in [-1, 1]. As a matrix they have full rank; those of a plain sine have rank two."""
    n = 1
    for size in shape:
        n *= size
    k = torch.arange(n, dtype=torch.float64)
    return torch.sin((k % 997) ** 2 * 0.7 + k * 0.01 + phase).reshape(shape)


def fill(model):
    """Fills weights of norms with 1 + chirp/10, other vectors with chirp/10, and the rest with
    chirp / sqrt(fan in)."""
    with torch.no_grad():
        for i, (name, p) in enumerate(sorted(model.named_parameters())):
            if p.dim() > 1:
                p.copy_(chirp(p.shape, i) / (p[0].numel() ** 0.5))
            else:
                p.copy_(chirp(p.shape, i) / 10 + (1 if name.endswith("weight") else 0))


def children(**modules):
    m = nn.Module()
    for name, child in modules.items():
        m.add_module(name, child)
    return m


class Block(nn.Module):
    """A block of a ResNet, basic or bottleneck."""

    def __init__(self, i, width, stride, expansion):
        super().__init__()
        o = width * expansion
        conv = lambda i, o, k, s: nn.Conv2d(i, o, k, s, k // 2, bias=False)
        shapes = (
            [(i, width, 3, stride), (width, o, 3, 1)]
            if expansion == 1
            else [(i, width, 1, 1), (width, width, 3, stride), (width, o, 1, 1)]
        )
        self.count = len(shapes)
        for n, shape in enumerate(shapes, 1):
            self.add_module(f"conv{n}", conv(*shape))
            self.add_module(f"bn{n}", nn.BatchNorm2d(shape[1]))
        self.downsample = (
            nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))
            if stride != 1 or i != o
            else None
        )

    def forward(self, x):
        y = x
        for n in range(1, self.count + 1):
            y = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(y))
            y = F.relu(y) if n < self.count else y
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    def __init__(self, counts, expansion, channels=1, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        i = 64
        for k, count in enumerate(counts):
            blocks = []
            for n in range(count):
                blocks.append(Block(i, 64 << k, 2 if k and not n else 1, expansion))
                i = (64 << k) * expansion
            self.add_module(f"layer{k + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


class Vit(nn.Module):
    """ViTForImageClassification of Hugging Face's transformers."""

    def __init__(self, image, patch, channels, classes, layers, width, heads, token=True):
        super().__init__()
        linear = lambda i, o: children(dense=nn.Linear(i, o))
        embeddings = children(
            patch_embeddings=children(projection=nn.Conv2d(channels, width, patch, patch))
        )
        if token:
            embeddings.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        embeddings.position_embeddings = nn.Parameter(
            torch.zeros(1, (image // patch) ** 2 + token, width)
        )
        block = lambda: children(
            attention=children(
                attention=children(
                    query=nn.Linear(width, width),
                    key=nn.Linear(width, width),
                    value=nn.Linear(width, width),
                ),
                output=linear(width, width),
            ),
            intermediate=linear(width, 4 * width),
            output=linear(4 * width, width),
            layernorm_before=nn.LayerNorm(width, 1e-12),
            layernorm_after=nn.LayerNorm(width, 1e-12),
        )
        encoder = children(layer=nn.ModuleList([block() for _ in range(layers)]))
        self.vit = children(
            embeddings=embeddings, encoder=encoder, layernorm=nn.LayerNorm(width, 1e-12)
        )
        self.classifier = nn.Linear(width, classes)
        self.heads, self.token = heads, token

    def attend(self, a, x):
        q, k, v, x = a.attention.query, a.attention.key, a.attention.value, x.transpose(0, 1)
        y, _ = F.multi_head_attention_forward(
            x,
            x,
            x,
            x.shape[-1],
            self.heads,
            torch.cat([q.weight, k.weight, v.weight]),
            torch.cat([q.bias, k.bias, v.bias]),
            None,
            None,
            False,
            0,
            a.output.dense.weight,
            a.output.dense.bias,
            need_weights=False,
        )
        return y.transpose(0, 1)

    def forward(self, x):
        e = self.vit.embeddings
        x = e.patch_embeddings.projection(x).flatten(2).transpose(1, 2)
        if self.token:
            x = torch.cat([e.cls_token.expand(len(x), -1, -1), x], 1)
        x = x + e.position_embeddings
        for b in self.vit.encoder.layer:
            x = x + self.attend(b.attention, b.layernorm_before(x))
            x = x + b.output.dense(F.gelu(b.intermediate.dense(b.layernorm_after(x))))
        x = self.vit.layernorm(x)
        return self.classifier(x[:, 0] if self.token else x.mean(1))


class Mixer(nn.Module):
    def __init__(self, image, patch, channels, classes, layers, width):
        super().__init__()
        patches = (image // patch) ** 2
        mlp = lambda n, hidden: children(fc1=nn.Linear(n, hidden), fc2=nn.Linear(hidden, n))
        norm = lambda: nn.LayerNorm(width, 1e-6)
        self.stem = children(proj=nn.Conv2d(channels, width, patch, patch))
        self.blocks = nn.ModuleList(
            [
                children(
                    norm1=norm(), mlp_tokens=mlp(patches, width // 2), norm2=norm(),
                    mlp_channels=mlp(width, 4 * width)
                )
                for _ in range(layers)
            ]
        )
        self.norm, self.head = norm(), nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem.proj(x).flatten(2).transpose(1, 2)
        mlp = lambda m, x: m.fc2(F.gelu(m.fc1(x)))
        for b in self.blocks:
            x = x + mlp(b.mlp_tokens, b.norm1(x).transpose(1, 2)).transpose(1, 2)
            x = x + mlp(b.mlp_channels, b.norm2(x))
        return self.head(self.norm(x).mean(1))


def numbers(values):
    return ", ".join(f"{v:.9g}" for v in values)


def report(name, model, size=28):
    """Prints the number of parameters, the logits of the first image, the loss, the norm of the
    gradient, and the sum of magnitudes of the gradient of the first parameter by name."""
    model.double()
    fill(model)
    out = model(chirp((4, 1, size, size), 0.5))
    loss = F.cross_entropy(out, torch.tensor([1, 3, 5, 9]))
    loss.backward()
    parameters = [p for _, p in sorted(model.named_parameters())]
    norm = sum(p.grad.square().sum() for p in parameters).sqrt().item()
    count = sum(p.numel() for p in parameters)
    print(
        f"// {name}\n{count}, {{{numbers(out[0].tolist())}}}, {loss.item():.9g}, {norm:.9g}, "
        f"{parameters[0].grad.abs().sum().item():.9g}"
    )


report("resnet34", ResNet([3, 4, 6, 3], 1), 64)
report("resnet50", ResNet([3, 4, 6, 3], 4), 64)
report("vit, class token", Vit(28, 7, 1, 10, 2, 24, 4))
report("vit, mean", Vit(28, 4, 1, 10, 2, 24, 3, token=False))
report("mixer", Mixer(28, 7, 1, 10, 3, 24))
with torch.device("meta"):
    for name, model in [
        ("resnet34", ResNet([3, 4, 6, 3], 1, 3, 1000)),
        ("resnet50", ResNet([3, 4, 6, 3], 4, 3, 1000)),
        ("resnet101", ResNet([3, 4, 23, 3], 4, 3, 1000)),
        ("resnet152", ResNet([3, 8, 36, 3], 4, 3, 1000)),
        ("ViT-B/16", Vit(224, 16, 3, 1000, 12, 768, 12)),
        ("ViT-L/16", Vit(224, 16, 3, 1000, 24, 1024, 16)),
        ("Mixer-S/16", Mixer(224, 16, 3, 1000, 8, 512)),
        ("Mixer-B/16", Mixer(224, 16, 3, 1000, 12, 768)),
    ]:
        print(name, f"{sum(p.numel() for p in model.parameters()):,}")
