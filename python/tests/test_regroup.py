"""Groups of torch.distributed that form again after the loss of a rank: regroup(), newcomers,
copies of the state; and c10d's own interface, reconfigure()."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks
import weft_torch

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "..", "examples", "elastic_ddp.py")
STEPS = 30
torch.optim.SGD([torch.zeros(1)], lr=1)  # imports here what every forked rank would import


class Training:
    """DDP of a small network. Batches follow from the step and are divided over the ranks."""

    def __init__(self, alike=None):
        torch.manual_seed(1)
        self.module = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)
        self.step = 0
        self.options = weft_torch.Options(alike={"model": alike or repr(self.module)})

    def state(self):
        return [self.module.state_dict(), self.optimizer.state_dict(), self.step]

    def enter(self, group):
        if group.source is not None:
            module, optimizer, self.step = weft_torch.copy_state(self.state(), group.source)
            self.module.load_state_dict(module)
            self.optimizer.load_state_dict(optimizer)

    def run(self, group, before_step):
        self.enter(group)
        model = DistributedDataParallel(self.module)
        while self.step < STEPS:
            before_step(self.step)
            torch.manual_seed(self.step)
            inputs = torch.randn(12, 8).tensor_split(group.world_size)[group.rank]
            self.optimizer.zero_grad()
            model(inputs).square().mean().backward()
            self.optimizer.step()
            self.step += 1
        dist.barrier()

    def to_the_end(self, before_step=lambda step: None):
        group = weft_torch.init_process_group(
            timeout=timedelta(seconds=40), pg_options=self.options
        )
        while True:
            try:
                self.run(group, before_step)
                break
            except RuntimeError as error:
                if not weft_torch.is_loss(error):
                    raise
            group = weft_torch.regroup()
        weights = torch.cat([p.detach().flatten() for p in self.module.parameters()])
        answer = (group.rank, group.world_size, group.newcomers, weights)
        dist.destroy_process_group()
        return answer


def trains(rank):
    return Training().to_the_end()


def trains_and_dies(rank):
    def die(step):
        if step == 11:
            os.kill(os.getpid(), signal.SIGKILL)

    return Training().to_the_end(die)


def is_another_model(rank):
    try:
        Training(alike="Linear(8, 17); ").to_the_end()
    except weft_torch.Error as error:
        return error.code, str(error)


def leaves_work_behind(rank):
    """Operations of the old group are under way, with tensors that Python knows, while it forms
    again; the last reference to it goes away later."""
    weft_torch.init_process_group(timeout=timedelta(seconds=40))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    works = []
    for number in range(200):
        tensor = torch.ones(1000)
        tensor.number = number
        works.append(dist.all_reduce(tensor, async_op=True))
    box = dist.irecv(torch.empty(3), 1)
    group = weft_torch.regroup()
    failed = 0
    for work in [*works, box]:
        with contextlib.suppress(weft_torch.Error):
            work.wait()
            failed -= 1
        failed += 1
    total = torch.ones(1000)
    dist.all_reduce(total)
    del works, work, box, backend, tensor
    gc.collect()
    dist.barrier()
    return failed, group.world_size, total[0].item()


def copies(rank):
    weft_torch.init_process_group()
    state = {
        "weights": torch.arange(5.0), 3: (1, 2.5, None, True, "text"), "empty": torch.empty(0),
        "half": [torch.tensor(1.5, dtype=torch.bfloat16), {"step": torch.tensor(7)}],
        "across": torch.arange(6).view(2, 3).t()
    }
    got = weft_torch.copy_state(state if rank == 1 else None, 1)
    dist.destroy_process_group()
    return got


def another_world(rank):
    """Two worlds one after the other, of which the second forms again."""
    weft_torch.init_process_group()
    dist.barrier(dist.new_group([0, 1, 2]))
    dist.destroy_process_group()
    weft_torch.init_process_group()
    dist.barrier(dist.new_group([0, 1, 2]))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    size = weft_torch.regroup().world_size
    dist.barrier(dist.new_group([0, 1]))
    return size


def _sum_of(store, rank, world, timeout=20):
    """Forms a default group on the store, and leaves it. The sum of ones over its ranks."""
    dist.init_process_group(
        "weft", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    part = torch.ones(1)
    dist.all_reduce(part, group=dist.new_group(list(range(world))))
    dist.destroy_process_group()
    return int(total + part) // 2


def had_other_groups(rank):
    """Groups on one store and on others, of ranks that have been in different groups before."""
    base = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    one, two = dist.PrefixStore("one", base), dist.PrefixStore("two", base)
    sums = []
    if rank == 0:  # an evaluation by one rank, on a store of its own and on the job's
        sums = [_sum_of(dist.PrefixStore("alone", base), 0, 1), _sum_of(one, 0, 1)]
        base.set("alone", "yes")
    base.get("alone")
    sums.append(_sum_of(one, rank, 3))
    if rank < 2:
        sums.append(_sum_of(one, rank, 2))
        base.set(f"pair{rank}", "yes")
    base.wait(["pair0", "pair1"])
    return sums + [_sum_of(one, rank, 3), _sum_of(two, rank, 3)]


def adds_up(rank):
    """The sums of a default group and of another group."""
    weft_torch.init_process_group(timeout=timedelta(seconds=20))
    total, part = torch.ones(1), torch.ones(1)
    dist.all_reduce(total)
    dist.all_reduce(part, group=dist.new_group([0, 1]))
    dist.destroy_process_group()
    return total.item(), part.item()


def waits_in_backward(rank):
    """Rank 1 does not come to the backward pass before rank 0 has given up."""
    weft_torch.init_process_group(timeout=timedelta(seconds=40))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        return store.get("gave up")
    dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout = timedelta(seconds=0.2)
    try:
        model(torch.ones(2, 8)).sum().backward()
    except RuntimeError as error:
        said = weft_torch.is_loss(error), str(error)
    store.set("gave up", "yes")
    return said


def dies_after_a_barrier(rank, lost):
    """The lost rank is killed when all ranks have come to the barrier."""
    with contextlib.suppress(RuntimeError):  # the rank may be gone before it ends here
        dist.barrier()
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)


def in_debug_mode(rank):
    """torch wraps the backend."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    weft_torch.init_process_group(timeout=timedelta(seconds=40))
    dies_after_a_barrier(rank, 1)
    begin = time.monotonic()
    size = weft_torch.regroup(wait=timedelta(seconds=20)).world_size
    took = time.monotonic() - begin
    total = torch.ones(1)
    dist.all_reduce(total)
    return size, total.item(), took < 10


