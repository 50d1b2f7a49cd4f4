"""weft chaos: kills are recovered from and the report proves it; recovery that is broken on purpose
fails; faults that do not happen prove nothing."""

import json
import re

import harness

JOB = (
    "-n", 2, "--set", "train.max_steps=150", "--set", "train.log_every=20", "--set",
    "train.eval_every=0", "--set", "model.hidden=[512,256]"
)
# With steps that compute little. They last long enough for a fault, since rank 0 sleeps in them.
QUICK = (*JOB, "--set", "train.batch=16")
SLEEPS = {"WEFT_SLOW_RANK": "0:6"}


class Chaos(harness.FaultTest):
    def chaos(self, *options, job=JOB, fail="", seconds=100):
        """The result, and the report; None without one."""
        env = SLEEPS if QUICK == job[: len(QUICK)] else {}
        env = env | ({"WEFT_FAIL": fail} if fail else {})
        run = self.weft(
            "chaos", "--seed", 7, "-o", self.folder / "chaos", *options, "--", "train",
            self.folder, *job, env=env
        )
        result = run.finish(seconds)
        for noise in harness.NOISE:
            self.assertNotIn(noise, result.err)
        self.nothing_left(run)
        report = self.folder / "chaos/report.json"
        return result, json.loads(report.read_text()) if report.exists() else None

    def passes(self, count, *options, **how):
        result, report = self.chaos("--count", count, *options, **how)
        self.assertEqual(result.code, 0, result.out + result.err)
        summary = report["summary"]
        self.assertEqual(
            (summary["faults"], summary["reached"], summary["recovered"]), (count, count, count)
        )
        for plan in report["plans"]:
            self.assertTrue(plan["same_digest"])
            self.assertRegex(plan["digest"], r"^[0-9a-f]{64}$")
            self.assertEqual(plan["problems"], [])
        return report

    def fails(self, says, *options, code=1, **how):
        result, report = self.chaos(*options, **how)
        self.assertEqual(result.code, code, result.out + result.err)
        self.assertRegex(result.out, says)
        return report

    def test_kills_are_recovered_from(self):
        report = self.passes(3, job=QUICK)
        for fault in report["plans"][0]["faults"]:
            self.assertGreater(fault["next_step_s"], 0)
            self.assertGreaterEqual(fault["caught_up_s"], fault["next_step_s"])
            self.assertIsNotNone(fault["named_s"])
        page = (self.folder / "chaos/report.html").read_text()
        self.assertIn(report["plans"][0]["digest"], page)
        # The victims were ranks of the job.
        log = (self.folder / "chaos/recipe/disturbed/output.log").read_text()
        self.assertEqual(len(re.findall("weft: rank . is lost: SIGKILL", log)), 3, log)

    def test_a_copy_that_is_damaged_on_purpose_fails(self):
        report = self.fails(
            "the last checkpoint differs", "--count", 1, fail="copy.middle:action=break", job=QUICK
        )
        self.assertEqual(report["summary"]["reached"], 1)

    def test_a_step_that_is_skipped_on_purpose_fails_slow(self):
        self.fails(
            "the last checkpoint differs", "--count", 1, fail="recovery.restored:action=break"
        )

    def test_a_job_that_does_not_recover_fails_slow(self):
        self.fails(
            "the job ended with exit code 137: .*failed first: SIGKILL", "--count", 1,
            job=(*JOB, "--max-replacements", 0, "--min-ranks", 2)
        )

    def test_a_fault_that_does_not_happen_is_exit_code_3(self):
        self.fails(
            "it did not reach its victim: the job did not reach the place recovery.regrouped",
            "--count", 0, "--fail", "recovery.regrouped:rank=1", code=3,
            job=(*QUICK, "--set", "train.max_steps=30")
        )

    def test_a_failpoint_in_a_recovery_is_survived_slow(self):
        result, report = self.chaos(
            "--count", 0, "--fail", "step.begin:rank=1:step=40;recovery.regrouped:rank=2",
            job=("-n", 4, *JOB[2:])
        )
        self.assertEqual(result.code, 0, result.out)
        self.assertEqual(report["summary"]["reached"], 2)

    def test_a_job_that_hangs_is_ended_with_the_positions_of_its_ranks_slow(self):
        # Without replacements, the launcher does not end a stopped rank.
        result, _ = self.chaos(
            "--count", 1, "--limit", 8, job=(*JOB, "--min-ranks", 1),
            fail="step.begin:rank=0:step=5:action=stop"
        )
        self.assertEqual(result.code, 3, result.out)
        self.assertIn("the job did not end within its limit of time", result.out)
        stopped = r"(?s)rank 0: last step 4 in group 0.*weft rank 0\)\n +thread \d+ .* T, in"
        self.assertRegex(result.out, stopped)

    def test_stops_pauses_terminations_and_failpoints_slow(self):
        self.passes(
            10, "--faults", "kill,stop,pause,term,failpoint",
            job=(*JOB, "--set", "train.max_steps=500")
        )

    def test_a_slow_rank_is_not_taken_for_a_lost_one_slow(self):
        self.passes(2, "--faults", "slow", job=(*JOB, "--set", "train.max_steps=3000"))

    def test_random_times_slow(self):
        result, report = self.chaos("--mean", 2, "--minutes", 0.3)
        self.assertEqual(result.code, 0, result.out)
        self.assertGreater(report["summary"]["faults"], 3)
        self.assertTrue(0 < report["plans"][0]["goodput"] < 1.2)

    def test_a_full_disk_slow(self):
        if not harness.private_folders():
            self.skipTest("mounts are not allowed here")
        self.passes(4, "--faults", "disk-full,kill", job=(*JOB, "--set", "train.max_steps=900"))

    def test_partitions_slow(self):
        if not harness.private_folders():
            self.skipTest("network namespaces need root")
        report = self.passes(
            2, "--faults", "partition", "--hosts", 2, job=(*JOB, "--set", "train.max_steps=400")
        )
        self.assertTrue(all(fault["next_step_s"] > 0.1 for fault in report["plans"][0]["faults"]))

    def test_forms_of_parallelism_slow(self):
        # Without a job: the shapes of recipes/, with the settings of each plan.
        run = self.weft(
            "chaos", "--plans", "zero3,tp,tp-pp,ep", "--kills", 8, "-o", self.folder / "chaos"
        )
        result = run.finish(110)
        self.assertEqual(result.code, 0, result.out)
        self.assertEqual(result.out.count("equal   passed"), 4, result.out)
        self.nothing_left(run)

    def test_each_option_of_the_job_is_passed_on_or_refused(self):
        passed_on = {
            "--ranks", "--set", "--max-replacements", "--min-ranks", "--spares", "--on-hang",
            "--grace", "--help"
        }
        values = {
            "--resume": "auto", "--dry-run": "true", "--requeue": "true", "--json": "true",
            "--check": "true", "--scale-efficiency": "0.5", "--server-backup": "true"
        }
        companions = {
            "--discovery-interval": ["--discovery-script"],
            "--notice-interval": ["--notice-command"],
            "--server-backup": ["--servers"],
            "--server-memory": ["--servers"]
        }
        shown = self.weft("train", "--help").finish(20).out
        options = set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]+)", shown, re.MULTILINE))
        refused = options - passed_on
        self.assertGreater(len(refused), 15)
        self.assertLess(passed_on, options)
        for name in sorted(refused):
            names = [name, *companions.get(name, [])]
            result = self.weft(
                "chaos", "-o", self.folder / "chaos", "--", "train", self.folder, "-n", 2,
                *[f"{one}={values.get(one, 5)}" for one in names]
            ).finish(20)
            self.assertEqual(result.code, 2, (name, result.err))
            said = f"weft chaos does not pass on ({'|'.join(names)}); its job takes"
            self.assertRegex(result.last_line, said)

    def test_options_of_the_launcher_reach_the_job(self):
        run = self.weft(
            "chaos", "--count", 1, "-o", self.folder / "chaos", "--", "train", self.folder, *QUICK,
            "--on-hang", "replace", "--grace", 7, "--spares", 1, env=SLEEPS
        )
        words = "--max-replacements 1 --spares 1 --on-hang replace --grace 7"
        run.wait_for(
            lambda: any(words in harness.describe(pid)[1] for pid, _ in run.processes()),
            "the job with faults", 60
        )
        result = run.finish(60)
        self.assertEqual(result.code, 0, result.out + result.err)

    def test_wrong_options_are_one_line(self):
        for options, says in (
            (("--faults", "burn"), 'there is no "burn"'),
            (("--faults", "partition", "--", "train", "."), "needs --hosts 2"),
            (("--", "run", "true"), "must be train"),
            (("--", "train"), "weft train: recipe is required"),
        ):
            result = self.weft("chaos", "-o", self.folder / "chaos", *options).finish(20)
            self.assertEqual(result.code, 2, result.err)
            self.assertIn(says, result.last_line)


if __name__ == "__main__":
    harness.main()
