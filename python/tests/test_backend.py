"""The weft backend under torch.distributed: types, errors, memory, forks, launchers."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import ranks
import weft_torch

HERE = os.path.dirname(os.path.abspath(__file__))
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def reductions(rank, world):
    """Every type with every reduction that it has, beside torch's own."""
    parts = [torch.arange(1, 8) % (r + 2) + 1 for r in range(world)]
    wrong = []

    def check(dtype, op, expected):
        mine = parts[rank].to(dtype, copy=True)
        dist.all_reduce(mine, op)
        if not torch.equal(mine, expected.to(dtype)):
            wrong.append(f"{op} of {dtype}: {mine} instead of {expected}")

    stacked = torch.stack(parts)
    for dtype in INTEGERS + FLOATS:
        check(dtype, dist.ReduceOp.SUM, stacked.sum(0))
        check(dtype, dist.ReduceOp.PRODUCT, stacked.prod(0))
        check(dtype, dist.ReduceOp.MIN, stacked.amin(0))
        check(dtype, dist.ReduceOp.MAX, stacked.amax(0))
    for dtype in INTEGERS:
        for op, join in (
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ):
            expected = parts[0]
            for part in parts[1:]:
                expected = join(expected, part)
            check(dtype, op, expected)
    for dtype in FLOATS:
        check(dtype, dist.ReduceOp.AVG, stacked.to(dtype).sum(0) / world)
        check(dtype, dist._make_nccl_premul_sum(2.0), 2 * stacked.sum(0))
    large = torch.full((4,), 40_000.0, dtype=torch.half)  # the sum is infinite
    dist.all_reduce(large, dist.ReduceOp.AVG)
    wrong += [] if large.tolist() == [40_000.0] * 4 else [f"average of large halves: {large}"]
    try:
        dist.reduce(torch.ones(4, dtype=torch.int64), 0, op=dist.ReduceOp.AVG)
        wrong.append("an average of integers was not refused")
    except weft_torch.Error as error:
        wrong += [] if "int64 has no avg" in str(error) else [str(error)]
    for dtype in (torch.complex64, torch.complex128):
        mine = torch.complex(parts[rank].double(), -parts[rank].double()).to(dtype)
        dist.all_reduce(mine)
        if not torch.equal(
            mine, torch.complex(stacked.sum(0).double(), -stacked.sum(0).double()).to(dtype)
        ):
            wrong.append(f"sum of {dtype}: {mine}")
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    wrong += [] if flags.tolist() == [True, True, False] else [f"max of bool: {flags}"]
    eighth = (
        torch.full((4,), 0.5).to(torch.float8_e4m3fn)
        if rank == 0
        else torch.zeros(4).to(torch.float8_e4m3fn)
    )
    dist.broadcast(eighth, 0)
    wrong += [] if eighth.float().tolist() == [0.5] * 4 else [f"broadcast of float8: {eighth}"]
    return wrong


def dropped(rank, world):
    """The last reference to a backend goes while its thread frees tensors that Python has seen."""
    store = dist.PrefixStore("dropped", dist.distributed_c10d._get_default_store())
    backend = weft_torch._C.make_backend(store, rank, world, weft_torch._C.BackendOptions())
    works = 0
    for step in range(1000):
        tensor = torch.ones(4)
        tensor.step = step  # Python's object lives as long as the tensor
        options = dist.AllreduceOptions()
        options.asyncOp = True
        backend.allreduce([tensor], options)
        del tensor
        works += 1
    del backend
    dist.barrier()
    return works


def shared_in_one_call(rank, world):
    """Results and refusals as of Gloo where tensors of one call share memory."""
    wrong = []
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce_coalesced([tensor, tensor])
    if tensor.tolist() != [3.0] * 3:
        wrong.append(f"all_reduce_coalesced: {tensor}")
    whole = torch.arange(4.0)
    dist.all_reduce_coalesced([whole[:3], whole[1:]])
    if whole[0].item() != 0.0 or whole[3].item() != 6.0:
        wrong.append(f"all_reduce_coalesced of views: {whole}")
    both = torch.zeros(2 * world)
    try:
        dist.all_to_all([both[:2], both[:2]], [torch.ones(2), torch.ones(2)])
        wrong.append("all_to_all into one output was not refused")
    except (RuntimeError, ValueError) as error:
        if "shares memory with output" not in str(error):
            wrong.append(f"all_to_all: {error}")
    dist.barrier()
    return wrong


