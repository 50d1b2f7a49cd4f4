"""Parameter servers that `weft run --servers N` runs beside the ranks: the ranks find them, lost
ones are started again, and they end after the ranks. The workers (servers_main.cc) check that each
push is applied once."""

import os
import re
import signal

import harness
import nodes_test

WORKER = os.path.abspath(os.environ["WEFT_SERVERS_PROGRAM"])
ARRIVED = "all pushes arrived once"


def servers_of(job):
    """{number: process} of the servers that run."""
    found = {}
    for pid, _ in job.processes():
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                name = comm.read().strip()
        except OSError:
            continue
        if match := re.fullmatch(r"weft server (\d+)", name):
            found[int(match[1])] = pid
    return found


class Servers(harness.FaultTest):
    def start(self, ranks, *flags, program=WORKER, **how):
        return self.weft("run", "-n", ranks, *flags, program, **how)

    def wait_for_pushes(self, job, ranks):
        job.wait_for(
            lambda: all((self.folder / f"pushed{rank}").exists() for rank in range(ranks)),
            "pushes of all ranks"
        )

    def wait_for_copies(self, job, server):
        job.wait_for(
            lambda: f"each shard of server {server} has two copies again" in job.err(),
            f"copies on server {server}"
        )

    def stop(self, job, ranks):
        (self.folder / "stop").touch()
        result = self.ends(job, 0)
        self.assertEqual(result.out.count(ARRIVED), ranks, result.out)
        return result

    def test_ranks_find_servers_that_end_after_them(self):
        job = self.start(2, "--servers", 2, "--log-dir", self.folder / "logs")
        self.wait_for_pushes(job, 2)
        servers = servers_of(job)
        self.assertEqual(servers.keys(), {0, 1})
        told = self.beside(job, "status", job.process.pid)
        for server, pid in servers.items():
            self.assertIn(f"server {server}: process {pid}, serves", told.stdout, told.stderr)
        self.stop(job, 2)
        logs = [str(path.relative_to(self.folder)) for path in self.folder.glob("logs/*/*/*/*")]
        self.assertTrue(any("attempt_0/server_1/stderr.log" in log for log in logs), logs)

    def test_killed_servers_are_started_again_and_no_push_is_lost(self):
        job = self.start(2, "--servers", 2)
        self.wait_for_pushes(job, 2)
        for server in (1, 0):
            job.wait_for(lambda: servers_of(job).keys() == {0, 1}, "two servers")
            os.kill(servers_of(job)[server], signal.SIGKILL)
            self.wait_for_copies(job, server)
        result = self.stop(job, 2)
        self.assertIn(
            "weft: server 1 is lost: SIGKILL (signal 9); its backup serves, and a new process "
            "becomes the backup", result.err
        )

    def test_the_loss_of_both_copies_ends_the_job(self):
        job = self.start(2, "--servers", 2)
        self.wait_for_pushes(job, 2)
        servers = servers_of(job)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for server in servers.values():
                os.kill(server, number)
        result = self.ends(job, 201, within=20)
        self.assertRegex(
            result.last_line, r"weft: the job has ended: both copies of shard \d of the parameter "
            "server are lost"
        )

    def test_the_loss_of_the_only_copy_ends_the_job(self):
        job = self.start(1, "--servers", 2, "--no-server-backup")
        self.wait_for_pushes(job, 1)
        os.kill(servers_of(job)[1], signal.SIGKILL)
        self.ends(
            job, 201, within=20, last="the job has ended: server 1 is lost: SIGKILL (signal 9); "
            "it had the only copy of its shard"
        )

    def test_a_program_that_needs_no_server(self):
        result = self.ends(self.start(1, "--servers", 2, program="true"), 0)
        self.assertNotIn("server", result.err)

    def test_SIGINT_ends_ranks_and_servers(self):
        job = self.start(2, "--servers", 2)
        self.wait_for_pushes(job, 2)
        job.process.send_signal(signal.SIGINT)
        self.ends(job, 130)

    def test_a_killed_launcher_takes_its_servers_along(self):
        job = self.start(1, "--servers", 1)
        self.wait_for_pushes(job, 1)
        job.process.kill()
        job.finish(5)
        self.nothing_left(job)

    def test_wrong_numbers_are_refused(self):
        for count in (-1, 65, 10**12):
            result = self.ends(self.start(1, "--servers", count, program="true"), 2)
            self.assertEqual(result.err.count("\n"), 1, result.err)
            self.assertIn("--servers", result.err)
        self.ends(self.start(1, "--servers", "two", program="true"), 2, ["--servers"])
        job = self.weft("train", self.folder, "--servers", -1)
        self.ends(job, 2, ["--servers -1: from 0 to 64"])

    def test_training_keeps_its_center_on_them_and_survives_one(self):
        job = self.weft(
            "train", self.folder, "-n", 2, "--servers", 2, "--set", "strategy.name=downpour",
            "--set", "train.epochs=5", "--set", "train.log_every=8", "--name", "served"
        )
        job.wait_for(lambda: (self.folder / "runs/served/metrics.jsonl").exists(), "training")
        os.kill(servers_of(job)[0], signal.SIGKILL)
        self.wait_for_copies(job, 0)
        self.ends(job, 0, ["server 0 is lost"], within=60)


class SeveralNodes(nodes_test.Nodes):
    def test_servers_are_spread_over_the_nodes_and_outlive_the_ranks_of_theirs(self):
        jobs = [self.node("--nnodes", 2, "--servers", 2, program=[WORKER]) for _ in range(2)]
        for rank, job in enumerate(jobs):
            job.wait_for(lambda rank=rank: (self.folder / f"pushed{rank}").exists(), "pushes", 30)
        self.assertEqual(sorted(list(servers_of(job)) for job in jobs), [[0], [1]])
        (self.folder / "stop").touch()
        said = "".join(self.ends(job, 0, within=20).out for job in jobs)
        self.assertEqual(said.count(ARRIVED), 2, said)

    def test_servers_of_a_lost_node_run_on_another_one_slow(self):
        program = [
            harness.WEFT, "train", self.folder, "--set", "strategy.name=downpour", "--set",
            "train.epochs=30", "--set", "train.log_every=8"
        ]
        jobs = self.three("2:3", "--servers", 3, program=program)
        self.wait_for_steps(5, jobs[0])
        self.lose(jobs.pop(1))
        jobs[0].wait_for(
            lambda: sum(len(servers_of(job)) for job in jobs) == 3, "three servers again", 40
        )
        for job in jobs:
            self.ends(job, 0, ["of the parameter server is started on node"], within=90)

    def test_a_server_whose_node_has_no_store_is_refused(self):
        job = self.weft(
            "run", "--nnodes", 2, "--master-addr", "127.0.0.1", "--servers", 1, "true"
        )
        self.ends(job, 2, ["--servers 1: nodes with --master-addr have no store for servers"])


if __name__ == "__main__":
    harness.main()
