"""Which tests run again: those whose program, script or data has changed since they passed."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import load_script

changed_tests = load_script.load_script("changed_tests")


class ChangedTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.build = self.root / "build/release"
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.file(".gitignore", "build/\n")
        self.program = self.file("build/release/weft/ps/weft_ps_test", "1", mode=0o755)
        self.file("build/release/bin/weft", "1", mode=0o755)
        self.script = self.file("tests/faults/death_test.py", "1")
        self.file("tests/faults/harness.py", "1")
        self.file("weft/ps/testdata/rows.txt", "1")
        self.file("weft/ps/shard.cc", "1")
        self.tests = [
            {"name": "ps.Shard", "command": [str(self.program), "--gtest_filter=Shard.*"]},
            {"name": "faults.death", "command": ["/usr/bin/python3", str(self.script), "Death"]},
            {"name": "install.run", "command": ["/usr/bin/bash", str(self.script)]},
        ]
        for test in self.tests:
            test["properties"] = [{"name": "ENVIRONMENT", "value": ["A=1"]}]

    def file(self, name, text, mode=0o644):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def begin(self):
        return changed_tests.begin(self.root, self.build, self.tests)

    def end(self, **results):
        lines = (
            f"{number}/3 Test #{number}: {name.replace('_', '.')} ......{result}    1.20 sec\n"
            for number, (name, result) in enumerate(results.items(), 1)
        )
        changed_tests.end(self.build, "".join(lines))

    def run_all(self):
        self.begin()
        self.end(ps_Shard="   Passed", faults_death="   Passed", install_run="   Passed")

    def test_at_first_all_run_then_only_those_whose_inputs_are_unknown(self):
        self.assertEqual(self.begin(), ["ps.Shard", "faults.death", "install.run"])
        self.end(ps_Shard="   Passed", faults_death="   Passed", install_run="   Passed")
        self.assertEqual(self.begin(), ["install.run"])

    def test_a_test_that_failed_or_did_not_run_runs_again(self):
        self.begin()
        self.end(ps_Shard="***Failed")
        self.assertEqual(self.begin(), ["ps.Shard", "faults.death", "install.run"])

    def test_each_input_counts_for_the_tests_that_use_it(self):
        for name, mode, expected in (
            ("build/release/weft/ps/weft_ps_test", 0o755, ["ps.Shard", "install.run"]),
            ("weft/ps/testdata/rows.txt", 0o644, ["ps.Shard", "install.run"]),
            ("weft/ps/testdata/new.txt", 0o644, ["ps.Shard", "install.run"]),
            ("build/release/bin/weft", 0o755, ["faults.death", "install.run"]),
            ("tests/faults/harness.py", 0o644, ["faults.death", "install.run"]),
            ("build/release/weft/ps/made.txt", 0o644, ["install.run"]),
            ("weft/ps/shard.cc", 0o644, ["install.run"]),
        ):
            with self.subTest(name):
                self.run_all()
                self.file(name, "changed", mode)
                self.assertEqual(self.begin(), expected)

    def test_an_input_that_is_as_before_again_needs_no_run(self):
        self.run_all()
        self.file("tests/faults/harness.py", "2")
        self.assertIn("faults.death", self.begin())
        self.file("tests/faults/harness.py", "1")
        self.assertEqual(self.begin(), ["install.run"])

    def test_another_command_or_environment_counts(self):
        self.run_all()
        self.tests[0]["command"].append("--gtest_repeat=2")
        self.tests[1]["properties"] = [{"name": "ENVIRONMENT", "value": ["A=2"]}]
        self.assertEqual(self.begin(), ["ps.Shard", "faults.death", "install.run"])

    def test_without_git_all_files_of_a_folder_count(self):
        shutil.rmtree(self.root / ".git")
        self.run_all()
        self.assertEqual(self.begin(), ["install.run"])
        self.file("tests/faults/harness.py", "changed")
        self.assertEqual(self.begin(), ["faults.death", "install.run"])

    def test_a_damaged_note_means_that_all_run(self):
        self.run_all()
        (self.build / "passed_tests.json").write_text("{")
        self.assertEqual(len(self.begin()), 3)


if __name__ == "__main__":
    unittest.main()
