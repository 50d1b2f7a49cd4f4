"""A rank that is killed or stopped: the others say who within two seconds, and the launcher's last
line names it."""

import os
import signal
import time

import harness


class DeathTiming(harness.FaultTest):
    def dies(self, job, rank):
        """Kills a rank; the survivors name it. The seconds until they are gone."""
        pids = job.ranks()
        start = time.monotonic()
        os.kill(pids.pop(rank), signal.SIGKILL)
        harness.wait_until(
            lambda: not any(map(alive, pids)),
            20,
            lambda: f"survivors of rank {rank} still run:\n{job.err()}",
        )
        seconds = time.monotonic() - start
        self.ends(
            job, 137, ["PeerLost{%d}" % rank],
            last=f"weft: rank {rank} failed first: SIGKILL (signal 9)"
        )
        return seconds

    def mid_step(self, ranks, rank, *settings):
        def attempt():
            job = self.train(ranks, *settings, env=harness.SLEEPS)
            job.wait_for_ranks(ranks)
            job.wait_for_steps(3)
            return self.dies(job, rank)

        self.takes_less_than(2, attempt)

    def test_mid_step_in_shared_memory(self):
        self.mid_step(2, 1, "comm.transport=shm")

    def test_rank_0_mid_step_in_shared_memory(self):
        self.mid_step(2, 0, "comm.transport=shm")

    def test_mid_step_over_tcp(self):
        self.mid_step(2, 1, "comm.transport=tcp")

    def test_rank_0_mid_step_over_tcp(self):
        self.mid_step(2, 0, "comm.transport=tcp")

    def test_one_of_four_mid_step(self):
        self.mid_step(4, 2)

    def test_one_of_four_mid_step_over_tcp(self):
        self.mid_step(4, 2, "comm.transport=tcp")

    def test_in_evaluation(self):
        # One step on 64 images, then an evaluation of many.
        (self.folder / "data").mkdir()
        harness.images.write(self.folder / "data", 64, 5000)

        def attempt():
            job = self.train(
                2, "model.name=cnn", "model.hidden=[256,128]", "data.name=fashion-mnist",
                f"data.dir={self.folder}/data", "train.epochs=1"
            )
            job.wait_for_steps(1)
            # Rank 0 evaluates its half before it waits for anybody, and finds the loss then.
            seconds = self.dies(job, 1)
            self.assertEqual(job.steps(), 1)  # no record of an evaluation: it was never done
            return seconds

        self.takes_less_than(5, attempt)

    def at_start(self, rank, *settings):
        def attempt():
            job = self.train(2, *settings)
            job.wait_for_ranks(2)
            return self.dies(job, rank)

        self.takes_less_than(2, attempt)

    def test_at_start(self):
        self.at_start(1)

    def test_at_start_over_tcp(self):
        self.at_start(1, "comm.transport=tcp")

    def test_rank_0_at_start(self):
        self.at_start(0)


class Standstill(harness.FaultTest):
    def stands_still(self, transport):
        job = self.train(
            2, f"comm.transport={transport}", "comm.timeout_s=1", env=harness.SLEEPS
        )
        job.wait_for_ranks(2)
        job.wait_for_steps(3)
        os.kill(job.ranks()[1], signal.SIGSTOP)
        # 1 s until rank 0 gives up, 5 s in which others may say why they end, then SIGTERM.
        self.ends(
            job, 200, within=10,
            last="weft: rank 1 was stopped by a signal, such as SIGSTOP; rank 0 waited for it: "
            "Timeout{1}: "
        )

    def test_a_stopped_rank_in_shared_memory(self):
        self.stands_still("shm")

    def test_a_stopped_rank_over_tcp(self):
        self.stands_still("tcp")


def alive(pid):
    stat = harness.stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


if __name__ == "__main__":
    harness.main()
