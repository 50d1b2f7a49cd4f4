"""A lost rank is replaced and training goes on: no step is lost, and the checkpoint at the end has
the bytes of a run without a fault. WEFT_FAIL chooses the instant (docs/fault-tolerance.md)."""

import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import time

import harness

OWN_MODEL = os.path.abspath(os.environ["WEFT_OWN_MODEL"])
STEPS = 60
LENGTH = [f"train.max_steps={STEPS}", "train.eval_every=0", "train.log_every=20"]
# Each rank updates a part of these weights. The images are few, so that a step is short.
IMAGES = ["model.hidden=[512,256]", "train.batch=16"]
TEXT = [
    "model.name=gpt", "model.layers=2", "model.width=32", "model.heads=2", "model.sequence=32",
    "data.name=text", "data.tokenizer=bytes", "optimizer.name=adamw", "train.batch=8"
]
# Settings that a run's weights do not depend on.
OF_NO_WEIGHT = ("train.checkpoint_steps=", "train.copy_steps=", "data.file=")


class RecoveryRuns(harness.FaultTest):
    def run_of(
        self, ranks, *settings, fail="", replacements=3, least=0, transport="", during=None, env={}
    ):
        """Trains and gives the result and the digest of the last checkpoint."""
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        env = {"WEFT_FAIL": fail, "WEFT_TRANSPORT": transport, **env}
        kind = [] if "model.name=gpt" in settings else IMAGES
        options = [word for one in (*LENGTH, *kind, *settings) for word in ("--set", one)]
        job = self.weft(
            "train", self.folder, "-n", ranks, "--max-replacements", replacements,
            "--min-ranks", least, *options,
            env={name: value for name, value in env.items() if value}
        )
        if during:
            during(job)
        result = job.finish(60)
        for noise in harness.NOISE:
            self.assertNotIn(noise, result.err)
        self.nothing_left(job)
        return result, self.digest()

    def digest(self, run="run"):
        """The last checkpoint's step, and a digest of its files."""
        saved = sorted((self.folder / "runs" / run / "ckpt").glob("step-*"))
        if not saved:
            return None
        files = sorted(f for f in saved[-1].iterdir() if f.suffix in (".safetensors", ".json"))
        whole = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files))
        return saved[-1].name, whole.hexdigest()

    def weights(self, run="run"):
        """A digest of the last checkpoint's weights, whole, however many ranks wrote them."""
        whole = self.folder / "whole.safetensors"
        whole.unlink(missing_ok=True)
        convert = self.weft("checkpoint", "convert", self.folder / "runs" / run, whole)
        self.assertEqual(convert.finish(20).code, 0)
        return hashlib.sha256(whole.read_bytes()).hexdigest()

    def of_text(self, *settings):
        """The settings of a GPT, with the folder's recipe and text for it."""
        text = self.folder / "text"
        text.write_bytes(b"The weft crosses the warp. " * 400)
        (self.folder / "recipe.toml").write_text(harness.TEXT_RECIPE)
        return (*settings, f"data.file={text}")

    def undisturbed(self, ranks, *settings, transport="", what=None):
        """What a run without a fault ends with: the digest, or what() gives. Tests share it."""
        key = [one for one in settings if not one.startswith(OF_NO_WEIGHT)]

        def run():
            result, digest = self.run_of(ranks, *settings, transport=transport)
            self.assertEqual(result.code, 0, result.err)
            self.assertNotIn("training goes on", result.err)
            return what() if what else digest

        kind = what.__name__ if what else "digest"
        answer = harness.remembered((LENGTH, IMAGES, ranks, key, transport, kind), run)
        return answer if what else tuple(answer)

    def recovers(self, ranks, *settings, fail, times=1, transport=""):
        if "model.name=gpt" in settings:
            settings = self.of_text(*settings)
        wanted = self.undisturbed(ranks, *settings, transport=transport)
        result, got = self.run_of(ranks, *settings, fail=fail, transport=transport)
        self.assertEqual(result.code, 0, result.err)
        for point in fail.split(";"):  # the fault has happened
            self.assertIn(f"failpoint {point.partition(':')[0]}", result.err)
        self.assertEqual(result.err.count("a new process replaces it"), times, result.err)
        self.assertEqual(got, wanted, result.err)
        steps = (self.folder / "runs/run/metrics.jsonl").read_text().count('"loss":')
        self.assertEqual(steps, STEPS)
        return result


