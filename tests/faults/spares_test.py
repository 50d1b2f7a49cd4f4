"""Warm spares: a lost rank's place is taken by a process that waits. A spare costs the job nothing,
however it ends."""

import os
import pathlib
import re
import signal

import harness

COUNTING = os.path.abspath(os.environ["WEFT_COUNTING_PROGRAM"])
READY = "weft: a spare is ready"
FOREVER = ("--set", "train.epochs=1000000", "--set", "train.eval_every=0")


class Spares(harness.FaultTest):
    def start(self, *flags):
        return self.weft(
            "train", self.folder, "-n", 2, "--max-replacements", 9, "--spares", 1, *FOREVER, *flags,
            env=harness.SLEEPS
        )

    def named(self, job, name):
        """The job's processes of this name."""
        found = []
        for pid, _ in job.processes():
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
            except OSError:
                continue
        return found

    def wait_for_spare(self, job, count=1):
        job.wait_for(lambda: job.err().count(READY) >= count, f"spare {count}")

    def kill(self, job, name):
        found = self.named(job, name)
        self.assertEqual(len(found), 1, (name, job.err()))
        os.kill(found[0], signal.SIGKILL)

    def goes_on(self, job, times):
        job.wait_for(lambda: job.err().count("training goes on") >= times, f"recovery {times}")
        job.wait_for_steps(job.steps() + 20)

    def stop(self, job):
        job.process.send_signal(signal.SIGTERM)
        return self.ends(job, 143, within=20)

    def test_one_spare_after_another_takes_the_place_of_lost_ranks(self):
        job = self.start()
        self.wait_for_spare(job)
        spare = self.named(job, "weft spare")
        self.kill(job, "weft rank 1")
        self.goes_on(job, 1)
        self.assertEqual(self.named(job, "weft rank 1"), spare)
        self.wait_for_spare(job, 2)
        self.kill(job, "weft rank 0")
        self.goes_on(job, 2)
        result = self.stop(job)
        self.assertEqual(result.err.count("a spare replaces it"), 2, result.err)
        self.assertNotIn("a new process replaces it", result.err)
        self.assertNotIn("[spare]", result.err)
        self.assertTrue(list((self.folder / "runs/run/ckpt").glob("step-*")), result.err)

    def test_a_spare_that_dies_costs_nothing_and_spares_end_with_a_killed_launcher(self):
        job = self.start()
        self.wait_for_spare(job)
        self.kill(job, "weft spare")
        job.wait_for(lambda: "a spare has ended: SIGKILL" in job.err(), "the spare's end")
        self.wait_for_spare(job, 2)
        self.assertNotIn("is lost", job.err())
        self.kill(job, "weft spare")
        self.kill(job, "weft rank 1")
        self.goes_on(job, 1)
        self.assertIn("weft: rank 1 is lost: SIGKILL", job.err())
        self.wait_for_spare(job, 3)
        job.process.kill()
        job.process.wait(10)
        self.nothing_left(job, within=5)

    def test_a_spare_of_a_program_waits_in_init_and_every_sample_is_used_once_slow(self):
        job = self.weft(
            "run", "-n", 2, "--max-replacements", 9, "--spares", 1, COUNTING, harness.ENDLESS, 4
        )
        self.wait_for_spare(job)
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait_for(lambda: "training goes on" in job.err(), "a recovery")
        (self.folder / "enough").touch()
        result = self.ends(job, 0, within=60)
        self.assertIn("rank 1 is lost: SIGKILL (signal 9); a spare replaces it", result.err)
        self.assertIn("every sample was used once in each epoch, ", result.out)

    def test_spares_need_replacements(self):
        job = self.weft("train", self.folder, "-n", 2, "--min-ranks", 1, "--spares", 1)
        self.ends(job, 2, ["--spares 1: set --max-replacements or -n MIN:MAX, too"])
        job = self.weft("run", "-n", 2, "--max-replacements", 1, "--spares", -1, "true")
        self.ends(job, 2, ["--spares -1: from 0 to 256"])


class SparesTiming(Spares):
    def test_a_spare_takes_less_than_half_a_second_slow(self):
        def attempt():
            job = self.start()
            self.wait_for_spare(job)
            self.kill(job, "weft rank 1")
            self.goes_on(job, 1)
            result = self.stop(job)
            return float(re.search(r"recovery_s=([\d.]+)", result.err).group(1))

        self.takes_less_than(0.5, attempt)


if __name__ == "__main__":
    harness.main()
