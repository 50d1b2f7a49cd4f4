"""A rank that is stopped, loops or sleeps for ever: the launcher names it within two seconds, with
the operation that another rank waits in, and a slow rank is no hang."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import time

import harness
from recovery_test import TEXT

NAMED = re.compile(
    r"weft: rank (\d+) hangs: it is stopped by a signal \(process (\d+)\) for ([\d.]+) s"
    r"; rank (\d+) waits for it in (\w+)( \d+)?( of \S+)?"
)
# A fault that comes after the launcher has seen ten steps. Until then its limit is 10 s.
LATE = "forward.begin:rank=1:step=400:action="
PLANS = {
    "dp": (2, []),
    "zero3": (2, ["parallel.dp=1", "parallel.fsdp=2", "parallel.zero_stage=3"]),
    "tp": (2, [*TEXT, "parallel.dp=1", "parallel.tp=2"]),
    "pp": (2, [*TEXT, "parallel.dp=1", "parallel.pp=2", "parallel.cuts=[2]"]),
    "tcp": (3, ["comm.transport=tcp", "train.batch=66"]),
}


class HangRuns(harness.FaultTest):
    def live(self, plan, *settings, flags=(), **how):
        """A job that has made some steps."""
        ranks, own = PLANS[plan]
        if "model.name=gpt" in own:
            text = self.folder / "text"
            text.write_bytes(b"The weft crosses the warp. " * 4000)
            own = [*own, f"data.file={text}"]
            (self.folder / "recipe.toml").write_text(harness.TEXT_RECIPE)
        options = [word for one in (*own, *settings) for word in ("--set", one)]
        job = self.weft("train", self.folder, "-n", ranks, *flags, *options, **how)
        job.wait_for_steps(20)
        return job, ranks

    def stop_and_go(self, job, ranks):
        """Stops a rank at a random instant and continues it. The seconds until it is named."""
        culprit = random.randrange(ranks)
        pid = job.ranks()[culprit]
        time.sleep(random.random() * 0.3)
        before = len(job.err())
        start = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        job.wait_for(lambda: " hangs: " in job.err()[before:], f"the name of rank {culprit}")
        took = time.monotonic() - start
        found = NAMED.search(job.err(), before)
        self.assertIsNotNone(found, job.err()[before:])
        self.assertEqual((int(found[1]), int(found[2])), (culprit, pid), job.err()[before:])
        self.assertNotEqual(int(found[4]), culprit)
        os.kill(pid, signal.SIGCONT)
        job.wait_for(lambda: f"rank {culprit} goes on after" in job.err()[before:], "its return")
        steps = job.steps()
        job.wait_for_steps(steps + 5)
        self.assertEqual(job.err()[before:].count(" hangs"), 1, job.err()[before:])
        return took

    def status(self, *arguments):
        return subprocess.run(
            [harness.WEFT, "status", *map(str, arguments)], cwd=self.folder, text=True,
            capture_output=True, timeout=20, check=False
        )

    def names(self, job):
        return re.findall(r"weft: (rank \d+ (?:hangs|is slow|and others)[^\n]*)", job.err())

    def nobody_is_named(self, job, each, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            each()
            self.assertIsNone(job.process.poll(), job.err())
            self.assertEqual(self.names(job), [])
        before = job.steps()
        job.wait_for_steps(before + 1)

    def run_a_fifth_of_the_time(self, pid):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)


class Hang(HangRuns):
    def test_a_stopped_rank_is_named_with_the_operation_and_a_table(self):
        job, ranks = self.live("dp")
        self.stop_and_go(job, ranks)
        heading = r"rank +step +phase +process +operation +waits for +since\n.*\n"
        table = re.search(heading, job.err())
        self.assertIsNotNone(table, job.err())
        run = self.folder / "runs/run"
        job.wait_for(lambda: list(run.glob("hang-*.json")), "the report of another process")
        (text,), (report,) = run.glob("hang-*.txt"), run.glob("hang-*.json")
        self.assertIn(" hangs: it is stopped by a signal", text.read_text())
        (hang,) = json.loads(report.read_text())["hangs"]
        self.assertEqual(hang["how"], "held")
        positions = json.loads(report.read_text())["positions"]["ranks"]
        self.assertEqual([one["rank"] for one in positions], [0, 1])
        self.assertEqual(positions[hang["rank"]]["process"], "stopped by a signal")
        self.assertEqual(positions[hang["waiting"]]["operation"]["waits_for"], hang["rank"])

    def test_a_stopped_rank_over_tcp_slow(self):
        self.stop_and_go(*self.live("tcp"))

    def test_an_endless_loop_ends_the_job_if_that_is_asked_for_slow(self):
        job = self.weft(
            "train", self.folder, "-n", 2, "--on-hang", "end", "--set", "train.eval_every=0",
            env={"WEFT_FAIL": LATE + "spin"}
        )
        result = self.ends(job, 200, within=60, last="the job was ended (--on-hang end)")
        self.assertRegex(
            result.last_line,
            r"weft: rank 1 hangs in forward of step 400: it computes without an end \(process \d+\)"
            r" for [\d.]+ s; rank 0 waits for it in step 400 of dp/gradients"
        )

    def test_a_rank_that_sleeps_is_replaced_if_that_is_asked_for_slow(self):
        job = self.weft(
            "train", self.folder, "-n", 2, "--on-hang", "replace", "--max-replacements", 1, "--set",
            "train.max_steps=500", "--set", "train.eval_every=0",
            env={"WEFT_FAIL": LATE + "sleep"}
        )
        result = self.ends(job, 0, ["rank 1 hangs in forward of step 400: it sleeps in"], within=60)
        self.assertIn(": killing it", result.err)
        self.assertIn("a new process replaces it (1 of 1)", result.err)

    def test_replacing_needs_replacements(self):
        job = self.weft("train", self.folder, "-n", 2, "--on-hang", "replace")
        self.ends(job, 2, ["set --max-replacements, --min-ranks or -n MIN:MAX"])
        job = self.weft("train", self.folder, "--on-hang", "end")
        self.ends(job, 2, ["--on-hang needs at least two ranks"])

    def test_status_shows_a_live_run_also_while_a_rank_is_stopped(self):
        job, _ = self.live("dp")
        result = self.status("run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 3, result.stdout)
        os.kill(job.ranks()[1], signal.SIGSTOP)
        job.wait_for(lambda: "stopped by a signal" in self.status("run").stdout, "the state")
        by_launcher = json.loads(self.status(job.process.pid, "--json").stdout)["ranks"]
        by_rank = json.loads(self.status(job.ranks()[0], "--json").stdout)["ranks"]
        for ranks in (by_launcher, by_rank):
            self.assertEqual(ranks[1]["process"], "stopped by a signal")
            self.assertEqual(ranks[1]["pid"], job.ranks()[1])
            self.assertGreaterEqual(ranks[0]["step"], 20)
        job.process.send_signal(signal.SIGTERM)
        job.finish(20)
        for name in ("run", "nothing", job.process.pid):
            result = self.status(name)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_status_shows_that_a_rank_has_ended(self):
        job, _ = self.live("dp", flags=("--min-ranks", 1))
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait_for(lambda: "has ended" in self.status("run").stdout, "the end of rank 1")
        self.assertRegex(self.status("run").stdout, r"\n1 +\d+ +- +has ended")

    def test_status_shows_a_program_that_is_no_training_run(self):
        job = self.weft("run", "-n", 2, "sh", "-c", "echo up; sleep 60 & wait")
        job.wait_for(lambda: job.out().count("up") == 2, "two programs")
        result = self.status(job.process.pid)
        both = result.stdout + result.stderr
        self.assertEqual(result.stdout.count("has not started weft"), 2, both)

    def test_a_stopped_program_that_has_not_started_weft_is_named_slow(self):
        job = self.weft("run", "-n", 2, "sh", "-c", "echo up; sleep 60 & wait")
        job.wait_for(lambda: job.out().count("up") == 2, "two programs")
        os.kill(job.ranks()[1], signal.SIGSTOP)
        job.wait_for(lambda: "rank 1 hangs: it is stopped by a signal" in job.err(), "the name", 20)


class HangTiming(HangRuns):
    def test_a_stopped_rank_is_named_within_two_seconds(self):
        def attempt():
            job, ranks = self.live("dp")
            took = self.stop_and_go(job, ranks)
            job.clean()
            return took

        self.takes_less_than(2, attempt)

    def hangs(self, action):
        def attempt():
            job = self.train(
                2, "train.eval_every=0",
                env={"WEFT_FAIL": LATE + action}
            )
            job.wait_for(lambda: "failpoint forward.begin" in job.err(), "the fault")
            start = time.monotonic()
            job.wait_for(lambda: "rank 1 hangs in forward of step 400" in job.err(), "the name", 60)
            took = time.monotonic() - start
            job.clean()
            return took

        self.takes_less_than(2, attempt)

    def test_an_endless_loop_is_named_within_two_seconds_slow(self):
        self.hangs("spin")

    def test_a_rank_that_sleeps_is_named_within_two_seconds_slow(self):
        self.hangs("sleep")

    def test_a_rank_at_a_fifth_of_a_processor_is_neither_named_nor_replaced(self):
        job, _ = self.live("dp", flags=("--max-replacements", 1, "--on-hang", "replace"))
        pid = job.ranks()[1]
        self.nobody_is_named(job, lambda: self.run_a_fifth_of_the_time(pid), 10)
        self.assertNotIn("is lost", job.err())

    def many(self, plan, trials=20):
        job, ranks = self.live(plan)
        took = [self.stop_and_go(job, ranks) for _ in range(trials)]
        print(f"{plan}: median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
        self.assertLess(max(took), 2)

    def test_stops_at_random_instants_of_dp_slow(self):
        self.many("dp")

    def test_stops_at_random_instants_of_zero_3_slow(self):
        self.many("zero3")

    def test_stops_at_random_instants_of_tp_slow(self):
        self.many("tp")

    def test_stops_at_random_instants_of_pp_slow(self):
        self.many("pp")

    def test_stops_at_random_instants_over_tcp_slow(self):
        self.many("tcp")


class NoFalseAlarm(HangRuns):
    """WEFT_HANG_MINUTES sets how long each of them takes."""

    def minutes_pass(self, job, each):
        minutes = float(os.environ.get("WEFT_HANG_MINUTES", "1.5"))
        self.nobody_is_named(job, each, 60 * minutes)

    def test_a_rank_that_is_stopped_four_fifths_of_the_time_slow(self):
        job, _ = self.live("dp", "model.hidden=[256,128]")
        pid = job.ranks()[1]
        self.minutes_pass(job, lambda: self.run_a_fifth_of_the_time(pid))

    def test_a_rank_with_a_quota_of_a_fifth_of_a_processor_slow(self):
        with self.quota(0.2) as limit:
            job, _ = self.live("dp", "model.hidden=[2048,2048]", "train.batch=512")
            limit(job.ranks()[1])
            self.minutes_pass(job, lambda: time.sleep(0.5))

    @contextlib.contextmanager
    def quota(self, share):
        """A control group, v1, with a share of a processor."""
        group = pathlib.Path(f"/sys/fs/cgroup/cpu/weft-{os.getpid()}")
        try:
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(int(100000 * share)))
        except OSError as error:
            self.skipTest(f"cannot make a control group: {error}")
        try:
            yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
        finally:
            harness.wait_until(lambda: self.removed(group), 20, lambda: f"{group} is in use")

    def removed(self, group):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    def test_a_frozen_rank_is_named_slow(self):
        freezer = pathlib.Path(f"/sys/fs/cgroup/freezer/weft-{os.getpid()}")
        try:
            freezer.mkdir()
        except OSError as error:
            self.skipTest(f"cannot make a control group: {error}")
        try:
            job, _ = self.live("dp")
            (freezer / "cgroup.procs").write_text(str(job.ranks()[1]))
            (freezer / "freezer.state").write_text("FROZEN")
            job.wait_for(lambda: self.names(job), "the name")
            self.assertIn("rank 1 hangs: it is frozen by its cgroup", self.names(job)[0])
            (freezer / "freezer.state").write_text("THAWED")
            job.wait_for(lambda: "rank 1 goes on after" in job.err(), "its return")
        finally:
            (freezer / "freezer.state").write_text("THAWED")
            harness.wait_until(lambda: self.removed(freezer), 20, lambda: f"{freezer} is in use")


if __name__ == "__main__":
    harness.main()