class Recovery(RecoveryRuns):
    def test_a_rank_that_is_killed_between_steps(self):
        self.recovers(2, fail="step.begin:rank=1:step=31")

    def test_rank_0_is_killed(self):
        self.recovers(2, fail="step.begin:rank=0:step=31")

    def test_a_rank_is_killed_in_the_middle_of_the_update(self):
        self.recovers(2, "parallel.weights=shared", fail="update.middle:rank=1:step=17")

    def test_a_rank_is_killed_in_the_middle_of_the_update_of_private_weights(self):
        self.recovers(2, "parallel.weights=private", fail="update.middle:rank=0:step=17")

    def test_a_rank_is_killed_while_it_copies_its_state(self):
        self.recovers(2, "train.copy_steps=5", fail="copy.middle:rank=1:step=25")

    def test_asynchronous_workers_go_on_after_a_kill_and_take_its_batches_again(self):
        for strategy in ("strategy.name=downpour", "strategy.backup=1"):
            result, (saved, _) = self.run_of(
                3, strategy, "train.copy_steps=10", fail="update.begin:rank=1:step=31"
            )
            self.assertEqual(result.code, 0, result.err)
            self.assertIn("failpoint update.begin", result.err)
            self.assertEqual(result.err.count("a new process replaces it"), 1, result.err)
            self.assertEqual(int(saved.partition("-")[2]), STEPS)

    def test_synchronous_workers_have_the_bits_of_a_run_without_a_fault_slow(self):
        for name in ("local_sgd", "slow_momentum", "diloco", "easgd", "gossip"):
            with self.subTest(strategy=name):
                self.recovers(
                    3, f"strategy.name={name}", "strategy.period=4", "train.copy_steps=10",
                    fail="update.begin:rank=1:step=31"
                )

    def test_asynchronous_workers_go_on_after_a_kill_slow(self):
        for settings in (
            ("strategy.name=downpour", "strategy.staleness=2"),
            ("strategy.name=easgd_async", "strategy.period=2"),
            ("strategy.name=ad_psgd",),
        ):
            for transport in ("", "tcp") if "ad_psgd" not in settings[0] else ("",):
                with self.subTest(settings=settings, transport=transport):
                    result, (saved, _) = self.run_of(
                        3, *settings, "train.copy_steps=10", fail="update.begin:rank=1:step=31",
                        transport=transport
                    )
                    self.assertEqual(result.code, 0, result.err)
                    self.assertIn("failpoint update.begin", result.err)
                    self.assertEqual(int(saved.partition("-")[2]), STEPS)

    def test_a_rank_that_exits(self):
        self.recovers(2, fail="step.begin:rank=1:step=31:action=exit")

    def test_two_of_four_ranks_at_once(self):
        self.recovers(
            4, fail="step.begin:rank=1:step=9;update.middle:rank=2:step=9", times=2
        )

    def test_one_rank_after_another(self):
        self.recovers(
            2, fail="step.begin:rank=0:step=9;update.begin:rank=1:step=40", times=2
        )

    def test_a_second_rank_is_lost_while_the_group_recovers(self):
        self.recovers(
            4, fail="step.begin:rank=1:step=9;recovery.regrouped:rank=2", times=2
        )

    def test_the_replacement_is_lost_after_it_has_joined(self):
        # All replacements of rank 1 fail so; the limit of replacements ends it.
        result, _ = self.run_of(
            2, fail="step.begin:rank=1:step=9;recovery.regrouped:rank=1:newcomer=1"
        )
        self.assertEqual(result.code, 137, result.err)
        self.assertEqual(result.err.count("a new process replaces it"), 3, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_sharded_parameters(self):
        self.recovers(
            4, "parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=3",
            fail="update.middle:rank=2:step=30"
        )

    def test_sharded_parameters_over_tcp(self):
        self.recovers(
            4, "parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=3",
            fail="update.middle:rank=2:step=30", transport="tcp"
        )

    def test_a_new_process_that_loads_for_more_than_30_seconds_is_awaited_slow(self):
        train = f"exec {harness.WEFT} train {self.folder} --set train.max_steps=600"
        job = self.weft(
            "run", "-n", 2, "--max-replacements", 1, "sh", "-c",
            f'[ -z "$WEFT_NEWCOMER" ] || sleep 35; {train}'
        )
        job.wait_for_steps(20)
        os.kill(job.ranks()[1], signal.SIGKILL)
        result = self.ends(job, 0, ["training goes on"], within=100)
        self.assertEqual(result.err.count("a new process replaces it"), 1, result.err)

    def test_a_recovery_over_tcp_leaves_no_socket_of_the_lost_group(self):
        def sockets(pid):
            count = 0
            for fd in os.listdir(f"/proc/{pid}/fd"):
                try:
                    count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
                except OSError:  # it has just been closed
                    continue
            return count

        job = self.weft(
            "train", self.folder, "-n", 2, "--max-replacements", 1, "--set", "train.eval_every=0",
            env=harness.SLEEPS | {"WEFT_TRANSPORT": "tcp"}
        )
        job.wait_for_steps(20)
        survivor, lost = job.ranks()
        before = sockets(survivor)
        os.kill(lost, signal.SIGKILL)
        job.wait_for(lambda: "training goes on" in job.err(), "the recovery")
        job.wait_for_steps(job.steps() + 20)
        harness.wait_until(
            lambda: sockets(survivor) <= before, 5,
            lambda: f"{before} sockets before, {sockets(survivor)} after"
        )
        job.process.send_signal(signal.SIGTERM)
        self.ends(job, 143, within=20)

    def test_over_tcp(self):
        self.recovers(2, fail="step.begin:rank=0:step=31", transport="tcp")

    def test_reproducible_sums_slow(self):
        self.recovers(4, "train.reproducible=true", fail="update.middle:rank=3:step=30")

    def test_a_codec_slow(self):
        self.recovers(2, "parallel.codec=topk:0.1", fail="update.middle:rank=0:step=30")

    def test_tensor_parallelism(self):
        self.recovers(
            4, *TEXT, "parallel.tp=2", "parallel.dp=2", fail="update.middle:rank=2:step=30"
        )

    def test_pipeline_stages(self):
        self.recovers(
            4, *TEXT, "parallel.pp=2", "parallel.tp=2", "parallel.dp=1", "parallel.cuts=[2]",
            "parallel.micro_batches=2", fail="update.middle:rank=1:step=30"
        )

    def test_context_parallelism_slow(self):
        self.recovers(
            4, *TEXT, "parallel.cp=2", "parallel.dp=1", "parallel.fsdp=2",
            fail="update.middle:rank=3:step=30"
        )

    def test_expert_parallelism_slow(self):
        self.recovers(
            4, *TEXT, "model.experts=4", "parallel.ep=2", "parallel.dp=2",
            fail="update.middle:rank=0:step=30"
        )

    def own_model(self, mesh, what):
        """Blocks that exist already, in the new process and in the others. `what`: of the run, by
        its name, is the same as without a fault."""

        def train(fail):
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            job = self.weft(
                "run", "-n", 2, "--max-replacements", 1, OWN_MODEL, mesh,
                env={"WEFT_FAIL": fail} if fail else {}
            )
            result = job.finish(60)
            self.assertEqual(result.code, 0, result.err)
            (run,) = (self.folder / "runs").iterdir()
            return result, what(run.name)

        _, wanted = train("")
        result, got = train("update.begin:rank=0:step=40")
        self.assertIn("training goes on", result.err)
        self.assertTrue(got == wanted, result.err)

    def test_a_model_of_the_program(self):
        self.own_model("dp=2", self.digest)

    def test_a_model_of_the_program_in_shards(self):
        self.own_model("fsdp=2", self.digest)

    def test_a_model_of_the_program_in_stages_slow(self):
        self.own_model("pp=2", self.weights)  # stages are cut by measured times

    def test_goes_on_with_fewer_ranks(self):
        result, got = self.run_of(
            4, fail="step.begin:rank=1:step=9;update.begin:rank=3:step=30", replacements=0, least=2
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.err.count("the others go on without it"), 2, result.err)
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=3")
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=2")
        self.assertEqual(got[0], f"step-{STEPS:08}")
        self.files_describe_the_whole_run()

    def files_describe_the_whole_run(self):
        """After recoveries of rank 0, the last of which has left two ranks."""
        run = self.folder / "runs/run"
        self.assertEqual(json.loads((run / "environment.json").read_text())["ranks"], "2")
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        begun = next(line for line in log if "steps_per_epoch" in line["fields"])
        recovered = [line for line in log if line["message"] == "training goes on"][-1]
        done = next(line for line in log if line["message"] == "done")
        before = [datetime.datetime.fromisoformat(line["ts"]) for line in (begun, recovered)]
        rounding = 0.05
        self.assertGreaterEqual(
            done["fields"]["seconds"] + rounding, (before[1] - before[0]).total_seconds()
        )

    def test_another_rank_becomes_rank_0(self):
        result, got = self.run_of(
            2, fail="step.begin:rank=0:step=9", replacements=0, least=1
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=1")
        self.assertIn("[rank 1] done accuracy=", result.err)
        self.assertEqual(got[0], f"step-{STEPS:08}")

    def test_replaces_first_and_then_goes_on_with_fewer_ranks(self):
        result, got = self.run_of(
            2, fail="step.begin:rank=0:step=9;update.begin:rank=1:step=30", replacements=1, least=1
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("rank 0 is lost: SIGKILL (signal 9); a new process replaces it", result.err)
        self.assertIn("rank 1 is lost: SIGKILL (signal 9); the others go on", result.err)
        self.assertEqual(got[0], f"step-{STEPS:08}")

    def test_reproducible_sums_are_the_same_with_fewer_ranks(self):
        wanted = self.undisturbed(4, "train.reproducible=true", what=self.weights)
        result, _ = self.run_of(
            4, "train.reproducible=true", fail="step.begin:rank=1:step=9;step.begin:rank=2:step=9",
            replacements=0, least=2
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=2")
        self.assertEqual(self.weights(), wanted, result.err)

    def test_micro_shards_that_three_ranks_cannot_divide_go_on_with_two(self):
        # The default: four micro-shards.
        wanted = self.undisturbed(4, "train.reproducible=true", what=self.weights)
        result, _ = self.run_of(
            4, "train.reproducible=true", "train.micro_shards=4",
            fail="step.begin:rank=1:step=9", replacements=0, least=2
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=2")
        self.assertEqual(self.weights(), wanted, result.err)

    def fits_fewer(self, *settings, **how):
        """A rank of a mesh that needs pairs is lost, so one of the three others leaves."""
        result, got = self.run_of(
            4, *self.of_text(*TEXT, *settings), fail="step.begin:rank=1:step=9", replacements=0,
            least=2, **how
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("the mesh fits fewer ranks than are left", result.err)
        self.assertRegex(result.err, r"training goes on step=[89] ranks=2")
        self.assertNotIn("no whole copy of the state", result.err)
        self.assertEqual(got[0], f"step-{STEPS:08}")
        steps = (self.folder / "runs/run/metrics.jsonl").read_text().count('"loss":')
        self.assertEqual(steps, STEPS)

    def test_a_mesh_of_pairs_goes_on_with_two_of_three_ranks(self):
        self.fits_fewer("parallel.tp=2", "parallel.dp=2", "train.copy_steps=1")

    def test_a_mesh_of_pairs_goes_on_with_two_of_three_ranks_over_tcp(self):
        # Only rank 2 and the rank that leaves can read the copy of rank 2.
        self.fits_fewer(
            "parallel.pp=2", "parallel.dp=2", "parallel.micro_batches=2", "train.copy_steps=1",
            transport="tcp"
        )

    def test_a_mesh_that_fits_fewer_ranks_than_allowed_ends_the_job(self):
        result, _ = self.run_of(
            4, *self.of_text(*TEXT, "parallel.tp=2", "parallel.dp=2"),
            fail="step.begin:rank=1:step=9", replacements=0, least=3
        )
        self.assertEqual(result.code, 137, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_fewer_ranks_than_allowed_end_the_job(self):
        result, _ = self.run_of(2, fail="step.begin:rank=1:step=9", replacements=0, least=2)
        self.assertEqual(result.code, 137, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_the_comparison_sees_a_lost_step(self):
        wanted = self.undisturbed(2)
        _, shorter = self.run_of(2, f"train.max_steps={STEPS - 1}")
        _, other = self.run_of(2, "train.seed=2")
        self.assertEqual(len({wanted, shorter, other}), 3)

    def test_an_error_of_the_configuration_is_not_repeated(self):
        result, _ = self.run_of(2, "parallel.tp=2", "parallel.dp=1")
        self.assertNotIn("replaces", result.err)
        self.assertEqual(result.code, 2, result.err)

    def test_all_ranks_lost_at_once_end_the_job(self):
        result, _ = self.run_of(2, fail="step.begin:step=9")
        self.assertEqual(result.code, 137, result.err)
        self.assertIn("failed first: SIGKILL", result.last_line)

    def test_all_are_lost_as_they_go_on_from_copies_older_than_the_checkpoint(self):
        settings = ("train.copy_steps=20", "train.checkpoint_steps=25")
        wanted = self.undisturbed(2, *settings)
        # Rank 1 is lost in step 31, so both go on from step 20 and copy their state again.
        once = self.folder / "fault"
        places = ("step.begin:rank=1:step=31", "copy.middle:rank=0:step=31",
                  "copy.middle:rank=1:newcomer=1")
        fail = ";".join(f"{place}:once={once}{n}" for n, place in enumerate(places))
        result, got = self.run_of(2, *settings, fail=fail)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("all ranks are lost", result.err)
        self.assertEqual(got, wanted, result.err)
        lines = (self.folder / "runs/run/metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines if '"loss":' in line]
        self.assertEqual(steps, list(range(1, STEPS + 1)), result.err)

    def test_a_limit_of_replacements_is_kept(self):
        result, _ = self.run_of(
            2, fail="step.begin:rank=1:step=9;step.begin:rank=1:step=20:newcomer=1", replacements=1
        )
        self.assertEqual(result.code, 137, result.err)
        self.assertEqual(result.err.count("a new process replaces it (1 of 1)"), 1, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_one_rank_cannot_be_replaced(self):
        job = self.weft("train", self.folder, "--max-replacements", 1)
        self.ends(job, 2, ["--max-replacements needs at least two ranks; set -n"])

    def test_ranks_of_another_launcher_are_not_replaced_by_this_command(self):
        job = self.weft(
            "run", "-n", 2, harness.WEFT, "train", self.folder, "--max-replacements", 1
        )
        line = "--max-replacements: the ranks were started by torchrun or weft run; weft run takes"
        self.ends(job, 2, [line])

    def test_wrong_numbers_are_refused(self):
        for flag, value in (("--max-replacements", -1), ("--min-ranks", 3), ("--min-ranks", -1)):
            job = self.weft("train", self.folder, "-n", 2, flag, value)
            self.ends(job, 2, [f"{flag[2:]}"])

    def test_an_unknown_failpoint_is_named(self):
        result, _ = self.run_of(2, fail="update.midle")
        self.assertEqual(result.code, 2, result.err)
        self.assertIn('WEFT_FAIL: "update.midle": unknown place', result.last_line)


class RecoveryTiming(RecoveryRuns):
    def seconds_of(self, result):
        return float(re.search(r"recovery_s=([\d.]+)", result.err).group(1))

    def test_a_killed_rank_costs_less_than_a_second(self):
        def attempt():
            return self.seconds_of(self.recovers(2, fail="update.middle:rank=1:step=31"))

        self.takes_less_than(1, attempt)

    def test_a_stopped_rank_is_named_and_replaced_within_two_seconds(self):
        def attempt():
            wanted = self.undisturbed(2)
            began = []

            def watch(job):
                job.wait_for(lambda: "failpoint step.begin" in job.err(), "the stop")
                stopped = time.monotonic()
                job.wait_for(lambda: "is stopped by a signal" in job.err(), "the name")
                began.append(time.monotonic() - stopped)

            result, got = self.run_of(
                2, fail="step.begin:rank=1:step=31:action=stop", during=watch
            )
            self.assertEqual((result.code, got), (0, wanted), result.err)
            self.assertRegex(
                result.err, r"weft: rank 1 hangs: it is stopped by a signal \(process \d+\)"
            )
            return began[0]

        self.takes_less_than(2, attempt)


if __name__ == "__main__":
    harness.main()
