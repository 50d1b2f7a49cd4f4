"""Memory of the callers' tensors: every operation writes its result and nothing else, whatever the
type, the factor, the layout, and the memory that inputs and outputs share."""

import itertools
import os
import unittest
import unittest.mock

import torch
import torch.distributed as dist

import ranks
import weft_torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SHORT = [torch.float16, torch.bfloat16]
FLOATS = [*SHORT, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED_ONLY = [torch.uint16, torch.float8_e4m3fn]
SUM, PRODUCT, MIN, MAX = (
    dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX
)
# As one number: of Python, of each kind of tensor.
FACTORS = [
    2.0, 0.5, -1.0, torch.tensor(2.0), torch.tensor([2.0]), torch.tensor(0.5, dtype=torch.float64),
    torch.tensor(3), torch.tensor([2.0], dtype=torch.bfloat16)
]
GUARD = 64  # bytes on each side
PATTERN = 0xA5


class Guarded:
    """A tensor between guard bytes."""

    def __init__(self, values):
        size = values.numel() * values.element_size()
        self.memory = torch.full((size + 2 * GUARD,), PATTERN, dtype=torch.uint8)
        self.tensor = self.memory[GUARD : GUARD + size].view(values.dtype).view(values.shape)
        self.tensor.copy_(values)

    def intact(self):
        left, right = self.memory[:GUARD], self.memory[-GUARD:]
        return bool(left.eq(PATTERN).all() and right.eq(PATTERN).all())


def same(a, b):
    """Whether two tensors have the same bits; of complex numbers, whether they are equal, since
    products of them have zeros of either sign."""
    if a.is_complex():
        return torch.equal(a, b)
    return torch.equal(*(one.contiguous().view(-1).view(torch.uint8) for one in (a, b)))


class Checked:
    """Collects differences from the reference."""

    def __init__(self):
        self.wrong = []

    def __call__(self, what, got, wanted):
        got = got if isinstance(got, (list, tuple)) else [got]
        wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        for one, expected in zip(got, wanted, strict=True):
            tensor = one.tensor if isinstance(one, Guarded) else one
            if not same(tensor, expected):
                self.wrong.append(f"{what}: {tensor.flatten()[:6]}, not {expected.flatten()[:6]}")
            if isinstance(one, Guarded) and not one.intact():
                self.wrong.append(f"{what}: wrote beyond the tensor")
        del self.wrong[10:]


def values(rank, n, dtype):
    """Small numbers, so that their sums and products are exact in every type."""
    whole = (torch.arange(n) * 7 + rank * 3) % 5 + 1
    return (whole % 2).to(dtype) if dtype == torch.bool else whole.to(dtype)


def times(tensor, factor):
    """The product in the tensor's type, as the sum of PREMUL_SUM takes it."""
    factor = float(factor)
    if tensor.dtype.is_floating_point:
        return (tensor.double() * factor).to(tensor.dtype)
    if tensor.is_complex():
        return tensor * factor
    if factor == int(factor):
        return (tensor.long() * int(factor)).to(tensor.dtype)
    return (tensor.double() * factor).to(tensor.dtype)


def reduced(parts, op):
    stacked = torch.stack(parts)
    if parts[0].dtype == torch.bool:
        return stacked.all(0) if op in (PRODUCT, MIN) else stacked.any(0)
    if op == SUM:
        wide = stacked if stacked.is_complex() or stacked.dtype == torch.float64 else (
            stacked.double() if stacked.dtype.is_floating_point else stacked.long()
        )
        return wide.sum(0).to(parts[0].dtype)
    if op == PRODUCT:
        return stacked.double().prod(0).to(parts[0].dtype)
    return stacked.amin(0) if op == MIN else stacked.amax(0)


def coalesced(backend, name):
    """The operation on lists of whole tensors, under the name of torch 2.15 or the one before."""
    old = {"all_gather": "allgather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[name]
    new = getattr(backend, f"{name}_single_coalesced", None)
    return new or getattr(backend, f"{old}_coalesced")


def cases_of_reductions():
    """(type, name, reduction of torch, its factor, reduction of the reference)"""
    for dtype in [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]:
        for op in (SUM,) if dtype in COMPLEX else (SUM, PRODUCT, MIN, MAX):
            yield dtype, str(op), op, None, op
        for factor in FACTORS:
            if dtype == torch.uint8 and float(factor) < 0:
                continue
            yield dtype, f"PREMUL_SUM by {factor}", dist._make_nccl_premul_sum(factor), factor, SUM


def reductions(rank, world):
    """Every reduction x type x factor, in every form that its result is given back."""
    check = Checked()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for n, (dtype, name, op, factor, kind) in itertools.product((17, 1100), cases_of_reductions()):
        what = f"{name} of {n} {dtype}"

        def mine(count, dtype=dtype):
            return [values(r, count, dtype) for r in range(world)]

        def wanted(parts, factor=factor, kind=kind):
            parts = parts if factor is None else [times(part, factor) for part in parts]
            return reduced(parts, kind)

        parts, whole = mine(n), mine(world * n)
        blocks = wanted(whole).chunk(world)
        out = Guarded(parts[rank])
        dist.all_reduce(out.tensor, op)
        check(f"all_reduce, {what}", out, wanted(parts))
        root = n % world
        out = Guarded(parts[rank])
        dist.reduce(out.tensor, root, op)
        check(f"reduce, {what}", out, wanted(parts) if rank == root else parts[rank])
        out = Guarded(torch.zeros(n, dtype=dtype))
        dist.reduce_scatter_tensor(out.tensor, whole[rank], op)
        check(f"reduce_scatter_tensor, {what}", out, blocks[rank])
        out = Guarded(torch.zeros(n, dtype=dtype))
        dist.reduce_scatter(out.tensor, list(whole[rank].chunk(world)), op)
        check(f"reduce_scatter, {what}", out, blocks[rank])
        uneven = [n + r for r in range(world)]
        long = mine(sum(uneven))
        out = Guarded(torch.zeros(uneven[rank], dtype=dtype))
        dist.reduce_scatter(out.tensor, list(long[rank].split(uneven)), op)
        check(f"uneven reduce_scatter, {what}", out, wanted(long).split(uneven)[rank])
        outs = [Guarded(parts[rank]), Guarded(whole[rank])]
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = op
        backend.allreduce_coalesced([one.tensor for one in outs], options).wait()
        check(f"all_reduce_coalesced, {what}", outs, [wanted(parts), wanted(whole)])
        outs = [Guarded(torch.zeros(n, dtype=dtype)) for _ in range(2)]
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        coalesced(backend, "reduce_scatter")(
            [one.tensor for one in outs], [whole[rank], whole[rank]], options
        ).wait()
        check(f"coalesced reduce_scatter, {what}", outs, [blocks[rank]] * 2)
    # A product of 64 bits is not taken through a shorter type.
    large = torch.tensor([2**53 + 1])
    dist.all_reduce(large, dist._make_nccl_premul_sum(2.0))
    check("PREMUL_SUM of large integers", large, torch.tensor([world * 2 * (2**53 + 1)]))
    return check.wrong


def movements(rank, world):
    """Every type in every form of an operation that moves it."""
    check = Checked()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    types = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *MOVED_ONLY]
    for n, dtype in itertools.product((17, 1100), types):
        what = f"{n} {dtype}"
        parts = [values(r, n, dtype) for r in range(world)]
        blocks = [list(values(r, world * n, dtype).chunk(world)) for r in range(world)]
        across = [blocks[r][rank] for r in range(world)]

        def empty(count=n, dtype=dtype):
            return Guarded(torch.zeros(count, dtype=dtype))

        def lists(number=world):
            outs = [empty() for _ in range(number)]
            return outs, [one.tensor for one in outs]

        root = n % world
        out = Guarded(parts[rank])
        dist.broadcast(out.tensor, root)
        check(f"broadcast, {what}", out, parts[root])
        out = empty(world * n)
        dist.all_gather_into_tensor(out.tensor, parts[rank])
        check(f"all_gather_into_tensor, {what}", out, torch.cat(parts))
        outs, tensors = lists()
        dist.all_gather(tensors, parts[rank])
        check(f"all_gather, {what}", outs, parts)
        outs = [empty(world * n), empty(world * n)]
        coalesced(backend, "all_gather")(
            [one.tensor for one in outs], [parts[rank], parts[rank]]
        ).wait()
        check(f"coalesced all_gather, {what}", outs, [torch.cat(parts)] * 2)
        outs, tensors = lists()
        dist.gather(parts[rank], tensors if rank == root else None, root)
        nothing = [torch.zeros_like(parts[0])] * world
        check(f"gather, {what}", outs, parts if rank == root else nothing)
        out = empty()
        dist.scatter(out.tensor, blocks[root] if rank == root else None, root)
        check(f"scatter, {what}", out, blocks[root][rank])
        out = empty(world * n)
        dist.all_to_all_single(out.tensor, torch.cat(blocks[rank]))
        check(f"all_to_all_single, {what}", out, torch.cat(across))
        outs, tensors = lists()
        dist.all_to_all(tensors, blocks[rank])
        check(f"all_to_all, {what}", outs, across)
        right, left = (rank + 1) % world, (rank - 1) % world
        out = empty()
        sent = dist.isend(parts[rank], right)
        dist.recv(out.tensor, left)
        sent.wait()
        check(f"recv, {what}", out, parts[left])
    # Lazy conjugates and negations: their memory holds other numbers than their elements.
    lazy = torch.complex(torch.arange(4.0), torch.arange(4.0) + rank).conj()
    outs = [torch.zeros(4, dtype=torch.complex64) for _ in range(world)]
    backend.allgather([outs], [lazy]).wait()
    whole = [torch.complex(torch.arange(4.0), -torch.arange(4.0) - r) for r in range(world)]
    check("all_gather of a conjugate", outs, whole)
    negated = torch._neg_view(torch.arange(4.0) + rank)
    backend.allreduce([negated], dist.AllreduceOptions()).wait()
    check("all_reduce of a negation", negated.resolve_neg(),
          -torch.stack([torch.arange(4.0) + r for r in range(world)]).sum(0))
    return check.wrong


def shared(rank, world):
    """Inputs that share memory with outputs, wholly or in part: the result is that of a copy."""
    check = Checked()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def at(r, count):  # what is in the memory of a rank before the call
        return torch.arange(count, dtype=torch.float64) + 10_000_000 * r

    for n in (4, 1000, 1 << 16):
        size = world * n
        places = [lambda r, b=b: b for b in (0, 1, n // 2, n, size - n, size - n + 1, size)]
        for place in [*places, lambda r, n=n: r * n]:
            begin = place(rank)
            what = f"{n} at {begin}"
            memory = at(rank, 2 * size)
            dist.all_gather_into_tensor(memory[:size], memory[begin : begin + n])
            check(f"all_gather_into_tensor, {what}", memory[:size],
                  torch.cat([at(r, 2 * size)[place(r) : place(r) + n] for r in range(world)]))
            memory = at(rank, 2 * size)
            dist.reduce_scatter_tensor(memory[begin : begin + n], memory[:size])
            check(f"reduce_scatter_tensor, {what}", memory[begin : begin + n],
                  sum(at(r, 2 * size) for r in range(world))[rank * n : rank * n + n])
            memory = at(rank, 2 * size)
            dist.all_to_all_single(memory[begin : begin + size], memory[:size])
            check(f"all_to_all_single, {what}", memory[begin : begin + size],
                  torch.cat([at(r, 2 * size)[rank * n : rank * n + n] for r in range(world)]))
            memory = at(rank, 2 * size)
            dist.all_to_all(list(memory[begin : begin + size].chunk(world)),
                            list(memory[:size].chunk(world)))
            check(f"all_to_all, {what}", memory[begin : begin + size],
                  torch.cat([at(r, 2 * size)[rank * n : rank * n + n] for r in range(world)]))
        memory = at(rank, size)
        parts = list(memory.chunk(world))
        dist.all_gather(parts, parts[-1])
        check(f"all_gather from an output, {n}", memory,
              torch.cat([at(r, size)[-n:] for r in range(world)]))
        memory = at(rank, size)
        parts = list(memory.chunk(world))
        dist.reduce_scatter(parts[0], parts)
        check(f"reduce_scatter into an input, {n}", parts[0],
              sum(at(r, size) for r in range(world)).chunk(world)[rank])
        uneven = [n + r for r in range(world)]
        memory = at(rank, sum(uneven))
        parts = list(memory.split(uneven))
        dist.reduce_scatter(memory[: uneven[rank]], parts)
        check(f"uneven reduce_scatter into an input, {n}", memory[: uneven[rank]],
              sum(at(r, sum(uneven)) for r in range(world)).split(uneven)[rank])
        memory = at(rank, size)
        parts = list(memory.chunk(world))
        dist.gather(parts[-1], parts if rank == 0 else None, 0)
        check(f"gather from an output, {n}", memory,
              torch.cat([at(r, size)[-n:] for r in range(world)]) if rank == 0 else at(rank, size))
        memory = at(rank, size)
        parts = list(memory.chunk(world))
        dist.scatter(parts[-1], parts if rank == 0 else None, 0)
        check(f"scatter into an input, {n}", parts[-1], at(0, size).chunk(world)[rank])
        # The second input is in the first output.
        memory = at(rank, 2 * size + n)
        coalesced(backend, "all_gather")(
            [memory[:size], memory[size : 2 * size]], [memory[2 * size :], memory[:n]]
        ).wait()
        all_of = [at(r, 2 * size + n) for r in range(world)]
        check(f"coalesced all_gather, {n}", memory[: 2 * size],
              torch.cat([one[2 * size :] for one in all_of] + [one[:n] for one in all_of]))
        memory = at(rank, 2 * size)
        coalesced(backend, "reduce_scatter")(
            [memory[size : size + n], memory[:n]], [memory[:size], memory[size:]]
        ).wait()
        total = sum(at(r, 2 * size) for r in range(world))
        check(f"coalesced reduce_scatter, {n}", [memory[size : size + n], memory[:n]],
              [total[:size].chunk(world)[rank], total[size:].chunk(world)[rank]])
    # Interleaved memory.
    columns = torch.arange(2 * world, dtype=torch.float64).view(world, 2) + 100 * rank
    dist.all_to_all([columns[r : r + 1, 0] for r in range(world)],
                    [columns[r : r + 1, 1] for r in range(world)])
    check("all_to_all of columns", columns[:, 0],
          torch.tensor([2 * rank + 1 + 100 * r for r in range(world)], dtype=torch.float64))
    return check.wrong


def refused(rank, world):
    """What cannot be done is refused at the call, before anything is sent."""
    def says(call):
        try:
            call()
        except (RuntimeError, ValueError, TypeError) as error:
            return str(error).splitlines()[0]
        return "not refused"

    by_a_complex_number = dist._make_nccl_premul_sum(torch.tensor(1j))
    wide = torch.zeros(1).expand(4)
    floats, integers = [torch.zeros(2) for _ in range(world)], torch.zeros(2, dtype=torch.int64)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    answers = [
        says(lambda: dist.all_reduce(wide)),
        says(lambda: dist.recv(wide, 1 - rank)),
        says(lambda: dist.all_gather_into_tensor(torch.zeros(1).expand(world), torch.ones(1))),
        says(lambda: backend.scatter([integers], [floats], dist.ScatterOptions()).wait())
        if rank == 0 else "not the root",
        says(lambda: dist.all_reduce(torch.zeros(3), by_a_complex_number)),
        says(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.uint16))),
    ]
    dist.broadcast(wide if rank == 0 else torch.zeros(4), 0)  # the root's tensor is only read
    dist.barrier()
    return answers


class Memory(unittest.TestCase):
    """Over shared memory and over TCP."""

    def both(self, body):
        self.assertEqual(ranks.run(body, 3), [[]] * 3)
        with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT="tcp"):
            self.assertEqual(ranks.run(body, 2), [[]] * 2)

    def test_reductions_write_only_their_result_whatever_type_and_factor(self):
        self.both(reductions)

    def test_movements_write_only_their_result_whatever_the_type(self):
        self.both(movements)

    def test_inputs_may_share_memory_with_outputs(self):
        self.both(shared)

    def test_without_the_shared_allocator_the_results_are_the_same(self):
        with unittest.mock.patch.dict(os.environ, WEFT_HEAP_MB="0"):
            self.assertEqual(ranks.run(shared, 3), [[]] * 3)

    def test_what_cannot_be_written_is_refused_in_one_line(self):
        words = (
            "is expanded", "is expanded", "is expanded", "same type", "use a real one",
            "cannot be reduced"
        )
        for rank, said in enumerate(ranks.run(refused, 2)):
            for text, word in zip(said, words, strict=True):
                if not (rank > 0 and word == "same type"):
                    self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
