"""Two ranks on two hosts over a network that loses, doubles, delays and reorders packets
(tun_relay.py): the same numbers, or an end in time."""

import json

import harness
import tun_relay


class Tun(harness.FaultTest):
    SHORT = "train.max_steps=30"  # some thousand packets, of which 1 % are dropped
    SETTINGS = ("data.flip=true", "train.checkpoint_every=0", "train.checkpoint_minutes=0")

    def setUp(self):
        super().setUp()
        if reason := tun_relay.why_not():
            self.skipTest(reason)

    def start(self, relay, *settings):
        return tun_relay.start_ranks(self, relay.hosts, (*self.SETTINGS, *settings), "--json")

    def network(self, seed, **weather):
        relay = tun_relay.Relay(seed, tun_relay.Weather(**weather))
        self.addCleanup(relay.close)
        return relay

    def numbers(self, *jobs):
        """What rank 0, the first, ends with."""
        results = [job.finish(60) for job in jobs]
        for result in results:
            self.assertEqual(result.code, 0, result.err)
        answer = json.loads(results[0].out)
        return {name: answer[name] for name in ("ranks", "epochs", "accuracy", "loss")}

    def test_bad_weather_changes_nothing_but_the_time(self):
        options = [
            word
            for setting in (self.SHORT, "comm.transport=tcp", *self.SETTINGS)
            for word in ("--set", setting)
        ]
        expected = self.numbers(self.weft("train", self.folder, "-n", 2, "--json", *options))
        self.assertEqual(expected["ranks"], 2)
        relay = self.network(7, drop=0.01, duplicate=0.02, late=0.05, late_by=0.004)
        self.assertEqual(self.numbers(*self.start(relay, self.SHORT)), expected)
        self.assertGreater(
            min(relay.counts.dropped, relay.counts.duplicated, relay.counts.overtook),
            10,
            relay.counts,
        )

    def test_a_wire_that_goes_dead_is_a_lost_peer_on_both_sides_slow(self):
        relay = self.network(7, drop=0.01)
        jobs = self.start(relay)
        jobs[0].wait_for_steps(3)
        relay.weather = tun_relay.Weather(drop=1)
        for rank, job in enumerate(jobs):
            result = job.finish(20)  # 10 s without a word
            self.assertNotEqual(result.code, 0)
            self.assertRegex(
                result.err,
                rf"(PeerLost|gave this rank up)[^\n]*rank {1 - rank}\b|rank "
                rf"{1 - rank}\b[^\n]*(lost|gave this rank up)",
            )
            self.nothing_left(job)


if __name__ == "__main__":
    harness.main()