def wrong_roots(rank, world):
    """How many collectives refuse a root that is no rank, before anything is waited for."""
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    refused = 0
    for options, call in (
        (dist.BroadcastOptions(), lambda o: group.broadcast([torch.ones(1)], o)),
        (dist.ReduceOptions(), lambda o: group.reduce([torch.ones(1)], o)),
        (dist.GatherOptions(), lambda o: group.gather([], [torch.ones(1)], o)),
        (dist.ScatterOptions(), lambda o: group.scatter([torch.ones(1)], [], o)),
    ):
        options.rootRank = world
        options.asyncOp = True
        try:
            call(options)
        except (RuntimeError, ValueError) as error:
            refused += "is not a rank of the group of 2" in str(error)
    dist.barrier()
    return refused


def movements(rank, world):
    """Layouts, uneven blocks, objects, batches of messages, the ways to wait."""
    wrong = []

    def check(what, mine, expected):
        if not torch.equal(mine, expected):
            wrong.append(f"{what}: {mine} instead of {expected}")

    across = torch.arange(6.0).view(2, 3).t() + rank  # not contiguous
    dist.all_reduce(across)
    check("transposed", across, world * torch.arange(6.0).view(2, 3).t() + sum(range(world)))
    sends = [torch.full((rank + peer + 1,), float(rank)) for peer in range(world)]
    receives = [torch.empty(rank + peer + 1) for peer in range(world)]
    dist.all_to_all(receives, sends)
    check(
        "all_to_all",
        torch.cat(receives),
        torch.cat([torch.full((rank + peer + 1,), float(peer)) for peer in range(world)]),
    )
    output = torch.empty(sum(rank + peer + 1 for peer in range(world)), 2)
    splits = [rank + peer + 1 for peer in range(world)]
    dist.all_to_all_single(output, torch.full((sum(splits), 2), float(rank)), splits, splits)
    check("all_to_all_single", output[:, 0], torch.cat(receives))
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    wrong += [] if [o["rank"] for o in objects] == list(range(world)) else [f"objects: {objects}"]
    right, left = (rank + 1) % world, (rank - 1) % world
    box = torch.empty(3)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
            dist.P2POp(dist.irecv, box, left),
        ]
    ):
        work.wait()
    check("ring", box, torch.full((3,), float(left)))
    future = (
        dist.all_reduce(torch.ones(5), async_op=True)
        .get_future()
        .then(lambda done: done.value()[0] * 2)
    )
    check("future", future.wait(), torch.full((5,), 2.0 * world))
    works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(20)]
    wrong += (
        [] if all(work.wait(timedelta(seconds=20)) for work in works) else ["a wait gave False"]
    )
    part = dist.new_group([0, 1])
    if rank < 2:
        two = torch.ones(2)
        dist.all_reduce(two, group=part)
        check("subgroup", two, torch.full((2,), 2.0))
    wrong += (
        []
        if dist.get_backend() == "weft" and dist.get_backend(part if rank < 2 else None) == "weft"
        else ["name"]
    )
    return wrong


def in_inference_mode(rank, world):
    """Results that a thread of the group copies into tensors of inference mode."""
    with torch.inference_mode():
        mine = torch.full((2, 3), float(rank + 1)).t()
        works = [dist.all_reduce(mine, async_op=True)]
        parts = [torch.zeros(3) for _ in range(world)]
        works.append(dist.all_gather(parts, torch.full((3,), float(rank)), async_op=True))
        box = torch.zeros(2, 3).t()
        works.append(dist.irecv(box, (rank - 1) % world))
        works.append(dist.isend(torch.full((3, 2), float(rank)), (rank + 1) % world))
        for work in works:
            work.wait()
        return [mine.sum().item(), torch.cat(parts).sum().item(), box.sum().item()]


def in_place(rank, world):
    """Tensors are born in shared memory, DDP's gradients too."""
    module = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(300, 300), gradient_as_bucket_view=True
    )
    module(torch.ones(2, 300)).sum().backward()
    return weft_torch.is_shared(torch.empty(100_000)) and weft_torch.is_shared(
        module.module.weight.grad
    )


