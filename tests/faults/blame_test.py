"""The last line of a failed job names the rank at fault by its rank in the job: for a program that
catches nothing, in a subgroup, whichever rank ends first, and on each node."""

import os

import harness
import meeting_test

PROGRAM = os.path.abspath(os.environ["WEFT_BLAME_PROGRAM"])
VICTIM = 3
# How the program fails: exit code of the job, and what the last line says of the rank at fault.
FAILED = f"weft: rank {VICTIM} failed first: "
MODES = {
    "return": (3, FAILED + "exit code 3"),
    "throw": (134, FAILED + "SIGABRT (signal 6)"),
    "crash": (139, FAILED + "SIGSEGV (signal 11)"),
    "terminate": (143, FAILED + "SIGTERM (signal 15)"),
    "leave": (134, f"weft: rank {VICTIM} ended early, with exit code 0; rank "),
    "stop": (134, f"weft: rank {VICTIM} was stopped by a signal, such as SIGSTOP; rank "),
    "hang": (134, f"weft: rank {VICTIM} did not answer; rank "),
}


class Blame(harness.FaultTest):
    def check(self, job, mode):
        code, last = MODES[mode]
        result = job.finish(30)
        self.assertIn(last, result.last_line, result.err)
        self.assertEqual(result.code, code, result.err)
        self.assertEqual(job.processes(), [])
        return result

    def blames(self, mode, transport):
        env = {"WEFT_TRANSPORT": transport}
        job = self.weft("run", "-n", 4, PROGRAM, mode, VICTIM, env=env)
        return self.check(job, mode)

    def blames_on_two_nodes(self, mode):
        (self.folder / "secret").write_bytes(os.urandom(32))
        os.chmod(self.folder / "secret", 0o600)
        holder, port = meeting_test.taken_port()
        holder.close()
        jobs = []
        for node in (0, 1):
            folder = self.folder / f"node{node}"
            folder.mkdir()
            job = harness.Job(
                folder, "run", "-n", 2, "--nnodes", 2, "--node-rank", node,
                "--master-addr", "127.0.0.1", "--master-port", port,
                "--secret-file", self.folder / "secret", PROGRAM, mode, VICTIM
            )
            self.addCleanup(job.clean)
            jobs.append(job)
        first, second = (self.check(job, mode) for job in jobs)
        self.assertEqual(first.last_line, second.last_line)

    def test_a_wrong_exit_code(self):
        self.blames("return", "shm")

    def test_a_wrong_exit_code_over_tcp(self):
        self.blames("return", "tcp")

    def test_an_uncaught_exception(self):
        self.blames("throw", "shm")

    def test_an_uncaught_exception_over_tcp_slow(self):
        self.blames("throw", "tcp")

    def test_a_crash(self):
        self.blames("crash", "shm")

    def test_SIGTERM_to_one_rank(self):
        self.blames("terminate", "shm")

    def test_SIGTERM_to_one_rank_over_tcp_slow(self):
        self.blames("terminate", "tcp")

    def test_an_early_end(self):
        self.blames("leave", "shm")

    def test_an_early_end_over_tcp(self):
        self.blames("leave", "tcp")

    def test_a_stopped_rank(self):
        self.blames("stop", "shm")

    def test_a_stopped_rank_over_tcp_slow(self):
        self.blames("stop", "tcp")

    def test_a_hanging_rank(self):
        self.blames("hang", "shm")

    def test_a_hanging_rank_over_tcp(self):
        self.blames("hang", "tcp")

    def test_a_crash_on_one_of_two_nodes(self):
        self.blames_on_two_nodes("crash")

    def test_a_wrong_exit_code_on_one_of_two_nodes(self):
        self.blames_on_two_nodes("return")

    def test_a_stopped_rank_on_one_of_two_nodes_slow(self):
        self.blames_on_two_nodes("stop")

    def test_a_hanging_rank_on_one_of_two_nodes(self):
        self.blames_on_two_nodes("hang")


if __name__ == "__main__":
    harness.main()
