"""A job that may have too few open files, threads or too little memory ends with one line that says
so, or works. No rank hangs, and nothing is left behind."""

import os
import pathlib
import resource
import subprocess

import harness

UNAVAILABLE = 203


class Exhaustion(harness.FaultTest):
    def tries(self, limit, values, says):
        """Trains under each limit. The first is too small, the last large enough."""
        codes = []
        for value in values:
            job = self.train(
                2, "train.max_steps=3", f"run.name=run{value}", preexec_fn=lambda: limit(value)
            )
            result = job.finish(30)
            codes.append(result.code)
            with self.subTest(limit=value):
                self.assertIn(result.code, (0, UNAVAILABLE), result.err)
                if result.code != 0:
                    # The process that holds the job's store prints its own reason.
                    of_store = "the process that holds the store ended first" in result.last_line
                    self.assertRegex(
                        result.err if of_store else result.last_line, says, result.err
                    )
                for noise in harness.NOISE:
                    self.assertNotIn(noise, result.err)
                self.nothing_left(job)
        self.assertEqual(codes[0], UNAVAILABLE)
        self.assertEqual(codes[-1], 0)

    def test_open_files(self):
        def limit(value):
            resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))

        self.tries(limit, [16, 24, 32, 34, 36, 40, 64], "open files")

    def test_threads(self):
        harness.require_other_user()
        for path in (self.folder, self.folder / "tmp"):
            path.mkdir(exist_ok=True)
            os.chmod(path, 0o777)

        def limit(value):
            harness.become_user()
            resource.setrlimit(resource.RLIMIT_NPROC, (value, value))

        self.tries(limit, [*range(2, 13), 40], "cannot (start a thread|create a process)")

    def test_memory(self):
        def limit(value):
            resource.setrlimit(resource.RLIMIT_DATA, (value << 20, value << 20))

        self.tries(limit, [80, 90, 100, 110, 400], "memory")

    def test_memory_of_the_programs_beside_weft(self):
        """While libtorch loads."""
        programs = [("chaos", "chaos")]
        if not harness.is_absent("WEFT_LINEAR"):
            programs.append(("linear", "linear"))
        if not harness.is_absent("WEFT_PLAN"):
            programs.append(("plan-validate", "plan"))
        for name, verb in programs:
            program = pathlib.Path(harness.WEFT).with_name("weft-" + name)
            codes = []
            for mib in (25, 45, 60, 400):
                limits = (mib << 20, mib << 20)
                ended = subprocess.run(
                    [program, verb, "--help"],
                    capture_output=True,
                    text=True,
                    timeout=30,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limits),
                )
                codes.append(ended.returncode)
                with self.subTest(program=name, limit=mib):
                    self.assertIn(ended.returncode, (0, UNAVAILABLE), ended.stderr)
                    if ended.returncode != 0:
                        self.assertRegex(ended.stderr, r"^weft: Unavailable: out of memory.*\n$")
            self.assertEqual((codes[0], codes[-1]), (UNAVAILABLE, 0))


if __name__ == "__main__":
    harness.main()
