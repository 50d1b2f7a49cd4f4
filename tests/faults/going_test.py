"""A job that is asked to go saves a checkpoint and ends within its grace period, or says that none
fit: signals, weft stop, notices of the machine's end, Slurm's requeue."""

import os
import re
import signal

import harness

FOREVER = (
    "--set", "train.epochs=1000000", "--set", "train.eval_every=0", "--set",
    "train.checkpoint_every=0"
)
SAVED = r"weft: the checkpoint \S+/ckpt/step-\d+ was complete [\d.]+ s after "


class Going(harness.FaultTest):
    def start(self, *flags, ranks=2, env={}):
        job = self.weft(
            "train", self.folder, "-n", ranks, *FOREVER, *flags, env=harness.SLEEPS | env
        )
        job.wait_for_steps(2)
        return job

    def goes(self, job, why):
        result = self.ends(job, 143, within=20)
        self.assertRegex(result.err, SAVED + re.escape(why))
        saved = list((self.folder / "runs/run/ckpt").glob("step-*"))
        self.assertEqual(len(saved), 1, result.err)
        return result

    def scontrol(self, code=0):
        """A fake scontrol on PATH, and the environment of a job of Slurm."""
        program = self.folder / "bin/scontrol"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >> {self.folder}/calls\nexit {code}\n')
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}

    def calls(self):
        file = self.folder / "calls"
        return file.read_text() if file.exists() else ""

    def test_weft_stop_waits_for_the_checkpoint(self):
        job = self.start()
        stop = self.beside(job, "stop", "run")
        self.assertEqual(stop.returncode, 0, stop.stderr)
        self.assertRegex(stop.stdout, r"run has ended: the checkpoint \S+ was complete [\d.]+ s")
        result = self.goes(job, "weft stop")
        self.assertIn("weft: stopped by weft stop; rank", result.last_line)
        stop = self.beside(job, "stop", job.process.pid)
        self.assertEqual(stop.returncode, 2, stop.stderr)
        self.assertIn("does not run", stop.stderr)

    def test_a_checkpoint_that_does_not_fit_is_said(self):
        job = self.weft(
            "train", self.folder, "-n", 2, *FOREVER,
            env={"WEFT_FAIL": "step.begin:rank=1:step=20:action=sleep"}
        )
        job.wait_for(lambda: "failpoint step.begin" in job.err(), "the rank that sleeps")
        line = "no checkpoint fit into the grace period of 1 s; there is no earlier one"
        stop = self.beside(job, "stop", "run", "--grace", 1)
        self.assertEqual((stop.returncode, stop.stderr), (1, f"weft: run has ended: {line}\n"))
        self.ends(job, 137, ["weft: " + line], within=5)

    def test_a_program_that_ignores_the_request_is_killed_and_named_slow(self):
        script = "trap '' TERM; touch ready$RANK; while :; do sleep 1; done"
        job = self.weft("run", "-n", 2, "--grace", 1, "sh", "-c", script)
        job.wait_for(lambda: len(list(self.folder.glob("ready*"))) == 2, "both ranks")
        job.process.send_signal(signal.SIGTERM)
        self.ends(
            job, 137, ["weft: the job did not end within the grace period of 1 s"], within=5
        )

    def test_SIGUSR1_of_slurm_saves_and_requeues(self):
        job = self.start("--requeue", env=self.scontrol())
        job.process.send_signal(signal.SIGUSR1)
        result = self.goes(job, "SIGUSR1")
        self.assertEqual(self.calls(), "requeue 4711\n")
        self.assertEqual(result.last_line, "weft: scontrol requeue 4711: the job is requeued")

    def test_SIGUSR1_to_a_rank_stops_all(self):
        job = self.start("--max-replacements", 3)
        os.kill(job.ranks()[1], signal.SIGUSR1)
        result = self.goes(job, "a signal to rank 1")
        self.assertNotIn("replaces it", result.err)

    def test_SIGTERM_does_not_requeue_since_scancel_sends_it_slow(self):
        job = self.start("--requeue", env=self.scontrol())
        job.process.send_signal(signal.SIGTERM)
        self.goes(job, "SIGTERM")
        self.assertEqual(self.calls(), "")

    def test_a_requeue_that_fails_is_said_slow(self):
        job = self.start("--requeue", env=self.scontrol(code=1))
        job.process.send_signal(signal.SIGUSR1)
        result = self.goes(job, "SIGUSR1")
        self.assertEqual(
            result.last_line, "weft: scontrol requeue 4711: exit code 1; the job is not requeued"
        )

    def test_a_notice_ends_the_job_and_an_error_of_its_command_does_not(self):
        command = f"test -e {self.folder}/broken && exit 127; test -e {self.folder}/notice"
        (self.folder / "broken").touch()
        job = self.start("--notice-command", command, "--notice-interval", 0.1, ranks=1)
        job.wait_for(lambda: "weft: --notice-command: exit code 127" in job.err(), "the warning")
        job.wait_for_steps(job.steps() + 50)
        (self.folder / "broken").unlink()
        job.wait_for_steps(job.steps() + 50)
        self.assertIsNone(job.process.poll())
        (self.folder / "notice").touch()
        result = self.goes(job, "a notice that this machine goes")
        self.assertEqual(result.err.count("--notice-command:"), 1, result.err)

    def test_SIGTERM_after_a_notice_does_not_disturb_the_checkpoint_slow(self):
        job = self.start()
        job.process.send_signal(signal.SIGUSR1)
        job.process.send_signal(signal.SIGTERM)
        self.goes(job, "SIG")

    def test_wrong_flags_are_refused(self):
        job = self.weft("train", self.folder, "-n", 2, "--requeue")
        self.ends(job, 2, ["--requeue: SLURM_JOB_ID is not set, so this is no job of Slurm"])
        job = self.weft("run", "-n", 2, "--grace", 0, "true")
        self.ends(job, 2, ["--grace"])


if __name__ == "__main__":
    harness.main()