def over_gloo_now(rank):
    """A default group of weft, and then one of Gloo."""
    weft_torch.init_process_group(timeout=timedelta(seconds=40))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    try:
        weft_torch.regroup()
    except ValueError as error:
        said = str(error)
    dist.barrier()
    return said


def loses_a_rank_of_a_part(rank):
    """After the loss of rank 0, the others have other numbers in the default group."""
    weft_torch.init_process_group(timeout=timedelta(seconds=40))
    dies_after_a_barrier(rank, 0)
    weft_torch.regroup()
    part = dist.new_group([1, 2])
    if rank == 1:
        return None
    try:
        dist.barrier(part)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(3), group=part)
    except weft_torch.Error as error:
        return error.code, error.rank, error.peer, "rank 3 of the job" in str(error)


def keeps_torchs_allocator(rank):
    """Groups without options beside a default group with a choice."""
    options = weft_torch.Options(shared_allocator=False)
    weft_torch.init_process_group(timeout=timedelta(seconds=40), pg_options=options)
    dist.barrier(dist.new_group([0, 1]))
    shared = weft_torch.is_shared(torch.empty(100_000))
    dist.destroy_process_group()
    return shared


def finds_the_store_host(rank):
    """With a store of the program, and with one that has no host."""
    port = int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore("job", dist.TCPStore("127.0.0.2", port, is_master=False))
    limit, hosts = timedelta(seconds=1), []
    for place in (store, dist.HashStore()):
        hosts.append(weft_torch.make_options(weft_torch.Options(), limit, place).store_host)
    del os.environ["MASTER_ADDR"]
    options = weft_torch.make_options(weft_torch.Options(), limit, dist.HashStore())
    return [*hosts, options.store_host == socket.gethostname()]


