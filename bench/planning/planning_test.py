#!/usr/bin/env python3
"""Tests the parts of the bench that need no training."""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import cases
import planning
import slow_rank
import training


class Cases(unittest.TestCase):
    def test_there_are_twelve_layouts_and_each_uses_all_ranks(self):
        self.assertEqual(len({layout.name for layout in cases.LAYOUTS}), 12)
        for layout in cases.LAYOUTS:
            ranks = 1
            for size in layout.axes.values():
                ranks *= size
            self.assertEqual(ranks, layout.ranks, layout.name)

    def test_micro_batches_divide_every_batch(self):
        for model in cases.MODELS:
            for layout in cases.layouts_of(model):
                self.assertEqual(
                    model.batch % (layout.replicas * layout.micro_batches), 0, layout.name
                )

    def test_recipe_and_scenario_are_the_same_layout(self):
        model = cases.MODELS[0]
        layout = next(one for one in cases.LAYOUTS if one.name == "pp 2 x dp 2")
        keys = cases.keys_of(model, layout)
        plan = cases.scenario_of(model, layout, "machine.toml", "blocks.toml")["plan"]
        for key in ("parallel.pp=2", "parallel.dp=2", "parallel.cuts=[3]"):
            self.assertIn(key, keys)
        self.assertEqual((plan["pp"], plan["dp"], plan["cuts"]), (2, 2, [3]))
        self.assertEqual(plan["micro_batch"] * plan["dp"] * layout.micro_batches, model.batch)

    def test_models_without_an_axis_are_not_divided_along_it(self):
        resnet = next(model for model in cases.MODELS if model.name == "resnet18")
        for layout in cases.layouts_of(resnet):
            self.assertFalse({"tp", "cp"} & set(layout.axes))


