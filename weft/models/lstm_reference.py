"""Prints the known answers of lstm_test.cc as C++ lines: the results of PyTorch's
word_language_model in plain modules, filled by a formula. Needs torch only."""

import torch
import torch.nn.functional as F
from torch import nn


def chirp(shape, phase):
    n = 1
    for size in shape:
        n *= size
    k = torch.arange(n, dtype=torch.float64)
    return torch.sin(k**2 * 0.7 + k * 0.01 + phase).reshape(shape)


class Model(nn.Module):
    def __init__(self, vocabulary, width, layers, tied):
        super().__init__()
        self.encoder, self.rnn, self.decoder = (
            nn.Embedding(vocabulary, width),
            nn.LSTM(width, width, layers),
            nn.Linear(width, vocabulary),
        )
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens, state):  # tokens: [sequence, batch], as in word_language_model.
        y, state = self.rnn(self.encoder(tokens), state)
        return self.decoder(y), state


def numbers(values):
    return ", ".join(f"{v:.9g}" for v in values)


for tied in (False, True):
    model = Model(11, 6, 2, tied).double()
    with torch.no_grad():
        for i, (name, p) in enumerate(sorted(model.named_parameters())):
            p.copy_(chirp(p.shape, i))
    # Two rows of nine tokens: two stretches of four, each followed by one more token as target.
    tokens = torch.arange(2 * 9).reshape(2, 9) * 7 % 11
    state = None
    for at in (0, 4):
        out, state = model(tokens[:, at : at + 4].t(), state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(out.reshape(-1, 11), tokens[:, at + 1 : at + 5].t().reshape(-1))
        loss.backward()
        print(
            f"// tied {tied}, from {at}: last logits of the first row, loss\n"
            f"{{{numbers(out[-1, 0].tolist())}}}, {loss.item():.9g}"
        )
    norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt().item()
    print(
        f"// parameters, norm of both stretches' gradient\n"
        f"{sum(p.numel() for p in model.parameters())}, {norm:.9g}"
    )
