"""Bad days: two faults at once, all ranks lost at once, a full disk or Ctrl-C during a recovery, a
store process that is stopped."""

import ctypes
import json
import os
import re
import shutil
import signal
import time

import harness
import recovery_test
import resize_test
import spares_test
from spares_test import FOREVER

FALLS_BACK = "no whole copy of the state is left in memory"


def kill_at_once(pids):
    """None of them sees that another one has died."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def step_of(test, job):
    """The step that rank 0 is in, which needs no file of the run."""
    result = test.beside(job, "status", job.process.pid, "--json")
    ranks = json.loads(result.stdout)["ranks"] if result.returncode == 0 else [{}]
    return ranks[0].get("step") or 0


class Together(recovery_test.RecoveryRuns):
    def test_all_ranks_killed_at_once_start_again_and_end_with_the_same_weights(self):
        settings = ("train.max_steps=300", "train.checkpoint_steps=25")
        wanted = self.undisturbed(2, *settings)

        def kill_all(job):
            job.wait_for_steps(100)
            kill_at_once(job.ranks())

        result, got = self.run_of(2, *settings, during=kill_all, env=harness.SLEEPS)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("all ranks are lost: starting them again, from the newest", result.err)
        step = int(re.search(r"resuming step=(\d+)", result.err)[1])
        self.assertGreaterEqual(step, 75)
        self.assertEqual(got, wanted)


class Holders(harness.FaultTest):
    """Four ranks on hosts of their own. Rank r+1 keeps a copy of rank r's state."""

    def loses(self, *ranks):
        job = self.weft(
            "run", "-n", 4, "--max-replacements", 4, "sh", "-c",
            f"export WEFT_HOST_ID=host$RANK; exec {resize_test.COUNTING} {harness.ENDLESS} 4"
        )
        saved = self.folder / "runs/run/ckpt"
        job.wait_for(lambda: saved.exists() and list(saved.glob("step-*")), "a checkpoint")
        pids = job.ranks()
        kill_at_once([pids[rank] for rank in ranks])
        job.wait_for(lambda: "training goes on step=" in job.err(), "a recovery", 60)
        (self.folder / "enough").touch()
        result = self.ends(job, 0, within=90)
        self.assertIn("every sample was used once in each epoch, ", result.out)
        self.assertEqual(result.err.count("a new process replaces it"), len(ranks), result.err)
        return result.err

    def test_a_rank_and_the_holder_of_its_copy_are_lost_at_once(self):
        said = self.loses(1, 2)
        self.assertRegex(
            said, FALLS_BACK + r": the parts of ranks 1 of step \d+ are lost; training goes on from"
            " the newest checkpoint"
        )
        self.assertEqual(len(re.findall(r"training goes on step=", said)), 1, said)

    def test_two_ranks_that_do_not_hold_each_others_copies_are_lost_at_once_slow(self):
        self.assertNotIn(FALLS_BACK, self.loses(0, 2))


class Replacements(spares_test.Spares, resize_test.Resize):
    def test_a_spare_that_dies_while_it_takes_the_place_of_a_rank_is_replaced(self):
        job = self.start()
        self.wait_for_spare(job)
        (spare,) = self.named(job, "weft spare")
        os.kill(spare, signal.SIGSTOP)
        self.kill(job, "weft rank 1")
        job.wait_for(lambda: "a spare replaces it" in job.err(), "the spare as a rank")
        os.kill(spare, signal.SIGKILL)
        self.goes_on(job, 1)
        result = self.stop(job)
        self.assertIn("rank 1 is lost: SIGKILL (signal 9); a new process replaces it", result.err)
        self.assertNotIn("all ranks are lost", result.err)

    def test_a_replacement_that_dies_before_it_joins_is_replaced(self):
        dies = 'if [ -n "$WEFT_NEWCOMER" ] && mkdir first 2>/dev/null; then kill -KILL $$; fi'
        job = self.weft(
            "run", "-n", 2, "--max-replacements", 3, "sh", "-c",
            f"{dies}; exec {resize_test.COUNTING} {harness.ENDLESS} 2"
        )
        job.wait_for_steps(20)
        os.kill(job.ranks()[1], signal.SIGKILL)
        result = self.counts(job, [2])
        self.assertEqual(result.err.count("a new process replaces it"), 2, result.err)


class FullDisk(harness.FaultTest):
    def start(self, *flags):
        """A job whose disk is full since its last checkpoint."""
        runs = self.folder / "runs"
        runs.mkdir()
        if not harness.private_folders() or not harness.mount_tmpfs(runs, "size=24m,nr_inodes=1k"):
            self.skipTest("mounts are not allowed here")
        detach = 2
        self.addCleanup(ctypes.CDLL(None).umount2, str(runs).encode(), detach)
        job = self.weft(
            "train", self.folder, *flags, *FOREVER, "--set", "train.checkpoint_steps=20", "--set",
            "train.checkpoint_minutes=0", "--set", "train.log_every=20", env=harness.SLEEPS
        )
        saved = runs / "run/ckpt"
        job.wait_for(lambda: saved.exists() and list(saved.glob("step-*")), "a checkpoint")
        filler = os.open(runs / "filler", os.O_WRONLY | os.O_CREAT)
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    os.write(filler, bytes(size))
            except OSError:
                continue
        os.close(filler)
        (runs / "no-more-files").mkdir()
        try:
            for number in range(1024):
                os.mkfifo(runs / "no-more-files" / str(number))
        except OSError:
            pass
        job.wait_for(lambda: "not saved" in job.err(), "a checkpoint that is not saved")
        return job

    def trains(self, job, steps):
        first = step_of(self, job)
        job.wait_for(lambda: step_of(self, job) >= first + steps, f"{steps} steps")

    def ends_with_a_checkpoint(self, job):
        """There is room again, and the job is told to stop."""
        os.unlink(self.folder / "runs/filler")
        shutil.rmtree(self.folder / "runs/no-more-files")
        job.process.send_signal(signal.SIGTERM)
        result = self.ends(job, 143, within=20)
        step = int(re.search(r"go on with --resume .*step=(\d+)", result.err)[1])
        saved = sorted(os.listdir(self.folder / "runs/run/ckpt"))[-1]
        self.assertEqual(saved, f"step-{step:08}", result.err)
        again = self.weft(
            "train", self.folder, "-n", 2, "--resume", "--set", f"train.max_steps={step + 20}"
        )
        self.ends(again, 0, [f"resuming step={step}"], within=20)

    def test_a_rank_is_replaced(self):
        job = self.start("-n", 2, "--max-replacements", 1)
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait_for(lambda: "training goes on step=" in job.err(), "a recovery")
        self.trains(job, 50)
        self.assertNotIn(FALLS_BACK, job.err())
        self.ends_with_a_checkpoint(job)

    def test_all_ranks_are_lost(self):
        job = self.start("-n", "2:2")
        kill_at_once(job.ranks())
        job.wait_for(lambda: "resuming step=" in job.err(), "the newest checkpoint")
        self.trains(job, 50)
        self.ends_with_a_checkpoint(job)


