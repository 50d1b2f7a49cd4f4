"""Codecs as communication hooks of DistributedDataParallel."""

import gc
import io
import os
import signal
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import ranks
import weft_torch

# What each reaches at least of the way that plain averaging comes down in 40 steps; sparse and
# 1-bit codecs are slower at first.
SPECS = {"int8:64": 0.97, "topk:0.1": 0.6, "powersgd:2": 0.8}
MORE = {
    "bf16": 0.97,
    "int8:64,stochastic": 0.97,
    "int8:64,delta": 0.97,
    "int4:64": 0.9,
    "sign:64": 0.6,
    "threshold:0.01": 0.8,
}


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))


def data(rank):
    inputs = torch.randn(32, 20, generator=torch.Generator().manual_seed(rank))
    return inputs, inputs[:, :3].sum(1, keepdim=True).sin()


def train(module, steps, rank):
    """The ranks' mean loss at each step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = data(rank)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (module(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def with_hook(state, hook, rank, steps=40):
    module = DistributedDataParallel(model())
    if hook is not None:
        module.register_comm_hook(state, hook)
    return train(module, steps, rank), weights(module)


def convergence(rank, world, specs=SPECS):
    wrong = []
    plain, plain_weights = with_hook(None, None, rank)
    assert plain[-1] < 0.6 * plain[0], plain
    none = with_hook(weft_torch.Codec("none"), weft_torch.codec_hook, rank)[1]
    if not torch.allclose(none, plain_weights, rtol=1e-4, atol=1e-5):
        wrong.append("none is not the plain average")
    for spec, share in specs.items():
        losses, mine = with_hook(weft_torch.Codec(spec), weft_torch.codec_hook, rank)
        first = mine.clone()
        dist.broadcast(first, 0)
        reached = (losses[0] - losses[-1]) / (plain[0] - plain[-1])
        if not torch.equal(mine, first) or reached < share or torch.equal(mine, plain_weights):
            wrong.append(
                f"{spec} came {reached:.3f} of plain averaging's way, same weights on all ranks: "
                f"{torch.equal(mine, first)}"
            )
    return wrong


def convergence_of_more(rank, world):
    return convergence(rank, world, MORE)


def same_as_torch(rank, world):
    """f16 beside PyTorch's own hook, which also sums halves: three steps."""
    mine = with_hook(weft_torch.Codec("f16"), weft_torch.codec_hook, rank, 3)[1]
    theirs = with_hook(None, default_hooks.fp16_compress_hook, rank, 3)[1]
    return (mine - theirs).abs().max().item()


def average(codec, step, rank):
    """What a hook gives for one bucket of drawn gradients."""
    values = torch.randn(500, generator=torch.Generator().manual_seed(10 * step + rank))
    bucket = unittest.mock.Mock()
    bucket.index.return_value, bucket.buffer.return_value, bucket.gradients.return_value = (
        0,
        values,
        [values.view(20, 25)],
    )
    return weft_torch.codec_hook(codec, bucket).wait().clone()


def resumed(rank, world, specs=("topk:0.05",)):
    """Whether a codec that was loaded gives what the saved one goes on to give, and one that was
    not doesn't."""
    wrong = []
    for spec in specs:
        first, second, fresh = (weft_torch.Codec(spec) for _ in range(3))
        for step in range(4):
            average(first, step, rank)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, weights_only=True))
        average(second, 99, rank)  # exact, leaves no trace
        average(fresh, 99, rank)
        expected = average(first, 4, rank)
        if not torch.equal(average(second, 4, rank), expected) or torch.equal(
            average(fresh, 4, rank), expected
        ):
            wrong.append(spec)
    return wrong


def more_resumed(rank, world):
    return resumed(rank, world, ("randomk:0.1,seed=3", "powersgd:2", "int4:64,delta"))


def resumed_under_ddp(rank, world):
    """Ten steps, a checkpoint, and on in a new model: comes where twenty steps come."""
    torch.manual_seed(3)
    codec, module = weft_torch.Codec("topk:0.1"), DistributedDataParallel(model())
    module.register_comm_hook(codec, weft_torch.codec_hook)
    before = train(module, 30, rank)
    saved = {"model": module.module.state_dict(), "codec": codec.state_dict()}
    again, other = weft_torch.Codec("topk:0.1"), model()
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["codec"])
    module = DistributedDataParallel(other)
    module.register_comm_hook(again, weft_torch.codec_hook)
    after = train(module, 30, rank)
    return [after[0] < before[-2], after[-1] < before[-1], again.state_dict()["buckets"][0]["step"]]


def refusals(rank, world):
    """One line each."""
    said = []

    def refuses(kind, what):
        try:
            what()
            said.append("nothing")
        except kind as error:
            said.append(str(error))

    refuses(weft_torch.Error, lambda: weft_torch.Codec("int7"))
    refuses(weft_torch.Error, lambda: weft_torch.Codec("auto"))
    codec, other = weft_torch.Codec("topk:0.1"), weft_torch.Codec("topk:0.2")
    refuses(ValueError, lambda: other.load_state_dict(codec.state_dict()))
    bucket = unittest.mock.Mock()
    bucket.index.return_value, bucket.buffer.return_value, bucket.gradients.return_value = (
        0,
        torch.ones(8).double(),
        [],
    )
    refuses(weft_torch.Error, lambda: weft_torch.codec_hook(codec, bucket))
    for step in range(2):
        average(codec, step, rank)
    state = codec.state_dict()
    state["buckets"][0]["count"] = 499
    other = weft_torch.Codec("topk:0.1")
    other.load_state_dict(state)
    average(other, 0, rank)
    refuses(Exception, lambda: average(other, 1, rank))
    return said


