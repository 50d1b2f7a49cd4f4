"""Strangers on the ports of a running job: it goes on and gives the same result, bit for bit, as
one that was left alone."""

import itertools
import json
import os
import resource
import socket
import struct
import time

import harness

# What PyTorch's store expects first: its query type 0 and magic number. Then a key of 2^63 bytes
# for its query type 1, "set".
STORE_HELLO = struct.pack("<BI", 0, 0x3C85F7CE)
LENGTH = struct.pack("<Q", 2**63)

GREETINGS = {
    "garbage": os.urandom(64 << 10),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n",
    "tls": bytes.fromhex("16030100c5010000c10303") + os.urandom(32) + bytes(152),
    "length": LENGTH * 2,
    "length_big_endian": LENGTH[::-1] * 2,
    "length_in_a_frame": b"\xff" * 8 + LENGTH * 8,
    "store_length": STORE_HELLO + b"\x01" + LENGTH,
    "store_lengths": STORE_HELLO + b"\x06" + LENGTH * 2,
}


def greet(address, words):
    """Says it and listens for a moment. To be refused, or hung up on, is as good as an answer."""
    try:
        with socket.create_connection(address, timeout=1) as stranger:
            stranger.sendall(words)
            stranger.settimeout(0.05)
            while stranger.recv(4096):
                pass
    except OSError:
        pass


def connected(sockets):
    # 2: SYN_SENT
    return sum(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 2 for one in sockets)


class Strangers(harness.FaultTest):
    SETTINGS = (
        "comm.transport=tcp", "train.max_steps=150", "data.flip=true", "train.checkpoint_every=0",
        "train.checkpoint_minutes=0"
    )

    def start(self, name, **how):
        (self.folder / "recipe.toml").write_text(harness.RECIPE.replace('"run"', f'"{name}"'))
        options = [word for setting in self.SETTINGS for word in ("--set", setting)]
        return self.weft("train", self.folder, "-n", 2, "--json", *options, **how)

    def result_of(self, job, within=60):
        answer = json.loads(self.ends(job, 0, within=within).out)
        return {name: answer[name] for name in ("ranks", "epochs", "accuracy", "loss")}

    def attacked(self, attack, **how):
        """What a job ends with whose ports are attacked, from before its ranks have met on. Its
        steps last long enough for the attack, and use no processor meanwhile."""
        job = self.start("attacked", env={"WEFT_SLOW_RANK": "0:60"}, **how)
        attacked = attack(job)
        self.assertIsNone(
            job.process.poll(), f"the job was over before the attack was; it said:\n{job.err()}"
        )
        self.assertTrue(attacked)
        return self.result_of(job)

    def bears(self, attack, **how):
        alone = harness.remembered(self.SETTINGS, lambda: self.result_of(self.start("alone")))
        self.assertEqual(self.attacked(attack, **how), alone)

    def ports(self, job, seconds):
        """Every port the job listens on, again and again, from the first one on."""
        job.wait_for(job.listeners, "a port to attack", 30)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            yield from job.listeners()

    def greeted(self, *names):
        def attack(job):
            met = set()
            for port in self.ports(job, 2):
                met.add(port)
                for name in names:
                    greet(port, GREETINGS[name])
            return met

        self.bears(attack)

    def test_garbage_an_HTTP_request_and_a_TLS_hello(self):
        self.greeted("garbage", "http", "tls")

    def test_lengths_of_2_to_the_63_also_in_the_stores_own_language(self):
        self.greeted(
            "length", "length_big_endian", "length_in_a_frame", "store_length", "store_lengths"
        )

    def idle(self, count):
        """Connections that say nothing, before the ranks have met, to a job with a shell's usual
        limit of open files."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < count + 1024:
            self.skipTest(f"this process may open {hard} files only")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        def attack(job):
            sockets = [self.enterContext(socket.socket()) for _ in range(count)]
            for one, port in zip(sockets, itertools.cycle(job.wait_for(job.listeners, "a port"))):
                one.setblocking(False)
                one.connect_ex(port)
            harness.wait_until(
                lambda: connected(sockets) == count,
                20,
                lambda: f"{connected(sockets)} of {count} connections",
            )
            return sockets

        self.bears(
            attack, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        )

    def test_1000_idle_connections(self):
        self.idle(1000)

    def test_10000_idle_connections_slow(self):
        self.idle(10000)


if __name__ == "__main__":
    harness.main()
