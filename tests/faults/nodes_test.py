"""Jobs on several nodes that meet at an endpoint: any node may be lost, the first one too, and
nodes may come late. Every sample is used exactly once in each epoch (counting_main.cc). The nodes
are launchers on one machine that count as different hosts."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

import harness
import meeting_test

COUNTING = os.path.abspath(os.environ["WEFT_COUNTING_PROGRAM"])
LONG = [COUNTING, harness.ENDLESS, 4]  # counts() ends it
TOLD = r"training goes on .*ranks=(\d+)"


def free_port():
    holder, port = meeting_test.taken_port()
    holder.close()
    return port


class EtcdServers:
    """Real servers of one etcd cluster on loopback."""

    def __init__(self, folder, count):
        if not os.path.exists("/usr/bin/etcd"):
            raise unittest.SkipTest("there is no etcd (Debian: etcd-server)")
        self.clients = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        cluster = ",".join(f"server{i}={peer}" for i, peer in enumerate(peers))
        self.url = "etcd://" + ",".join(self.clients)
        self.processes = []
        for i, client in enumerate(self.clients):
            self.processes.append(
                subprocess.Popen(
                    [
                        "/usr/bin/etcd", "--name", f"server{i}", "--data-dir", folder / str(i),
                        "--listen-client-urls", "http://" + client, "--advertise-client-urls",
                        "http://" + client, "--listen-peer-urls", peers[i],
                        "--initial-advertise-peer-urls", peers[i], "--initial-cluster", cluster,
                        "--logger", "zap", "--log-level", "error", "--heartbeat-interval", "50",
                        "--election-timeout", "500", "--unsafe-no-fsync"
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL
                )
            )

    def status(self, client):
        import urllib.request  # takes long to load

        request = urllib.request.Request(f"http://{client}/v3/maintenance/status", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return {"leader": "", "header": {"member_id": "none"}}

    def kill_leader(self):
        for client, process in zip(self.clients, self.processes):
            status = self.status(client)
            if status.get("leader") == status["header"]["member_id"]:
                process.kill()
                process.wait()
                return
        raise AssertionError("no etcd server leads")

    def clean(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Nodes(harness.FaultTest):
    def setUp(self):
        super().setUp()
        (self.folder / "secret").write_bytes(os.urandom(32))
        os.chmod(self.folder / "secret", 0o600)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.nodes = []

    def node(self, *flags, program=None, ranks=1, meet=None, secret=True, conf="", env={}):
        """A launcher that counts as a host of its own."""
        number = len(self.nodes)
        folder = self.folder / f"node{number}"
        folder.mkdir()
        where = meet or ["--rdzv-endpoint", self.endpoint, "--rdzv-id", "job"]
        conf = ",".join(filter(None, ["last_call_timeout=60", conf]))
        program = program or LONG
        job = harness.Job(
            folder, "run", "-n", ranks, *flags, *where, "--rdzv-conf", conf,
            *(["--secret-file", self.folder / "secret"] if secret else []), "sh", "-c",
            f"cd {self.folder} && exec " + " ".join(map(str, program)),
            env={"WEFT_HOST_ID": f"host{number}", **env}
        )
        self.addCleanup(job.clean)
        self.nodes.append(job)
        return job

    def three(self, nnodes, *flags, **how):
        return [self.node("--nnodes", nnodes, *flags, **how) for _ in range(3)]

    def steps(self):
        try:
            return (self.folder / "runs/run/metrics.jsonl").read_text().count("\n")
        except OSError:
            return 0

    def wait_for_steps(self, count, job):
        job.wait_for(lambda: self.steps() >= count, f"step {count}", 40)

    def named(self, job, name):
        """The processes of a node with this name."""
        found = []
        for pid, _ in job.processes():
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                    if comm.read().startswith(name[:15]):
                        found.append(pid)
            except OSError:
                continue
        return found

    def lose(self, *jobs):
        """Hosts that lose power: all their processes end at once."""
        for job in jobs:
            pids = [pid for pid, _ in job.processes()]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    def sizes(self, *jobs):
        told = [[int(n) for n in re.findall(TOLD, job.err())] for job in jobs]
        return max(told, key=len)

    def counts(self, *jobs, sizes=None):
        """The jobs have had these numbers of ranks. Then they end well, and leave nothing."""
        if sizes is not None:
            jobs[0].wait_for(lambda: self.sizes(*jobs) == sizes, f"the ranks {sizes}", 60)
        (self.folder / "enough").touch()
        results = [self.ends(job, 0, within=90) for job in jobs]
        said = "".join(result.out for result in results)
        self.assertIn("every sample was used once in each epoch, ", said, results[0].err)
        return results

    def test_the_first_node_is_lost_and_the_others_go_on(self):
        jobs = self.three("2:3")
        self.wait_for_steps(20, jobs[1])
        os.kill(jobs[0].process.pid, signal.SIGKILL)  # its agent, store and ranks end with it
        self.counts(*jobs[1:], sizes=[2])
        self.nothing_left(jobs[0])

    def test_the_end_of_a_process_that_only_cleans_up_ends_nothing(self):
        jobs = [self.node("--nnodes", 2) for _ in range(2)]
        self.wait_for_steps(5, jobs[0])
        (guard, ) = [
            pid for pid, _ in jobs[1].processes()
            if harness.stat_of(pid)[1] == jobs[1].process.pid and pid in self.named(jobs[1], "weft")
            and pid not in self.named(jobs[1], "weft agent") + self.named(jobs[1], "weft_")
        ]
        os.kill(guard, signal.SIGKILL)
        jobs[1].wait_for(lambda: "a new one takes its place" in jobs[1].err(), "a new process")
        self.counts(*jobs)

    def test_a_node_comes_late_and_the_job_grows(self):
        first = self.node("--nnodes", "1:2", conf="last_call_timeout=0")
        self.wait_for_steps(5, first)
        second = self.node("--nnodes", "1:2")
        second.wait_for(lambda: self.sizes(first) == [2], "two ranks")
        self.counts(first, second)

    def test_status_shows_the_ranks_of_its_own_node_and_counts_the_others(self):
        jobs = [self.node("--nnodes", 2, ranks=2) for _ in range(2)]
        self.wait_for_steps(5, jobs[0])
        seen = []
        for job in jobs:
            told = self.beside(job, "status", job.process.pid).stdout
            self.assertIn("2 more ranks are on other nodes", told)
            seen += [int(rank) for rank in re.findall(r"(?m)^(\d+)  ", told)]
        self.assertEqual(sorted(seen), [0, 1, 2, 3])
        self.counts(*jobs)

    @harness.needs("WEFT_PS")
    def test_batches_of_asynchronous_workers_are_given_out_again_after_a_kill(self):
        # The center is on servers of both nodes, and the counter of batches in the job's store.
        program = [*LONG, 1, "private", "downpour"]
        jobs = [
            self.node("--nnodes", 2, "--max-replacements", 1, program=program) for _ in range(2)
        ]
        self.wait_for_steps(30, jobs[0])
        os.kill(self.named(jobs[1], os.path.basename(COUNTING))[0], signal.SIGKILL)
        results = self.counts(*jobs, sizes=[2])
        said = "".join(result.err for result in results)
        self.assertIn("batches_by_worker", said)  # each takes them when it is ready
        self.assertNotIn("even parts", said)

    def test_agents_and_store_processes_are_killed_and_nothing_else_happens_slow(self):
        jobs = [self.node("--nnodes", 2) for _ in range(2)]
        self.wait_for_steps(10, jobs[0])
        for job in jobs:
            for name in ("weft agent", "weft_store"):
                pids = self.named(job, name)
                self.assertEqual(len(pids), 1, name)
                os.kill(pids[0], signal.SIGKILL)
            job.wait_for(lambda job=job: self.named(job, "weft agent"), "a new agent")
        self.wait_for_steps(self.steps() + 20, jobs[0])
        results = self.counts(*jobs)
        self.assertIn("the agent of this node ended with SIGKILL", results[0].err)
        self.assertEqual(self.sizes(*jobs), [])

    def test_a_minority_of_the_nodes_does_not_train_and_ends_slow(self):
        jobs = self.three("1:3", conf="read_timeout=3")
        self.wait_for_steps(20, jobs[2])
        self.lose(*jobs[:2])
        done = self.steps()
        result = self.ends(jobs[2], 200, within=30)
        self.assertIn("a majority is needed", result.last_line)
        self.assertLess(self.steps(), done + 20)

    def test_all_nodes_name_the_same_rank_if_the_program_fails_slow(self):
        jobs = self.three(3, program=["sh", "-c", "'[ $RANK != 1 ] || exit 7; sleep 60'"])
        lines = {self.ends(job, 7, within=20).last_line for job in jobs}
        self.assertEqual(lines, {"weft: rank 1 is lost: exit code 7"})

    def test_an_endpoint_at_which_nobody_answers(self):
        meet = ["--rdzv-endpoint", "192.0.2.1:29400", "--rdzv-id", "job"]
        job = self.node("--nnodes", 2, meet=meet, conf="join_timeout=1")
        result = self.ends(job, 200, within=10)
        self.assertIn("has not joined the job's store yet", result.last_line)

    def test_nodes_with_other_flags_or_another_name_are_refused_slow(self):
        first = self.node("--nnodes", "1:3", conf="last_call_timeout=0")
        self.wait_for_steps(1, first)
        other = self.node("--nnodes", "1:4")
        meet = ["--rdzv-endpoint", self.endpoint, "--rdzv-id", "another"]
        stranger = self.node("--nnodes", "1:3", meet=meet, conf="join_timeout=1")
        self.ends(other, 2, last="the flags of this node are not those of the job: --nnodes 1:4")
        self.ends(stranger, 200, last="another job")
        self.counts(first)

    def test_a_signal_to_one_launcher_ends_the_job(self):
        jobs = [self.node("--nnodes", 2, secret=False) for _ in range(2)]
        self.wait_for_steps(5, jobs[0])
        jobs[1].process.send_signal(signal.SIGTERM)
        for job in jobs:
            self.ends(job, 143, within=20, last="stopped by SIGTERM to the launcher of node")

    def test_a_lost_rank_is_replaced_on_its_node_and_a_lost_node_on_another_one_slow(self):
        jobs = self.three("2:3", "--max-replacements", 5, ranks=2)
        self.wait_for_steps(20, jobs[0])
        os.kill(self.named(jobs[1], "weft_faults_counting")[0], signal.SIGKILL)
        jobs[0].wait_for(lambda: self.sizes(*jobs) == [6], "six ranks again", 40)
        self.assertRegex(jobs[0].err(), r"a new process on node \d replaces it \(1 of 5\)")
        self.assertEqual(
            self.beside(jobs[0], "scale", jobs[0].process.pid, 4).returncode, 0, jobs[0].err()
        )
        self.lose(jobs[0])
        jobs[1].wait_for(lambda: self.sizes(*jobs[1:])[-1:] == [4], "four ranks again", 40)
        self.counts(*jobs[1:])

    def test_the_number_of_ranks_is_changed_by_request_slow(self):
        jobs = [self.node("--nnodes", "1:2", ranks=2) for _ in range(2)]
        self.wait_for_steps(5, jobs[0])
        for ranks in (2, 4, 3):
            result = self.beside(jobs[1], "scale", jobs[1].process.pid, ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.counts(*jobs, sizes=[2, 4, 3])

    def test_nodes_are_lost_and_come_again_slow(self):
        jobs = self.three("2:3")
        for lost in range(3):
            self.wait_for_steps(self.steps() + 40, jobs[-1])
            self.lose(jobs.pop(0))
            jobs[-1].wait_for(
                lambda: self.sizes(*jobs)[-1:] == [2], f"two ranks after loss {lost}", 40
            )
            time.sleep(4)  # the store forgets the lost node
            # The first endpoint is gone: the node meets the others at one that lives.
            sockets = [
                f"{address}:{port}" for address, port in jobs[0].listeners()
                if address == "127.0.0.1"
            ]
            self.endpoint = self.store_address(jobs[0], sockets)
            jobs.append(self.node("--nnodes", "2:3"))
            jobs[-1].wait_for(lambda: self.sizes(*jobs)[-1:] == [3], "three ranks again", 40)
        self.counts(*jobs)

    def test_the_nodes_meet_in_etcd_whose_leader_is_killed_slow(self):
        servers = EtcdServers(self.folder / "etcd", 3)
        self.addCleanup(servers.clean)
        meet = ["--rendezvous", servers.url, "--rdzv-id", "job"]
        # Of two nodes, etcd survives either one.
        jobs = [self.node("--nnodes", "1:2", meet=meet) for _ in range(2)]
        self.wait_for_steps(20, jobs[0])
        servers.kill_leader()
        self.wait_for_steps(self.steps() + 100, jobs[0])
        self.assertEqual(self.sizes(*jobs), [])  # training did not notice
        self.lose(jobs[0])
        jobs[1].wait_for(lambda: self.sizes(jobs[1]) == [1], "one rank", 40)
        late = self.node("--nnodes", "1:2", meet=meet)
        self.counts(jobs[1], late, sizes=[1, 2])
        again = self.node("--nnodes", "1:2", meet=meet)
        self.ends(again, 203, last="the job job has ended already; use another --rdzv-id")

    def test_etcd_servers_that_do_not_answer_slow(self):
        meet = ["--rendezvous", "etcd://127.0.0.1:9", "--rdzv-id", "job"]
        job = self.node("--nnodes", 2, meet=meet, conf="join_timeout=1")
        result = self.ends(job, 200, within=10)
        self.assertIn("etcd", result.last_line)

    def store_address(self, job, sockets):
        """The listening socket of a node's store process."""
        (pid, ) = self.named(job, "weft_store")
        words = harness.describe(pid)[1].split()
        address = words[words.index("--address") + 1]
        self.assertIn(address, sockets)
        return address


if __name__ == "__main__":
    harness.main()
