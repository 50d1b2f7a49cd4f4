"""A rank that is killed in the first second: before all ranks have met, also after all were lost,
and while the run begins. The job starts again, names the signal, and ends with the bytes of a run
without a fault."""

import re

import harness
import recovery_test


class MeetingLoss(recovery_test.RecoveryRuns):
    def goes_on(self, ranks, *fails, says=(), **how):
        settings = ("train.checkpoint_steps=10",)
        wanted = self.undisturbed(ranks, *settings)
        result, got = self.run_of(ranks, *settings, fail=";".join(fails), **how)
        self.assertEqual(result.code, 0, result.err)
        for text in ("failpoint", *says):
            self.assertIn(text, result.err)
        self.assertEqual(got, wanted, result.err)
        return result

    def test_a_rank_is_killed_before_it_meets_the_others(self):
        self.goes_on(
            2, "meet.begin:rank=1:attempt=0", says=[
                "weft: rank 1 failed first: SIGKILL",
                "a rank is lost before all ranks have met: starting them again (1 of 3)"
            ]
        )

    def test_rank_0_of_four_is_killed_before_all_have_met(self):
        self.goes_on(
            4, "meet.begin:rank=0:attempt=0", says=["weft: rank 0 failed first: SIGKILL"]
        )

    def test_a_rank_is_killed_when_it_has_met_the_others(self):
        self.goes_on(2, "meet.made:rank=1:attempt=0", says=["SIGKILL"])

    def test_a_rank_is_killed_before_all_have_met_again(self):
        result = self.goes_on(
            2, "step.begin:step=31:attempt=0", "meet.begin:rank=1:attempt=1", says=[
                "all ranks are lost: starting them again, from the newest checkpoint",
                "met: starting them again, from the newest checkpoint"
            ]
        )
        # A rank that dies a little earlier is replaced first, which counts as well.
        counts = re.findall(r"newest checkpoint \((\d) of 3\)", result.err)
        self.assertIn(counts, (["1", "2"], ["2", "3"]), result.err)

    def test_a_rank_is_killed_while_the_run_begins(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                once = self.folder / f"once-{rank}"
                self.goes_on(2, f"subgroup.begin:rank={rank}:once={once}")

    def test_a_rank_that_is_killed_at_each_start_ends_the_job(self):
        result, _ = self.run_of(2, fail="meet.begin:rank=1")
        self.assertEqual(result.code, 137, result.err)
        self.assertEqual(result.err.count("starting them again"), 3, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_without_replacements_the_job_ends(self):
        result, _ = self.run_of(2, fail="meet.begin:rank=1", replacements=0)
        self.assertEqual(result.code, 137, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_fewer_ranks_are_allowed_and_all_start_again(self):
        result, _ = self.run_of(
            3, fail="meet.begin:rank=1:attempt=0", replacements=0, least=2
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("starting them again\n", result.err)


if __name__ == "__main__":
    harness.main()