class Planning(unittest.TestCase):
    def test_losses_differ_from_the_first_step_beyond_the_tolerance_or_that_is_no_number(self):
        reference = [4.0] * 8
        self.assertIsNone(planning.differs([4.003] * 8, reference, 1e-3))
        self.assertEqual(planning.differs([4.0, 4.0, 4.1, 4.0], reference, 1e-3), 2)
        self.assertEqual(planning.differs([float("nan")], reference, 1e-3), 0)

    def test_samples_at_once_are_those_of_a_micro_batch(self):
        model = next(model for model in cases.MODELS if model.normalizes)
        axes = {"tp": 1, "cp": 1, "pp": 2, "micro_batches": 4}
        self.assertEqual(planning.samples_at_once(model, 4, {"parallel": axes}), 8)
        axes |= {"pp": 1, "micro_batches": 0}
        self.assertEqual(planning.samples_at_once(model, 4, {"parallel": axes}), 16)

    def test_the_log_of_a_plan_is_read(self):
        log = 'warning: x\n[rank 0] plan layout="pp 2 x dp 2, 1f1b" step_s=0.125 planned_in_s=9\n'
        self.assertEqual(planning.logged(log, "plan", "layout"), "pp 2 x dp 2, 1f1b")
        self.assertEqual(float(planning.logged(log, "plan", "step_s")), 0.125)
        self.assertIsNone(planning.logged(log, "plan", "memory_gib"))

    def test_the_keys_of_a_plan_come_from_the_configuration_of_its_run(self):
        config = {
            "train": {"recompute": "none", "balance": "even", "batch": 16},
            "parallel": {"plan": "manual", "dp": 2, "cuts": [3]},
        }
        self.assertEqual(
            planning.chosen_keys(config),
            [
                'train.recompute="none"',
                'train.balance="even"',
                "parallel.dp=2",
                "parallel.cuts=[3]",
            ],
        )

    def test_layouts_are_the_same_if_they_differ_only_in_keys_without_effect(self):
        def config(**keys):
            axes = {"dp": 1, "fsdp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "micro_batches": 0}
            axes |= {"schedule": "gpipe", "cuts": [], "zero_stage": 3}
            train = {"recompute": "none", "balance": "even"}
            return {"parallel": axes | keys, "train": train}

        given = planning.layout_of(config(dp=2))
        chosen = config(dp=2, micro_batches=1, schedule="1f1b", zero_stage=0)
        self.assertEqual(given, planning.layout_of(chosen))
        self.assertNotEqual(given, planning.layout_of(config(dp=2, micro_batches=2)))
        self.assertNotEqual(
            planning.layout_of(config(fsdp=2)), planning.layout_of(config(fsdp=2, zero_stage=1))
        )
        self.assertNotEqual(
            planning.layout_of(config(pp=2)), planning.layout_of(config(pp=2, schedule="1f1b"))
        )

    def test_a_chosen_layout_is_trained_in_turn_with_the_fastest_others_of_its_ranks(self):
        run = collections.namedtuple("run", "step_s")
        seconds = {"slow": 9, "fast": 1, "same": 1, "medium": 2, "other ranks": 0.5, "chosen": 1.5}
        ranks = {name: 4 if name == "other ranks" else 2 for name in seconds}
        bench = planning.ModelBench.__new__(planning.ModelBench)
        bench.args = argparse.Namespace(turns=3)
        bench.run = lambda case: run(seconds[case.name])
        bench.cases = [planning.Case(ranks[name], name, []) for name in seconds]
        for case in bench.cases:
            case.runs = [run(seconds[case.name])]
            case.layout = "chosen" if case.name == "same" else case.name
        chosen = bench.cases[-1]
        bench.compare(chosen)
        self.assertEqual(
            [(one["layout"], one["chosen_over"]) for one in chosen.params["rivals"]],
            [("fast", 1.5), ("medium", 0.75)],
        )
        self.assertEqual(chosen.params["turns_ms"], [1500] * 3)


class Training(unittest.TestCase):
    def test_step_time_leaves_out_the_start(self):
        records = [{"samples_per_s": 1.0}] * 5 + [{"samples_per_s": 32.0}] * 10
        self.assertEqual(training.step_seconds(records, 16), 0.5)

    def test_traffic_is_the_mean_over_the_ranks_for_a_step(self):
        records = [{"loss": 1.0}, {"sent_mb": 2.0, "shared_mb": 1.0}, {"loss": 0.9}]
        self.assertEqual(training.traffic_of(records), 3e6)
        self.assertIsNone(training.traffic_of(records[:1]))

    def test_records_of_a_file_that_is_being_written_are_the_complete_ones(self):
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            (folder / "metrics.jsonl").write_text(
                '{"step":1,"samples_per_s":2.0}\n{"step":2,"loss":3}\n{"step":3,"samp'
            )
            self.assertEqual([r["step"] for r in training.records_of(folder)], [1])

    def test_processes_below_a_process_are_found_with_their_memory(self):
        child = "import sys; sys.stdin.read()"
        script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{child}'])"
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as parent:
            until = time.monotonic() + 20
            while not training.children_of(parent.pid) and time.monotonic() < until:
                time.sleep(0.02)
            children = training.children_of(parent.pid)
            memory = [training.peak_bytes(child) for child in children]
            parent.stdin.close()
        self.assertEqual(len(children), 1)
        self.assertGreater(memory[0], 1 << 20)
        self.assertNotIn(os.getpid(), children)

    def test_a_run_that_fails_says_why(self):
        with self.assertRaisesRegex(training.Failed, "out of luck"):
            training.train([["sh", "-c", "echo out of luck >&2; exit 3"]], 16, 0)


class SlowRank(unittest.TestCase):
    def group(self, *lines):
        with tempfile.NamedTemporaryFile("w", suffix=".mounts") as table:
            table.write("\n".join(lines))
            table.flush()
            return slow_rank.parent_group(table.name)

    def test_the_controller_is_found_in_the_older_interface(self):
        found = self.group(
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0",
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0",
            "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0",
        )
        self.assertEqual(found, (pathlib.Path("/sys/fs/cgroup/cpu"), 1))

    def test_the_controller_is_found_in_the_newer_interface(self):
        with tempfile.TemporaryDirectory() as place:
            (pathlib.Path(place) / "cgroup.controllers").write_text("cpuset cpu io\n")
            found = self.group(f"cgroup2 {place} cgroup2 rw 0 0")
        self.assertEqual(found, (pathlib.Path(place), 2))

    def test_a_machine_without_the_controller_says_so(self):
        with self.assertRaisesRegex(slow_rank.Impossible, "controller cpu"):
            self.group("proc /proc proc rw 0 0")


if __name__ == "__main__":
    unittest.main()
