"""Tests the output and the exit codes of the built `weft`, and small training runs.

    cli_test.py PATH/TO/weft [tests]"""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
import images  # noqa: E402
from processes import environment  # noqa: E402

WEFT = ""
# A short training: a small model, a few steps.
TINY = [
    "--set",
    "model.name=mlp",
    "--set",
    "model.hidden=[32]",
    "--set",
    "train.max_steps=6",
    "--progress",
    "none",
]

# The commands and options of each component that a build can leave out, by CMake option.
COMPONENTS = {
    "WEFT_PLAN": ["plan auto", "plan profile", "plan predict", "plan validate"],
    "WEFT_PS": [
        "run --servers",
        "run --server-backup",
        "run --no-server-backup",
        "run --server-memory",
        "train --servers",
    ],
    "WEFT_LINEAR": ["linear"],
}


def weft(*arguments, cwd=ROOT, env=None, input=""):
    return subprocess.run(
        [WEFT, *arguments],
        cwd=cwd,
        env=env or environment(),
        input=input,
        capture_output=True,
        text=True,
        timeout=100,
    )


def has_planner():
    """False where weft was built without it (WEFT_PLAN=OFF)."""
    return "-DWEFT_PLAN=ON" not in weft("plan", "predict", "-").stderr


def needs_planner(test):
    """Skips the test where weft was built without the planner."""
    def run(self):
        if not has_planner():
            self.skipTest("weft was built without the planner")
        test(self)

    return run