def apart(rank, world):
    """What each rank says at the step that takes states which do not belong together."""
    said = []

    def takes(spec, state):
        codec = weft_torch.Codec(spec)
        if state is not None:
            codec.load_state_dict(state)
        average(codec, 98, rank)  # exact
        for _ in range(2):  # the second time it is no other
            try:
                average(codec, 99, rank)
                said.append("nothing")
            except Exception as error:
                said.append(str(error).splitlines()[0])

    def saved(spec, at):
        """The state after so many of four steps."""
        codec, states = weft_torch.Codec(spec), []
        for step in range(4):
            average(codec, step, rank)
            states.append(codec.state_dict())
        return states[at - 1]

    state = saved("randomk:0.1", 3)
    takes("randomk:0.1", saved("randomk:0.1", 3 + rank))
    takes("randomk:0.1", state if rank == 0 else None)
    if rank == 1:
        state["buckets"][0]["count"] = 499
    takes("randomk:0.1", state)
    state = saved("int8:64,delta", 3)
    if rank == 1:
        for memory in state["buckets"][0]["memory"]:
            memory.add_(1)
    takes("int8:64,delta", state)
    return said


def of_some_ranks(rank, world):
    """Codecs of two of three ranks, and then groups of all three."""
    part = dist.new_group([0, 1])
    sums = []
    for _ in range(2):
        if rank < 2:
            codec = weft_torch.Codec("bf16", part)
            sums.append(average(codec, 0, 0).shape[0])
            sums.append([codec.state_dict()[what] for what in ("rank", "world")])
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=dist.new_group([0, 1, 2]))
        sums.append(tensor.tolist())
    return sums


def over_gloo(rank, world):
    return average(weft_torch.Codec("none"), 0, 0).equal(average(weft_torch.Codec("none"), 0, 0))


def forks(rank, world):
    """How a child ends that drops its parent's codec, and what the codec says there."""
    codec = weft_torch.Codec("bf16")
    average(codec, 0, rank)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            average(codec, 1, rank)
        except weft_torch.Error as error:
            os.write(write, str(error).encode())
        del codec
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status, os.read(read, 1000).decode()


class Hooks(unittest.TestCase):
    def test_a_forked_child_may_drop_a_codec_and_not_use_it(self):
        for status, said in ranks.run(forks):
            self.assertEqual(status, 0)
            self.assertIn("was forked", said)

    def test_f16_is_what_pytorchs_own_hook_gives(self):
        self.assertLess(max(ranks.run(same_as_torch, 2)), 1e-4)

    def test_a_codec_goes_on_from_its_saved_state(self):
        self.assertEqual(ranks.run(resumed), [[]] * 2)

    def test_says_in_one_line_what_it_does_not_take(self):
        for said in ranks.run(refusals, 2):
            for text, word in zip(
                said, ("int8", "auto", "spec", "float32", "other buckets"), strict=True
            ):
                self.assertIn(word, text.splitlines()[0])

    def test_states_that_were_not_saved_together_are_an_error_of_all_ranks(self):
        for said in ranks.run(apart, 2, timeout=10, patience=60):
            words = ("from step 3 to 4", "others have not", "other buckets", "not saved together")
            for number, word in enumerate(words):
                self.assertIn(word, said[2 * number])
                self.assertEqual(said[2 * number], said[2 * number + 1])

    def test_a_codec_of_some_ranks_does_not_disturb_later_groups(self):
        for rank, got in enumerate(ranks.run(of_some_ranks, 3, timeout=10, patience=60)):
            mine = [500, [rank, 2]] if rank < 2 else []
            self.assertEqual(got, [*mine, [3.0, 3.0]] * 2)

    def test_a_codec_works_where_the_group_is_of_another_backend(self):
        self.assertEqual(ranks.run(over_gloo, backend="gloo"), [True] * 2)

    def test_needs_the_ranks_first(self):
        with self.assertRaisesRegex(ValueError, "init_process_group first"):
            weft_torch.Codec("bf16")


class HooksSlow(unittest.TestCase):
    def test_models_converge_as_without_codecs(self):
        self.assertEqual(ranks.run(convergence), [[]] * 2)

    def test_training_goes_on_from_a_checkpoint(self):
        for answer in ranks.run(resumed_under_ddp, 2):
            self.assertEqual(answer, [True, True, 59])

    def test_models_converge_over_three_ranks_whatever_the_codec(self):
        self.assertEqual(ranks.run(convergence_of_more, 3), [[]] * 3)

    def test_other_codecs_go_on_from_their_saved_state(self):
        self.assertEqual(ranks.run(more_resumed, 3), [[]] * 3)


if __name__ == "__main__":
    unittest.main()
