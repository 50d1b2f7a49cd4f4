"""Training loops over weft::elastic::run() (elastic_main.cc): a lost rank is replaced or let go,
the state at the end is that of a run without a fault, and wrong newcomers are refused."""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess

import harness

PROGRAM = os.path.abspath(os.environ["WEFT_ELASTIC_PROGRAM"])
EXAMPLE = os.path.abspath(os.environ["WEFT_ELASTIC_EXAMPLE"])
# Arguments that the state at the end does not depend on.
OF_NO_WEIGHT = ("copy_steps=", "weights=")


class Elastic(harness.FaultTest):
    def run_of(self, ranks, *arguments, fail="", flags=("--max-replacements", 5), **how):
        """Runs the program, and gives its result and the numbers of its last line."""
        env = {"WEFT_FAIL": fail, "WEFT_TRANSPORT": how.pop("transport", "")}
        program = how.pop("program", PROGRAM)
        job = self.weft(
            "run", "-n", ranks, *flags, program, *arguments,
            env={name: value for name, value in env.items() if value}
        )
        result = job.finish(60)
        for noise in harness.NOISE:
            self.assertNotIn(noise, result.err)
        self.nothing_left(job)
        return result, dict(re.findall(r"(\w+)=(\S+)", result.out))

    def undisturbed(self, ranks, *arguments, **how):
        """The numbers of a run without a fault. Tests share them."""

        def run():
            result, numbers = self.run_of(ranks, *arguments, **how)
            self.assertEqual(result.code, 0, result.err)
            self.assertNotIn("training goes on", result.err)
            return numbers

        weights = [one for one in arguments if not one.startswith(OF_NO_WEIGHT)]
        built = os.stat(PROGRAM).st_mtime_ns
        return harness.remembered((PROGRAM, built, ranks, weights, how), run)

    def recovers(self, ranks, *arguments, fail, times=1, **how):
        wanted = self.undisturbed(ranks, *arguments, **how)
        result, got = self.run_of(ranks, *arguments, fail=fail, **how)
        self.assertEqual(result.code, 0, result.err)
        for point in fail.split(";"):
            self.assertIn(f"failpoint {point.partition(':')[0]}", result.err)
        self.assertEqual(result.err.count("a new process replaces it"), times, result.err)
        for name in ("steps", "ranks", "state", "uses"):
            self.assertEqual(got[name], wanted[name], (name, result.err))
        return result

    def test_ranks_lost_in_a_step_an_update_and_a_copy(self):
        self.recovers(
            3, "dp", "copy_steps=4", times=3,
            fail="step.begin:rank=1:step=9;update.middle:rank=0:step=22;copy.middle:rank=2:step=40"
        )

    def test_ranks_beyond_a_multiple_leave_before_the_first_step(self):
        result, got = self.run_of(3, "dp", "multiple=2", flags=("--min-ranks", 1))
        self.assertEqual((result.code, got["ranks"]), (0, "2"), result.err)
        self.assertEqual((got["steps"], got["uses"]), ("60", "3..3"), result.err)

    def test_shared_weights_whose_update_is_interrupted_slow(self):
        self.recovers(2, "dp", "weights=shared", fail="update.middle:rank=1:step=31")

    def test_an_optimizer_of_torch_and_a_loss_during_the_recovery(self):
        self.recovers(
            3, "torch", fail="step.begin:rank=0:step=9;recovery.regrouped:rank=2", times=2
        )

    def test_a_model_in_shards_over_tcp(self):
        self.recovers(2, "sharded", fail="update.middle:rank=1:step=31", transport="tcp")

    def test_a_model_in_shards_slow(self):
        self.recovers(4, "sharded", fail="step.begin:rank=3:step=31")

    def test_a_codec_over_tcp_slow(self):
        self.recovers(
            2, "dp", "codec=topk:0.1", fail="step.begin:rank=1:step=31", transport="tcp"
        )

    def test_a_loss_before_the_first_copy_begins_again(self):
        self.recovers(2, "dp", fail="copy.middle:rank=1")

    def test_newcomers_alone_do_not_begin_again_where_there_was_a_state(self):
        result, _ = self.run_of(2, "dp", fail="step.begin:rank=1:step=9;state.begin:rank=0:step=9")
        self.assertIn("failpoint state.begin", result.err)
        self.assertIn(result.code, (137, 203), result.err)

    def test_goes_on_with_fewer_ranks_and_uses_each_sample_once_an_epoch(self):
        result, got = self.run_of(
            4, "dp", "copy_steps=3", fail="step.begin:rank=0:step=9;step.begin:rank=3:step=30",
            flags=("--min-ranks", 2)
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"training goes on step=\d+ ranks=3")
        # 60 steps of 24 samples are three epochs of 480.
        self.assertEqual((got["steps"], got["ranks"], got["uses"]), ("60", "2", "3..3"), got)

    def test_the_programs_own_error_costs_one_rank(self):
        result, got = self.run_of(2, "dp", "throw=20")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("the program's own error", result.err)
        self.assertEqual((got["steps"], got["uses"]), ("60", "3..3"), got)

    def test_without_flags_of_the_launcher_a_lost_rank_ends_the_job(self):
        result, _ = self.run_of(2, "dp", fail="step.begin:rank=1:step=9", flags=())
        self.assertEqual(result.code, 137, result.err)
        self.assertIn("weft: rank 1 failed first: SIGKILL", result.last_line)

    def test_without_a_launcher_it_trains(self):
        alone = self.weft("run", "-n", 1, PROGRAM, "dp").finish(30)
        self.assertEqual(alone.code, 0, alone.err)
        self.assertIn("steps=60 ranks=1", alone.out)

    def test_the_example_ends_with_the_same_weights_after_a_kill(self):
        undisturbed, _ = self.run_of(2, program=EXAMPLE)
        result, _ = self.run_of(2, program=EXAMPLE, fail="update.middle:rank=1:step=90")
        self.assertIn("a new process replaces it", result.err)
        self.assertIn("200 steps", result.out)
        self.assertEqual(result.out, undisturbed.out)