def _child(body, rank, world, port, extra, path):
    ranks.shows_where_it_is()
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True", **extra
    )
    torch.save(body(rank), path)


class Launched:
    """Forked ranks around a store, as under a launcher."""

    def __init__(self, folder, world, **environment):
        self.folder, self.world, self.environment = folder, world, environment
        self.store = ranks.StoreHost()
        self.processes = []

    def start(self, body, rank, **extra):
        number = len(self.processes)
        process = ranks.start(
            ranks.FORK.Process(
                target=_child, args=(
                    body, rank, self.world, self.store.port, self.environment | extra,
                    f"{self.folder}/{number}"
                )
            )
        )
        self.processes.append(process)
        return process

    def replace(self, body, rank):
        """Starts a process in place of a rank that has ended. Gives what it tells its launcher."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.start(body, rank, WEFT_NEWCOMER="1", WEFT_LINK_FD=str(there.fileno()))
        there.close()

        def told():
            with here:
                return [text for text in iter(lambda: here.recv(1000).decode(), "")]

        return told

    def answers(self):
        answers = []
        left = ranks.join(self.processes, 60)
        if left:
            raise AssertionError(f"process {left[0]} did not end")
        for number, process in enumerate(self.processes):
            good = process.exitcode == 0
            answers.append(
                torch.load(f"{self.folder}/{number}", weights_only=False) if good
                else process.exitcode
            )
        return answers


class Jobs(unittest.TestCase):
    def launched(self, world, **environment):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        launched = Launched(folder.name, world, **environment)
        self.addCleanup(launched.store.close)
        return launched


class Regroup(Jobs):
    def weights(self, world):
        job = self.launched(world)
        for rank in range(world):
            job.start(trains, rank)
        return job.answers()[0][3]

    def test_a_killed_rank_is_replaced_and_the_weights_are_those_of_a_run_without_a_fault(self):
        wanted = self.weights(3)
        for lost, transport in ((1, "auto"), (0, "tcp")):
            job = self.launched(3, WEFT_ELASTIC="1", WEFT_TRANSPORT=transport)
            bodies = [trains_and_dies if rank == lost else trains for rank in range(3)]
            started = [job.start(body, rank) for rank, body in enumerate(bodies)]
            started[lost].join(60)
            told = job.replace(trains, lost)
            answers = job.answers()
            self.assertEqual(answers[lost], -signal.SIGKILL)
            self.assertEqual(told(), ["joining", "joined"])
            del answers[lost]
            for rank, size, newcomers, weights in answers:
                self.assertEqual((size, newcomers), (3, [lost]))
                self.assertTrue(torch.equal(weights, wanted), f"rank {rank}")

    def test_the_others_go_on_with_fewer_ranks(self):
        job = self.launched(3)
        for rank, body in enumerate((trains_and_dies, trains, trains)):
            job.start(body, rank)
        lost, one, two = job.answers()
        self.assertEqual(lost, -signal.SIGKILL)
        self.assertEqual((one[:3], two[:3]), ((0, 2, []), (1, 2, [])))
        self.assertTrue(torch.equal(one[3], two[3]))

    def test_a_newcomer_of_another_model_is_refused_with_the_difference(self):
        job = self.launched(2, WEFT_ELASTIC="1")
        started = [job.start(body, rank) for rank, body in enumerate((trains, trains_and_dies))]
        started[1].join(60)
        job.replace(is_another_model, 1)
        job.processes[-1].join(60)
        job.replace(trains, 1)  # the right one; the other rank has waited
        one, _, (code, text), right = job.answers()
        self.assertEqual(code, "BadConfig")
        self.assertIn("the model of this process has 'Linear(8, 17)'", text)
        self.assertTrue(torch.equal(one[3], right[3]))

    def test_a_group_with_operations_under_way_may_form_again(self):
        job = self.launched(3)
        for rank in range(3):
            job.start(leaves_work_behind, rank)
        self.assertEqual(job.answers(), [(201, 2, 2.0), -signal.SIGKILL, (201, 2, 2.0)])

    def test_a_second_world_of_a_job_forms_again(self):
        job = self.launched(3)
        for rank in range(3):
            job.start(another_world, rank)
        self.assertEqual(job.answers(), [2, -signal.SIGKILL, 2])

    def test_ranks_that_had_different_groups_before_meet(self):
        job = self.launched(3)
        for rank in range(3):
            job.start(had_other_groups, rank)
        self.assertEqual(job.answers(), [[1, 1, 3, 2, 3, 3], [3, 2, 3, 3], [3, 3, 3]])

    def test_a_rank_that_gave_up_meets_the_others_under_one_number(self):
        store, numbers, limit = dist.HashStore(), [], timedelta(seconds=20)
        for rank in (0, 0, 1):  # rank 0 tries twice before rank 1 comes
            weft_torch.regrouping.begin_default(store, rank, 2, limit)
            numbers.append(weft_torch.regrouping._number)
        weft_torch.regrouping.end_default(store)
        for rank in (1, 0):
            weft_torch.regrouping.begin_default(store, rank, 2, limit)
            numbers.append(weft_torch.regrouping._number)
        self.assertEqual(numbers, ["0", "1", "1", "2", "2"])

    def test_ranks_meet_again_when_torchrun_has_restarted_one_of_two_nodes(self):
        job = self.launched(2, TORCHELASTIC_RUN_ID="job")
        for counts in ("00", "01"):  # torchrun counts the restarts of each node separately
            for rank, count in enumerate(counts):
                job.start(adds_up, rank, TORCHELASTIC_RESTART_COUNT=count)
            for process in job.processes:
                process.join(60)
        self.assertEqual(job.answers(), [(2.0, 2.0)] * 4)

    def test_a_timeout_in_backward_is_a_loss(self):
        job = self.launched(2)
        for rank in range(2):
            job.start(waits_in_backward, rank)
        is_loss, text = job.answers()[0]
        self.assertTrue(is_loss, text)

    def test_a_group_in_debug_mode_forms_again_without_a_wait_for_the_killed_rank(self):
        job = self.launched(3)
        for rank in range(3):
            job.start(in_debug_mode, rank)
        self.assertEqual(job.answers(), [(2, 2.0, True), -signal.SIGKILL, (2, 2.0, True)])

    def test_a_default_group_of_another_backend_says_what_to_do(self):
        job = self.launched(2)
        for rank in range(2):
            job.start(over_gloo_now, rank)
        for said in job.answers():
            self.assertIn("there is no group to form again", said)

    def test_copies_the_state_of_one_rank(self):
        job = self.launched(2)
        for rank in range(2):
            job.start(copies, rank)
        got, sent = job.answers()
        self.assertEqual(list(got), list(sent))
        self.assertEqual(got[3], (1, 2.5, None, True, "text"))
        self.assertTrue(torch.equal(got["weights"], torch.arange(5.0)))
        self.assertTrue(torch.equal(got["across"], torch.arange(6).view(2, 3).t()))
        self.assertEqual((got["half"][0].dtype, got["half"][0].item()), (torch.bfloat16, 1.5))
        self.assertEqual(got["half"][1]["step"].item(), 7)
        self.assertEqual(got["empty"].shape, (0,))

    def test_without_a_group_says_what_to_do(self):
        with self.assertRaisesRegex(ValueError, "init_process_group"):
            weft_torch.regroup()

    def test_other_errors_are_no_losses(self):
        self.assertFalse(weft_torch.is_loss(RuntimeError("shape mismatch: PeerLost")))
        self.assertFalse(weft_torch.is_loss(ValueError("PeerLost")))
        self.assertTrue(weft_torch.is_loss(RuntimeError("PeerLost{1}: all_reduce, rank 0: gone")))
        self.assertTrue(weft_torch.is_loss(RuntimeError("Timeout{1}: barrier, rank 0: late")))
        self.assertFalse(weft_torch.is_loss(RuntimeError("Timeout: regroup, rank 0: too few")))


class OtherGroups(Jobs):
    """Groups beside the default group."""

    def test_errors_name_ranks_of_the_job(self):
        job = self.launched(4)
        for rank in range(4):
            job.start(loses_a_rank_of_a_part, rank)
        killed = -signal.SIGKILL
        self.assertEqual(job.answers(), [killed, None, ("PeerLost", 2, 3, True), killed])

    def test_the_default_group_chooses_the_allocator(self):
        job = self.launched(2)
        for rank in range(2):
            job.start(keeps_torchs_allocator, rank)
        self.assertEqual(job.answers(), [False, False])

    def test_the_route_to_the_store_gives_the_address_of_a_rank(self):
        job = self.launched(1)
        job.start(finds_the_store_host, 0)
        self.assertEqual(job.answers(), [["127.0.0.2", "127.0.0.1", True]])


def reconfigures(rank):
    """A group of three; a group of two after the third is killed; an operation of no group."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group(
        "weft", store=dist.PrefixStore("job", store), rank=rank, world_size=3,
        timeout=timedelta(seconds=20), enable_reconfigure=True
    )
    before = ""
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        before = str(error)
    store.set(f"handle{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle{peer}").decode() for peer in range(3)]
    dist._reconfigure(1, handles).wait()
    total = torch.ones(1000)
    dist.all_reduce(total)
    sums = [total[0].item()]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = ""
    try:
        dist.all_reduce(torch.ones(1000))
    except weft_torch.Error as error:
        lost = error.code
    dist._reconfigure(2, {handles[0], handles[2]}).wait()
    dist.all_reduce(total)
    return before, sums + [total[0].item()], lost, dist.get_world_size()


