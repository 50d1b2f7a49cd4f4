"""A checkpoint that cannot be written fails alone: training goes on, and the job ends with the
error only if its last checkpoint could not be written."""

import os

import harness


class CheckpointFolder(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.ckpt = self.folder / "runs/run/ckpt"

    def train_with(self, obstacle):
        """Puts an obstacle in place of the folder of the checkpoints, while the job runs."""
        job = self.train(
            2, "train.max_steps=100", "train.checkpoint_steps=25", "train.checkpoint_minutes=0",
            env=harness.SLEEPS
        )
        job.wait_for_steps(1)
        if self.ckpt.exists():
            os.rename(self.ckpt, self.folder / "before")
        obstacle(self.ckpt)
        return job

    def fails_alone(self, obstacle):
        job = self.train_with(obstacle)
        self.ends(
            job, 2, ["not saved", "training goes on, and older checkpoints are untouched"],
            within=30,
            last="weft: ranks 0 and 1 failed: exit code 2: InvalidArgument: checkpoint: the "
            "checkpoint of step 100 is not saved: rank 0: cannot make the folder"
        )
        # Refused at once, and nothing is lost.
        again = self.weft("train", self.folder, "-n", 2, "--resume")
        self.ends(again, 2, within=10, last="cannot make the folder")
        os.unlink(self.ckpt)

    def test_is_a_file(self):
        self.fails_alone(lambda path: path.touch())

    def test_is_a_fifo(self):
        self.fails_alone(os.mkfifo)

    def test_is_a_link_to_nowhere(self):
        self.fails_alone(lambda path: path.symlink_to("/nowhere/at/all"))

    def test_comes_back(self):
        job = self.train_with(lambda path: path.touch())
        job.wait_for(lambda: "not saved" in job.err(), "a failed checkpoint")
        os.unlink(self.ckpt)
        self.ends(job, 0, ["training goes on"], within=30)
        self.assertIn("step-00000100", os.listdir(self.ckpt))


if __name__ == "__main__":
    harness.main()