class Going(Elastic):
    """A job that is asked to go saves a checkpoint, from which the next one continues."""

    FLAGS = ("--max-replacements", 5)
    RANKS = 2

    def goes_and_continues(self, ask, why, *arguments):
        job = self.weft(
            "run", "-n", self.RANKS, *self.FLAGS, PROGRAM, *arguments, "save=ckpt",
            "steps=1000000", "pause_ms=5"
        )
        job.wait_for(lambda: "training begins" in job.out(), "the first step")
        ask(job)
        result = self.ends(job, 143, within=20)
        steps = re.findall(r"rank (\d) stopped after step (\d+)", result.out)
        self.assertEqual(sorted(rank for rank, _ in steps), ["0", "1"], result.out)
        (step, ) = {step for _, step in steps}
        saved = f"weft: the checkpoint ckpt/step-{int(step):08} was complete "
        self.assertRegex(result.err, re.escape(saved) + r"[\d.]+ s after " + why)
        last = f"steps={int(step) + 20}"
        _, wanted = self.run_of(self.RANKS, *arguments, last)
        again, got = self.run_of(self.RANKS, *arguments, "save=ckpt", last)
        self.assertEqual(again.code, 0, again.err)
        self.assertNotIn("training begins", again.out)
        self.assertEqual((got["steps"], got["state"]), (wanted["steps"], wanted["state"]))

    def test_a_signal_to_the_launcher(self):
        self.goes_and_continues(
            lambda job: job.process.send_signal(signal.SIGTERM), "SIGTERM", "sharded"
        )

    def test_a_signal_to_a_rank(self):
        self.goes_and_continues(
            lambda job: os.kill(job.ranks()[1], signal.SIGTERM), "rank 1 asked to stop", "dp"
        )


