"""Ranks that cannot meet: another world size, a port that is taken, a stranger's secret."""

import os
import socket

import harness

# Runs the rest of the command line as this rank, after a line of shell for rank 1 alone.
RANK1 = 'if [ "$RANK" = 1 ]; then {}; fi; exec "$@"'


def taken_port():
    holder = socket.create_server(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


class Meeting(harness.FaultTest):
    def run_with_rank1(self, shell, *settings):
        options = [word for setting in settings for word in ("--set", setting)]
        return self.weft(
            "run", "-n", 2, "sh", "-c", RANK1.format(shell), "sh", harness.WEFT, "train",
            self.folder, *options
        )

    def test_the_number_asked_for_is_not_the_launchers(self):
        launched = {
            "RANK": "0",
            "WORLD_SIZE": "3",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }
        self.ends(
            self.train(2, env=launched),
            2,
            ["-n 2 disagrees with", "which started 3 ranks", "leave out -n"],
            within=5,
        )

    def test_a_world_size_without_a_rank(self):
        self.ends(self.train(2, env={"WORLD_SIZE": "2"}), 2, ["WORLD_SIZE", "RANK"], within=5)

    def test_a_rank_that_believes_in_another_world(self):
        job = self.run_with_rank1("export WORLD_SIZE=3")
        result = self.ends(job, 2, within=5)
        self.assertRegex(
            result.last_line,
            "rank [01] failed first: .* was started with world size [23] and rank [01] with [23]; "
            "WORLD_SIZE",
        )

    def test_a_port_that_is_taken(self):
        holder, port = taken_port()
        with holder:
            self.ends(
                self.weft("run", "-n", 2, "--master-port", port, "true"),
                2,
                [f"127.0.0.1:{port} is in use", "--master-port"],
                within=5,
            )

    def test_a_port_that_is_taken_on_rank_0_without_a_launcher(self):
        holder, port = taken_port()
        alone = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with holder:
            job = self.weft("train", self.folder, "--set", "comm.timeout_s=2", env=alone)
            self.ends(job, 203, [f"cannot host the store at 127.0.0.1:{port}", "MASTER_PORT"])

    def test_a_rank_with_another_secret(self):
        (self.folder / "other").write_bytes(os.urandom(32))
        job = self.run_with_rank1(
            "exec 9<other; export WEFT_SECRET_FD=9", "comm.transport=tcp", "comm.timeout_s=3"
        )
        self.ends(job, 2, ["secret"], within=15, last="failed first")

    def test_a_rank_without_the_secret(self):
        job = self.run_with_rank1("unset WEFT_SECRET_FD", "comm.transport=tcp")
        result = self.ends(job, 2, within=5)
        self.assertRegex(
            result.last_line,
            "rank [01] failed first: .*rank [01] joined with.* and rank [01] with.*WEFT_SECRET_FD",
        )


if __name__ == "__main__":
    harness.main()