class Words(unittest.TestCase):
    def test_new_creates_a_project_once_and_refuses_an_invalid_name(self):
        with tempfile.TemporaryDirectory() as folder:
            made = weft("new", f"{folder}/rings")
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertEqual(
                sorted(file.name for file in pathlib.Path(folder, "rings").iterdir()),
                ["CMakeLists.txt", "README.md", "main.cc", "train.toml"],
            )
            for file in pathlib.Path(folder, "rings").iterdir():
                self.assertNotIn("@NAME@", file.read_text())
            self.fails(["exists already"], "new", f"{folder}/rings")
            self.fails(["no name for a program"], "new", f"{folder}/2 rings")
            for taken in ("install", "torch", "test", "package_source", "Makefile", "Testing"):
                self.fails([f'"{taken}" is the name of a target'], "new", f"{folder}/{taken}")
                self.assertFalse(pathlib.Path(folder, taken).exists())
            made = weft("new", f"{folder}/my own/rings")
            self.assertIn(f"  cd '{folder}/my own/rings' && cmake", made.stdout)

    def test_the_test_of_a_new_project_has_its_runs_in_no_folder_that_a_program_can_be(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(weft("new", f"{folder}/runs").returncode, 0)
            lists = pathlib.Path(folder, "runs/CMakeLists.txt").read_text()
            (name,) = re.findall(r"run\.dir=\$\{CMAKE_BINARY_DIR\}/([^)]+)\)", lists)
            self.fails(["no name for a program"], "new", f"{folder}/{name}")

    def test_numbers_with_leading_zeros_are_decimal(self):
        def shown(stages, batches):
            words = ("--stages", stages, "--micro-batches", batches)
            result = weft("schedule", "show", "1f1b", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        self.assertEqual(shown("02", "010"), shown("2", "10"))
        self.assertEqual(shown("2", "08"), shown("2", "8"))
        self.assertNotEqual(shown("2", "10"), shown("2", "8"))

    def test_a_run_whose_name_is_a_number_is_not_taken_for_a_process(self):
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder, "runs/7")
            run.mkdir(parents=True)
            (run / "config.toml").touch()
            for words in (("stop", "7"), ("scale", "7", "2")):
                result = weft(*words, cwd=folder)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("runs/7: ", result.stderr)

    def test_commands_that_need_no_libtorch_run_in_a_program_without_it(self):
        """weft starts it beside itself. Where it is missing, weft runs the command."""
        light = pathlib.Path(WEFT).with_name("weft_light")
        linked = subprocess.run(["ldd", light], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("torch", linked)
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(shutil.copy(WEFT, folder))

            def said(*words):
                return subprocess.run([copy, *words], capture_output=True, text=True).stdout

            version = said("--version")
            self.assertRegex(version, r"^weft \d")
            script = copy.with_name("weft_light")
            script.write_text('#!/bin/sh\necho light "$@"\n')
            script.chmod(0o755)
            for words in ("--version", "runs --json", "plan show dp=2", "train --help", ""):
                self.assertEqual(said(*words.split()), f"light {words}\n".replace(" \n", "\n"))
            for words in ("train --dry-run x", "plan auto", "checkpoint ls", "tokenizer x"):
                self.assertNotIn("light", said(*words.split()))

    def test_every_command_has_a_help_text(self):
        for words in (
            [],
            ["train"],
            ["new"],
            ["run"],
            ["runs"],
            ["report"],
            ["top"],
            ["completion"],
            ["man"],
            ["schedule"],
            ["plan"],
            ["generate"],
            ["export"],
            ["tokenizer"],
            ["checkpoint"],
            ["doctor"],
            ["bench"],
        ):
            shown = weft(*words, "--help")
            self.assertEqual(shown.returncode, 0, words)
            self.assertIn("weft " + " ".join(words), shown.stdout)
            self.assertNotIn("\x1b", shown.stdout)

    def test_help_shows_values_ranges_and_defaults_without_the_parsers_notation(self):
        train, run, scale = (weft(verb, "--help").stdout for verb in ("train", "run", "scale"))
        self.assertIn("Usage: weft train [OPTIONS] RECIPE\n", train)
        self.assertIn("--resume [=auto] ", train)
        self.assertRegex(train, r"--on-hang \{warn,replace,end\}\s+What to do .*\(default: warn\)")
        self.assertRegex(train, r"--grace SECONDS\s+Seconds from")
        self.assertRegex(train, r"--rdzv-endpoint,--rdzv_endpoint HOST\[:PORT\]\s+Address at")
        self.assertIn("Usage: weft run [OPTIONS] PROGRAM [ARGUMENTS]...\n", run)
        self.assertRegex(scale, r"RANKS +Number of ranks that the job shall have \(1 to 256\)")
        self.assertRegex(scale, r"--timeout INT +.*\(1 to 86400; default: 120\)")
        self.assertIn("-- train RECIPE [OPTIONS]\n", weft("chaos", "--help").stdout)
        for text in (train, run, scale, weft("man").stdout):
            for notation in ("{true}", "{false}", "INT:", "TEXT:", "FLOAT:", "REQUIRED"):
                self.assertNotIn(notation, text)

    @needs_planner
    def test_the_usage_of_plan_profile_ends_with_the_recipe_or_program(self):
        shown = weft("plan", "profile", "--help").stdout
        self.assertIn("[RECIPE | PROGRAM [ARGUMENTS]...]\n", shown)

    def test_completion_offers_the_commands_and_options_that_can_follow(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "weft.bash"
            script.write_text(weft("completion", "bash").stdout)

            def offered(*words):
                line = " ".join(f"'{word}'" for word in ("weft", *words))
                shown = subprocess.run(
                    [
                        "bash",
                        "-c",
                        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _weft; "
                        f"printf '%s\n' \"${{COMPREPLY[@]}}\"",
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                return shown.stdout.split()

            self.assertIn("train", offered(""))
            self.assertEqual(offered("tra"), ["train"])
            self.assertEqual(offered("train", "shapes", "--res"), ["--resume"])
            self.assertIn("list", offered("schedule", ""))
            self.assertIn("--micro-batches", offered("schedule", "show", "1f1b", "--mi"))
            self.assertIn("-a train", weft("completion", "fish").stdout)
            self.assertTrue(weft("completion", "zsh").stdout.startswith("#compdef weft\n"))
            self.fails(["bash, zsh or fish"], "completion", "tcsh")

    def test_the_manual_page_describes_commands_and_options(self):
        page = weft("man").stdout
        for text in (".TH WEFT 1", ".SS weft train", ".SS weft schedule show", "\\-\\-resume"):
            self.assertIn(text, page)

    def test_the_help_names_what_the_build_has_and_no_command_that_it_refuses(self):
        page = weft("man").stdout.replace("\\-", "-")
        commands = re.findall(r"^\.SS weft (.+)$", page, re.MULTILINE)
        script, fish = (weft("completion", shell).stdout for shell in ("bash", "fish"))
        texts = [page, script, fish, weft("--help").stdout, weft("plan", "--help").stdout]
        for words in re.findall(r"^  weft ([a-z]+(?: [a-z]+)?)", "\n".join(texts), re.MULTILINE):
            self.assertIn(words if words in commands else words.split()[0], commands)
        for option, added in COMPONENTS.items():
            for words in added:
                *verb, last = words.split()
                if last.startswith("-"):
                    call, name, shown = [*verb, last, "x", "none"], last, last + r"\b"
                else:
                    call, name, shown = [*verb, last, "--help"], words, rf"\bweft {words}\b"
                refused = f"weft {words} needs" in weft(*call).stderr
                if "WEFT_ABSENT" in os.environ:
                    self.assertEqual(refused, option in os.environ["WEFT_ABSENT"], words)
                if refused:
                    self.fails([f"-D{option}=ON"], *call)
                self.assertEqual(bool(re.search(shown, page)), not refused, words)
                self.assertEqual(f" {name}" in script, not refused, words)
                for text in texts if refused else []:
                    self.assertNotRegex(text, rf"{shown}|(?m:^  {last}\b)")

    def test_help_of_a_bench_shows_the_options_of_that_bench(self):
        training, collectives = (
            weft("bench", what, "--help").stdout for what in ("training", "collectives")
        )
        self.assertIn("--batch", training)
        self.assertNotIn("--ops", training)
        self.assertIn("--ops", collectives)
        self.assertIn("weft bench collectives", collectives)

    def test_an_error_names_the_invalid_flag_or_key(self):
        for words, flag in (
            (["train", "shapes", "-n", "257"], "--ranks"),
            (["train", "shapes", "-n", "abc"], "--ranks"),
            (["run", "-n", "257", "true"], "--nproc-per-node"),
            (["run", "-n", "abc", "true"], "--nproc-per-node"),
            (["run", "--bogus", "true"], "--bogus"),
            (["train", "licenses", "--set", "data.tokenizer=foo"], "data.tokenizer"),
        ):
            self.fails([flag], *words)

    @needs_planner
    def test_flags_that_would_have_no_effect_are_refused(self):
        self.fails(["--json", "--dry-run"], "train", "shapes", "--dry-run", "--json")
        self.fails(["--topology", "--json"], "doctor", "--topology", "--json")
        job = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        for words, expected in (
            (["train", "shapes", "--secret-file", "secret"], "give the flag to the launcher"),
            (["train", "shapes", "--rdzv-endpoint", "host"], "--rdzv-endpoint: the ranks were"),
            (["plan", "profile", "-n", "3"], "-n 3 disagrees with"),
        ):
            result = weft(*words, env=environment() | job)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(expected, result.stderr)

    def test_version(self):
        self.assertRegex(weft("--version").stdout, r"^weft \d+\.\d+\.\d+\n$")

    def fails(self, expected, *words, code=2):
        result = weft(*words)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for text in expected:
            self.assertIn(text, result.stderr)

    def test_output_that_a_full_disk_loses_is_an_error(self):
        for words in (["schedule", "list"], ["train", "shapes", "--dry-run"], ["--version"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run(
                    [WEFT, *words], cwd=ROOT, env=environment(), stdout=full,
                    stderr=subprocess.PIPE, text=True, timeout=100
                )
            self.assertEqual(result.returncode, 203, words)
            self.assertRegex(result.stderr, r"^weft: Unavailable: output was lost: [^\n]*\n$")

    def test_a_mistake_that_the_ranks_find_is_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            text, nothing = f"{folder}/text.txt", f"{folder}/tokenizer.json"
            pathlib.Path(text).write_text("to be or not to be " * 100)
            pathlib.Path(nothing).write_text("")
            on = ["train", "licenses", "-n", "2", "--set", f"run.dir={folder}"]
            self.fails(["transport", "mpi", "auto"], *on, "--set", "comm.transport=mpi")
            self.fails(
                ["203.0.113.7", "not an address of this host"], *on, "--set", "comm.transport=tcp",
                "--set", "comm.interface=203.0.113.7"
            )
            self.fails(["UTF-16"], *on, "--set", f"data.file={self.utf16(folder)}")
            on += ["--set", f"data.file={text}", "--set"]
            self.fails(["no such file", "bpe:N"], *on, "data.tokenizer=bpe")
            self.fails([nothing, "not JSON"], *on, f"data.tokenizer={nothing}", code=65)
            self.fails(["--ranks", "got nothing"], "train", "shapes", "-n", "")
            self.fails(["number of seconds, got nan"], *on[:4], "--grace", "nan")
            self.fails(["number of seconds, got nan"], "stop", folder, "--grace", "nan")
            for flag in ("--trace", "--discovery-script", "--name"):
                self.fails([flag, "a value, got nothing"], *on[:4], flag, "")
            self.fails(["recipe", "a value, got nothing"], "train", "")

    @staticmethod
    def utf16(folder):
        path = pathlib.Path(folder, "utf16.txt")
        path.write_text("to be or not to be " * 100, encoding="utf-16")
        return path

    def test_an_unknown_name_gets_a_suggestion(self):
        self.fails(['unknown command "trian"', 'did you mean "train"?'], "trian", "recipes/shapes")
        self.fails(
            ['unknown option "--resum"', 'did you mean "--resume"?'],
            "train",
            "shapes",
            "--resum",
        )
        self.fails(["recipes/shape", 'did you mean "shapes"?'], "train", "recipes/shape")
        self.fails(
            ["train.epoch", "train.epochs", "--set"], "train", "shapes", "--set", "train.epoch=2"
        )
        self.fails(["optimizer.lr", "--set"], "train", "shapes", "--set", "optimizer.lr=fast")
        self.fails(["rign", "ring"], "schedule", "show", "rign")
        self.fails(
            ["resnet81", "resnet18"],
            "train",
            "shapes",
            "--set",
            "model.name=resnet81",
            "--set",
            f"run.dir={tempfile.gettempdir()}/weft-none",
        )

    def test_recipes_are_found_by_name_from_any_folder(self):
        shown = weft("train", "shapes", "--dry-run", cwd="/")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("recipes/shapes/recipe.toml", shown.stdout)
        with tempfile.TemporaryDirectory() as folder:
            installed = pathlib.Path(folder).resolve()
            (installed / "bin").mkdir()
            shutil.copy(WEFT, installed / "bin/weft")
            mine = installed / "share/weft/recipes/mine"
            mine.mkdir(parents=True)
            shutil.copy(ROOT / "recipes/shapes/recipe.toml", mine)
            for name, code, out in (
                ("mine", 0, "share/weft/recipes/mine/recipe.toml"),
                ("mime", 2, f'searched {installed}/share/weft/recipes; did you mean "mine"?'),
                ("none", 2, f"searched {installed}/share/weft/recipes; there are: mine"),
            ):
                shown = subprocess.run(
                    [installed / "bin/weft", "train", name, "--dry-run"],
                    cwd="/",
                    env=environment(),
                    capture_output=True,
                    text=True,
                    timeout=100,
                )
                self.assertEqual(shown.returncode, code, shown.stderr)
                self.assertIn(out, shown.stdout + shown.stderr)

    def test_what_is_wrong_is_found_before_ranks_start(self):
        two = ["train", "licenses", "-n", "2"]
        self.fails(["there is no file /nowhere"], *two, "--set", "data.file=/nowhere")
        two = ["train", "shapes", "-n", "2"]
        self.fails(["a single folder name"], *two, "--name", "../../evil")
        self.fails(["has 300 bytes"], *two, "--name", "a" * 300)
        data = ["--set", "data.name=fashion-mnist", "--set", "data.dir=/nowhere"]
        self.fails(["no train-images-idx3-ubyte.gz in /nowhere"], *two, *data)
        self.fails(["--trace steps=5:1", "such as steps=10:15"], *two, "--trace", "steps=5:1")

    @needs_planner
    def test_an_option_that_would_do_nothing_is_refused(self):
        for verb, *words in (
            ("train", "--notice-interval", "3"),
            ("train", "--discovery-interval", "3"),
            ("train", "--server-memory", "64"),
            ("run", "--server-backup"),
            ("run", "--no-server-backup"),
        ):
            name = words[0].replace("--no-", "--")
            self.fails([f"{name} requires --"], verb, *words, "shapes")
        self.fails(["--once"], "top", "run", "--once", "--http", "127.0.0.1:0")
        for words in (["--batches", "1,2"], ["--set", "train.batch=2", "/bin/true"]):
            self.fails([f"{words[0]} is for a recipe"], "plan", "profile", *words)
        many = ",".join(str(number) for number in range(1, 18))
        self.fails(
            ["--batches has 17 numbers; give 16 or fewer"],
            "plan", "profile", "--batches", many, "recipes/shapes",
        )

    @needs_planner
    def test_a_profile_stays_if_the_next_one_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = pathlib.Path(folder, "blocks.toml")
            profile.write_text("mine")
            failed = weft("plan", "profile", "-n", "1", "-o", str(profile), "/bin/false")
            self.assertEqual(failed.returncode, 1, failed.stderr)
            self.assertEqual(profile.read_text(), "mine")

    def test_a_size_that_fits_no_counter_is_refused(self):
        for key, value in (
            ("parallel.micro_batches", 2**32 + 2),
            ("train.keep", 2**32),
            ("parallel.cuts", [2**32 + 1]),
            ("strategy.backup", 2**32 + 1),
            ("model.hidden", [2**62]),
        ):
            setting = f"{key}={value}"
            self.fails([key, " from "], "train", "shapes", "--dry-run", "--set", setting)

    def test_a_recipe_without_a_model_or_data_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            recipe = pathlib.Path(folder) / "recipe.toml"
            recipe.write_text("")
            self.fails([f"{recipe}: model.name is not set"], "train", folder, "-n", "2")
            recipe.write_text('[model]\nname = "cnn"\n')
            self.fails([f"{recipe}: data.name is not set"], "train", folder)
            recipe.write_bytes("[model]\nname = 'cnn'\n".encode("utf-16"))
            self.fails([f"{recipe} is text in UTF-16"], "train", folder)

    def test_plan_show_shows_the_place_of_each_rank_on_a_mesh(self):
        shown = weft("plan", "show", "dp=2,tp=2", "--hosts", "2x2")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("4 ranks: dp 2 x tp 2", shown.stdout)
        self.assertRegex(shown.stdout, r"dp +\{0,2\} \{1,3\}.*travels between hosts")
        lines = [
            json.loads(line)
            for line in weft("plan", "show", "dp=0,tp=2", "-n", "4", "--json").stdout.splitlines()
        ]
        self.assertEqual(lines[3], {"rank": 3, "host": 0, "dp": 1, "tp": 1})
        self.fails(["nearest: dp=2,tp=4"], "plan", "show", "dp=2,tp=3", "--ranks", "8")
        self.fails(["did you mean fsdp?"], "plan", "show", "fdsp=2")
        self.fails(["--ranks", "--hosts"], "plan", "show", "dp=0")
        self.fails(["disagree"], "plan", "show", "dp=0", "--ranks", "3", "--hosts", "2x2")

    def test_missing_arguments_and_zero_ranks_are_errors(self):
        self.assertEqual(weft().returncode, 2)
        self.assertEqual(weft("train").returncode, 2)
        self.assertEqual(weft("train", "shapes", "-n", "0").returncode, 2)

    def test_the_error_of_a_missing_data_folder_names_the_folder_and_its_key(self):
        with tempfile.TemporaryDirectory() as folder:
            self.fails(
                ["/nowhere", "data.dir"],
                "train",
                "fashion-mnist",
                "--set",
                "data.dir=/nowhere",
                "--set",
                f"run.dir={folder}",
            )

    def test_dry_run_shows_what_a_strategy_sends(self):
        words = ["train", "recipes/fashion-mnist", "-n", "4", "--dry-run", "--set"]
        self.assertNotIn("# strategy", weft(*words, "train.epochs=1").stdout)
        refused = weft(*words, "strategy.name=easgd", "--set", "strategy.beta=2")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("strategy.beta", refused.stderr)
        shown = weft(*words, "strategy.name=local_sgd").stdout
        if not has_planner():  # the planner counts the parameters
            self.assertIn("# strategy: training says at its start what a rank", shown)
            return
        self.assertRegex(
            shown,
            r"# strategy: local_sgd: 4 workers average their weights every 16 steps; a rank sends "
            r"2\.53 MB for it, 0\.158 MB a step\n",
        )
        for setting, what in (
            ("strategy.name=ad_psgd", "mixing rate of the graph exponential: 0.444"),
            ("strategy.name=easgd", "stable while learning rate times curvature is below 1.59"),
            ("strategy.backup=1", "a step takes the first 3 of 4"),
        ):
            self.assertIn(what, weft(*words, setting).stdout)

    def test_dry_run_shows_every_key_with_its_origin(self):
        shown = weft("train", "recipes/shapes", "--set", "train.epochs=9", "--dry-run")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"train\.epochs = 9 +# --set")
        self.assertRegex(shown.stdout, r'data\.name = "shapes" +# .*recipe\.toml:\d+')
        self.assertRegex(shown.stdout, r"train\.seed = 1 +# default")

    def test_run_accepts_a_program_with_and_without_a_double_dash(self):
        for words in (["echo", "a", "--", "b"], ["--", "echo", "a", "--", "b"]):
            result = weft("run", "-n", "1", *words)
            self.assertEqual((result.returncode, result.stdout), (0, "a -- b\n"), result.stderr)

    def test_the_error_of_two_different_world_sizes_names_both(self):
        env = environment(
            RANK="0",
            WORLD_SIZE="2",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29511",
            TORCHELASTIC_RUN_ID="none",
        )
        result = weft("train", "shapes", "-n", "3", env=env)
        self.assertEqual(result.returncode, 2)
        self.assertIn("-n 3", result.stderr)
        self.assertIn("2 ranks", result.stderr)

    def test_schedule_show_prints_text_json_and_a_picture(self):
        self.assertIn("ring", weft("schedule", "list").stdout)
        self.assertTrue(weft("schedule", "show", "ring", "--ranks", "4").stdout)
        steps = [
            json.loads(line)
            for line in weft(
                "schedule", "show", "ring", "--ranks", "4", "--json"
            ).stdout.splitlines()
        ]
        self.assertEqual({step["rank"] for step in steps}, {0, 1, 2, 3})
        # 2 (n - 1): Patarasuk and Yuan 2009
        self.assertEqual(max(step["round"] for step in steps), 6)
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "ring.svg"
            self.assertEqual(weft("schedule", "show", "ring", "--svg", str(picture)).returncode, 0)
            self.assertIn("<svg", picture.read_text())

    def test_schedule_show_supports_hosts_grids_topology_files_chunks_and_radixes(self):
        hosts = weft("schedule", "show", "hierarchical", "--hosts", "2x2,3")
        self.assertIn("7 ranks (3 hosts of 2, 2 and 3 ranks)", hosts.stdout, hosts.stderr)
        self.assertIn("between hosts", hosts.stdout)
        self.assertIn("torus of 2 x 3", weft("schedule", "show", "torus", "--grid", "2x3").stdout)
        for algorithm, words in {
            "chain": ["--chunk", "64KiB"],
            "knomial": ["--radix", "3"],
        }.items():
            shown = weft(
                "schedule",
                "show",
                algorithm,
                "--collective",
                "broadcast",
                "--ranks",
                "9",
                *words,
                "--json",
            )
            steps = [json.loads(line) for line in shown.stdout.splitlines()]
            self.assertEqual({step["rank"] for step in steps}, set(range(9)), shown.stderr)
        # ceil(log_3 9): Wilkins and others 2023
        self.assertEqual(max(step["round"] for step in steps), 2)
        with tempfile.TemporaryDirectory() as folder:
            cluster = pathlib.Path(folder) / "cluster.toml"
            cluster.write_text("[host]\nsizes = [4, 4]\n")
            self.assertIn(
                "2 hosts of 4 ranks",
                weft("schedule", "show", "hierarchical", "--topology", str(cluster)).stdout,
            )
            cluster.write_text("[host]\nsize = [4, 4]\n")
            self.fails(
                ["cluster.toml:2", "host.sizes"],
                "schedule",
                "show",
                "ring",
                "--topology",
                str(cluster),
            )

    def test_schedule_show_prints_the_mixing_rate_of_gossip(self):
        # Ying and others 2021: the gap of the exponential graph over 16 ranks is 2 / (1 + log2 16).
        self.assertIn(
            "mixing rate 0.6:",
            weft("schedule", "show", "gossip", "--graph", "exponential", "--ranks", "16").stdout,
        )
        lines = [
            json.loads(line)
            for line in weft(
                "schedule", "show", "gossip", "--graph", "ring", "--ranks", "4", "--json"
            ).stdout.splitlines()
        ]
        self.assertAlmostEqual(lines[0]["mixing_rate"], 1 / 3, places=5)
        self.assertEqual(lines[1]["sends_to"], [1, 3])

    def test_schedule_show_prints_the_idle_share_of_a_pipeline(self):
        show = ("schedule", "show")
        # Narayanan and others 2021: a rank is idle for (p - 1) / (m + p - 1) of the time.
        self.assertIn(
            "27.3 % idle", weft(*show, "1f1b", "--stages", "4", "--micro-batches", "8").stdout
        )
        lines = [
            json.loads(line)
            for line in weft(
                *show,
                "interleaved",
                "--stages",
                "4",
                "--micro-batches",
                "8",
                "--virtual",
                "2",
                "--json",
            ).stdout.splitlines()
        ]
        self.assertAlmostEqual(lines[0]["idle_share"], 3 / 19)
        kinds = [line["action"] for line in lines[1:]]
        self.assertEqual(
            {kind: kinds.count(kind) for kind in set(kinds)},
            {"forward": 64, "backward": 64, "send": 112, "receive": 112},
        )
        costs = weft(
            *show,
            "automatic",
            "--stages",
            "4",
            "--micro-batches",
            "12",
            "--costs",
            "1,2,2",
            "--memory",
            "10",
            "--json",
        )
        self.assertAlmostEqual(json.loads(costs.stdout.splitlines()[0])["bubble"], 0)
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "zb.svg"
            self.assertEqual(weft(*show, "zb_v", "--svg", str(picture)).returncode, 0)
            self.assertIn("<svg", picture.read_text())
        listed = weft("schedule", "list").stdout
        for name in (
            "gpipe",
            "1f1b",
            "interleaved",
            "zb_h1",
            "zb_h2",
            "zb_v",
            "automatic",
            "forward_only",
        ):
            self.assertRegex(listed, rf"(?m)^{name} +pipeline")

    def test_an_invalid_pipeline_is_an_error_of_one_line(self):
        show = ("schedule", "show")
        self.fails(
            ["1f1b takes 1 virtual stage a rank, not 2", "interleaved"],
            *show,
            "1f1b",
            "--virtual",
            "2",
        )
        self.fails(["pipeline of 0 ranks"], *show, "1f1b", "--stages", "0")
        self.fails(["0 micro-batches"], *show, "1f1b", "--micro-batches", "0")
        self.fails(["positive"], *show, "1f1b", "--costs", "1,0,1")
        self.fails(["--costs has 2 numbers; give 3"], *show, "1f1b", "--costs", "1,1")
        self.fails(["--costs"], *show, "1f1b", "--costs", "1,1,x")
        self.fails(["--memory 0"], *show, "automatic", "--memory", "0")
        self.fails(["only automatic accepts a memory limit"], *show, "1f1b", "--memory", "4")
        self.fails(["1f1b is a pipeline schedule", "--stages"], *show, "1f1b", "--ranks", "4")
        self.fails(["--stages", "for pipelines"], *show, "ring", "--stages", "4")
        self.fails(["did you mean 'interleaved'"], *show, "interlaeved", "--stages", "4")
        self.fails(["more than can be shown"], *show, "1f1b", "--stages", "65")

    def test_an_invalid_schedule_is_an_error_of_one_line(self):
        show = ("schedule", "show")
        self.fails(["--hosts 2y4", "2x4,3"], *show, "ring", "--hosts", "2y4")
        self.fails(["--ranks 9", "8"], *show, "ring", "--hosts", "2x4", "--ranks", "9")
        self.fails(
            ["--hosts, --grid and --topology"], *show, "ring", "--hosts", "2x4", "--grid", "2x4"
        )
        self.fails(["--grid 2", "4x8"], *show, "torus", "--grid", "2")
        self.fails(["torus cannot do broadcast"], *show, "torus", "--collective", "broadcast")
        self.fails(["--chunk has no effect", "ring"], *show, "ring", "--chunk", "64KiB")
        self.fails(["--radix is for knomial"], *show, "ring", "--radix", "3")
        self.fails(["--across is for hierarchical"], *show, "ring", "--across", "ring")
        self.fails(
            ["hierarchical cannot use, between groups, the algorithm torus"],
            *show,
            "hierarchical",
            "--across",
            "torus",
            "--hosts",
            "2x2",
        )
        self.fails(["--root 8", "8 ranks"], *show, "ring", "--root", "8")
        self.fails(["nowhere.toml"], *show, "ring", "--topology", "nowhere.toml")
        self.fails(["did you mean 'exponential'"], *show, "gossip", "--graph", "exponental")
        self.fails(["gossip has --ranks, --graph and --seed"], *show, "gossip", "--hosts", "2x2")
        self.fails(["--graph and --seed are gossip's"], *show, "ring", "--graph", "ring")
        self.fails(["did you mean 'ring'"], "plan", "simulate", "rign")
        self.fails(["direct", "no messages"], "plan", "simulate", "direct")

    def test_plan_simulate_predicts_time_and_traffic(self):
        words = ("plan", "simulate", "ring,hierarchical", "--hosts", "4x8", "--size", "1MiB")
        ring, hierarchical = [
            json.loads(line) for line in weft(*words, "--json").stdout.splitlines()
        ]
        self.assertEqual((ring["ranks"], ring["rounds"]), (32, 62))
        self.assertEqual(
            [level["link"] for level in ring["levels"]], ["between hosts", "inside a host"]
        )
        self.assertLess(hierarchical["seconds"], ring["seconds"])
        # BlueConnect, 2019: each of H hosts sends 2 n (H - 1) / H bytes.
        self.assertAlmostEqual(hierarchical["levels"][0]["busiest_bytes"], 2 * 2**20 * 3 / 4)
        self.assertIn("simulated in", weft(*words).stdout)
        sizes = weft("plan", "simulate", "ring", "--size", "25MB,1KiB,4kb", "--json").stdout
        self.assertEqual(
            [json.loads(line)["bytes"] for line in sizes.splitlines()], [25_000_000, 1024, 4000]
        )
        show = ("schedule", "show", "chain", "--collective", "broadcast", "--count", "10240")
        steps = [weft(*show, "--json", "--chunk", size).stdout for size in ("1KB", "1000", "1KiB")]
        self.assertEqual(steps[0], steps[1])
        self.assertNotEqual(steps[0], steps[2])

    @needs_planner
    def test_plan_auto_takes_a_strategy_where_links_are_slow(self):
        words = ("plan", "auto", "licenses", "--cluster", "clusters/ethernet-cpu.toml")
        words += ("--nodes", "4", "--no-knee", "--set", "train.batch=64", "--json")
        sync = json.loads(weft(*words).stdout)
        local = json.loads(weft(*words, "--strategies", "local_sgd:16").stdout)
        self.assertNotIn("[strategy]", sync["recipe"])
        self.assertIn('[strategy]\nname = "local_sgd"\nperiod = 16', local["recipe"])
        seconds = [plan["plans"][0]["step"]["step_s"] for plan in (sync, local)]
        self.assertLess(seconds[1], seconds[0])
        set_name = ("--set", "strategy.name=local_sgd")
        self.assertEqual(json.loads(weft(*words, *set_name).stdout)["recipe"], local["recipe"])
        self.fails(["as in local_sgd:16"], *words, "--strategies", "local_sgd")
        self.fails(["no folder /nowhere"], *words, "--html", "/nowhere/plan.html")
        self.fails(["cannot be planned"], *words, "--set", "strategy.name=gossip")

    def test_doctor_prints_one_line_for_each_check(self):
        shown = weft("doctor")
        self.assertIn(shown.returncode, (0, 1))
        for line in shown.stdout.splitlines():
            self.assertRegex(line, r"^(OK|WARN|FAIL) +[\w ]+: .+")
        checks = {
            json.loads(line)["check"] for line in weft("doctor", "--json").stdout.splitlines()
        }
        self.assertLessEqual(
            {
                "toolchain",
                "torch",
                "cores",
                "memory",
                "shared memory",
                "single copy",
                "heap",
                "loopback",
                "caches",
                "NUMA",
                "network",
                "mpi",
                "BLAS",
                "libuv",
                "OpenMP",
            },
            checks,
        )

    def test_doctor_prints_the_topology_of_a_job(self):
        shown = weft("run", "-n", "2", "--no-prefix", WEFT, "doctor", "--topology")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        found = tomllib.loads(shown.stdout)
        self.assertEqual(found["world"] if "world" in found else sum(found["host"]["sizes"]), 2)
        self.assertGreater(found["host"]["bandwidth"], 1e6)

    def test_tokenizers_are_trained_and_encode_and_decode_text(self):
        with tempfile.TemporaryDirectory() as folder:
            text, learned = pathlib.Path(folder) / "text", pathlib.Path(folder) / "tokenizer.json"
            text.write_text("low lower lowest, slow slower slowest\n" * 4)
            said = weft("tokenizer", "train", str(text), "--vocab", "264", "-o", str(learned))
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertRegex(
                said.stdout, r"tokenizer\.json: 264 tokens; the files' 152 bytes are \d+\n"
            )
            ids = weft("tokenizer", "encode", str(learned), "slowest é <|endoftext|>").stdout
            self.assertEqual(
                weft("tokenizer", "decode", folder, *ids.split()).stdout, "slowest é <|endoftext|>"
            )
            self.assertEqual(
                weft("tokenizer", "decode", str(learned), input=ids).stdout,
                "slowest é <|endoftext|>",
            )
            tokens = [
                json.loads(line)
                for line in weft(
                    "tokenizer", "encode", str(learned), "--file", str(text), "--json"
                ).stdout.splitlines()
            ]
            self.assertEqual("".join(token["text"] for token in tokens), text.read_text())
            self.assertLess(len(tokens), 152 / 2)
        self.assertEqual(weft("tokenizer", "encode", "bytes", "Aé").stdout, "65 195 169\n")
        self.assertEqual(
            weft("tokenizer", "encode", "bytes", "a<|endoftext|>", "--specials").stdout, "97 256\n"
        )
        self.assertEqual(weft("tokenizer", "encode", "bytes", input="ab").stdout, "97 98\n")
        self.assertEqual(weft("tokenizer", "decode", "bytes", "72,105", "33").stdout, "Hi!")

    def test_an_invalid_tokenizer_command_is_an_error_of_one_line(self):
        self.fails(
            ["/nowhere"],
            "tokenizer",
            "train",
            "/nowhere",
            "-o",
            f"{tempfile.gettempdir()}/weft-none.json",
        )
        self.fails(["--vocab"], "tokenizer", "train", "/etc/hostname", "--vocab", "256")
        self.fails(["/nowhere.json"], "tokenizer", "encode", "/nowhere.json", "a")
        self.fails(
            ["has no tokenizer.json", "bytes"], "tokenizer", "encode", tempfile.gettempdir(), "a"
        )
        self.fails(["not both"], "tokenizer", "encode", "bytes", "a", "--file", "b")
        self.fails(['"x1" is no token'], "tokenizer", "decode", "bytes", "65", "x1")
        self.fails(["id 257 at position 1"], "tokenizer", "decode", "bytes", "65", "257")
        train = ["tokenizer", "train", __file__]
        lost = "--output /nowhere/t.json: there is no folder /nowhere"
        self.fails([lost], *train, "-o", "/nowhere/t.json")
        with tempfile.TemporaryDirectory() as folder:
            out, text = f"{folder}/tokenizer.json", pathlib.Path(folder, "text")
            text.write_text("low lower lowest")
            self.fails(["is a folder"], *train, "-o", folder)
            reads = f"--output {text} is a file that the command reads"
            self.fails([reads], *train[:2], str(text), "-o", str(text))
            self.assertEqual(text.read_text(), "low lower lowest")
            for special, why in (("a", "one character"), (b"\xff\xfe", "not in UTF-8")):
                self.fails([why], *train, "--special", special, "-o", out)
                self.assertFalse(pathlib.Path(out).exists())
        self.fails(['did you mean "decode"'], "tokenizer", "decod")

    def test_runs_and_top_show_nan_and_an_evaluation_of_long_ago(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, loss in (("läufe", "null"), ("runs", "0.25")):
                run = pathlib.Path(folder) / name
                run.mkdir()
                (run / "config.toml").write_text("[train]\nbatch = 64\n")
                result = '{"step":7,"epoch":0,"test_loss":0.5,"accuracy":0.875,"perplexity":9}\n'
                step = '{"step":8,"epoch":1,"loss":0.25}\n'
                end = '{"step":9,"epoch":1,"loss":%s}\n' % loss
                (run / "metrics.jsonl").write_text(result + 40_000 * step + end)
            listed = weft("runs", folder).stdout
            self.assertEqual({len(line) for line in listed.splitlines()}, {len(listed) // 3 - 1})
            self.assertRegex(listed, r"läufe +ended +1 +9 +NaN +0.5 +0.875 +perplexity=9 ")
            self.assertRegex(listed, r"runs +ended +1 +9 +0.25 +0.5 +0.875 +perplexity=9 ")
            shown = weft("top", f"{folder}/läufe", "--once").stdout
            for name, value in (("loss", "NaN "), ("test_loss", "0.5"), ("perplexity", "9")):
                self.assertRegex(shown, rf"(?m)^{name} +{value}")

    def test_an_invalid_checkpoint_is_an_error_of_one_line(self):
        self.fails(["/nowhere is no folder"], "checkpoint", "ls", "/nowhere")
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(weft("checkpoint", "ls", folder).stdout, f"{folder}: no checkpoint\n")
            self.fails(["has no checkpoint"], "checkpoint", "verify", folder)
            step = pathlib.Path(folder) / "step-00000001"
            step.mkdir()
            self.fails(["manifest: missing"], "checkpoint", "show", str(step), code=65)
            self.assertEqual(weft("checkpoint", "ls", folder).returncode, 1)
            self.fails(["all checkpoints in ", "(1)"], "checkpoint", "show", folder, code=65)
            step.rename(step.with_suffix(".bak"))
            self.assertEqual(weft("checkpoint", "ls", folder).stdout, f"{folder}: no checkpoint\n")
        convert = ["checkpoint", "convert", "/nowhere", "out"]
        for option, value in (("--part", "optimizer"), ("--max-shard-size", "2GB")):
            self.fails(["--checkpoint", option], *convert, "--checkpoint", option, value)

    def test_an_invalid_model_is_an_error_of_one_line(self):
        self.fails(["runs/nowhere holds no model", "config.json"], "generate", "nowhere")
        self.fails(["is no run folder"], "export", "nowhere", f"{tempfile.gettempdir()}/weft-none")
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json"
            config.write_text('{"model_type": "gemma"}')
            self.fails(
                ['config.json: model_type = "gemma" is not supported', "gpt2, llama and mixtral"],
                "generate",
                folder,
            )
            config.write_text('{"model_type": "llama", "vocab_size": 9}')
            self.fails(["config.json: hidden_size must be a whole number"], "generate", folder)
            config.write_text("{")
            self.fails(["config.json: not JSON"], "generate", folder, code=65)
            pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
            config.write_text(pointer)
            self.fails(["config.json is a Git LFS pointer"], "generate", folder, code=65)
            sizes = '"vocab_size": 300, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2'
            config.write_text('{"model_type": "gpt2", %s}' % sizes)
            weights = pathlib.Path(folder) / "model.safetensors"
            tokens = weft("tokenizer", "train", __file__, "-o", f"{folder}/tokenizer.json",
                          "--vocab", "280")
            self.assertEqual(tokens.returncode, 0, tokens.stderr)
            weights.write_text(pointer)
            self.fails(
                ["model.safetensors is a Git LFS pointer", "git lfs pull"],
                "generate",
                folder,
                code=65,
            )
            weights.write_text("<html>not found</html>")
            self.fails(["model.safetensors is text"], "generate", folder, code=65)


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Settings of a recipe for a few images, which a rank reads faster than it draws others."""
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        images.write(pathlib.Path(folder), 1280, 100)
        cls.images = ["--set", "data.name=fashion-mnist", "--set", f"data.dir={folder}"]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def train(self, name, *words, launcher=(), env=None):
        command = [
            *launcher,
            WEFT,
            "train",
            "recipes/shapes",
            *TINY,
            *self.images,
            "--set",
            f"run.dir={self.folder.name}",
            "--name",
            name,
            *words,
        ]
        return subprocess.run(
            command, cwd=ROOT, env=env or environment(), capture_output=True, text=True, timeout=100
        )

    @contextlib.contextmanager
    def training(self, *words):
        """Starts a long run called "run". Yields its process, after one epoch, and its command."""
        command = [WEFT, "train", "recipes/shapes", "--set", f"run.dir={self.folder.name}"]
        command += ["--name", "run", "--set", "model.name=mlp", "--set", "train.epochs=500"]
        command += ["--set", "train.eval_every=0", *self.images, *words]
        command += ["--progress", "none"]
        with self.started(command, "epoch done", WEFT_SLOW_RANK="0:10") as process:
            yield process, command

    @contextlib.contextmanager
    def started(self, command, line, **variables):
        """Starts a command. Yields its process once it has printed `line` on stderr."""
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(**variables), stderr=subprocess.PIPE, text=True
        ) as process:
            for said in process.stderr:
                if line in said:
                    break
            yield process

    def run_of(self, name):
        return pathlib.Path(self.folder.name) / name

    def losses(self, name):
        records = [
            json.loads(line)
            for line in (self.run_of(name) / "metrics.jsonl").read_text().splitlines()
        ]
        return [(record["step"], record["loss"]) for record in records if "loss" in record]

    def weights(self, name):
        """The bytes of a run's whole tensors, independent of the number of ranks."""
        whole = self.run_of(name + ".safetensors")
        result = weft("checkpoint", "convert", str(self.run_of(name)), str(whole))
        self.assertEqual(result.returncode, 0, result.stderr)
        content = whole.read_bytes()
        whole.unlink()
        return content

    def test_train_on_two_ranks_prints_its_result_as_json_on_stdout(self):
        result = self.train("run", "-n", "2", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, result.stdout)
        said = json.loads(lines[0])
        self.assertEqual(
            list(said), ["ranks", "epochs", "accuracy", "loss", "samples_per_s", "seconds"]
        )
        self.assertEqual(said["ranks"], 2)
        self.assertGreater(said["samples_per_s"], 0)
        self.assertTrue(list(self.run_of("run").glob("events.out.tfevents.*")))
        for name in ("config.toml", "log.jsonl", "metrics.jsonl", "ckpt"):
            self.assertTrue((self.run_of("run") / name).exists(), name)

    def fields(self, line):
        """The numbers of a log line."""
        return {name: float(value) for name, value in re.findall(r"(\w+)=([-\d.e+]+)", line)}

    def line(self, result, part):
        found = [line for line in result.stderr.splitlines() if part in line]
        self.assertEqual(len(found), 1, result.stderr)
        return found[0]

    @needs_planner
    def test_an_automatic_plan_is_chosen_trained_with_and_compared(self):
        # A model whose memory is well above that of the process.
        words = ["-n", "2", "--set", "model.hidden=[1024,512]", "--set", "train.max_steps=20",
                 "--set", "train.epochs=9"]
        result = self.train("planned", *words, "--set", "parallel.plan=auto")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = self.fields(self.line(result, "plan layout="))
        both = self.fields(self.line(result, "plan and measurement"))
        self.assertGreaterEqual(plan["tried"], 1)
        for what in ("step_s", "memory_gib", "bytes"):
            self.assertGreaterEqual(both["predicted_" + what], 0)
            self.assertGreaterEqual(both["measured_" + what], 0)
        self.assertEqual(plan["step_s"], both["predicted_step_s"])
        self.assertGreater(both["measured_step_s"], 0)
        # A bound that holds on a busy machine. bench/planning has the real ones.
        self.assertLess(abs(both["predicted_memory_gib"] / both["measured_memory_gib"] - 1), 0.25)
        config = tomllib.loads((self.run_of("planned") / "config.toml").read_text())["parallel"]
        self.assertEqual(config["plan"], "manual")
        axes = [config[axis] for axis in ("dp", "fsdp", "tp", "pp", "cp", "ep")]
        self.assertEqual(math.prod(axes), 2, axes)
        # A resumed run keeps the plan, and reports what it measures.
        resumed = self.train("planned", *words[:4], "--set", "train.max_steps=30", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertNotIn("plan layout=", resumed.stderr)
        self.assertIn("measured_memory_gib", self.line(resumed, "measured measured_step_s"))

    @needs_planner
    def test_a_plan_that_is_given_is_predicted(self):
        words = ["-n", "2", "--set", "train.max_steps=20", "--set", "train.epochs=9"]
        words += ["--set", "parallel.plan=predict", "--set", "parallel.fsdp=2"]
        result = self.train("predicted", *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        line = self.line(result, "plan layout=")
        self.assertIn("fsdp 2", line)
        self.assertEqual(self.fields(line)["tried"], 0)
        both = self.fields(self.line(result, "plan and measurement"))
        self.assertGreater(both["predicted_bytes"], 0)
        self.assertGreater(both["measured_bytes"], 0)

    def test_an_automatic_plan_refuses_axes_that_are_set(self):
        result = self.train("no", "--set", "parallel.plan=auto", "--set", "parallel.dp=1")
        self.refused(result, 2, "--set: parallel.dp is set", "leave one of them out")
        self.assertFalse(self.run_of("no").exists())

    def a_flipped_bit_of_the_newest_checkpoint_is_found(self, run):
        checkpoints = sorted((pathlib.Path(run) / "ckpt").glob("step-*"))
        files = checkpoints[-1].glob("model*.safetensors")
        tensors = max(files, key=lambda file: file.stat().st_size)
        whole = tensors.read_bytes()
        tensors.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
        verified = weft("checkpoint", "verify", run)
        self.assertEqual(verified.returncode, 65, verified.stderr)
        self.assertRegex(verified.stderr, r"\Aweft: Corrupt: [^\n]*" + tensors.name)
        listed = weft("checkpoint", "ls", run)
        self.assertEqual(listed.returncode, 1)
        self.assertIn(f"{checkpoints[-1].name}  damaged: ", listed.stdout)
        tensors.write_bytes(whole)
        (checkpoints[-1] / "notes").mkdir()  # a folder of the user's
        for quick in ((), ("--quick",)):
            listed = weft("checkpoint", "ls", run, *quick)
            self.assertEqual(listed.returncode, 0, listed.stdout + listed.stderr)
        for words, why in (
            (["show", run, "--part", "modle"], 'there is no part "modle"'),
            (["convert", run, f"{run}/a.safetensors", "--max-shard-size", "2GB"], "is one file"),
        ):
            refused = weft("checkpoint", *words)
            self.refused(refused, 2, why)
            self.assertEqual(refused.stdout, "")

    def test_a_run_and_its_export_generate_the_same_text(self):
        text = pathlib.Path(self.folder.name) / "verses.txt"
        text.write_text("warp weft " * 200)
        words = [
            "model.name=gpt",
            "model.layers=1",
            "model.width=16",
            "model.heads=2",
            "model.sequence=16",
            "data.name=text",
            f"data.file={text}",
            "optimizer.name=adamw",
            "optimizer.lr=0.01",
            "train.batch=8",
            "train.max_steps=60",
            "train.epochs=30",
            "schedule.name=constant",
            f"run.dir={self.folder.name}",
        ]
        result = weft(
            "train",
            "recipes/licenses",
            "--progress",
            "none",
            "--name",
            "run",
            *[word for setting in words for word in ("--set", setting)],
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        run, out = str(self.run_of("run")), str(self.run_of("out"))
        said = weft("export", run, out)
        self.assertEqual(
            (said.returncode, said.stdout),
            (0, f"{out}: config.json, model.safetensors, tokenizer.json\n"),
            said.stderr,
        )
        draw = [
            "--prompt",
            "warp weft warp",
            "--tokens",
            "24",
            "--temperature",
            "0.6",
            "--top-p",
            "0.9",
            "--seed",
            "4",
        ]
        written = weft("generate", run, *draw).stdout
        self.assertIn("every checksum is right", weft("checkpoint", "verify", run).stdout)
        self.a_flipped_bit_of_the_newest_checkpoint_is_found(run)
        plain = self.run_of("plain.safetensors")
        self.assertEqual(weft("checkpoint", "convert", run, str(plain)).stdout, f"{plain}\n")
        shown = [
            json.loads(line)
            for line in weft(
                "checkpoint", "show", run, "--part", "model", "--json"
            ).stdout.splitlines()
        ]
        length = int.from_bytes(plain.read_bytes()[:8], "little")
        header = json.loads(plain.read_bytes()[8 : 8 + length])
        self.assertEqual(
            {one["name"]: one["shape"] for one in shown},
            {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"},
        )
        self.assertTrue(written.startswith("warp weft warp weft"), written)
        self.assertEqual(weft("generate", out, *draw).stdout, written)
        split = weft("run", "-n", "2", "--no-prefix", WEFT, "generate", out, *draw)
        self.assertEqual(split.stdout, written, split.stderr)
        # A recipe starts from the exported weights: a rate of 0 leaves them as they are.
        tuned = [f"model.from={out}", "model.layers=4", "model.width=128", "model.heads=4"]
        tuned += [f"data.tokenizer={out}/tokenizer.json", "train.max_steps=1", "optimizer.lr=0"]
        result = weft(
            *["train", "recipes/licenses", "-n", "2", "--progress", "none", "--name", "tuned"],
            *["--set", "parallel.tp=2"],
            *[word for setting in words + tuned for word in ("--set", setting)],
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(weft("generate", str(self.run_of("tuned")), *draw).stdout, written)
        again = weft("export", run, out)
        self.assertEqual(again.returncode, 2)
        self.assertIn("holds a model already", again.stderr)

    def test_reproducible_runs_are_bit_identical_on_one_two_and_four_ranks(self):
        for ranks in ("1", "2", "4"):
            result = self.train(
                "at" + ranks,
                "-n",
                ranks,
                "--set",
                "train.reproducible=true",
                "--set",
                "model.name=cnn",
                "--set",
                "model.hidden=[256,128]",
            )
            self.assertEqual(result.returncode, 0, result.stderr)
        for ranks in ("2", "4"):
            self.assertEqual(self.losses("at1"), self.losses("at" + ranks))
            self.assertEqual(self.weights("at1"), self.weights("at" + ranks))

    def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(self):
        words = ["-n", "2", "--set", "train.reproducible=true"]
        self.assertEqual(self.train("whole", *words).returncode, 0)
        self.assertEqual(self.train("cut", *words, "--set", "train.max_steps=3").returncode, 0)
        resumed = self.train("cut", *words, "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(self.losses("whole"), self.losses("cut"))
        self.assertEqual(self.weights("whole"), self.weights("cut"))

    def refused(self, result, code, *texts):
        self.assertEqual(result.returncode, code, result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr.strip().splitlines()[-1])

    def test_resume_uses_the_configuration_of_the_run_and_reports_changes(self):
        self.assertEqual(
            self.train(
                "run", "--set", "optimizer.lr=0.0123", "--set", "train.max_steps=3"
            ).returncode,
            0,
        )
        resumed = self.train("run", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn('train.max_steps="6, was 3"', resumed.stderr)
        self.assertNotIn("optimizer.lr", resumed.stderr)
        config = tomllib.loads((self.run_of("run") / "config.toml").read_text())
        self.assertEqual(config["optimizer"]["lr"], 0.0123)
        self.assertEqual(config["run"]["recipe"], "shapes")
        again = self.train("run", "--resume")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("nothing is left to train", again.stderr)

    def test_top_and_report_show_a_run(self):
        words = ["-n", "2", "--set", "optimizer.max_grad_norm=1", "--trace", "steps=7:8"]
        trained = self.train("run", *words)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        self.assertIn("before the first step of --trace steps=7:8", trained.stderr)
        shown = weft("top", str(self.run_of("run")), "--once")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for text in (
            "run, ended",
            "step          6 (epoch 0)",
            "loss",
            "grad_norm",
            "samples/s",
            "forward",
            "memory",
            "slowest rank",
            "checkpoint    step 6",
        ):
            self.assertIn(text, shown.stdout)
        self.assertEqual(weft("top", self.folder.name).returncode, 2)
        self.assertIn("the name of a run is empty", weft("report", "").stderr)
        with tempfile.TemporaryDirectory() as folder:  # a folder of the run's name is no run
            at = pathlib.Path(folder)
            (at / "named").mkdir()
            shutil.copytree(self.run_of("run"), at / "runs/named")
            shown = subprocess.run(
                [WEFT, "top", "named", "--once"], cwd=at, capture_output=True, text=True
            )
            self.assertEqual(shown.returncode, 0, shown.stderr)
        page = (self.run_of("run") / "report.html").read_text()
        self.assertIn('"slowest_rank"', page)
        made = weft("report", str(self.run_of("run")), "-o", f"{self.folder.name}/all.html")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertTrue((pathlib.Path(self.folder.name) / "all.html").exists())

    def test_resume_refuses_another_recipe_model_or_run(self):
        self.assertEqual(self.train("run").returncode, 0)
        before = (self.run_of("run") / "config.toml").read_text()
        self.refused(
            self.train("run", "--resume", "--set", "model.hidden=[16]"),
            2,
            "model.hidden = [16]",
            "the run has [32]",
        )
        mine = pathlib.Path(self.folder.name) / "mine"
        mine.mkdir()
        (mine / "recipe.toml").write_text((ROOT / "recipes/shapes/recipe.toml").read_text())
        command = [
            WEFT,
            "train",
            str(mine),
            "--resume",
            "--name",
            "run",
            "--set",
            f"run.dir={self.folder.name}",
        ]
        other = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100
        )
        self.refused(other, 2, 'it is a run of the recipe "shapes", not of "mine"')
        self.refused(self.train("none", "--resume"), 2, "there is no run to resume in")
        self.assertEqual((self.run_of("run") / "config.toml").read_text(), before)

    def test_a_recipe_with_a_name_beyond_ascii_keeps_it_in_the_name_of_its_run(self):
        recipe = pathlib.Path(self.folder.name) / "résumé 1"
        recipe.mkdir()
        shutil.copy(ROOT / "recipes/shapes/recipe.toml", recipe)
        words = ["train", str(recipe), *TINY, *self.images]
        words += ["--set", f"run.dir={self.folder.name}/runs"]
        result = weft(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        (name,) = os.listdir(f"{self.folder.name}/runs")
        self.assertRegex(name, r"-résumé-1$")
        result = weft(*words, "--resume", "--set", "train.max_steps=8")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("resuming step=6", result.stderr)
        shown = weft("checkpoint", "show", f"{self.folder.name}/runs/{name}").stdout
        self.assertRegex(shown, r"  epoch_loss = \d+(\.\d+)?\n")

    def test_images_that_are_not_square_are_trained_on_and_others_refused(self):
        folder = pathlib.Path(self.folder.name)

        def write(part, height, width, count):
            shape = b"".join(size.to_bytes(4, "big") for size in (count, height, width))
            pixels = bytes(i % 251 for i in range(count * height * width))
            labels = bytes(i % 10 for i in range(count))
            size = count.to_bytes(4, "big")
            (folder / f"{part}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + shape + pixels)
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + size + labels)

        def train(name, *words):
            return self.train(
                name, "--set", "data.name=fashion-mnist", "--set", f"data.dir={folder}", *words
            )

        write("train", 20, 32, 200)
        write("t10k", 20, 32, 50)
        for name in ("mlp", "cnn", "vit", "mixer"):
            words = [] if name == "mlp" else ["--set", "model.hidden=[256, 128]"]
            result = train(name, "--set", f"model.name={name}", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
        words = ["--set", "model.hidden=[256, 128]", "--set", "model.name=vit"]
        result = train("none", *words, "--set", "model.patch=8")
        self.refused(result, 2, "model.patch: 8 does not divide images of 20x32")
        write("t10k", 32, 20, 50)
        self.refused(train("none"), 2, "the training images are 1x20x32", "1x32x20")
        self.assertFalse(self.run_of("none").exists())

    def test_a_number_of_threads_that_is_none_counts_as_unset(self):
        unset = environment()
        del unset["OMP_NUM_THREADS"]
        threads = {
            name: self.fields(self.line(self.train(name, env=env), "training shapes"))["threads"]
            for name, env in (
                ("unset", unset),
                ("empty", environment(OMP_NUM_THREADS="")),
                ("one", environment(OMP_NUM_THREADS="1,4")),
            )
        }
        self.assertEqual(threads["empty"], threads["unset"])
        self.assertEqual(threads["one"], 1)

    def test_resume_auto_starts_a_run_or_resumes_it(self):
        first = self.train("run", "--resume=auto", "--set", "train.max_steps=3")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertNotIn("resuming", first.stderr)
        second = self.train("run", "--resume=auto")
        self.assertEqual(second.returncode, 0, second.stderr)
        self.assertIn("resuming step=3", second.stderr)
        self.refused(self.train("run", "--resume=perhaps"), 2, "--resume", "auto")

    def test_resume_fails_if_all_checkpoints_are_damaged(self):
        self.assertEqual(self.train("run").returncode, 0)
        for file in (self.run_of("run") / "ckpt").glob("step-*/*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
        self.refused(self.train("run", "--resume"), 65, "all checkpoints of the run are damaged")

    def test_a_failed_start_leaves_no_run_folder(self):
        failed = self.train(
            "run", "-n", "2", "--set", "parallel.pp=2", "--set", "parallel.cuts=[50]"
        )
        self.assertEqual(failed.returncode, 2, failed.stderr)
        self.assertFalse(self.run_of("run").exists())

    def test_a_nan_loss_ends_the_run_and_keeps_good_checkpoints(self):
        words = [
            "--set",
            "train.max_steps=40",
            "--set",
            "train.checkpoint_steps=2",
            "--set",
            "train.log_every=1",
            "--set",
            "train.keep=1",
        ]
        self.assertEqual(self.train("run", *words, "--set", "train.max_steps=6").returncode, 0)
        spoilt = self.train(
            "run",
            *words,
            "--resume",
            "--set",
            "optimizer.lr=1e30",
            "--set",
            "schedule.name=constant",
        )
        self.refused(
            spoilt, 2, "the loss is NaN or infinite since step", "3 steps in a row", "on rank 0"
        )
        saved = sorted(path.name for path in (self.run_of("run") / "ckpt").iterdir())
        self.assertIn("step-00000006", saved)

    def test_a_run_folder_that_is_deleted_while_training_is_an_error(self):
        with self.training("--set", "train.checkpoint_every=0") as (process, _):
            shutil.rmtree(self.run_of("run"))
            for line in process.stderr:
                if "was deleted or moved" in line:
                    break
            process.terminate()
            rest = process.stderr.read()
        self.assertEqual(process.returncode, 203, rest)
        self.assertIn("was deleted or moved while the run trained", rest)

    def test_two_jobs_do_not_share_a_run_folder(self):
        with self.training() as (process, command):
            self.refused(self.train("run"), 203, "is in use by process")
            resumed = subprocess.run(
                [*command, "--resume"],
                cwd=ROOT,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=100,
            )
            self.refused(resumed, 203, "is in use by process")
            running = [
                json.loads(line)
                for line in weft("runs", self.folder.name, "--json").stdout.splitlines()
            ]
            self.assertEqual([(run["name"], run["running"]) for run in running], [("run", True)])
            process.terminate()
            process.stderr.read()
        self.assertIn("ended", weft("runs", self.folder.name).stdout)

    def test_a_run_is_not_overwritten(self):
        self.assertEqual(self.train("run").returncode, 0)
        again = self.train("run")
        self.assertEqual(again.returncode, 2)
        self.assertIn("not empty", again.stderr)

    def test_check_compares_with_expected_toml_and_refuses_a_recipe_without_it(self):
        recipe = pathlib.Path(self.folder.name) / "mine"
        recipe.mkdir()
        (recipe / "recipe.toml").write_text(
            (pathlib.Path(ROOT) / "recipes/shapes/recipe.toml").read_text()
        )
        for promise, says in (
            (None, "there is no"),
            ("", "names no accuracy"),
            ("accuracy = 0.01", "as expected"),
            ("accuracy = 1", "not as expected"),
        ):
            if promise is not None:
                (recipe / "expected.toml").write_text(promise)
            result = weft(
                "train",
                str(recipe),
                *TINY,
                *self.images,
                "--set",
                f"run.dir={self.folder.name}",
                "--name",
                says.replace(" ", "_"),
                "--check",
            )
            self.assertEqual(
                result.returncode,
                {"as expected": 0, "not as expected": 1}.get(says, 2),
                result.stderr,
            )
            self.assertIn(says, result.stderr)

    def test_train_is_one_rank_of_the_job_under_weft_run(self):
        result = self.train("run", "--json", launcher=(WEFT, "run", "-n", "2"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            json.loads(result.stdout.splitlines()[-1].removeprefix("[rank 0] "))["ranks"], 2
        )

    def test_a_signal_ends_a_run_after_a_checkpoint(self):
        with self.training("-n", "2") as (process, _):
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            code = process.wait(timeout=60)
        self.assertEqual(code, 128 + signal.SIGTERM, rest)
        self.assertIn(f"--resume --name run --set run.dir={self.folder.name}", rest)
        newest = sorted((self.run_of("run") / "ckpt").iterdir())[-1]
        self.assertGreater(int(re.sub(r"\D", "", newest.name)), 0)

    def test_a_checkpoint_that_does_not_fit_into_the_grace_period_is_said_without_a_launcher(self):
        command = [WEFT, "train", "recipes/shapes", *TINY, *self.images, "--grace", "1"]
        command += ["--set", f"run.dir={self.folder.name}", "--name", "run"]
        hangs = "step.begin:step=3:action=sleep"
        with self.started(command, "failpoint step.begin", WEFT_FAIL=hangs) as process:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            code = process.wait(timeout=60)
        self.assertEqual(code, 128 + signal.SIGKILL, rest)
        self.assertIn("weft: no checkpoint fit into the grace period (--grace)\n", rest)

    def test_the_surviving_rank_names_the_killed_rank(self):
        with self.training("-n", "2") as (process, _):
            os.kill(self.children(process.pid)[-1], signal.SIGKILL)
            rest = process.stderr.read()
            code = process.wait(timeout=60)
        self.assertGreaterEqual(code, 128)
        self.assertIn("PeerLost{1}", rest)
        self.assertIn("SIGKILL", rest.strip().splitlines()[-1])

    @staticmethod
    def children(pid):
        """The child processes of `pid`, in the order of their start."""
        listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in listed]


if __name__ == "__main__":
    WEFT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
