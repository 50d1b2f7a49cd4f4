"""Jobs on several nodes that meet, and that are asked to go: all nodes say what became of the
checkpoint, a node leaves by itself where the others can go on without it, and warm spares."""

import os
import signal

import harness
import nodes_test

SAVED = r"weft: the checkpoint \S+/ckpt/step-\d+ was complete [\d.]+ s after "
LEFT = "this node has left the job, which goes on without it"


class Leave(nodes_test.Nodes):
    def training(self):
        """`weft train` of the small recipe, for ever."""
        settings = ("train.epochs=1000000", "train.eval_every=0", "train.checkpoint_every=0")
        words = [word for setting in settings for word in ("--set", setting)]
        slow = [f"{name}={value}" for name, value in harness.SLEEPS.items()]
        return ["env", *slow, harness.WEFT, "train", self.folder, *words, "--name", "run"]

    def start(self, nnodes, *flags, count=2, **how):
        jobs = [
            self.node("--nnodes", nnodes, *flags, program=self.training(), **how)
            for _ in range(count)
        ]
        self.wait_for_steps(20, jobs[0])
        return jobs

    def all_go(self, jobs, why):
        results = [self.ends(job, 143, within=30) for job in jobs]
        for result in results:
            self.assertRegex(result.err, SAVED + why)
            self.assertRegex(result.last_line, "weft: stopped by " + why)
        saved = list((self.folder / "runs/run/ckpt").glob("step-*"))
        self.assertEqual(len(saved), 1, results[0].err)
        return results

    def test_all_nodes_name_the_checkpoint_after_a_signal(self):
        jobs = self.start(2)
        jobs[1].process.send_signal(signal.SIGTERM)
        results = self.all_go(jobs, "SIGTERM")
        self.assertRegex(results[0].err, SAVED + r"SIGTERM to the launcher of node \d")

    def test_weft_stop_finds_the_launcher_of_any_node(self):
        jobs = self.start(2)
        # The file names the launcher of rank 0. On another host, it is no launcher's number.
        (self.folder / "runs/run/launcher").write_text("1")
        stop = self.beside(jobs[1], "stop", self.folder / "runs/run")
        self.assertEqual(stop.returncode, 0, stop.stderr)
        self.assertRegex(stop.stdout, r"run has ended: the checkpoint \S+ was complete [\d.]+ s")
        self.all_go(jobs, "weft stop")

    def test_a_signal_to_a_rank_ends_the_job_on_all_nodes_slow(self):
        jobs = self.start(2, "--max-replacements", 3)
        pids = [pid for pid, _ in jobs[1].processes()]
        ranks = [pid for pid in pids if harness.describe(pid)[1].split()[1:2] == ["train"]]
        self.assertEqual(len(ranks), 1)
        os.kill(ranks[0], signal.SIGTERM)
        results = self.all_go(jobs, r"a signal to rank \d")
        self.assertNotIn("replaces it", results[0].err)

    def test_all_nodes_say_that_no_checkpoint_fit(self):
        fail = "WEFT_FAIL=step.begin:rank=1:step=20:action=sleep"
        program = ["env", fail, *self.training()]
        jobs = [self.node("--nnodes", 2, program=program) for _ in range(2)]
        jobs[0].wait_for(
            lambda: "failpoint step.begin" in jobs[0].err() + jobs[1].err(), "the rank that sleeps"
        )
        line = "no checkpoint fit into the grace period of 1 s; there is no earlier one"
        stop = self.beside(jobs[0], "stop", jobs[0].process.pid, "--grace", 1)
        self.assertEqual(stop.returncode, 1, stop.stderr)
        self.assertIn(line, stop.stderr)
        for job in jobs:
            self.ends(job, 143, ["weft: " + line], within=10, last="stopped by weft stop")

    def test_a_node_leaves_and_the_others_go_on(self):
        jobs = self.three("2:3")
        self.wait_for_steps(20, jobs[1])
        jobs[0].process.send_signal(signal.SIGUSR1)
        result = self.ends(jobs[0], 143, within=20, last=LEFT + " (SIGUSR1)")
        results = self.counts(*jobs[1:], sizes=[2])
        for one in (result, *results):
            self.assertRegex(one.err, r"rank \d leaves with node \d; the others go on without it")
            self.assertNotIn("lost or cannot be reached", one.err)

    def test_the_ranks_of_a_node_that_leaves_move_to_free_places_slow(self):
        jobs = self.three("2:3", ranks=2)
        self.wait_for_steps(20, jobs[0])
        # The launcher refuses until it has learned from the plan that the job trains.
        scale = ("scale", jobs[0].process.pid, 4)
        jobs[0].wait_for(lambda: self.beside(jobs[0], *scale).returncode == 0, "four ranks")
        used = [job for job in jobs if self.named(job, "weft_faults_counting")]
        self.assertEqual(len(used), 2)
        jobs[0].wait_for(lambda: any(map(self.sizes, used)), "the line of rank 0")
        leaver = next(job for job in used if not self.sizes(job))  # rank 0 tells the sizes
        leaver.process.send_signal(signal.SIGUSR1)
        leaver.wait_for(
            lambda: sum(len(self.named(job, "weft_faults_counting")) for job in jobs) == 6,
            "the processes that replace the two ranks, beside them"
        )
        self.ends(leaver, 143, within=20, last=LEFT)
        others = [job for job in jobs if job is not leaver]
        results = self.counts(*others, sizes=[4, 4])
        self.assertRegex(results[0].err, r"rank \d leaves with node \d; a new process on node \d")

    def test_a_notice_ends_the_job_if_it_cannot_go_on_without_the_node(self):
        notice = self.folder / "notice"
        command = ("--notice-command", f"test -e {notice}", "--notice-interval", 0.1)
        jobs = self.start(2, "--max-replacements", 3, *command)
        notice.touch()  # both nodes get it
        self.all_go(jobs, r"a notice that this machine goes")

    def test_the_second_of_two_nodes_can_leave_and_the_first_cannot_slow(self):
        first = self.node("--nnodes", "1:2", conf="last_call_timeout=0", program=self.training())
        self.wait_for_steps(5, first)
        second = self.node("--nnodes", "1:2", program=self.training())
        first.wait_for(lambda: self.sizes(first) == [2], "two ranks")
        second.process.send_signal(signal.SIGUSR1)
        self.ends(second, 143, within=20, last=LEFT)
        first.wait_for(lambda: self.sizes(first) == [2, 1], "one rank")
        self.wait_for_steps(self.steps() + 50, first)
        third = self.node("--nnodes", "1:2", program=self.training())
        first.wait_for(lambda: self.sizes(first) == [2, 1, 2], "two ranks again")
        # It holds the store's majority.
        first.process.send_signal(signal.SIGUSR1)
        self.all_go([first, third], "SIGUSR1")

    def test_both_nodes_of_a_job_that_meets_in_etcd_can_leave_slow(self):
        servers = nodes_test.EtcdServers(self.folder / "etcd", 1)
        self.addCleanup(servers.clean)
        meet = ["--rendezvous", servers.url, "--rdzv-id", "job"]
        first, second = self.start("1:2", meet=meet)
        first.process.send_signal(signal.SIGUSR1)
        self.ends(first, 143, within=20, last=LEFT)
        second.wait_for(lambda: self.sizes(second)[-1:] == [1], "one rank")
        self.wait_for_steps(self.steps() + 50, second)
        third = self.node("--nnodes", "1:2", meet=meet, program=self.training())
        second.wait_for(lambda: self.sizes(second)[-1:] == [2], "two ranks again")
        second.process.send_signal(signal.SIGUSR1)
        self.ends(second, 143, within=20, last=LEFT)
        third.wait_for(lambda: self.sizes(third)[-1:] == [1], "one rank")
        third.process.send_signal(signal.SIGTERM)
        self.all_go([third], "SIGTERM")

    def test_a_mesh_of_pairs_of_ranks_ends_with_a_checkpoint_when_one_of_two_nodes_leaves(self):
        program = [*self.training(), "--set", "parallel.pp=2", "--set", "parallel.dp=1"]
        jobs = [self.node("--nnodes", 2, "--min-ranks", 1, program=program) for _ in range(2)]
        self.wait_for_steps(20, jobs[0])
        jobs[1].process.send_signal(signal.SIGUSR1)
        self.all_go(jobs, "SIGUSR1")

    def test_a_first_node_whose_ranks_are_too_few_for_the_mesh_waits_for_another_one(self):
        program = [*self.training(), "--set", "parallel.pp=2", "--set", "parallel.dp=1"]
        first = self.node("--nnodes", "1:2", conf="last_call_timeout=0", program=program)
        first.wait_for(
            lambda: "the mesh needs more ranks than there are: waiting for them ranks=1 needed=2"
            in first.err(), "the wait"
        )
        second = self.node("--nnodes", "1:2", program=program)
        self.wait_for_steps(5, second)
        self.assertEqual(self.sizes(first), [2])
        second.process.send_signal(signal.SIGTERM)
        self.all_go([first, second], "SIGTERM")

    def test_a_first_node_does_not_wait_for_ever_slow(self):
        program = [*self.training(), "--set", "parallel.pp=2", "--set", "parallel.dp=1"]
        conf = "last_call_timeout=0,join_timeout=2"
        job = self.node("--nnodes", "1:2", conf=conf, program=program)
        result = self.ends(job, 200, within=20)
        self.assertIn("1 of at least 2 ranks, which the mesh needs, came within 2 s", result.err)

    def test_a_spare_of_the_node_takes_the_place_of_a_lost_rank_slow(self):
        flags = ("--max-replacements", 9, "--spares", 1)
        jobs = [self.node("--nnodes", 2, *flags) for _ in range(2)]
        for job in jobs:
            job.wait_for(lambda job=job: "weft: a spare is ready" in job.err(), "a spare", 40)
        # The rank was started before the spare.
        os.kill(self.named(jobs[1], "weft_faults_counting")[0], signal.SIGKILL)
        results = self.counts(*jobs, sizes=[2])
        self.assertRegex(results[1].err, r"weft: a spare of this node becomes rank \d")
        self.assertNotIn("becomes rank", results[0].err)


if __name__ == "__main__":
    harness.main()
