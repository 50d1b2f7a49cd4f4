"""Ctrl-C, SIGTERM, and a launcher that is killed."""

import fcntl
import os
import shutil
import signal
import termios

import harness


class Stop(harness.FaultTest):
    def stopped_by(self, number, ranks=2):
        job = self.train(ranks, env=harness.SLEEPS)
        job.wait_for_steps(3)
        os.kill(job.process.pid, number)
        self.ends(
            job, 128 + number, ["stopped by a signal; go on with --resume --name run"], within=5
        )
        # What was trained is not lost.
        self.assertNotEqual(os.listdir(self.folder / "runs/run/ckpt"), [])

    def test_SIGINT(self):
        self.stopped_by(signal.SIGINT)

    def test_SIGTERM(self):
        self.stopped_by(signal.SIGTERM)

    def test_SIGINT_of_a_job_of_one(self):
        self.stopped_by(signal.SIGINT, ranks=1)

    def test_what_was_stopped_resumes(self):
        self.stopped_by(signal.SIGTERM)
        before = self.steps_on_disk()
        again = self.weft(
            "train", self.folder, "-n", 2, "--resume", "--set", "train.max_steps=%d" % (before + 3)
        )
        self.ends(again, 0, ["resuming"], within=20)
        self.assertEqual(self.steps_on_disk(), before + 3)

    def steps_on_disk(self):
        return sum(
            '"loss"' in line
            for line in (self.folder / "runs/run/metrics.jsonl").read_text().splitlines()
        )

    def test_Ctrl_C_on_a_terminal(self):
        keyboard, terminal = os.openpty()

        def sit_down():
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        job = self.train(2, stdin=terminal, preexec_fn=sit_down, env=harness.SLEEPS)
        os.close(terminal)
        job.wait_for_steps(3)
        os.write(keyboard, b"\x03")
        self.ends(job, 130, ["stopped by a signal"], within=5)
        os.close(keyboard)

    def test_a_signal_to_all_processes_of_the_job(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number):
                shutil.rmtree(self.folder / "runs", ignore_errors=True)
                job = self.train(2, env=harness.SLEEPS)
                job.wait_for_steps(3)
                for pid, _ in job.processes():
                    os.kill(pid, number)
                self.ends(job, 143, ["stopped by a signal; go on with"], within=5)
                self.assertNotEqual(os.listdir(self.folder / "runs/run/ckpt"), [])

    def test_the_reader_of_the_output_ends(self):
        reader, writer = os.pipe()
        job = self.train(2, stdout=writer, stderr=writer, env=harness.SLEEPS)
        os.close(writer)
        job.wait_for_steps(3)
        os.close(reader)
        os.kill(job.process.pid, signal.SIGTERM)
        self.ends(job, 143, within=5)
        self.assertNotEqual(os.listdir(self.folder / "runs/run/ckpt"), [])

    def test_SIGINT_before_the_ranks_have_met(self):
        job = self.train(2)
        job.wait_for(lambda: len(job.ranks()) == 2, "two ranks")
        os.kill(job.process.pid, signal.SIGINT)
        self.ends(job, 130, within=10)

    def test_more_SIGINT_kill_what_does_not_end(self):
        job = self.weft(
            "run", "-n", 2, "sh", "-c",
            "trap '' INT TERM; touch ready.$RANK; while :; do sleep 1; done"
        )
        job.wait_for(
            lambda: all((self.folder / f"ready.{rank}").exists() for rank in range(2)),
            "two deaf programs",
        )

        def insist():
            if not (killing := "killing the remaining ranks: a second signal" in job.err()):
                os.kill(job.process.pid, signal.SIGINT)
            return killing

        harness.wait_until(insist, 5, job.err)
        self.ends(job, 137, within=1, last="stopped by SIGINT")

    def test_a_killed_launcher_takes_all_with_it(self):
        job = self.train(2, env=harness.SLEEPS)
        job.wait_for_steps(3)
        job.listeners()
        os.kill(job.process.pid, signal.SIGKILL)
        self.ends(job, 137, within=1)

    def test_a_killed_launcher_of_programs_takes_all_with_it(self):
        job = self.weft("run", "-n", 2, "sh", "-c", "sleep 600 & wait")
        job.wait_for(
            lambda: len(job.processes()) == 6,
            "launcher, store process, two shells and what they started",
        )
        os.kill(job.process.pid, signal.SIGKILL)
        self.ends(job, 137, within=1)

    def test_a_program_that_kills_its_launcher_at_once_leaves_nothing(self):
        for _ in range(5):
            job = self.weft("run", "-n", 2, "sh", "-c", "sleep 600 & kill -KILL $PPID; wait")
            job.process.wait(30)  # until its program has started
            self.ends(job, 137, within=1)


if __name__ == "__main__":
    harness.main()
