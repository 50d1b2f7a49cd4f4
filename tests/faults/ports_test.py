"""What a job listens on, read from /proc/net while it runs (docs/ports.md): nothing on a wildcard
address."""

import pathlib
import re
import unittest

import harness
import meeting_test

ROOT = pathlib.Path(__file__).resolve().parents[2]


def loopback(address):
    return address.startswith("127.") or address == "::1"


class Ports(harness.FaultTest):
    def listens(self, job, most):
        """While its ranks meet and train, the job holds at most so many listening ports at once,
        all of them on loopback. Groups form one after another, with ports of their own."""
        seen = set()
        while job.steps() < 5:
            now = job.listeners()
            self.assertLessEqual(len(now), most, now)
            seen |= now
            self.assertIsNone(job.process.poll(), job.err())
        self.assertEqual([place for place in seen if not loopback(place[0])], [])
        self.assertLessEqual(len(job.listeners()), 1, "ports stay open behind the meeting")
        return seen

    def test_a_job_over_tcp_listens_on_loopback_alone(self):
        # the store, and a data port a rank until all are connected
        seen = self.listens(self.train(2, "comm.transport=tcp"), 3)
        self.assertGreaterEqual(len(seen), 1)

    def test_a_job_in_shared_memory_has_the_store_alone(self):
        self.listens(self.train(2, "comm.transport=shm"), 1)

    def test_one_rank_listens_on_nothing(self):
        self.assertEqual(self.listens(self.train(1), 0), set())

    def test_a_rank_without_a_launcher_hosts_the_store_on_the_address_it_was_given(self):
        holder, port = meeting_test.taken_port()
        holder.close()
        alone = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        job = self.weft("train", self.folder, "--set", "comm.timeout_s=20", env=alone)
        places = job.wait_for(job.listeners, "the store")
        self.assertEqual([place for place in places if not loopback(place[0])], [])

    def test_a_wildcard_address_is_asked_for_or_refused(self):
        # Asked for without a secret of the launcher's: rank 0 would let anybody in.
        job = self.train(2, "comm.transport=tcp", "comm.interface=0.0.0.0")
        self.ends(job, 2, ["to listen on every interface (0.0.0.0) needs"], within=10)


class PortsDocument(unittest.TestCase):
    def test_every_source_that_listens_is_named_in_the_document(self):
        document = (ROOT / "docs/ports.md").read_text()
        sources = [
            path
            for folder in ("weft", "python", "bench/peers")
            for end in ("cc", "cpp", "h", "py")
            for path in (ROOT / folder).rglob(f"*.{end}")
        ]
        listeners = {
            str(path.relative_to(ROOT))
            for path in sources
            if not re.search(r"(_test\.\w+|test_\w+\.py)$", path.name)
            and path.parent.name not in ("testing", "tests")
            and re.search(
                r"(?<!\w)::listen\(|[^.\w]listen\(\w*fd_?,|create_server\(|isServer = "
                r"[^f]|TCPStore\(.*True|master_listen_fd|listen_after_bind",
                path.read_text(),
            )
        }
        self.assertGreater(len(listeners), 4)
        self.assertEqual(sorted(one for one in listeners if one not in document), [])


if __name__ == "__main__":
    harness.main()