class Interrupted(harness.FaultTest):
    def start(self, **env):
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        job = self.weft(
            "train", self.folder, "-n", 2, "--max-replacements", 1, *FOREVER, "--set",
            "train.checkpoint_steps=5", env=harness.SLEEPS | env
        )
        saved = self.folder / "runs/run/ckpt"
        job.wait_for(lambda: saved.exists() and list(saved.glob("step-*")), "a checkpoint")
        return job

    def test_Ctrl_C_at_some_instants_of_a_recovery(self):
        for delay in (0, 0.03, 0.1, 0.2, 0.4):
            with self.subTest(delay=delay):
                job = self.start()
                os.kill(job.ranks()[1], signal.SIGKILL)
                job.wait_for(lambda: "a new process replaces it" in job.err(), "a replacement")
                time.sleep(delay)
                os.kill(job.process.pid, signal.SIGINT)
                result = self.ends(job, 130, within=10)
                self.assertIn("SIGINT", result.err)
        again = self.weft(
            "train", self.folder, "-n", 2, "--resume", "--set", "train.max_steps=1"
        )
        self.ends(again, 0, ["nothing is left to train"], within=20)

    def waits_for_its_replacement(self, settled=0.05):
        job = self.start()
        # The launcher does not see that the new process has stopped before it is asked to end.
        rank = job.ranks()[1]
        os.kill(rank, signal.SIGKILL)

        def stop_the_replacement():
            new = [pid for pid in job.ranks()[1:] if pid != rank]
            time.sleep(settled)
            return new and not os.kill(new[0], signal.SIGSTOP)

        job.wait_for(stop_the_replacement, "a replacement")
        time.sleep(0.3)
        os.kill(job.process.pid, signal.SIGINT)
        return job

    def test_Ctrl_C_while_a_recovery_waits_for_its_replacement(self):
        result = self.ends(self.waits_for_its_replacement(), 130, within=10)
        self.assertIn("SIGINT", result.err)

    def test_Ctrl_C_while_the_replacement_is_stopped_before_it_has_joined(self):
        result = self.ends(self.waits_for_its_replacement(settled=0), 130, within=10)
        self.assertIn("SIGINT", result.err)

    def test_a_second_Ctrl_C_while_a_recovery_waits_ends_it_at_once(self):
        job = self.start(WEFT_FAIL="state.begin:newcomer=1:action=sleep")
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait_for(lambda: "failpoint state.begin" in job.err(), "a recovery that waits")

        def insist():  # signals that come at once are one request
            if not (killing := "killing the remaining ranks: a second signal" in job.err()):
                os.kill(job.process.pid, signal.SIGINT)
            return killing

        harness.wait_until(insist, 3, job.err)
        self.ends(job, 137, within=3)


class StoppedStore(resize_test.Resize):
    def stop_the_store(self, job):
        pid = next(
            pid for pid, _ in job.processes()
            if (stat := harness.stat_of(pid)) and stat[1] == job.process.pid
        )
        self.assertNotIn(pid, job.ranks())
        os.kill(pid, signal.SIGSTOP)
        harness.wait_until(lambda: harness.stat_of(pid)[0] == "T", 5, lambda: "the store runs")
        return pid

    def test_a_job_whose_store_never_answers_again_trains_to_its_end(self):
        job = self.count(2, epochs=20)
        job.wait_for_steps(20)
        self.stop_the_store(job)
        self.counts(job, [], ends_by_itself=True)

    def test_a_store_that_does_not_answer_for_30_s_costs_no_step_slow(self):
        job = self.count(2, "--max-replacements", 1, step_ms=10)
        job.wait_for_steps(20)
        store = self.stop_the_store(job)
        stopped = time.monotonic()
        before = job.steps()
        time.sleep(25)
        self.assertGreater(job.steps(), before + 500)
        os.kill(job.ranks()[1], signal.SIGKILL)  # the others cannot meet until the store answers
        job.wait_for(lambda: "a new process replaces it" in job.err(), "a replacement")
        time.sleep(max(0, stopped + 30 - time.monotonic()))
        self.assertEqual(self.sizes(job), [])
        os.kill(store, signal.SIGCONT)
        job.wait_for(lambda: self.sizes(job) == [2], "a recovery", 10)
        self.counts(job, [2])


if __name__ == "__main__":
    harness.main()
