"""Nodes that others cannot reach for a while, or for ever, though no connection is closed: stores
that are stopped, a node that wakes after its ranks were replaced, a network that goes dead."""

import os
import re
import signal
import time

import harness
import nodes_test
import tun_relay

FENCED = "the other nodes went on without this node: its ranks end"


class Nodes(nodes_test.Nodes):
    def stop(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def trains(self, job, steps=100):
        self.wait_for_steps(self.steps() + steps, job)

    def wait_for_ranks(self, count, jobs):
        """Rank 0, which says so, may be on any node."""
        jobs[0].wait_for(
            lambda: any(self.sizes(job)[-1:] == [count] for job in jobs), f"{count} ranks again", 40
        )

    def all_end(self, jobs):
        """One launcher is told to stop."""
        jobs[0].process.send_signal(signal.SIGTERM)
        for job in jobs:
            self.ends(job, 143, within=30, last="stopped by SIGTERM to the launcher of node")


class Stores(Nodes):
    def test_all_stores_do_not_answer_for_30_s_and_training_does_not_notice_slow(self):
        jobs = self.three("2:3", program=nodes_test.LONG)
        self.trains(jobs[0], 20)
        stores = [self.named(job, "weft_store")[0] for job in jobs]
        self.stop(*stores)
        end = time.monotonic() + 30
        for job in jobs:
            told = "this node cannot change the job's plan"
            job.wait_for(lambda job=job: told in job.err(), "that the store is silent")
        while time.monotonic() < end:
            self.trains(jobs[0])
        self.go_on(*stores)
        for job in jobs:
            told = "this node can change the job's plan again"
            job.wait_for(lambda job=job: told in job.err(), "that the store answers", 10)
        self.trains(jobs[0])
        self.assertEqual(self.sizes(*jobs), [])
        # Decisions are made again.
        result = self.beside(jobs[1], "scale", jobs[1].process.pid, 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.sizes(*jobs), [2])
        self.all_end(jobs)

    def test_the_store_of_one_node_does_not_answer_for_30_s_slow(self):
        jobs = self.three("2:3", program=nodes_test.LONG)
        self.trains(jobs[0], 20)
        (store,) = self.named(jobs[2], "weft_store")
        self.stop(store)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.trains(jobs[0])
        self.go_on(store)
        jobs[2].wait_for(lambda: FENCED in jobs[2].err(), "that it was taken for lost", 10)
        self.wait_for_ranks(3, jobs)
        self.trains(jobs[0])
        self.all_end(jobs)

    def test_etcd_does_not_answer_for_30_s_and_training_does_not_notice_slow(self):
        servers = nodes_test.EtcdServers(self.folder / "etcd", 3)
        self.addCleanup(servers.clean)
        meet = ["--rendezvous", servers.url, "--rdzv-id", "job"]
        jobs = [self.node("--nnodes", "1:2", meet=meet, program=nodes_test.LONG) for _ in range(2)]
        self.trains(jobs[0], 20)
        pids = [process.pid for process in servers.processes]
        self.stop(*pids)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.trains(jobs[0])
        self.go_on(*pids)
        told = "this node can change the job's plan again"
        jobs[0].wait_for(lambda: told in jobs[0].err(), "that etcd answers", 20)
        self.trains(jobs[0])
        self.assertEqual(self.sizes(*jobs), [])
        self.all_end(jobs)


class Woken(Nodes):
    def test_a_node_wakes_after_its_ranks_were_replaced_slow(self):
        jobs = self.three("2:3")
        self.wait_for_steps(20, jobs[0])
        pids = [pid for pid, _ in jobs[2].processes()]
        ranks = self.named(jobs[2], "weft_faults_counting")
        self.stop(*pids)
        jobs[0].wait_for(lambda: self.sizes(*jobs[:2]) == [2], "two ranks", 40)
        self.trains(jobs[0], 20)
        self.go_on(*pids)
        jobs[2].wait_for(lambda: FENCED in jobs[2].err(), "that it was taken for lost", 10)
        harness.wait_until(
            lambda: not set(ranks) & set(self.named(jobs[2], "weft_faults_counting")), 5,
            jobs[2].err
        )
        self.wait_for_ranks(3, jobs)
        self.counts(*jobs)


class DeadNetwork(Nodes):
    """Nodes in network namespaces. Packets of one are dropped, and nothing is closed."""

    THREE = (
        "--nnodes", "2:3", "--rdzv-endpoint", "{0}", "--rdzv-id", "job", "--rdzv-conf",
        "last_call_timeout=60,read_timeout=15"
    )

    def start(self, hosts, *flags, program):
        """`flags`: of the launchers, with "{0}" for the first host and "{1}" for the node."""
        if reason := tun_relay.why_not():
            self.skipTest(reason)
        self.relay = tun_relay.Relay(7, tun_relay.Weather(), hosts=hosts)
        self.addCleanup(self.relay.close)
        jobs = []
        for number, host in enumerate(self.relay.hosts):
            folder = self.folder / f"node{number}"
            folder.mkdir()
            mine = [flag.format(self.relay.hosts[0].address, number) for flag in flags]
            job = harness.Job(
                folder, "run", "-n", 1, *mine, "--secret-file", self.folder / "secret", "sh", "-c",
                f"cd {self.folder} && exec " + " ".join(map(str, program)),
                env={"WEFT_HOST_ID": f"host{number}"},
                preexec_fn=lambda host=host: tun_relay.enter(host.namespace)
            )
            self.addCleanup(job.clean)
            jobs.append(job)
        return jobs

    def test_the_others_go_on_and_the_node_ends_slow(self):
        jobs = self.start(3, *self.THREE, program=nodes_test.LONG)
        self.wait_for_steps(20, jobs[0])
        dropped = self.relay.counts.dropped
        self.relay.dead = {2}
        cut = time.monotonic()
        jobs[0].wait_for(lambda: self.sizes(*jobs[:2]) == [2], "two ranks", 40)
        # The agents learn of the loss long before the ranks would (10 s).
        self.assertLess(time.monotonic() - cut, 8)
        self.assertGreater(self.relay.counts.dropped, dropped)
        self.counts(*jobs[:2])
        self.ends(jobs[2], 200, within=40, last="a majority is needed")

    def test_a_job_with_node_numbers_ends_when_the_host_of_its_store_is_silent_slow(self):
        jobs = self.start(
            2, "--nnodes", "2", "--node-rank", "{1}", "--master-addr", "{0}", "--max-replacements",
            "1", program=nodes_test.LONG
        )
        self.wait_for_steps(20, jobs[0])
        self.relay.dead = {0}
        for job in reversed(jobs):
            result = job.finish(95)
            self.assertNotEqual(result.code, 0, result.err)
            self.nothing_left(job)
        self.assertIn("the store does not answer", jobs[1].err())

    def test_a_node_that_is_reached_again_in_time_loses_nothing_slow(self):
        jobs = self.start(3, *self.THREE, program=nodes_test.LONG)
        self.wait_for_steps(20, jobs[0])
        self.relay.dead = {2}
        time.sleep(0.3)  # TCP sends again before the lease of a node ends
        self.relay.dead = set()
        self.wait_for_steps(self.steps() + 20, jobs[0])
        results = self.counts(*jobs)
        self.assertEqual(self.sizes(*jobs), [])
        self.assertFalse(re.search("is lost", "".join(result.err for result in results)))


if __name__ == "__main__":
    harness.main()
