"""The client of the servers that `weft run --servers` runs: workers train one linear model."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta

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


def be_late():
    """A rank of two. Rank 1 makes its step when a pull of rank 0 has lost its patience."""
    rank, folder = int(os.environ["RANK"]), os.environ["WEFT_TEST_FOLDER"]

    def tell(what):
        open(os.path.join(folder, what), "w").close()

    def wait_for(what):
        while not os.path.exists(os.path.join(folder, what)):
            time.sleep(0.01)

    weight = torch.zeros(3)
    if rank == 0:
        wait_for("ready")  # the server runs
    client = weft_torch.ParameterServerClient(timeout=timedelta(seconds=1 if rank == 0 else 30))
    client.define({"weight": weight}, rule="none", staleness=0)
    client.join()
    if rank == 1:
        tell("ready")
        wait_for("late")
    client.push({"weight": torch.ones(3)})
    timeouts = 0
    while True:
        try:
            client.pull({"weight": weight})
            break
        except weft_torch.Error as error:
            assert error.code == "Timeout", error
            timeouts += 1
            tell("late")
    client.leave()
    print(f"rank {rank}: {weight.tolist()} after {'some' if timeouts else 'no'} timeouts")
    return 0


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

    def test_a_pull_that_was_too_long_can_be_tried_again(self):
        weft = os.environ.get("WEFT_COMMAND")
        if not weft:
            self.skipTest("WEFT_COMMAND does not name the weft command")
        command = [weft, "run", "-n", "2", "--servers", "1", "--", sys.executable, __file__, "late"]
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=60,
                env={**os.environ, "WEFT_TEST_FOLDER": folder}
            )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("rank 0: [2.0, 2.0, 2.0] after some timeouts", ran.stdout)

    def test_without_servers_the_error_says_how_to_get_some(self):
        with self.assertRaisesRegex(weft_torch.Error, "start it with weft run --servers N"):
            weft_torch.ParameterServerClient(worker=0)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        sys.exit(work())
    if sys.argv[1:] == ["late"]:
        sys.exit(be_late())
    unittest.main(verbosity=2)
