"""A container's 64 MiB of /dev/shm, and none at all: weft's memory is anonymous and comes from
elsewhere."""

import harness

READ_ONLY = 1


class SharedMemory(harness.FaultTest):
    def setUp(self):
        super().setUp()
        if not harness.private_folders():
            self.skipTest("needs root: mounts a /dev/shm of its own")

    def trains(self, *settings, ranks=2, **how):
        job = self.train(
            ranks, "train.epochs=1", "model.name=cnn", "model.hidden=[256,128]",
            "train.max_steps=5", *settings, **how
        )
        return self.ends(job, 0, within=60)

    def mounted(self, options, flags=0):
        self.assertTrue(harness.mount_tmpfs("/dev/shm", options, flags))

    def test_64_MiB(self):
        self.mounted("size=64m")
        # More than 64 MiB of weights, gradients and momentum: 3 x 2 ranks x 16 MiB.
        self.trains("model.name=mlp", "model.hidden=[2048,1024]", "comm.transport=shm")

    def test_none_at_all(self):
        self.mounted("size=4k,nr_inodes=1", READ_ONLY)
        self.trains("comm.transport=shm")


class NoSharedHeap(harness.FaultTest):
    def test_ranks_fall_back_to_tcp_and_say_so(self):
        job = self.train(2, "train.epochs=1", "train.max_steps=20", env={"WEFT_HEAP_MB": "0"})
        self.ends(job, 0, ["shared memory is not available", "use messages instead"], within=30)

    def test_a_job_that_insists_on_it_ends(self):
        job = self.train(2, "comm.transport=shm", env={"WEFT_HEAP_MB": "0"})
        self.ends(job, 203, ["Unavailable"], within=10, last="WEFT_HEAP_MB=0")


if __name__ == "__main__":
    harness.main()
