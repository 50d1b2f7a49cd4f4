#!/usr/bin/env python3
"""Tests what a line of the benchmark has of a run's course, and that the report draws it."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

import strategies

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "report"))
import curve_charts  # noqa: E402
import tables  # noqa: E402
from results import Results  # noqa: E402


def of_training(step, samples_per_s):
    return {"step": step, "loss": 1.0, "samples_per_s": samples_per_s}


def of_test(step, accuracy, loss=0.5):
    return {"step": step, "accuracy": accuracy, "test_loss": loss}


class Curves(unittest.TestCase):
    def test_the_time_until_a_step_is_that_of_training_alone(self):
        # Of synchronous training: the records of steps come after the test that they precede.
        records = [of_test(2, 0.5), of_training(1, 64), of_training(2, 32), of_training(4, 128)]
        self.assertEqual(strategies.seconds_at(records, [2, 4]), [3.0, 4.0])

    def test_a_curve_has_at_most_sixty_points_and_the_last_one(self):
        records = [of_training(1, 64)]
        records += [of_test(step, step / 1000, 1 / step) for step in range(1, 151)]
        curves = strategies.curves_of(records)
        self.assertLessEqual(len(curves["curve"]), strategies.POINTS)
        self.assertEqual(curves["curve"][-1], (150, 0.15))
        self.assertEqual(len(curves["losses"]), len(curves["curve"]))
        self.assertEqual(len(curves["at_s"]), len(curves["curve"]))

    def test_a_loss_that_is_not_finite_leaves_a_gap(self):
        curves = strategies.curves_of([of_test(1, 0.1, None), of_test(2, 0.2)])
        self.assertEqual(curves["losses"], [None, 0.5])

    def test_the_first_step_at_an_accuracy_counts(self):
        records = [of_test(10, 0.8), of_test(20, 0.91), of_test(30, 0.9)]
        self.assertEqual(strategies.steps_in(records, 0.9), 20)
        self.assertIsNone(strategies.steps_in(records, 0.95))


def invented_run(args, settings, ranks, epochs, environment=None):
    """In place of training."""
    records = [of_training(step, 4000) for step in range(1, 938 * epochs + 1)]
    for step in range(args.eval_steps, 938 * epochs + 1, args.eval_steps):
        records.append(of_test(step, 0.92 - 30 / step, 0.3 + 100 / step))
    result = {"accuracy": 0.91, "loss": 0.31, "epochs": epochs, "seconds": 40.0}
    return result | {"samples_per_s": 3900.0}, records


class Report(unittest.TestCase):
    """The parts as publish.py measures them, without training."""

    PARTS = {
        "strategies": "accuracy --epochs 5",
        "strategies-periods": "periods --epochs 2 --eval-steps 469",
        "strategies-link": "link --epochs 4",
        "strategies-slow": "slow --epochs 3 --eval-steps 117",
        "optimizers": "optimizers --ranks 2 --epochs 3 --eval-steps 117",
    }

    def lines_of(self, words):
        out = io.StringIO()
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                (strategies, "train", invented_run),
                (strategies, "step_ms", lambda args, strategy, settings: 20.0),
                (strategies.shaped_link, "join_namespaces", lambda rate: None),
                (sys, "argv", ["strategies.py", *words.split()]),
            ):
                stack.enter_context(unittest.mock.patch.object(target, name, value))
            stack.enter_context(contextlib.redirect_stdout(out))
            strategies.main()
        return out.getvalue().splitlines()

    def test_all_tables_and_charts_can_be_made_of_the_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            for part, words in self.PARTS.items():
                lines = self.lines_of(words)
                for line in lines:
                    self.assertLess(len(json.loads(line)["params"].get("curve", [])), 61)
                head = json.dumps({"part": part, "commit": "abc"})
                (pathlib.Path(folder) / f"{part}.jsonl").write_text("\n".join([head, *lines]))
            run = Results(pathlib.Path(folder))
            for part in self.PARTS:
                self.assertIn("| --- |", tables.FIGURES[part](run), part)
            for name, chart in curve_charts.CHARTS.items():
                root = xml.etree.ElementTree.fromstring(chart(run))
                self.assertGreater(len(root.findall("{*}polyline")), 8, name)
            for name in curve_charts.FIGURES:
                self.assertIn("](pictures/", curve_charts.FIGURES[name](run))
            periods = tables.FIGURES["strategies-periods"](run)
            self.assertIn("| period | EAMSGD | EASGD | DOWNPOUR |", periods)
            self.assertIn("| 1 Gbit/s |", tables.FIGURES["strategies-link"](run))


if __name__ == "__main__":
    unittest.main()
