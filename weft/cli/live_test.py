"""Tests the live page (--http) of real runs: metrics that Prometheus's own parser reads, hostile
requests, and the end of the server with its run.

    live_test.py PATH/TO/weft PATH/TO/weft_live [tests]

Skipped without the package prometheus_client."""

import http.client
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("no package prometheus_client: skipped")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from processes import environment  # noqa: E402

WEFT = LIVE = ""
# A small model on generated images, which trains until it is stopped. Its rank 0 sleeps most of
# the time, and leaves the processors to other tests.
SLEEPS = {"WEFT_SLOW_RANK": "0:20"}
LONG = [
    "--set",
    "model.name=mlp",
    "--set",
    "model.hidden=[32]",
    "--set",
    "train.epochs=100000",
    "--set",
    "train.eval_every=0",
    "--set",
    "train.checkpoint_every=0",
    "--progress",
    "none",
]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Run:
    """A run with a live page. It ends with the `with` block."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [WEFT, *words],
            cwd=ROOT,
            env=environment(**SLEEPS),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said, self.port = "", 0
        self.reader = threading.Thread(target=self.read)  # a full pipe would block the run
        self.reader.start()
        if not wait_until(lambda: self.port or not self.reader.is_alive()) or not self.port:
            self.__exit__()
            raise AssertionError(f"no live page: {self.said}")

    def read(self):
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"live page: http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def ask(self, method, path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def samples(self):
        """{(name, labels): value} of /metrics; every family has a type and a help text."""
        status, headers, text = self.ask("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith(
            "text/plain; version=0.0.4"
        ), headers
        found = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation and family.type in ("counter", "gauge"), family
            for sample in family.samples:
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def value(self, name, **labels):
        return self.samples().get((name, tuple(sorted(labels.items()))), 0)

    def server_pids(self):
        pids = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if pathlib.Path(os.readlink(folder / "exe")) == pathlib.Path(
                    LIVE
                ).resolve() and is_child(folder, self.process.pid):
                    pids.append(int(folder.name))
            except OSError:
                pass
        return pids


def is_child(folder, parent):
    return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent


class Live(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, *words, before=()):
        return Run(*before, *words, "--set", f"run.dir={self.folder.name}")

    def train(self, *words):
        return self.start("train", "shapes", *LONG, "--http", "127.0.0.1:0", *words)

    def refused(self, address, *expected):
        result = subprocess.run(
            [
                WEFT,
                "train",
                "shapes",
                *LONG,
                "--http",
                address,
                "--set",
                f"run.dir={self.folder.name}",
            ],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for text in ("--http", *expected):
            self.assertIn(text, result.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_numbers_rise_while_two_ranks_train_and_the_server_ends_with_them(self):
        with self.train("-n", "2", "--name", "live") as run:
            step = ("weft_train_step",)
            self.assertTrue(wait_until(lambda: run.value(*step) > 0), run.said)
            before = run.samples()
            self.assertTrue(
                wait_until(lambda: run.value(*step) > before["weft_train_step", ()])
            )
            self.assertEqual(run.value("weft_run_info", run="live"), 1)
            self.assertEqual(run.value("weft_run_running"), 1)
            self.assertGreater(run.value("weft_train_loss"), 0)
            for rank in "01":
                self.assertGreater(run.value("weft_rank_memory_bytes", rank=rank), 1e7)
                name = {"path": "shared_memory", "rank": rank}
                self.assertTrue(
                    wait_until(
                        lambda: run.value("weft_communication_bytes_total", **name)
                        > before["weft_communication_bytes_total", tuple(sorted(name.items()))]
                    )
                )
            status, _, text = run.ask("GET", "/api/run")
            data = json.loads(text)
            self.assertEqual(
                (status, data["runs"][0]["name"], data["running"], len(data["ranks"])),
                (200, "live", True, 2),
            )
            pids = run.server_pids()
            self.assertEqual(len(pids), 1)
            self.assertEqual(run.end(signal.SIGTERM), 143)
            self.assertTrue(wait_until(lambda: not is_alive(pids[0]), 5))
            with self.assertRaises(ConnectionRefusedError):
                run.ask("GET", "/healthz")

    def test_the_page_is_self_contained_and_the_server_is_read_only(self):
        with self.train() as run:
            status, headers, page = run.ask("GET", "/")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            self.assertNotRegex(page, r"(src|href)=[\"']?http")
            self.assertEqual(run.ask("GET", "/healthz")[::2], (200, "ok\n"))
            self.assertEqual(run.ask("HEAD", "/metrics")[::2], (200, ""))
            self.assertEqual(run.ask("GET", "/../../etc/passwd")[0], 404)
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                status, headers, _ = run.ask(method, "/metrics")
                self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"), method)
            # A web page could send requests through a name that resolves to this machine.
            self.assertEqual(run.ask("GET", "/metrics", Host="rebound.example:80")[0], 403)
            self.assertEqual(run.ask("GET", "/metrics", Host=f"localhost:{run.port}")[0], 200)

    def test_the_server_and_the_run_survive_malformed_and_slow_requests(self):
        with self.train() as run:
            for garbage in (
                b"\x00\xff\xfe\r\n\r\n",
                b"GET\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"A" * 100_000,
                b"GET / HTTP/1.1\r\nX: " + b"b" * 100_000 + b"\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
                b"GET /" + b"%00" * 5_000 + b" HTTP/1.1\r\n\r\n",
            ):
                with socket.create_connection(("127.0.0.1", run.port), timeout=10) as stranger:
                    try:
                        stranger.sendall(garbage)
                        stranger.shutdown(socket.SHUT_WR)
                        while stranger.recv(65536):
                            pass
                    except OSError:
                        pass  # the server closed the connection
                self.assertEqual(run.ask("GET", "/healthz")[0], 200)
            # Silent connections free their threads.
            silent = [socket.create_connection(("127.0.0.1", run.port)) for _ in range(40)]
            self.assertEqual(run.ask("GET", "/healthz")[0], 200)
            for one in silent:
                one.close()
            # Connections that send one byte at a time free their threads, too.
            slow = [socket.create_connection(("127.0.0.1", run.port)) for _ in range(20)]
            began = time.monotonic()
            for byte in itertools.cycle(b"GET /healthz?"):
                try:
                    for one in slow:
                        one.sendall(bytes([byte]))
                except OSError:
                    break
                self.assertLess(time.monotonic() - began, 40)
                time.sleep(0.5)
            for one in slow:
                one.close()
            self.assertTrue(wait_until(lambda: run.ask("GET", "/healthz")[0] == 200))
            self.assertIsNone(run.process.poll())
            self.assertEqual(len(run.server_pids()), 1)

    def test_the_server_ends_if_the_launcher_is_killed(self):
        with self.train() as run:
            pids = run.server_pids()
            self.assertEqual(len(pids), 1)
            run.end(signal.SIGKILL)
            self.assertTrue(wait_until(lambda: not is_alive(pids[0]), 5))

    def test_weft_run_serves_the_run_of_its_ranks(self):
        with self.start(
            "train",
            "shapes",
            *LONG,
            "--name",
            "ranks",
            before=("run", "-n", "2", "--http", "127.0.0.1:0", WEFT),
        ) as run:
            self.assertTrue(wait_until(lambda: run.value("weft_run_info", run="ranks") == 1))
            self.assertTrue(wait_until(lambda: run.value("weft_rank_memory_bytes", rank="1") > 0))
            run.end(signal.SIGTERM)

    def test_top_serves_a_run_that_has_ended(self):
        subprocess.run(
            [
                WEFT,
                "train",
                "shapes",
                *LONG,
                "--set",
                "train.max_steps=3",
                "--name",
                "over",
                "--set",
                f"run.dir={self.folder.name}",
            ],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            check=True,
            timeout=60,
        )
        with Run("top", f"{self.folder.name}/over", "--http", "127.0.0.1:0") as run:
            self.assertTrue(wait_until(lambda: run.value("weft_train_step") == 3))
            self.assertEqual(run.value("weft_run_running"), 0)
            self.assertEqual(run.end(signal.SIGINT), 0)

    def test_an_invalid_address_is_refused_before_the_run_folder_is_created(self):
        self.refused("nowhere", "HOST:PORT")
        self.refused("127.0.0.1:70000", "0 to 65535")
        self.refused("203.0.113.1:0", "203.0.113.1")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused(f"127.0.0.1:{taken.getsockname()[1]}", "taken")

    def test_without_the_server_program_the_error_names_the_package_to_install(self):
        with tempfile.TemporaryDirectory(dir=pathlib.Path(WEFT).parent) as lonely:
            os.link(WEFT, f"{lonely}/weft")
            result = subprocess.run(
                [f"{lonely}/weft", "train", "shapes", "--http", "127.0.0.1:0"],
                cwd=ROOT,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=60,
            )
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertIn("libcpp-httplib-dev", result.stderr)


if __name__ == "__main__":
    WEFT, LIVE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
