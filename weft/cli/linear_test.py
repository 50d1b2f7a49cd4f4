"""Tests `weft linear`, also against Debian's liblinear-tools.

    linear_test.py PATH/TO/weft [tests]"""

import gzip
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import processes  # noqa: E402

WEFT = ""
DATA = ROOT / "weft/linear/reference/data.svm"
HAS_LIBLINEAR = bool(shutil.which("liblinear-train") and shutil.which("liblinear-predict"))
NEEDS_LIBLINEAR = "liblinear-tools are not installed"


def weft(*arguments, cwd=None, **environment):
    return subprocess.run(
        [WEFT, *map(str, arguments)],
        cwd=cwd,
        env=processes.environment(**environment),
        capture_output=True,
        text=True,
        timeout=100,
    )


class Linear(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        rows = [line.split(" ", 1) for line in DATA.read_text().splitlines()]
        self.two, self.three = self.path / "two.svm", self.path / "three.svm"
        self.two.write_text("".join(f"{1 if float(y) > 0 else -1} {x}\n" for y, x in rows))
        self.three.write_text("".join(f"{self.class_of(float(y))} {x}\n" for y, x in rows))

    def tearDown(self):
        self.folder.cleanup()

    @staticmethod
    def class_of(label):
        return 1 if label < -0.5 else 2 if label <= 0.5 else 3

    def train(self, *arguments, launcher=(), **environment):
        """The result of a training as JSON."""
        words = ("linear", "train", *arguments, "--json", "--progress", "none")
        ran = weft(*launcher, *words, cwd=self.path, **environment)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout.splitlines()[-1])

    def predict(self, model, data, *arguments):
        """Accuracy or errors as JSON, and the lines of predictions."""
        out = self.path / "predictions"
        ran = weft("linear", "predict", model, data, "-o", out, "--json", *arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout), out.read_text().splitlines()

    def fails(self, code, text, *arguments):
        ran = weft("linear", "train", *arguments, "--progress", "none", cwd=self.path)
        self.assertEqual(ran.returncode, code, ran.stderr)
        self.assertEqual(len(ran.stderr.strip().splitlines()), 1, ran.stderr)
        self.assertIn(text, ran.stderr)

    def test_help_shows_the_options_and_examples(self):
        shown = weft("linear", "train", "--help").stdout
        for text in ("--local-passes", "weft linear predict train.svm.model test.svm"):
            self.assertIn(text, shown)

    def test_processes_launchers_and_transports_find_the_same_optimum(self):
        one = self.train(self.two, "--l2", "0.01", "--gap", "1e-6")
        best = one["outcomes"][0]["objective"]
        self.assertAlmostEqual(best, 0.512082484387, delta=1e-6)  # scikit-learn (reference.py)
        run = ("run", "-n", "2", "--no-prefix", WEFT)
        for options, launcher, environment in (
            (["-n", "2"], (), {}),
            (["-n", "2"], (), {"WEFT_TRANSPORT": "tcp"}),
            ([], run, {}),
        ):
            found = self.train(
                self.two, "--l2", "0.01", "--gap", "1e-6", *options, launcher=launcher,
                **environment
            )
            self.assertEqual(found["ranks"], 2)
            self.assertAlmostEqual(found["outcomes"][0]["objective"], best, delta=1e-6)
            self.assertGreater(found["exchanged_bytes"], 0)

    def test_progress_shows_each_round_with_its_gap_and_traffic(self):
        shown = weft(
            "linear", "train", self.two, "-n", "2", "--progress", "json", "--local-passes", "0.5",
            "--model", "none"
        )
        self.assertEqual(shown.returncode, 0, shown.stderr)
        rounds = [json.loads(line) for line in shown.stderr.splitlines() if line.startswith("{")]
        self.assertEqual([one["round"] for one in rounds], list(range(1, len(rounds) + 1)))
        self.assertEqual(rounds[1]["passes"], 1)
        self.assertLessEqual(rounds[-1]["relative_gap"], 1e-3)
        traffic = [one["exchanged_bytes"] for one in rounds]
        self.assertEqual(traffic, sorted(traffic))

    def test_the_last_line_has_the_problem_with_the_largest_gap(self):
        ran = weft("linear", "train", self.three, "--json", "--model", "none")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        gaps = [one["relative_gap"] for one in json.loads(ran.stdout)["outcomes"]]
        worst = max(range(3), key=lambda i: gaps[i])
        done = next(line for line in ran.stderr.splitlines() if "done " in line)
        self.assertIn(f"done problems=3 problem={worst + 1} ", done)
        self.assertIn(f" relative_gap={gaps[worst]:.4g} ", done)

    def test_the_model_file_and_a_gzip_file_are_as_named(self):
        packed = self.path / "packed.svm.gz"
        packed.write_bytes(gzip.compress(self.two.read_bytes()))
        found = self.train(packed, "-n", "2")
        self.assertEqual(found["model"], "packed.svm.gz.model")
        self.assertEqual(found["rows"], 200)
        quality, lines = self.predict(self.path / "packed.svm.gz.model", self.two)
        self.assertEqual(quality["rows"], 200)
        self.assertGreater(quality["accuracy"], 0.85)
        right = sum(line.split()[0] == row.split()[0] for line, row in zip(
            lines, self.two.read_text().splitlines()))
        self.assertEqual(right, quality["correct"])

    def test_hogwild_trains_by_threads_and_ranks(self):
        found = self.train(
            self.two, "--l2", "0.01", "--rule", "hogwild", "--epochs", "60", "--decay", "0.95",
            "-n", "2", "--threads", "2"
        )
        self.assertLessEqual(found["outcomes"][0]["objective"], 0.512082 * 1.01)

    def test_mistakes_are_one_line_with_file_line_and_column(self):
        bad = self.path / "bad.svm"
        bad.write_text("1 1:1\n-1 1:1 3:nan\n")
        self.fails(65, "bad.svm:2:8: value \"nan\" is not a finite number", bad)
        self.fails(2, "--sigma fast: it must be measured, safe or a number", bad, "--sigma", "fast")
        self.fails(2, "is not a whole number, so it names no class", DATA)

    def test_wrong_options_and_paths_are_found_before_the_training(self):
        for text, *options in (
            ("-C must be a finite number above 0", "-C", "-1"),
            ("-C must be a finite number above 0", "-C", "inf"),
            ("l2 must be a finite number", "--l2", "inf"),
            ("--l2: expected a number, got nan", "--l2", "nan"),
            ('no loss "hunge"; there are logistic, hinge, squared-hinge and squared',
             "--loss", "hunge"),
            ("--model none/model: there is no folder none", "--model", "none/model"),
            ("--threads is for --rule hogwild, and the rule is cocoa+", "--threads", "2"),
            ("--gap is for --rule cocoa+ and cocoa, and the rule is hogwild",
             "--rule", "hogwild", "--gap", "1e-3"),
            (f"--model {self.path} is a folder", "--model", self.path),
            ("--model /dev/null is no regular file", "--model", "/dev/null"),
        ):
            self.fails(2, text, self.path / "not-read.svm", *options)
        self.fails(2, "not-read.svm: No such file", self.path / "not-read.svm")
        before = self.two.read_text()
        self.fails(2, f"--model {self.two} is a file that the command reads", self.two,
                   "--model", self.two)
        self.assertEqual(self.two.read_text(), before)
        one = self.path / "one.svm"
        one.write_text("3 1:1\n3 2:1\n")
        self.fails(2, "all rows have the label 3; a classifier needs at least two classes", one)

    def test_a_training_that_misses_its_gap_says_which_model_it_writes(self):
        ran = weft(
            "linear", "train", self.two, "--gap", "1e-9", "--max-passes", "1", "--progress", "none",
            cwd=self.path
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("within --max-passes; the model is that of the last pass", ran.stderr)

    def test_more_ranks_than_rows_find_the_same_optimum(self):
        few = self.path / "few.svm"
        few.write_text("1 1:1\n-1 2:1\n")
        objectives = [
            self.train(few, "--l2", "0.1", "--gap", "1e-9", "-n", ranks)["outcomes"][0]["objective"]
            for ranks in (1, 4)
        ]
        self.assertAlmostEqual(*objectives, delta=1e-8)

    def test_predictions_that_cannot_be_written_and_unknown_features_are_reported(self):
        self.train(self.two, "--model", "model")
        few = self.path / "few.svm"
        few.write_text("1 1:1 60:1 61:1\n-1 2:1 900:1\n")
        ran = weft("linear", "predict", "model", few, cwd=self.path)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("few.svm has features that the model does not have", ran.stderr)
        self.assertIn("entries=2 features_of_model=60", ran.stderr)
        with open("/dev/full", "w") as full:
            ran = subprocess.run([WEFT, "linear", "predict", self.path / "model", few], text=True,
                                 stdout=full, stderr=subprocess.PIPE, timeout=100)
        self.assertEqual(ran.returncode, 203, ran.stderr)
        self.assertIn("cannot write the predictions to stdout: No space left", ran.stderr)

    def test_a_mistake_in_another_ranks_part_is_printed_once(self):
        bad = self.path / "bad.svm"
        bad.write_text("1 1:1\n" * 500 + "1 2:1 1:1\n")
        ran = weft("linear", "train", bad, "-n", "2", cwd=self.path)
        self.assertEqual(ran.returncode, 65, ran.stderr)
        self.assertEqual(ran.stderr.count("bad.svm:501:7: index 1 follows index 2"), 1, ran.stderr)

    @unittest.skipUnless(HAS_LIBLINEAR, NEEDS_LIBLINEAR)
    def test_liblinear_predicts_with_the_models_of_weft(self):
        for data, options in (
            (self.two, ["--loss", "hinge", "--bias", "1"]),
            (self.three, ["--loss", "squared-hinge"]),
            (DATA, ["--loss", "squared", "--l1", "0.02"]),
        ):
            self.train(data, "--model", "model", *options)
            self.liblinear("predict", data, "model", "theirs")
            _, ours = self.predict(self.path / "model", data)
            self.assert_same_numbers(ours, (self.path / "theirs").read_text().splitlines())

    @unittest.skipUnless(HAS_LIBLINEAR, NEEDS_LIBLINEAR)
    def test_weft_predicts_with_the_models_of_liblinear(self):
        for data, solver in (
            (self.two, 0), (self.three, 7), (DATA, 11)
        ):
            self.liblinear("train", "-s", solver, "-B", "1", data, "model")
            probabilities = ["-b", "1"] if solver in (0, 7) else []
            self.liblinear("predict", *probabilities, data, "model", "theirs")
            _, ours = self.predict(
                self.path / "model", data, *(["--probabilities"] if probabilities else [])
            )
            self.assert_same_numbers(ours, (self.path / "theirs").read_text().splitlines())

    @unittest.skipUnless(HAS_LIBLINEAR, NEEDS_LIBLINEAR)
    def test_both_find_the_same_weights_for_the_same_c(self):
        self.liblinear("train", "-s", 7, "-e", "1e-9", "-c", "0.5", self.two, "theirs")
        self.train(self.two, "-C", "0.5", "--gap", "1e-9", "--model", "ours")
        for ours, theirs in zip(self.weights("ours"), self.weights("theirs"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-3)

    def weights(self, model):
        words = (self.path / model).read_text().split()
        return [float(word) for word in words[words.index("w") + 1:]]

    def liblinear(self, verb, *arguments):
        subprocess.run(
            [f"liblinear-{verb}", *map(str, arguments)], cwd=self.path, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def assert_same_numbers(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for mine, other in zip(ours, theirs):
            for a, b in zip(mine.split(), other.split(), strict=True):
                if a != b:
                    self.assertTrue(math.isclose(float(a), float(b), rel_tol=1e-4), (mine, other))


if __name__ == "__main__":
    WEFT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
