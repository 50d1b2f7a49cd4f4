"""The wall clock jumps by an hour, forward and back, while ranks train, are lost, replaced and
added. No wait and no decision depends on it (wall_clock.cc)."""

import os
import signal

import harness
import nodes_test
import resize_test
from wall_clock import WallClock

HOUR = 3600


class Jumps(resize_test.Resize):
    def ranks_change_while_the_clock_jumps(self, transport):
        clock = WallClock(self.folder / "clock")
        job = self.weft(
            "run", "-n", "1:3", resize_test.COUNTING, harness.ENDLESS, 2,
            env=clock.environment | {"WEFT_TRANSPORT": transport}
        )
        job.wait_for_steps(2)
        for hours, ranks in ((1, 2), (-2, 3)):
            clock.jump(hours * HOUR)
            self.scale(job, ranks)
            # The launcher knows the number a moment before rank 0 says so.
            job.wait_for(lambda ranks=ranks: self.sizes(job)[-1:] == [ranks], f"{ranks} ranks")
        for hours, lost in ((2, 0), (-1, 1), (-1, 2)):
            clock.jump(hours * HOUR)
            times = len(self.sizes(job))
            os.kill(job.ranks()[lost], signal.SIGKILL)
            job.wait_for(lambda times=times: len(self.sizes(job)) > times, "a recovery")
            self.assertGreater(clock.readings(), 0)
            job.wait_for_steps(job.steps() + 5)
        self.counts(job, [2, 3, 3, 3, 3])

    def test_ranks_are_added_and_replaced(self):
        self.ranks_change_while_the_clock_jumps("auto")

    def test_ranks_over_tcp_are_added_and_replaced_slow(self):
        self.ranks_change_while_the_clock_jumps("tcp")

    def test_a_stopped_rank_is_named_and_replaced(self):
        clock = WallClock(self.folder / "clock")
        job = self.weft(
            "run", "-n", "2:2", resize_test.COUNTING, harness.ENDLESS, 2,
            env=dict(clock.environment)
        )
        job.wait_for_steps(20)
        stopped = job.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        for hours in (1, -2):
            clock.jump(hours * HOUR)
        job.wait_for(lambda: f"by a signal (process {stopped})" in job.err(), "its name")
        self.counts(job, [2])


class JumpsOfNodes(nodes_test.Nodes):
    def test_nodes_whose_clocks_differ_by_two_hours_slow(self):
        clocks, jobs = [], []
        for number in range(3):
            clocks.append(WallClock(self.folder / f"clock{number}"))
            jobs.append(self.node("--nnodes", "1:3", env=clocks[-1].environment))
        self.wait_for_steps(20, jobs[0])
        for clock, hours in zip(clocks, (1, -1, 0)):
            clock.jump(hours * HOUR)
        self.wait_for_steps(self.steps() + 300, jobs[0])
        self.assertEqual(self.sizes(*jobs), [])  # no lease has ended
        # The request of the node whose clock is behind comes later, and counts.
        for job, ranks in ((jobs[0], 2), (jobs[1], 3)):
            result = self.beside(job, "scale", job.process.pid, ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
        for clock, hours in zip(clocks, (-2, 2, 0)):
            clock.jump(hours * HOUR)
        self.lose(jobs[0])
        jobs[1].wait_for(
            lambda: sorted(sum((self.sizes(job) for job in jobs), [])) == [2, 2, 3], "the ranks",
            60
        )
        self.counts(*jobs[1:])
        for clock in clocks[1:]:
            self.assertGreater(clock.readings(), 0)


if __name__ == "__main__":
    harness.main()