class Refusals(Elastic):
    """A process that replaces a lost rank and is another program than the running job's."""

    def wrong_newcomer(self, line, *arguments, **how):
        """Runs the program; the processes that replace lost ranks run `line` instead."""
        script = self.folder / "rank.sh"
        script.write_text(
            f'#!/bin/sh\nif [ -n "$WEFT_NEWCOMER" ]; then {line}; fi\nexec {PROGRAM} "$@"\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return self.run_of(3, *arguments, program=script, **how)

    def test_another_model_is_refused_and_the_others_go_on(self):
        for transport in ("", "tcp"):
            with self.subTest(transport=transport):
                shutil.rmtree(self.folder / "rank.sh", ignore_errors=True)
                result, got = self.wrong_newcomer(
                    f"exec {PROGRAM} dp width=32", "dp", fail="step.begin:rank=1:step=9",
                    flags=("--max-replacements", 3, "--min-ranks", 2), transport=transport
                )
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(result.err.count("a new process replaces it"), 1, result.err)
                self.assertIn(
                    "the state of this process has '0.weight Float[32, 16]' and that of the "
                    "running job '0.weight Float[64, 16]'", result.err
                )
                self.assertEqual((got["steps"], got["ranks"], got["uses"]), ("60", "2", "3..3"))

    def test_another_secret_is_refused_and_not_tried_again(self):
        (self.folder / "other").write_bytes(os.urandom(32))
        result, _ = self.wrong_newcomer(
            "exec 9<other; export WEFT_SECRET_FD=9", "dp", fail="step.begin:rank=1:step=9"
        )
        self.assertEqual(result.code, 2, result.err)
        self.assertEqual(result.err.count("a new process replaces it"), 1, result.err)
        self.assertIn("rank 1 failed first", result.last_line)
        self.assertIn("this process and the running job have different secrets", result.last_line)

    def test_another_optimizer_is_refused(self):
        result, _ = self.wrong_newcomer(
            f"exec {PROGRAM} torch", "dp", fail="step.begin:rank=1:step=9"
        )
        self.assertEqual(result.code, 2, result.err)
        self.assertIn("the running job 'optimizer with exp_avg exp_avg_sq'", result.last_line)

    def test_a_model_that_is_made_for_the_group_is_refused_after_it_has_joined(self):
        result, got = self.wrong_newcomer(
            f"exec {PROGRAM} sharded width=32", "sharded", fail="step.begin:rank=1:step=9",
            flags=("--max-replacements", 3, "--min-ranks", 2)
        )
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("this process does not fit the running job: the ranks' modules", result.err)
        self.assertEqual((got["steps"], got["ranks"], got["uses"]), ("60", "2", "3..3"))

    def test_another_recipe_of_one_rank_is_refused_at_the_start(self):
        change = 'if [ "$RANK" = 1 ]; then set -- "$@" --set optimizer.lr=0.2; fi; exec "$@"'
        program = ["sh", "-c", change, "sh", harness.WEFT, "train", self.folder]
        job = self.weft("run", "-n", 2, *program)
        result = self.ends(job, 2, within=15)
        self.assertRegex(
            result.last_line, r"rank 1 failed first: .*the recipe of rank 1 has 'optimizer\.lr = "
            r"0\.2' and that of rank 0 'optimizer\.lr = [0-9.]+'"
        )


class Woken(Elastic):
    """A rank that is stopped in the middle of an update, and wakes after it was replaced. weft's
    launcher would have killed it, so these ranks have none."""

    ABORTED = 202
    RANKS = 3

    def start(self, rank, *arguments, **environment):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = getattr(self, "port", None) or free.getsockname()[1]
        environment |= {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.RANKS,
            "LOCAL_WORLD_SIZE": self.RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port,
            "WEFT_ELASTIC": 1
        }
        process = subprocess.Popen(
            [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=harness.processes.environment(**{k: str(v) for k, v in environment.items()})
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wakes_after_its_replacement(self, kind, transport, *arguments):
        wanted = self.undisturbed(self.RANKS, kind, *arguments, transport=transport)
        arguments = (kind, *arguments, "timeout_ms=2000", "pause_ms=15", "copy_steps=2")
        how = {"WEFT_TRANSPORT": transport or "auto"}
        fail = {"WEFT_FAIL": "update.middle:rank=1:step=12:action=stop"}
        ranks = [
            self.start(rank, *arguments, **how, **(fail if rank == 1 else {}))
            for rank in range(self.RANKS)
        ]
        stopped = ranks[1]
        harness.wait_until(
            lambda: harness.stat_of(stopped.pid)[0] == "T", 20, lambda: "rank 1 does not stop"
        )
        new = self.start(1, *arguments, **how, WEFT_NEWCOMER=1)
        line = ranks[0].stderr.readline()
        while line and "training goes on" not in line:
            line = ranks[0].stderr.readline()
        self.assertIn("ranks=3", line)
        self.assertIsNone(ranks[0].poll())

        def has_ended():  # it stops in each part of the update, and wakes each time
            stopped.send_signal(signal.SIGCONT)
            return stopped.poll() is not None

        harness.wait_until(has_ended, 20, lambda: "the woken rank does not end")
        said = stopped.communicate()[1]
        self.assertIsNone(ranks[0].poll(), "the others have not trained on meanwhile")
        self.assertEqual(stopped.returncode, self.ABORTED, said)
        self.assertIn("the group continued without this rank", said)
        out, said = ranks[0].communicate(timeout=40)
        self.assertEqual(ranks[0].returncode, 0, said)
        got = dict(re.findall(r"(\w+)=(\S+)", out))
        self.assertEqual((got["steps"], got["state"]), (wanted["steps"], wanted["state"]))
        for other in (ranks[2], new):
            self.assertEqual(other.wait(20), 0, other.stderr.read())

    def test_changes_no_weight_that_it_shared_with_the_others(self):
        self.wakes_after_its_replacement("dp", "", "weights=shared")

    def test_changes_no_weight_over_tcp(self):
        self.wakes_after_its_replacement("dp", "tcp")

    def test_changes_no_shard_slow(self):
        self.wakes_after_its_replacement("sharded", "")


if __name__ == "__main__":
    harness.main()
