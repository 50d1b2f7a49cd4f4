"""The number of ranks changes while a job trains: `weft scale`, lost ranks that are not replaced,
and the loss of all ranks. Every sample is used exactly once in each epoch (counting_main.cc)."""

import os
import random
import re
import signal
import subprocess

import harness

COUNTING = os.path.abspath(os.environ["WEFT_COUNTING_PROGRAM"])


class Resize(harness.FaultTest):
    def count(self, ranks, *flags, epochs=harness.ENDLESS, step_ms=2, strategy=None, **how):
        more = (1, "private", strategy) if strategy else ()
        return self.weft("run", "-n", ranks, *flags, COUNTING, epochs, step_ms, *more, **how)

    def scale(self, job, ranks, code=0, says=""):
        result = self.beside(job, "scale", job.process.pid, ranks)
        self.assertEqual(result.returncode, code, result.stderr + job.err())
        self.assertIn(says, result.stderr)

    def sizes(self, job):
        """The numbers of ranks of each incarnation of the group."""
        return [int(n) for n in re.findall(r"training goes on .*ranks=(\d+)", job.err())]

    def counts(self, job, sizes=None, ends_by_itself=False):
        if not ends_by_itself:
            if sizes:
                job.wait_for(lambda: self.sizes(job) == sizes, f"the ranks {sizes}", 60)
            (self.folder / "enough").touch()
        result = self.ends(job, 0, within=90)
        self.assertIn("every sample was used once in each epoch, ", result.out)
        if sizes is not None:
            self.assertEqual(self.sizes(job), sizes, result.err)
        return result

    def test_a_job_grows_and_shrinks_on_request(self):
        job = self.count("1:3")
        job.wait_for_steps(2)
        for ranks in (1, 2, 3):
            self.scale(job, ranks)
        self.counts(job, [1, 2, 3])

    def test_a_rank_that_is_killed_when_it_has_left_is_not_replaced(self):
        job = self.count("1:3", env={"WEFT_FAIL": "leave.told:rank=2"})
        job.wait_for_steps(2)
        self.scale(job, 2)
        says = "rank 2 had left the job when it ended: SIGKILL"
        job.wait_for(lambda: says in job.err(), "the fault")
        self.scale(job, 3)
        self.assertNotIn("is lost", self.counts(job, [2, 3]).err)

    # The launcher does not know that it has left.
    def test_a_rank_that_is_killed_while_it_leaves_does_not_hold_up_the_job(self):
        job = self.count("1:3", env={"WEFT_FAIL": "leave.begin:rank=2"})
        job.wait_for_steps(2)
        self.scale(job, 2)
        job.wait_for(lambda: "failpoint leave.begin" in job.err(), "the fault")
        self.scale(job, 1)
        self.scale(job, 3)
        result = self.counts(job)
        self.assertIn("rank 2 is ended: the others go on without it", result.err)

    def test_asynchronous_workers_change_their_number_on_request(self):
        job = self.count("1:2", strategy="downpour")
        job.wait_for_steps(2)
        for ranks in (1, 2):
            self.scale(job, ranks)
        self.counts(job, [1, 2])

    def test_batches_of_an_asynchronous_worker_that_is_killed_are_given_out_again(self):
        job = self.count(2, "--max-replacements", 1, strategy="downpour")
        job.wait_for_steps(100)
        os.kill(job.ranks()[1], signal.SIGKILL)
        self.assertIn("strategy: downpour", self.counts(job, [2]).err)

    def test_a_request_that_cannot_be_met_is_refused(self):
        job = self.count("2:3")
        job.wait_for_steps(2)
        self.scale(job, 4, 2, "4 ranks: this job may have 2 to 3")
        self.scale(job, 1, 2, "1 rank: this job may have 2 to 3")
        self.scale(job, 3)
        self.counts(job, [])
        self.scale(job, 2, 2, "does not run")

    def test_a_job_of_a_fixed_size_is_not_resized(self):
        job = self.count(2)
        job.wait_for_steps(2)
        self.scale(job, 1, 2, "is fixed; start it with -n MIN:MAX")
        self.counts(job, [])

    def test_a_lost_rank_that_is_not_replaced_can_be_added_again(self):
        job = self.count(2, "--min-ranks", 1)
        job.wait_for_steps(2)
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait_for(lambda: self.sizes(job) == [1], "one rank")
        self.scale(job, 2)
        self.counts(job, [1, 2])

    def test_ranks_that_the_mesh_cannot_use_at_the_start_leave_and_come_when_it_can(self):
        settings = ("parallel.pp=2", "parallel.dp=1", "train.epochs=1000000")
        options = [word for setting in settings for word in ("--set", setting)]
        job = self.weft("train", self.folder, "-n", "1:5", *options, env=harness.SLEEPS)
        job.wait_for(lambda: self.sizes(job) == [4], "four of five ranks")
        self.assertIn("the mesh fits fewer ranks than there are", job.err())
        job.wait_for_steps(2)
        self.scale(job, 2)
        job.wait_for(lambda: self.sizes(job) == [4, 2], "two ranks")
        steps = job.steps()
        job.wait_for_steps(steps + 20)
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=30)

    def test_more_ranks_than_samples_of_a_batch_are_refused(self):
        settings = ("train.batch=2", "train.epochs=1000000")
        options = [word for setting in settings for word in ("--set", setting)]
        job = self.weft("train", self.folder, "-n", "1:4", *options, env=harness.SLEEPS)
        job.wait_for(lambda: self.sizes(job) == [2], "two of four ranks")
        job.wait_for_steps(2)
        self.scale(job, 3, 2, "3 ranks: train.batch has 2 samples")
        job.wait_for_steps(job.steps() + 20)
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=30)

    def test_a_number_that_does_not_divide_the_micro_shards_is_refused(self):
        settings = (
            "train.reproducible=true", "train.micro_shards=4", "train.epochs=1000000"
        )
        options = [word for setting in settings for word in ("--set", setting)]
        job = self.weft("train", self.folder, "-n", "1:4", *options, env=harness.SLEEPS)
        job.wait_for_steps(2)
        self.scale(job, 3, 2, "3 ranks: the mesh of this job uses 1, 2 or 4 ranks")
        self.scale(job, 2)
        job.wait_for(lambda: self.sizes(job) == [2], "two ranks")
        steps = job.steps()
        job.wait_for_steps(steps + 20)
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=30)

    def test_a_rank_that_has_not_joined_is_ended_when_the_others_have_finished(self):
        job = self.count("1:2")
        job.wait_for_steps(2)
        self.scale(job, 1)
        (first,) = job.wait_for_ranks(1)
        asking = subprocess.Popen(
            [harness.WEFT, "scale", str(job.process.pid), "2"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL
        )
        (newcomer,) = job.wait_for(lambda: set(job.ranks()) - {first}, "a new rank")
        os.kill(newcomer, signal.SIGSTOP)
        (self.folder / "enough").touch()
        result = self.counts(job, [1])
        self.assertNotEqual(asking.wait(10), 0)
        self.assertIn("is ended: the others have ended before it had joined them", result.err)

    def test_a_discovery_script_changes_the_number_of_ranks_and_its_errors_do_not_slow(self):
        slots = self.folder / "slots"
        slots.write_text("localhost:2\nelsewhere:9\n")
        job = self.count(
            "1:3", "--discovery-script", f"cat {slots}", "--discovery-interval", 0.1
        )
        job.wait_for(lambda: self.sizes(job) == [2], "two ranks")
        slots.write_text("nonsense here\n")
        job.wait_for(lambda: '--discovery-script: "nonsense here" is not' in job.err(), "a warning")
        slots.write_text("localhost:8\n")  # at most 3
        job.wait_for(lambda: self.sizes(job) == [2, 3], "three ranks")
        result = self.counts(job, [2, 3])
        self.assertEqual(result.err.count("weft: --discovery-script:"), 1, result.err)

    def test_a_job_leaves_ranks_that_do_not_add_throughput_slow(self):
        # The ranks share one processor, so each of two has half the throughput.
        job = self.weft(
            "train", self.folder, "-n", "1:2", "--scale-efficiency", 0.8, "--set",
            "train.epochs=1000000", "--set", "train.eval_every=0", "--set",
            "model.hidden=[512,256]",
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        )
        job.wait_for(lambda: self.sizes(job) == [1], "one rank", 60)
        steps = job.steps()
        job.wait_for_steps(steps + 200)
        job.process.send_signal(signal.SIGTERM)
        result = self.ends(job, 143, within=30)
        self.assertIn("weft: the job shall have 1 rank (--scale-efficiency)", result.err)
        self.assertEqual(self.sizes(job), [1], result.err)

    def test_a_job_of_a_fixed_size_has_no_discovery_script(self):
        job = self.weft("train", self.folder, "-n", 2, "--discovery-script", "true")
        self.ends(job, 2, ["--discovery-script and --scale-efficiency need -n MIN:MAX"])

    @harness.needs("WEFT_PLAN")
    def test_a_planned_run_is_planned_again_for_another_number_of_ranks(self):
        settings = ["parallel.plan=auto", "train.epochs=400", "train.eval_every=0"]
        job = self.train("1:2", *settings)
        job.wait_for(lambda: job.steps() >= 40, "step 40", seconds=60)
        self.scale(job, 1)
        job.wait_for(lambda: self.sizes(job) == [1], "one rank")
        steps = job.steps()
        job.wait_for_steps(steps + 20)
        job.process.send_signal(signal.SIGTERM)
        result = self.ends(job, 143, within=30)
        plans = re.findall(r"plan layout=.*tried=(\d+)", result.err)
        self.assertEqual(len(plans), 2, result.err)
        self.assertGreater(int(plans[0]), 0)
        self.assertEqual(int(plans[1]), 0, "the second plan is the model's alone")

    def test_all_ranks_are_lost_at_once(self):
        job = self.count("2:2")
        saved = self.folder / "runs/run/ckpt"
        job.wait_for(lambda: saved.exists() and list(saved.glob("step-*")), "a checkpoint")
        for pid in job.ranks():
            os.kill(pid, signal.SIGKILL)
        job.wait_for(lambda: "resuming step=" in job.err(), "another start", 60)
        result = self.counts(job)
        self.assertIn("all ranks are lost: starting them again, from the newest", result.err)
        self.assertIn("resuming step=", result.err)

    def test_all_ranks_are_lost_again_and_again(self):
        job = self.weft("run", "-n", 2, "--max-replacements", 9, "sh", "-c", "exit 7")
        self.ends(job, 7, within=20, last="failed first: exit code 7")

    def test_ranks_are_killed_and_the_job_is_resized_at_random_slow(self):
        self.resize_at_random(7)

    def test_ranks_are_killed_while_others_leave_at_random_slow(self):
        self.resize_at_random(121)

    def test_ranks_are_killed_as_soon_as_the_job_shrinks_at_random_slow(self):
        self.resize_at_random(123)

    def resize_at_random(self, seed):
        numbers = random.Random(seed)
        job = self.count("1:4", step_ms=5)
        job.wait_for_steps(2)
        for _ in range(30):
            if numbers.random() < 0.5:
                self.scale(job, numbers.randint(1, 4))
            elif self.sizes(job)[-1:] != [1]:
                # A rank that is alone has the only state.
                os.kill(numbers.choice(job.ranks()), signal.SIGKILL)
                steps = job.steps()
                job.wait_for_steps(steps + 5)
        self.counts(job)


if __name__ == "__main__":
    harness.main()
