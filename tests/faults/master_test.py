"""Two nodes with --master-addr: each launcher replaces the ranks of its own node, also its only
one."""

import os
import shutil
import signal

import harness
import nodes_test


class Master(harness.FaultTest):
    STEPS = 200

    def nodes(self, ranks, *settings, fail=""):
        """One job a node."""
        options = [word for one in settings for word in ("--set", one)]
        secret = self.folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        port = nodes_test.free_port()
        jobs = []
        for node in (0, 1):
            folder = self.folder / f"node{node}"
            folder.mkdir()
            job = harness.Job(
                folder, "run", "-n", ranks, "--nnodes", 2, "--node-rank", node, "--master-addr",
                "127.0.0.1", "--master-port", port, "--secret-file", secret,
                "--max-replacements", 3, harness.WEFT, "train", self.folder, "--set",
                f"train.max_steps={self.STEPS}", "--set", f"run.dir={self.folder}/node0/runs",
                *options,
                env=harness.SLEEPS | {"WEFT_HOST_ID": f"node{node}", "WEFT_FAIL": fail}
            )
            self.addCleanup(job.clean)
            jobs.append(job)
        return jobs

    def test_the_only_rank_of_a_node_is_replaced(self):
        jobs = self.nodes(1)
        jobs[0].wait_for_steps(20)
        for losses, job in enumerate(reversed(jobs), 1):
            os.kill(job.ranks()[0], signal.SIGKILL)
            jobs[0].wait_for(
                lambda: jobs[0].err().count("training goes on") == losses, "a recovery"
            )
            self.assertIn("a new process replaces it", job.err())
        for job in jobs:
            self.ends(job, 0, within=60)

    def test_a_rank_is_killed_before_the_nodes_have_met(self):
        self.STEPS = 20
        for rank in (0, 1):
            with self.subTest(rank=rank):
                jobs = self.nodes(1, fail=f"meet.begin:rank={rank}:once={self.folder}/once-{rank}")
                for job in jobs:
                    self.ends(job, 0, within=60)
                self.assertIn("failpoint meet.begin", jobs[rank].err())
                self.assertGreaterEqual(jobs[0].steps(), self.STEPS)
                for job in jobs:
                    shutil.rmtree(job.folder)

    def test_the_ranks_of_all_nodes_are_lost_and_begin_from_the_newest_checkpoint(self):
        jobs = self.nodes(1, "train.checkpoint_steps=20")
        saved = self.folder / "node0/runs/run/ckpt"
        jobs[0].wait_for(lambda: list(saved.glob("step-*")), "a checkpoint")
        for pid in [pid for job in jobs for pid in job.ranks()]:
            os.kill(pid, signal.SIGKILL)
        results = [self.ends(job, 0, within=60) for job in jobs]
        self.assertIn("resuming", results[0].err)
        self.assertGreaterEqual(jobs[0].steps(), self.STEPS)


if __name__ == "__main__":
    harness.main()
