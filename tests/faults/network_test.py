"""The network between two ranks of a real job does what it should not: they go on with the same
numbers, or end at once and say who."""

import itertools
import json
import threading
import time

import harness
import fault_proxy

HEADER = 104  # weft/net/tcp/frame.h
CONTROL = 2  # the last of three streams
MAGIC = b"WFT1"  # what a frame starts with
# A rank says one of these when its connection has ended. The last one comes from the other rank,
# which may tell it first, in another group.
LOST = ("PeerLost{", "gave this rank up", "is lost: ")


class Once:
    """True the first time that it is asked after arm()."""

    def __init__(self):
        self.armed = threading.Event()
        self.lock = threading.Lock()
        self.done = False

    def arm(self):
        self.armed.set()

    def __call__(self):
        with self.lock:
            if not self.armed.is_set() or self.done:
                return False
            self.done = True
            return True


class Network(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.between = fault_proxy.FaultProxy()
        self.addCleanup(self.between.close)
        self.now = Once()

    def start(self, *settings, ranks=2, env={}):
        """One `weft train` a rank, which meet through the meddling store."""
        jobs = []
        options = [
            word for setting in ("comm.transport=tcp", *settings) for word in ("--set", setting)
        ]
        for rank in range(ranks):
            folder = self.folder / str(rank)
            folder.mkdir()
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.between.store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": "1",
                **env,
            }
            job = harness.Job(folder, "train", self.folder, "--json", *options, env=own)
            self.addCleanup(job.clean)
            jobs.append(job)
        return jobs

    def meddled(self, tamper, *settings):
        """Two ranks that train until tamper has been armed."""
        self.between.tamper = tamper
        jobs = self.start(*settings, env=harness.SLEEPS)
        jobs[0].wait_for_steps(3)
        self.now.arm()
        return jobs

    def both_end(self, jobs, *says, within=6):
        """Each rank ends in time and says something of `says` and the other's number; one of them
        says the first."""
        results = [job.finish(within) for job in jobs]
        for rank, result in enumerate(results):
            self.assertNotEqual(result.code, 0)
            said = result.err.replace(" of the job", "")
            self.assertTrue(
                any(text in said for text in says),
                f"rank {rank} said:\n{result.err}\nthe other:\n{results[1 - rank].err}",
            )
            self.assertRegex(result.err, rf"rank {1 - rank}\b")
            for noise in harness.NOISE:
                self.assertNotIn(noise, result.err)
        self.assertTrue(
            any(says[0] in result.err for result in results),
            f"nobody says {says[0]}:\n{results[0].err}\n{results[1].err}",
        )
        for job in jobs:
            self.nothing_left(job)

    def result_of(self, jobs):
        answers = []
        for job in jobs:
            result = job.finish(60)
            self.assertEqual(result.code, 0, result.err)
            answers.append(result.out)
        answer = json.loads(answers[0])
        return {name: answer[name] for name in ("ranks", "epochs", "accuracy", "loss")}

    def test_slow_and_torn_bytes_change_nothing_but_the_time(self):
        # 24 steps are 7,000 pieces. Each is a turn of the proxy's on a processor, so that a busy
        # machine makes much of many.
        settings = (
            "train.max_steps=24", "data.flip=true", "train.checkpoint_every=0",
            "train.checkpoint_minutes=0"
        )
        alone = self.result_of(self.start(*settings))
        for rank in range(2):
            (self.folder / str(rank)).rename(self.folder / f"alone-{rank}")
        self.between.store.values.clear()  # a new job
        pause = itertools.cycle(63 * (0,) + (0.002,))

        def drip(link, outward, data):
            sink = link.far if outward else link.near
            for at in range(0, len(data), 700):
                sink.sendall(data[at : at + 700])
                time.sleep(next(pause))

        self.between.tamper = drip
        self.assertEqual(self.result_of(self.start(*settings)), alone)

    def damaged(self, change):
        """A change of what rank 1 sends on its data streams is noticed by rank 0, which tells rank
        1, in whatever group that waits. The change is at the start of a large frame: after a hole
        at the end of all traffic nothing would come that could not be read."""
        hit = []

        def tamper(link, outward, data):
            if (
                outward
                and link.stream != CONTROL
                and len(data) > 4096
                and data.startswith(MAGIC)
                and self.now()
            ):
                hit.append(link)
                return change(link, data)
            return data

        self.both_end(self.meddled(tamper), "Corrupt: ", "rank 0 failed")
        self.assertTrue(hit)

    def test_a_flipped_bit(self):
        self.damaged(lambda link, data: data[:-1] + bytes([data[-1] ^ 4]))

    def test_a_piece_that_comes_twice(self):
        self.damaged(lambda link, data: data + data)

    def test_a_piece_that_is_left_out(self):
        self.damaged(lambda link, data: data[HEADER:])

    def test_garbage_in_a_stream(self):
        self.damaged(lambda link, data: bytes(range(256)) + data)

    def test_a_frame_on_another_stream(self):
        def swap(link, data):
            other = next(one for one in self.between.links if one.stream == 1 - link.stream)
            other.far.sendall(data)

        self.damaged(swap)

    def test_frames_sent_back_to_their_sender(self):
        turned = set()

        def reflect(link, outward, data):
            if link.stream == CONTROL or not self.now.armed.is_set():
                return data
            # from the start of a frame on, and nothing passes after
            if outward and (link in turned or data.startswith(MAGIC)):
                turned.add(link)
                link.near.sendall(data)
                return b""
            return b"" if link in turned else data

        self.both_end(
            self.meddled(reflect, "comm.timeout_s=3"), "Corrupt: ", "rank 0 failed",
            "rank 1 failed", within=12
        )

    def cut(self, *streams):
        def tamper(link, outward, data):
            if self.now():
                for one in self.between.links:
                    if one.stream in streams:
                        one.cut()
            return data

        self.both_end(self.meddled(tamper), *LOST)

    def test_a_data_connection_that_is_cut(self):
        self.cut(0)

    def test_the_control_connection_that_is_cut(self):
        self.cut(CONTROL)

    def test_all_connections_that_are_cut(self):
        self.cut(0, 1, CONTROL)

    def test_data_that_nobody_reads_any_more(self):
        # Heartbeats still pass: the peer lives, and takes nothing.
        def stall(link, outward, data):
            if link.stream != CONTROL and self.now.armed.is_set():
                time.sleep(60)
            return data

        self.both_end(
            self.meddled(stall, "comm.timeout_s=2"), "Timeout", "rank 0 failed", "rank 1 failed",
            within=12
        )

    def test_silence_slow(self):
        # Nothing passes any more, and nothing is closed: 10 s until a peer is taken for lost.
        def hush(link, outward, data):
            if self.now.armed.is_set():
                time.sleep(60)
            return data

        self.both_end(self.meddled(hush), *LOST, within=20)


if __name__ == "__main__":
    harness.main()
