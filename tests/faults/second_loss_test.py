"""A further loss while a job recovers: of a survivor, of the newcomer, or of all ranks, in each
phase of the recovery. Training goes on at once, and the checkpoint at the end has the bytes of a
run without a fault. The slow tests draw some pairs of phases for each plan and transport.
WEFT_SECOND_LOSS=40 draws 40 of them, 40:7 draws 40 others, and all runs each of the 1,600."""

import itertools
import os
import random
import re

import harness
import recovery_test

STEPS = recovery_test.STEPS
TEXT = recovery_test.TEXT
PLANS = {
    "dp": (2, ()),
    "fsdp": (4, ("parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=3")),
    "tp": (4, (*TEXT, "parallel.tp=2", "parallel.dp=2")),
    "pp": (4, (*TEXT, "parallel.pp=2", "parallel.dp=2", "parallel.micro_batches=2",
               "parallel.cuts=[2]")),
}
# The phases of a recovery, in their order (weft/base/fault/failpoint.cc).
OF_SURVIVORS = ("recovery.begin", "recovery.left")
OF_ALL = (
    "regroup.begin", "regroup.arrived", "regroup.decided", "regroup.connected", "regroup.ready",
    "recovery.regrouped", "state.begin", "state.listed", "subgroup.begin", "subgroup.made",
    "state.loaded", "recovery.restored"
)
WHO = ("survivor", "newcomer", "all")
FIRST = 1  # the rank whose loss begins the recovery
LONGEST = 10  # seconds of a recovery on a busy machine; a wait for a lost rank takes 30
PAIRS = 3  # of each plan and transport, unless all are asked for


def faults():
    """(who, place)."""
    return [(who, place) for place in OF_SURVIVORS for who in ("survivor", "all")] + [
        (who, place) for place in OF_ALL for who in WHO
    ]


class SecondLoss(recovery_test.RecoveryRuns):
    def failpoints(self, number, ranks, who, place):
        """Each process named fails once there."""
        once = self.folder / f"fault-{number}-rank"
        old = [f"{place}:rank={rank}:step=1:once={once}{rank}" for rank in range(ranks)]
        new = [f"{place}:rank={rank}:newcomer=1:once={once}{rank}" for rank in range(ranks)]
        if who == "survivor":
            return old[:1]
        return [new[FIRST]] if who == "newcomer" else old + new

    def goes_on(self, plan, *second, transport="", least=0):
        """`second`: the further faults, each (who, place). `least`: as --min-ranks."""
        ranks, settings = PLANS[plan]
        if "model.name=gpt" in settings:
            settings = self.of_text(*settings)
        settings = (*settings, "train.checkpoint_steps=5", "train.copy_steps=1")
        wanted = self.undisturbed(ranks, *settings, transport=transport)
        for old in self.folder.glob("fault-*"):
            old.unlink()
        fails = [f"step.begin:rank={FIRST}:step=31:once={self.folder}/fault-0"]
        for number, (who, place) in enumerate(second, 1):
            fails += self.failpoints(number, ranks, who, place)
        result, got = self.run_of(
            ranks, *settings, fail=";".join(fails), transport=transport, replacements=20,
            least=least
        )
        self.assertEqual(result.code, 0, result.err)
        # A pair whose second fault comes first may end all that would have had the other one.
        self.assertTrue(any(f"failpoint {place}" in result.err for _, place in second), result.err)
        self.assertEqual(got, wanted, result.err)
        steps = (self.folder / "runs/run/metrics.jsonl").read_text().count('"loss":')
        self.assertEqual(steps, STEPS)
        for seconds in re.findall(r"recovery_s=([\d.]+)", result.err):
            self.assertLess(float(seconds), LONGEST, result.err)

    def every(self, plan, transport):
        pairs = list(itertools.product(faults(), faults()))
        wanted = os.environ.get("WEFT_SECOND_LOSS", str(PAIRS))
        if wanted != "all":
            number, _, seed = wanted.partition(":")
            pairs = random.Random(f"{plan} {transport} {seed}").sample(pairs, int(number))
        for pair in pairs:
            with self.subTest(plan=plan, transport=transport, pair=pair):
                self.goes_on(plan, *pair, transport=transport)

    def test_the_newcomer_is_killed_while_groups_are_divided(self):
        self.goes_on("dp", ("newcomer", "subgroup.begin"))

    def test_the_last_survivor_is_killed_while_groups_are_divided(self):
        self.goes_on("dp", ("survivor", "subgroup.begin"))

    def test_a_survivor_of_four_is_killed_while_groups_are_divided(self):
        self.goes_on("tp", ("survivor", "subgroup.begin"))

    def test_a_survivor_of_four_is_killed_while_groups_are_divided_over_tcp(self):
        self.goes_on("fsdp", ("survivor", "subgroup.made"), transport="tcp")

    def test_the_newcomer_is_killed_when_it_has_arrived(self):
        self.goes_on("dp", ("newcomer", "regroup.arrived"))

    def test_the_newcomer_is_killed_when_it_has_loaded_the_state(self):
        self.goes_on("fsdp", ("newcomer", "state.loaded"))

    def test_all_are_killed_when_their_group_is_decided(self):
        self.goes_on("dp", ("all", "regroup.decided"))

    def test_the_newcomer_is_killed_where_fewer_ranks_are_allowed(self):
        self.goes_on("dp", ("newcomer", "subgroup.begin"), least=1)

    def test_a_survivor_is_killed_where_fewer_ranks_are_allowed(self):
        self.goes_on("fsdp", ("survivor", "regroup.decided"), least=2)

    def test_one_loss_after_another(self):
        self.goes_on("dp", ("newcomer", "regroup.connected"), ("newcomer", "state.listed"))

    def test_every_phase_of_data_parallelism_slow(self):
        for fault in faults():
            with self.subTest(fault=fault):
                self.goes_on("dp", fault)

    def test_pairs_of_data_parallelism_slow(self):
        self.every("dp", "")

    def test_pairs_of_data_parallelism_over_tcp_slow(self):
        self.every("dp", "tcp")

    def test_pairs_of_sharded_parameters_slow(self):
        self.every("fsdp", "")

    def test_pairs_of_sharded_parameters_over_tcp_slow(self):
        self.every("fsdp", "tcp")

    def test_pairs_of_tensor_parallelism_slow(self):
        self.every("tp", "")

    def test_pairs_of_tensor_parallelism_over_tcp_slow(self):
        self.every("tp", "tcp")

    def test_pairs_of_pipeline_stages_slow(self):
        self.every("pp", "")

    def test_pairs_of_pipeline_stages_over_tcp_slow(self):
        self.every("pp", "tcp")


if __name__ == "__main__":
    harness.main()
