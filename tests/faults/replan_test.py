"""A run with parallel.plan = "auto" on two hosts goes on with another plan when the link between
them becomes slower. The hosts are network namespaces."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess

import harness
import tun_relay

ADDRESSES = ("10.78.0.1", "10.78.0.2")


@dataclasses.dataclass
class Host:
    address: str
    namespace: int


class Hosts:
    """Two network namespaces and a link whose rate can be changed."""

    def __init__(self):
        self.names = [f"weft-replan-{os.getpid()}-{number}" for number in (0, 1)]
        self.hosts = []
        try:
            for name, address in zip(self.names, ADDRESSES):
                self.ip("netns", "add", name)
                self.hosts.append(Host(address, os.open(f"/run/netns/{name}", os.O_RDONLY)))
            self.ip(
                "link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name",
                "veth0", "netns", self.names[1]
            )
            for name, address in zip(self.names, ADDRESSES):
                self.ip("-n", name, "addr", "add", address + "/24", "dev", "veth0")
                for device in ("lo", "veth0"):
                    self.ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def limit(self, rate):
        for name in self.names:
            subprocess.run(
                ["tc", "-n", name, "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", rate]
                + ["burst", "256kb", "latency", "100ms"],
                check=True,
            )

    def close(self):
        for host in self.hosts:
            os.close(host.namespace)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class Replan(harness.FaultTest):
    SETTINGS = (
        "parallel.plan=auto", "model.hidden=[1024,1024]", "train.batch=128", "train.epochs=1000000",
        "train.eval_every=0", "train.checkpoint_every=1000000"
    )

    def setUp(self):
        super().setUp()
        if reason := tun_relay.why_not():
            self.skipTest(reason)
        if not shutil.which("tc"):
            self.skipTest("there is no tc command (iproute2)")

    def test_a_slower_link_leads_to_another_plan_slow(self):
        hosts = Hosts()
        self.addCleanup(hosts.close)
        settings = (*self.SETTINGS, f'run.dir="{self.folder}/runs"')
        jobs = tun_relay.start_ranks(self, hosts.hosts, settings)
        metrics = self.folder / "runs/run/metrics.jsonl"

        def steps():
            return metrics.read_text().count("\n") if metrics.exists() else 0

        jobs[0].wait_for(lambda: steps() >= 50, "step 50", 40)
        (first,) = re.findall(r'plan layout="([^"]*)"', jobs[0].err())
        self.assertNotIn("pp", first)
        hosts.limit("400mbit")
        plan = jobs[0].wait_for(
            lambda: re.search(r"training goes on with another plan: (.*)", jobs[0].err()),
            "another plan", 70
        )[1]
        self.assertIn("slower links", jobs[0].err())
        self.assertNotEqual(plan, first)
        before = steps()
        jobs[0].wait_for(lambda: steps() >= before + 20, "steps of the new plan", 30)
        for job in jobs:
            job.process.send_signal(signal.SIGTERM)
        for job in jobs:
            self.assertEqual(job.finish(20).code, 143, job.err())


if __name__ == "__main__":
    harness.main()
