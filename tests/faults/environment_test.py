"""A job that is started in an unusual environment: ignored signals, closed descriptors, limits, no
folder for temporary files. It works, or it ends with one line that says what to change."""

import os
import re
import resource
import signal
import threading
import time

import harness

FOREVER = ("train.eval_every=0", "train.checkpoint_every=0")
SAVED = r"weft: the checkpoint \S+/ckpt/step-\d+ was complete [\d.]+ s after "


def ignoring(number):
    return lambda: signal.signal(number, signal.SIG_IGN)


class Signals(harness.FaultTest):
    def goes_on(self, job):
        job.wait_for_steps(job.steps() + 20)
        self.assertIsNone(job.process.poll(), job.err())

    def saves(self, job, why):
        result = self.ends(job, 143, within=10)
        self.assertRegex(result.err, SAVED + re.escape(why))

    def test_SIGHUP_that_is_ignored_stays_ignored(self):
        job = self.train(2, *FOREVER, preexec_fn=ignoring(signal.SIGHUP), env=harness.SLEEPS)
        job.wait_for_steps(3)
        for pid in (job.process.pid, *job.ranks()):
            os.kill(pid, signal.SIGHUP)
        self.goes_on(job)
        job.process.send_signal(signal.SIGUSR1)
        self.saves(job, "SIGUSR1")

    def test_SIGTERM_that_is_ignored_stays_ignored(self):
        job = self.train(2, *FOREVER, preexec_fn=ignoring(signal.SIGTERM), env=harness.SLEEPS)
        job.wait_for_steps(3)
        for pid in (job.process.pid, *job.ranks()):
            os.kill(pid, signal.SIGTERM)
        self.goes_on(job)
        stop = self.beside(job, "stop", "run")
        self.assertEqual(stop.returncode, 0, stop.stderr)
        self.saves(job, "weft stop")

    def test_SIGHUP_of_a_closed_terminal_saves_a_checkpoint(self):
        job = self.train(2, *FOREVER, env=harness.SLEEPS)
        job.wait_for_steps(3)
        job.process.send_signal(signal.SIGHUP)
        self.saves(job, "SIGHUP")

    def test_a_parent_that_ignores_SIGCHLD(self):
        job = self.train(2, "train.max_steps=3", preexec_fn=ignoring(signal.SIGCHLD))
        self.ends(job, 0, within=20)


class Files(harness.FaultTest):
    def test_closed_descriptors(self):
        def close():
            for fd in range(3):
                os.close(fd)

        job = self.train(2, "train.max_steps=30", preexec_fn=close)
        self.ends(job, 0, within=20)
        self.assertEqual(job.steps(), 31)

    def test_limited_file_size_is_a_full_disk(self):
        # The shared memory of a host has a size, too.
        job = self.train(
            2, "train.max_steps=40", "train.checkpoint_steps=10", "train.checkpoint_minutes=0",
            "comm.transport=tcp",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        )
        self.ends(
            job, 203, ["not saved", "training goes on, and older checkpoints are untouched"],
            within=20, last="File too large"
        )
        self.assertIn("step=30", job.err().replace("step 30", "step=30"))

    def test_a_full_disk_does_not_train_the_same_steps_again(self):
        job = self.weft(
            "train", self.folder, "-n", 2, "--max-replacements", 5, "--set", "train.max_steps=20",
            "--set", "model.hidden=[1000]", "--set", "comm.transport=tcp",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        )
        result = self.ends(job, 203, within=30, last="File too large")
        self.assertIn("the checkpoint of step 20 is not saved", result.last_line)
        self.assertNotIn("replaces it", result.err)
        self.assertNotIn("starting them again", result.err)

    def test_no_folder_for_temporary_files(self):
        for command in (("run", "-n", 2, "true"), ("train", self.folder, "-n", 2)):
            job = self.weft(*command, env={"TMPDIR": "/nowhere"})
            result = job.finish(10)
            self.assertEqual(result.code, 2, result.err)
            self.assertEqual(
                result.err, "weft: BadConfig: no temporary files can be made in /nowhere: No such "
                "file or directory; set TMPDIR to a folder that this user can write to\n"
            )

    def test_names_that_are_no_folder_names(self):
        for name in ("../../evil", "x" * 300, ".", "a/b"):
            job = self.train(2, "train.max_steps=3", f"run.name={name}")
            result = self.ends(job, 2)
            self.assertRegex(result.err, r"\Aweft: InvalidArgument: the run's name [^\n]+\n\Z")