@unittest.skipUnless(hasattr(dist, "_reconfigure"), "torch has reconfigure() from 2.14 on")
class Reconfigure(Jobs):
    def test_a_group_forms_again_without_a_killed_rank(self):
        job = self.launched(3)
        for rank in range(3):
            job.start(reconfigures, rank)
        one, lost, two = job.answers()
        self.assertEqual(lost, -signal.SIGKILL)
        self.assertIn("call reconfigure() with the handles", one[0])
        self.assertEqual(one[1:], ([3.0, 6.0], "PeerLost", 2))
        self.assertEqual(two[1:], ([3.0, 6.0], "PeerLost", 2))


class ExampleSlow(unittest.TestCase):
    """The example under the launchers."""

    def weights(self, *command, kill=""):
        environment = dict(os.environ, KILL=kill, OMP_NUM_THREADS="1")
        done = subprocess.run(
            [*command, EXAMPLE], capture_output=True, text=True, timeout=200, check=False,
            env=environment
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("60 steps on 3 ranks", done.stdout)
        return done.stdout.split()[-1], done.stdout + done.stderr

    def test_the_weights_are_the_same_after_a_kill(self):
        weft = os.environ.get("WEFT_COMMAND")
        if not weft:
            self.skipTest("WEFT_COMMAND does not name the weft command")
        run = (weft, "run", "-n", "3", "--max-replacements", "3", "--", sys.executable)
        wanted, _ = self.weights(*run)
        got, said = self.weights(*run, kill="1:20")
        self.assertIn("a new process replaces it", said)
        self.assertEqual(got, wanted)
        torchrun = (
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3",
            "--max-restarts", "1"
        )
        got, said = self.weights(*torchrun, kill="1:20")  # it starts all ranks again
        self.assertIn("exitcode: -9", said)
        self.assertEqual(got, wanted)


if __name__ == "__main__":
    unittest.main()
