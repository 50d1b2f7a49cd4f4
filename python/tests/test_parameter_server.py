"""The client of the servers that `weft run --servers` runs: workers train one linear model."""

import os
import subprocess
import sys
import unittest

import torch

import weft_torch


def work():
    """A rank: learns y = x (1, 2, 3) with a share of the samples."""
    torch.manual_seed(int(os.environ["RANK"]))
    inputs = torch.randn(64, 3)
    targets = inputs @ torch.tensor([[1.0], [2.0], [3.0]])
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    parameters = dict(model.named_parameters())
    client = weft_torch.ParameterServerClient()
    client.define(parameters, rule="sgd", lr=0.1, staleness=2)
    client.join()
    for _ in range(100):
        client.pull(parameters)
        model.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        client.push({name: parameter.grad for name, parameter in parameters.items()})
    client.leave()
    client.pull(parameters)
    error = (model.weight - torch.tensor([[1.0, 2.0, 3.0]])).abs().max().item()
    try:
        client.push({"weight": torch.zeros(4)})
    except weft_torch.Error as refused:
        print(refused)
    print(f"error {error:.4f}")
    return 0 if error < 0.05 else 1


class ParameterServer(unittest.TestCase):
    def test_ranks_find_the_servers_of_their_job(self):
        weft = os.environ.get("WEFT_COMMAND")
        if not weft:
            self.skipTest("WEFT_COMMAND does not name the weft command")
        ran = subprocess.run(
            [weft, "run", "-n", "2", "--servers", "2", "--", sys.executable, __file__, "work"],
            capture_output=True, text=True, timeout=120
        )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(ran.stdout.count("error 0.0"), 2, ran.stdout)
        self.assertEqual(ran.stdout.count("weight has 3 elements, not 4"), 2, ran.stdout)

    def test_without_servers_the_error_says_how_to_get_some(self):
        with self.assertRaisesRegex(weft_torch.Error, "start it with weft run --servers N"):
            weft_torch.ParameterServerClient(worker=0)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        sys.exit(work())
    unittest.main(verbosity=2)