class Scarcity(harness.FaultTest):
    def stops(self, job):
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=10)

    def processes_of_nobody(self, count):
        """A process of that user with so many threads, which count as processes."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            harness.become_user()
            for _ in range(count):
                threading.Thread(target=time.sleep, args=(60, ), daemon=True).start()
            os.write(writer, b"1")
            time.sleep(60)
            os._exit(0)
        os.read(reader, 1)
        self.addCleanup(self.end, pid)
        return pid

    def end(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass

    def kill_when_full(self, ranks):
        """Kills the ranks when their user has no process left. They stand still until then: a rank
        that wanted a thread would end by itself. Returns the process to end."""
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        many = self.processes_of_nobody(100)
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        return many

    def job_of_nobody(self, *flags, env=harness.SLEEPS):
        """A job of a user who can have 100 processes."""
        harness.require_other_user()
        for path in (self.folder, self.folder / "tmp"):
            path.mkdir(exist_ok=True)
            os.chmod(path, 0o777)

        def become_nobody():
            resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
            harness.become_user()

        job = self.weft(
            "train", self.folder, "-n", 2, "--max-replacements", 1, "--set",
            "train.checkpoint_every=0", *flags, preexec_fn=become_nobody, env=env
        )
        job.wait_for_steps(20)
        return job

    def with_checkpoint(self, job):
        job.wait_for(lambda: list(self.folder.glob("runs/run/ckpt/step-*")), "a checkpoint")
        return job

    def test_no_process_can_be_created_for_a_while(self):
        job = self.job_of_nobody()
        many = self.kill_when_full(job.ranks()[1:])
        job.wait_for(lambda: "rank 1 cannot be started now" in job.err(), "the failed start")
        self.assertIn("cannot create a process", job.err())
        self.assertIn("ulimit -u", job.err())
        self.end(many)
        job.wait_for(lambda: "a new process replaces it (1 of 1)" in job.err(), "the next start")
        job.wait_for_steps(job.steps() + 20)
        self.stops(job)

    def test_no_process_can_be_created_when_all_ranks_start_again(self):
        job = self.with_checkpoint(self.job_of_nobody("--set", "train.checkpoint_steps=10"))
        many = self.kill_when_full(job.ranks())
        job.wait_for(lambda: "the ranks cannot be started now" in job.err(), "the failed start")
        self.end(many)
        steps = job.steps()
        job.wait_for(lambda: "resuming" in job.err(), "the next start")
        job.wait_for(lambda: job.steps() != steps, "a step")
        self.assertIn("all ranks are lost: starting them again, from the newest", job.err())
        self.stops(job)

    def test_no_thread_can_be_started_for_a_while(self):
        """An evaluation starts a thread that loads its batches."""
        job = self.job_of_nobody(env={})

        def evaluations(more):
            want = job.err().count("epoch done") + more
            job.wait_for(lambda: job.err().count("epoch done") >= want, "evaluations")

        many = self.processes_of_nobody(100)
        evaluations(2)
        self.end(many)
        evaluations(2)
        said = "batches are made between the steps: Unavailable: cannot start a thread"
        self.assertEqual(job.err().count(said), 2, job.err())  # once a rank
        self.assertNotIn("is lost", job.err())
        self.stops(job)

    def test_a_job_that_cannot_start_again_ends_when_it_is_told_to(self):
        job = self.with_checkpoint(self.job_of_nobody("--set", "train.checkpoint_steps=10"))
        many = self.kill_when_full(job.ranks())
        job.wait_for(lambda: "the ranks cannot be started now" in job.err(), "the failed start")
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=5)
        self.end(many)

    def kill_store(self, *flags):
        job = self.weft(
            "train", self.folder, "-n", 2, "--set", "train.checkpoint_every=0", *flags,
            env=harness.SLEEPS
        )
        job.wait_for_steps(3)
        store = next(
            pid for pid, _ in job.processes()
            if harness.stat_of(pid)[1] == job.process.pid and pid not in job.ranks()
        )
        os.kill(store, signal.SIGKILL)
        return job

    def test_a_killed_store_process_is_one_loss(self):
        job = self.kill_store("--max-replacements", 2)
        job.wait_for(
            lambda: "the process that holds the store has ended: SIGKILL (signal 9): starting all "
            "ranks again, from the newest checkpoint (1 of 2)" in job.err(), "the restart"
        )
        job.wait_for_steps(job.steps() + 20)
        self.assertIn("resuming", job.err())
        self.stops(job)

    def test_a_killed_store_process_ends_other_jobs_with_its_signal(self):
        job = self.kill_store()
        self.ends(
            job, 137, within=10,
            last="the process that holds the store ended first: SIGKILL (signal 9)"
        )

    def test_too_few_open_files_for_a_recovery_are_refused_at_the_start(self):
        job = self.weft(
            "train", self.folder, "-n", 4, "--max-replacements", 1, "--set", "comm.transport=tcp",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (88, 88))
        )
        result = self.ends(job, 2, within=20, last="open files to go on without a lost one")
        self.assertIn("ulimit -n", result.last_line)


class Addresses(harness.FaultTest):
    def test_MASTER_ADDR_with_more_than_a_host(self):
        for address in ("tcp://127.0.0.1", "127.0.0.1:29500", "[::1]:29500", "a b"):
            job = self.weft(
                "train", self.folder, env={
                    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": address, "MASTER_PORT": "29871"
                }
            )
            result = self.ends(job, 2, ["BadConfig", f'MASTER_ADDR "{address}"'])
            self.assertEqual(result.err.count("\n"), 1, result.err)


if __name__ == "__main__":
    harness.main()