class Squares(Dataset):
    def __init__(self):
        self.base = torch.arange(64.0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.base[index] += 1  # in the worker's copy only
        return self.base[index] ** 2


def loader_workers(rank, world):
    data = Squares()
    seen = torch.cat(list(DataLoader(data, batch_size=8, num_workers=2)))
    total = seen.sum()
    dist.all_reduce(total)
    return [total.item(), data.base.sum().item(), weft_torch.is_shared(data.base)]


def fork_copies(rank, world):
    """A child has what was there at the fork; what either writes later the other doesn't see; the
    group isn't the child's."""
    values = torch.arange(100_000.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        time.sleep(0.05)  # the parent overwrites meanwhile
        good = bool(torch.equal(values, torch.arange(100_000.0)))
        values.fill_(7)
        fresh = torch.ones(50_000).sum().item() == 50_000
        try:
            dist.all_reduce(torch.ones(1))
            refused = False
        except weft_torch.Error as error:
            refused = error.code == "InvalidArgument" and "forked" in str(error)
        os.write(write, bytes([good, fresh, refused]))
        os._exit(0)
    values.fill_(3)
    del values
    reuse = torch.full((100_000,), 5.0)
    os.close(write)
    answer = list(os.read(read, 3))
    os.close(read)
    os.waitpid(child, 0)
    dist.barrier()
    return answer == [1, 1, 1] and reuse.eq(5).all().item()


def fork_copies_under_signals(rank, world):
    """Signals do not end the parent's wait for the child's copy."""
    values = torch.ones(32 << 20)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    child = os.fork()
    if child == 0:
        os._exit(0 if values.eq(1).all().item() else 1)
    values.fill_(3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_without_descriptors(rank, world):
    """The child and its message when there is no descriptor left."""
    shown = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        child = os.fork()
        if child == 0:
            os._exit(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.dup2(shown, 2)
        said.seek(0)
        text = said.read().decode()
    return [code, text.count("\n"), "cannot copy its parent's tensors" in text]


def mismatch(rank, world):
    try:
        dist.all_reduce(torch.ones(3 + rank))
    except weft_torch.Error as error:
        return [
            error.code,
            isinstance(error, dist.DistBackendError),
            "[3]" in str(error) and "[4]" in str(error),
        ]


def sizes_on_one_rank(rank, world):
    """all_to_all_single with sizes of parts beside one without."""
    sizes = [1, 1] if rank == 0 else None
    try:
        dist.all_to_all_single(torch.empty(2), torch.ones(2), sizes, sizes)
    except weft_torch.Error as error:
        return [error.code, "with sizes of parts" in str(error)]


def late(rank, world):
    if rank == 0:
        try:
            dist.barrier()
        except weft_torch.Error as error:
            return [error.code, error.peer]
    time.sleep(1)
    return [None, None]


def noted(rank, world):
    """What debugging tools ask a group for."""
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    numbers = [group._get_sequence_number_for_group()]
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    numbers += [group._get_sequence_number_for_group(), work._get_sequence_number()]
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    dist.barrier()
    numbers.append(group._get_sequence_number_for_group())
    limit = timedelta(seconds=77)
    getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(limit)
    part = dist.new_group([0, 1])._get_backend(torch.device("cpu")).options
    return (
        numbers, backend.options.backend, backend.options._timeout == limit,
        list(part.global_ranks_in_group), bool(part.group_name)
    )


def asks_early(rank, world):
    """result() before and after the end of an operation."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(3)
    if rank == 1:
        store.get("asked")
        dist.all_reduce(tensor)
        return []
    work = dist.all_reduce(tensor, async_op=True)
    said = ""
    try:
        work.result()
    except RuntimeError as error:
        said = str(error)
    store.set("asked", "yes")
    work.wait()
    return ["call wait() before result()" in said, work.result()[0].tolist()]


def late_in(operation):
    """A body in which rank 1 does not come to the operation before rank 0 has given up."""
    def body(rank, world):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            return store.get("gave up")
        dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout = timedelta(seconds=0.2)
        try:
            operation()
        except weft_torch.Error as error:
            said = [error.code, error.operation, str(error)]
        store.set("gave up", "yes")
        return said

    return body


def swaps():
    dist.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)])


def killed(rank, world):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1000))
    except weft_torch.Error as error:
        found = [error.code, error.peer]
    try:
        dist.all_reduce(torch.ones(1000), async_op=True).wait()
    except weft_torch.Error as error:
        return [*found, error.code in ("Aborted", "PeerLost")]


def aborted(rank, world):
    work = dist.irecv(torch.empty(1), (rank + 1) % world)
    store = dist.distributed_c10d._get_default_store()

    def meet(where):
        store.set(f"{where}/{rank}", "here")
        store.wait([f"{where}/{peer}" for peer in range(world)])

    meet("posted")  # a rank that has aborted and gone would be lost to one that comes later
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    try:
        work.wait()
    except weft_torch.Error as error:
        meet("ended")
        return error.code


def unmatched(rank, world):
    """A receive that nobody answers. The time at which the rank begins to end."""
    dist.irecv(torch.empty(1), (rank + 1) % world)
    return time.monotonic()


def posted_early(rank, world):
    """Rank 1 posts the receive of a stop signal, and waits for it after the timeout has passed."""
    flag = torch.zeros(1)
    dist.barrier()
    signal_of_stop = dist.irecv(flag, 0) if rank == 1 else None
    time.sleep(1)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        signal_of_stop.wait()
    dist.barrier()
    return flag.item()


def large_before_small(rank, world):
    """A message above the limit of unexpected bytes is sent before one that is received first."""
    large, small = torch.full((70 << 20,), 3, dtype=torch.uint8), torch.ones(5)
    if rank == 0:
        work = dist.isend(large, 1, tag=0)
        dist.send(small, 1, tag=1)
        dist.all_reduce(small)
        work.wait()
        return [2.0, 3]
    large.zero_()
    small.zero_()
    dist.recv(small, 0, tag=1)
    dist.all_reduce(small)
    dist.recv(large, 0, tag=0)
    return [small[0].item(), int(large[-1])]


class Backend(unittest.TestCase):
    def test_reduces_every_type(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(ranks.run(reductions, 3), [[]] * 3)

    def test_moves_what_others_move(self):
        self.assertEqual(ranks.run(movements, 3), [[]] * 3)

    def test_works_over_tcp(self):
        with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT="tcp"):
            self.assertEqual(ranks.run(movements, 2), [[]] * 2)

    def test_asynchronous_results_go_into_tensors_of_inference_mode(self):
        self.assertEqual(ranks.run(in_inference_mode), [[18.0, 3.0, 6.0], [18.0, 3.0, 0.0]])

    def test_gradients_are_born_in_shared_memory(self):
        self.assertEqual(ranks.run(in_place), [True, True])

    def test_a_backend_may_be_dropped_with_operations_under_way(self):
        self.assertEqual(ranks.run(dropped, 2, patience=60), [1000] * 2)

    def test_tensors_of_one_call_may_share_memory(self):
        self.assertEqual(ranks.run(shared_in_one_call, 2), [[]] * 2)

    def test_a_wrong_root_is_an_error_of_the_call(self):
        self.assertEqual(ranks.run(wrong_roots, 2), [4] * 2)

    def test_loads_data_with_forked_workers(self):
        squares = float(sum((i + 1) ** 2 for i in range(64)))
        self.assertEqual(
            ranks.run(loader_workers), [[2 * squares, float(sum(range(64))), True]] * 2
        )

    def test_a_fork_copies_memory_and_is_not_in_the_group(self):
        self.assertEqual(ranks.run(fork_copies), [True, True])

    def test_signals_do_not_end_the_wait_for_the_copy(self):
        self.assertEqual(ranks.run(fork_copies_under_signals, 1), [0])

    def test_a_child_that_cannot_copy_ends_in_one_line(self):
        self.assertEqual(ranks.run(fork_without_descriptors, 1), [[70, 1, True]])

    def test_shows_both_calls_when_ranks_call_different_things(self):
        self.assertEqual(ranks.run(mismatch), [["InvalidArgument", True, True]] * 2)

    def test_sizes_of_parts_on_one_rank_only_are_an_error(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(
                    ranks.run(sizes_on_one_rank, patience=30), [["InvalidArgument", True]] * 2
                )

    def test_names_the_rank_that_does_not_come(self):
        self.assertEqual(ranks.run(late, timeout=0.3, patience=30)[0], ["Timeout", 1])

    def test_an_operation_has_no_result_before_its_end(self):
        self.assertEqual(ranks.run(asks_early)[0], [True, [2.0] * 3])

    def test_a_timeout_names_the_operation_on_every_transport(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                for name, operation, words in (
                    ("all_reduce", lambda: dist.all_reduce(torch.ones(2000)), "1"),
                    ("all_to_all", swaps, ""),
                    ("recv", lambda: dist.recv(torch.ones(1), 1, tag=5), "tag 5"),
                ):
                    code, where, text = ranks.run(late_in(operation), patience=30)[0]
                    self.assertEqual((code, where), ("Timeout", name), text)
                    self.assertIn(words, text)
                    self.assertNotIn("channel", text)

    def test_a_receive_may_be_posted_long_before_it_is_waited_for(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(ranks.run(posted_early, timeout=0.5, patience=30), [0.0, 1.0])

    def test_a_large_message_does_not_block_those_that_are_received_before_it(self):
        for transport in ("shm", "tcp"):
            with unittest.mock.patch.dict(os.environ, WEFT_TRANSPORT=transport):
                self.assertEqual(ranks.run(large_before_small, timeout=10), [[2.0, 3]] * 2)

    def test_torch_finds_what_it_asks_of_a_group(self):
        self.assertEqual(ranks.run(noted), [([0, 1, 1, 3], "weft", True, [0, 1], True)] * 2)

    def test_names_the_rank_that_was_killed(self):
        self.assertEqual(
            ranks.run(killed, 3, lost=[1]), [["PeerLost", 1, True], None, ["PeerLost", 1, True]]
        )

    def test_abort_ends_what_is_pending(self):
        self.assertEqual(ranks.run(aborted), ["Aborted", "Aborted"])

    def test_ends_with_a_receive_that_nobody_answers(self):
        seconds = [time.monotonic() - min(ranks.run(unmatched)) for _ in range(3)]
        self.assertLess(min(seconds), 2, f"the best of {seconds}")


class Imports(unittest.TestCase):
    """What cannot work says so in one line."""

    def says(self, kind, what, *words):
        with self.assertRaises(kind) as raised:
            what()
        for word in words:
            self.assertIn(word, str(raised.exception))
        self.assertNotIn("\n", str(raised.exception).strip())

    def test_another_torch_is_named_with_what_to_do(self):
        with unittest.mock.patch.object(torch, "__version__", "2.99.1"):
            self.says(ImportError, weft_torch._load, "2.99.1", "install")

    def test_a_module_that_does_not_load_is_said_to_be_of_another_build(self):
        compiled = weft_torch.__dict__.pop("_C")
        try:
            with unittest.mock.patch.dict(sys.modules, {"weft_torch._C": None}):
                self.says(ImportError, weft_torch._load, "another build of torch", "from source")
        finally:
            weft_torch._C = compiled

    def test_a_package_that_was_not_compiled_says_how(self):
        with unittest.mock.patch.dict(sys.modules, {"weft_torch._built": None}):
            self.says(ImportError, weft_torch._load, "not been compiled", "pip install")

    def test_without_a_launcher_the_missing_variable_is_named(self):
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("RANK", None)
            self.says(ValueError, lambda: dist.init_process_group("weft"), "RANK")


class Launchers(unittest.TestCase):
    SCRIPT = os.path.join(HERE, "launched.py")

    def launch(self, *command):
        done = subprocess.run(
            [*command, self.SCRIPT], capture_output=True, text=True, timeout=90, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 steps over weft on 2 ranks", done.stdout)

    def test_torchrun_launches_it(self):
        self.launch(
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
        )

    @unittest.skipUnless(
        os.environ.get("WEFT_COMMAND"), "WEFT_COMMAND does not name the weft command"
    )
    def test_weft_run_launches_it(self):
        self.launch(os.environ["WEFT_COMMAND"], "run", "-n", "2", "--", sys.executable)


if __name__ == "__main__":
    unittest.main()
