#!/usr/bin/env python3
"""Tests how publish.py judges the machine."""

import unittest

import publish


class Speed(unittest.TestCase):
    def test_equal_times_have_no_spread(self):
        self.assertEqual(publish.spread([0.2] * 20), 0)

    def test_a_fifth_of_slow_times_is_seen(self):
        self.assertAlmostEqual(publish.spread([0.2] * 16 + [0.3] * 4), 0.5)

    def test_a_single_slow_time_is_not(self):
        self.assertEqual(publish.spread([0.2] * 19 + [0.9]), 0)

    def test_all_cores_work_for_the_time_that_is_asked(self):
        times = publish.timed_work(0.05)
        self.assertGreaterEqual(sum(times), 0.04)
        self.assertGreaterEqual(publish.speed_spread(0.05), 0)


if __name__ == "__main__":
    unittest.main()
