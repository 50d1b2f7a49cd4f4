#!/usr/bin/env python3
"""Tests the tables and charts with an invented run."""

import json
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

import charts
import curve_charts
import report
import tables
from results import Missing, Results, digits, size_of, table, time_of


def line(value, unit="us", **params):
    return {"bench": "x", "params": params, "value": value, "unit": unit, "runs": 5}


class MadeUpRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def store(self, part, *lines, **head):
        head = {"part": part, "commit": "abc", **head}
        (self.folder / f"{part}.jsonl").write_text(
            "\n".join(json.dumps(one) for one in (head, *lines)) + "\n"
        )

    def run_of(self):
        return Results(self.folder)

    def all_reduce(self):
        case = {"op": "all_reduce", "ranks": 2, "vectors": "rewritten"}
        self.store(
            "all-reduce",
            line(0.4, impl="weft", bytes=8, **case),
            line(0.2, impl="openmpi5", bytes=8, **case),
            line(0.5, "times faster", impl="weft", bytes=8, against="openmpi5", **case),
            line(1000, impl="weft", bytes=25 << 20, **case),
            line(5500, impl="openmpi5", bytes=25 << 20, **case),
            line(5.5, "times faster", impl="weft", bytes=25 << 20, against="openmpi5", **case),
        )

    def test_figures_have_three_digits_and_a_unit(self):
        self.assertEqual(
            [digits(v) for v in (0.123, 1.234, 12.34, 99.6)], ["0.12", "1.23", "12.3", "100"]
        )
        self.assertEqual(
            [time_of(v) for v in (None, 0.4, 999, 5520, 2e6)],
            ["", "0.40 us", "999 us", "5.52 ms", "2.00 s"],
        )
        self.assertEqual([size_of(v) for v in (8, 1 << 10, 25 << 20)], ["8 B", "1 KiB", "25 MiB"])

    def test_the_two_commands_have_their_times_or_no_time_at_all(self):
        words = tables.FIGURES["clone-readme"]
        self.all_reduce()
        self.assertNotIn(" s |", words(self.run_of()))
        with self.assertRaises(Missing):
            tables.FIGURES["clone-details"](self.run_of())
        figures = {
            "first": {"libtorch": 64, "compiling": 296, "training": 90.2, "together": 471},
            "second": {"compiling": 690, "tests": 707, "together": 1398, "number of tests": 797},
        }
        self.store(
            "clone",
            *(
                line(value, "s", command=command, what=what, torch="2.15.0")
                for command, all in figures.items()
                for what, value in all.items()
            ),
            machine={"cores": 2, "cpu": "A CPU", "memory_gib": 23.5},
            date="2026-11-28",
        )
        run = self.run_of()
        self.assertIn(
            "| `bin/weft train recipes/fashion-mnist -n 2` | 1 min 04 s | 4 min 56 s | 1 min 30 s "
            "| 7 min 51 s |",
            words(run),
        )
        self.assertIn("| `./dev test` |  | 11 min 30 s | 11 min 47 s | 23 min 18 s |", words(run))
        self.assertIn("2 virtual cores (A CPU)", words(run))
        self.assertIn("| test entries |  | 797 |", tables.FIGURES["clone-details"](run))
        self.assertIn("with torch 2.15.0", tables.FIGURES["clone-details"](run))

    def test_predictions_stand_beside_measurements_and_the_chosen_layout_beside_the_fastest(self):
        case = {"case": "layouts", "model": "gpt-128", "ranks": 2}
        rivals = [
            {"layout": "dp 2", "turns_ms": [90, 92, 99], "chosen_over": 0.9},
            {"layout": "tp 2", "turns_ms": [80, 88, 81], "chosen_over": 1.05},
        ]
        turns = {"turns_ms": [84, 85, 86], "rivals": rivals}
        marks = {"traffic_mib": 2e-5, "predicted_traffic_mib": 0}
        self.store(
            "planning",
            line(100, "ms a step", layout="dp 2", memory_mib=200, predicted_ms=90, **case, **marks),
            line(80, "ms a step", layout="tp 2", memory_mib=100, predicted_ms=84, **case),
            line(84, "ms a step", layout="dp 2, x", chosen=True, predicted_ms=80, **turns, **case),
        )
        self.store(
            "planning-unequal",
            line(90, "ms", case="unequal", variant="auto", layout="dp 2", times_faster=1.5),
        )
        run = self.run_of()
        summary = tables.FIGURES["planning-summary"](run)
        chosen = tables.FIGURES["planning-chosen"](run)
        self.assertIn("| GPT-128 | 2 | 7.5 % | 10.0 % |", summary)
        layouts = tables.FIGURES["planning-layouts"](run)
        self.assertIn("| dp 2 | 100 ms | 90.0 ms | -10.0 % | 200 MiB |", layouts)
        self.assertIn("| 0.00 MiB | +0.0 % |", layouts)
        self.assertIn("| dp 2, x | 84.0 ms | 80.0 ms | -4.8 % | tp 2 | 85.0 ms |", chosen)
        self.assertIn("| 85.0 ms | 81.0 ms | +5.0 % |", chosen)
        self.assertIn("| auto | dp 2 | 90.0 ms | 1.50x |", tables.FIGURES["planning-unequal"](run))

    def test_a_table_leaves_out_columns_that_are_empty(self):
        self.assertEqual(
            table(["a", "b", "c"], [["1", "", "3"]]), "| a | c |\n| --- | --- |\n| 1 | 3 |"
        )

    def test_a_table_by_size_has_the_values_of_the_participants_that_were_there(self):
        self.all_reduce()
        text = tables.FIGURES["all-reduce"](self.run_of())
        self.assertIn("| size | weft | Open MPI 5 |", text)
        self.assertIn("| 25 MiB | 1.00 ms | 5.50 ms |", text)

    def test_cases_in_which_a_peer_was_faster_are_listed_and_no_others(self):
        self.all_reduce()
        self.assertEqual(
            tables.FIGURES["slower"](self.run_of()),
            "| case | Open MPI 5 |\n| --- | --- |\n| all-reduce, 8 B, rewritten | 2.00x |",
        )

    def test_the_parameter_server_stands_beside_the_peer_over_the_same_transport(self):
        self.store(
            "ps",
            line(3e6, "rows pulled/s", op="pull", impl="weft"),
            line(6, "times faster", op="pull", impl="weft", against="torch-rpc"),
            line(900, "rows pushed/s", op="push", impl="weft"),
            line(0.5, "times faster", op="push", impl="weft", against="torch-rpc"),
            line(5e5, "rows pulled/s", op="pull", impl="torch-rpc"),
        )
        text = tables.FIGURES["ps-rows"](self.run_of())
        self.assertIn("| weft | shared memory | 3.00 M | 6.00x | 900 | 0.50x |", text)
        self.assertIn("| torch.distributed.rpc | its choice within a host | 500000 |", text)
        self.assertNotIn("TCP", text)

    def test_linear_models_stand_beside_their_peers(self):
        common = {"bench": "linear", "loss": "hinge", "worst_gap": 9.5e-4}
        self.store(
            "linear",
            dict(common, impl="weft-1", median_s=0.5, ratio_to_weft_1=1, ratio_to_weft_2=2),
            dict(
                common, impl="sklearn-sgd", median_s=2.25, ratio_to_weft_1=4.5, ratio_to_weft_2=None
            ),
        )
        text = tables.FIGURES["linear"](self.run_of())
        self.assertIn(
            "| hinge | weft, one process (SDCA) | 0.50 s | 1.00x | 2.00x | 9.5e-04 |", text
        )
        self.assertIn("| scikit-learn, `SGDClassifier` | 2.25 s | 4.50x |  | 9.5e-04 |", text)

    def test_missed_targets_are_listed(self):
        self.store(
            "tensor",
            line(
                1.5, "times", model="gpt", measured="one / two", target="at least 1.75", good=False
            ),
            line(1.9, "times", model="gpt", measured="other", target="at least 1.75", good=True),
        )
        text = tables.FIGURES["missed"](self.run_of())
        self.assertIn("| GPT | one / two | 1.500 | at least 1.75 |", text)
        self.assertNotIn("other", text)

    def test_a_part_that_was_not_measured_is_said_in_its_place(self):
        self.all_reduce()
        page = "a\n<!-- figures: training -->\nold\n<!-- end of figures -->\nb\n"
        text = report.with_figures(page, self.run_of(), "page")
        self.assertIn("Not measured in the published run (`./dev bench publish training`).", text)
        self.assertNotIn("old", text)
        self.assertEqual(report.with_figures(text, self.run_of(), "page"), text)

    def test_a_name_that_is_no_figure_ends_with_one_line(self):
        self.all_reduce()
        page = "<!-- figures: nothing -->\n<!-- end of figures -->"
        with self.assertRaisesRegex(SystemExit, "page: no figure 'nothing'"):
            report.with_figures(page, self.run_of(), "page")

    def test_a_commit_that_is_no_ancestor_is_named(self):
        self.store("tensor", line(1))
        [wrong] = report.ancestors(self.run_of())
        self.assertIn("commit abc is not an ancestor of HEAD", wrong)

    def test_two_series_of_a_chart_have_two_colors(self):
        bar = ("weft", 1.0, "s0")
        charts.bars("a chart", [("one", [bar]), ("two", [bar])], str)
        with self.assertRaises(ValueError):
            charts.bars("a chart", [("one", [bar, ("weft, ZeRO-1", 1.1, "s0")])], str)

    def test_charts_are_svg(self):
        self.all_reduce()
        root = xml.etree.ElementTree.fromstring(charts.all_reduce(self.run_of()))
        self.assertTrue(root.tag.endswith("svg"))
        with self.assertRaises(Missing):
            charts.training(self.run_of())


    def strategies(self, **more):
        curve = [[100, 0.82], [200, 0.9]]
        case = {"case": "accuracy", "ranks": 4, "epochs": 5, "curve": curve, "seconds": 9}
        case |= {"settings": [], "sent_mb": 1, "shared_mb": None, **more}
        self.store(
            "strategies",
            line(0.9, "accuracy", rule="sync", strategy="sync", **case),
            line(0.89, "accuracy", rule="EAMSGD", strategy="easgd", **case),
        )
        return self.run_of()

    def test_each_rule_has_a_curve_beside_that_of_sync(self):
        root = xml.etree.ElementTree.fromstring(
            curve_charts.CHARTS["strategies.svg"](self.strategies())
        )
        text = "".join(root.itertext())
        self.assertIn("EAMSGD", text)
        self.assertIn("gray: sync", text)
        self.assertEqual(len(root.findall("{*}polyline")), 2)

    def test_a_chart_by_time_needs_times_and_the_page_says_so(self):
        figure = curve_charts.FIGURES["chart-strategies-time"]
        with self.assertRaises(Missing):
            figure(self.strategies())
        text = figure(self.strategies(at_s=[1.5, 3.25]))
        self.assertEqual(
            text, "![Test accuracy by time, a chart for each rule](pictures/strategies-time.svg)"
        )

    def test_a_rules_row_has_its_gap_to_sync(self):
        text = tables.FIGURES["strategies"](self.strategies(at_s=[1.5, 3.25]))
        self.assertIn("| EAMSGD | `strategy.name=easgd` | 89.00 % | -1.00 | 200 |", text)
        self.assertIn("| 3 s |", text)

    def test_rules_stand_side_by_side_over_periods(self):
        lines = [
            line(value, "accuracy", case="periods", rule=rule, strategy="x", settings=[period])
            for value, rule, period in (
                (0.9, "EAMSGD", "strategy.period=1"),
                (0.8, "DOWNPOUR", "strategy.period=1"),
                (0.1, "DOWNPOUR", "strategy.period=64"),
            )
        ]
        self.store("strategies-periods", *lines)
        self.assertEqual(
            tables.FIGURES["strategies-periods"](self.run_of()),
            "| period | EAMSGD | DOWNPOUR |\n| --- | --- | --- |\n"
            "| 1 | 90.00 % | 80.00 % |\n| 64 |  | 10.00 % |",
        )


if __name__ == "__main__":
    unittest.main()
