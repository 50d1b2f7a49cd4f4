"""Damaged data files: one line that names file, offset and what is wrong with it, from the rank
that met it."""

import gzip

import harness
from images import idx


def write_images(folder, part, count):
    folder.mkdir(exist_ok=True)
    pixels = bytes(range(256)) * (count * 784 // 256 + 1)
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(idx((count, 28, 28), pixels[: count * 784]), 1)
    )
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(idx((count,), bytes(i % 10 for i in range(count))), 1)
    )


class Data(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        for part in ("train", "t10k"):
            write_images(self.data, part, 64)
        self.images = self.data / "train-images-idx3-ubyte.gz"

    def corrupt(self, content, says):
        self.images.write_bytes(content)
        job = self.train(2, "data.name=fashion-mnist", f"data.dir={self.data}", "train.epochs=1")
        result = self.ends(
            job, 65, last=f": exit code 65 (weft: Corrupt): Corrupt: {self.images}: offset "
        )
        self.assertRegex(result.last_line, rf"^weft: ranks 0 and 1 failed: .*{says}")

    def test_sound_files_train(self):
        self.ends(
            self.train(2, "data.name=fashion-mnist", f"data.dir={self.data}", "train.epochs=1"), 0
        )

    def test_a_file_cut_short(self):
        whole = self.images.read_bytes()
        self.corrupt(whole[: len(whole) // 2], "truncated: [0-9]+ bytes are missing$")

    def test_a_file_with_more_than_it_announces(self):
        self.corrupt(
            gzip.compress(idx((64, 28, 28), bytes(65 * 784))),
            "has bytes after the data that its header describes$",
        )

    def test_a_header_that_announces_more_than_any_file_of_this_size_holds(self):
        self.corrupt(
            gzip.compress(idx((2**20, 28, 28), bytes(784))),
            "the header gives 822083584 bytes, more than a file of this length can hold$",
        )

    def test_a_header_that_announces_petabytes(self):
        self.corrupt(
            gzip.compress(idx((2**32 - 1, 2**31, 2**31), bytes(784))),
            "the header gives more than the limit of [0-9]+ bytes$",
        )

    def test_a_file_that_is_no_gzip(self):
        self.corrupt(b"<html>404 Not Found</html>", "offset 0: not a gzip file$")

    def test_a_folder_without_the_files(self):
        job = self.train(
            2, "data.name=fashion-mnist", f"data.dir={self.folder}/nowhere", "train.epochs=1"
        )
        self.ends(job, 2, last="BadConfig: data.dir: no train-images-idx3-ubyte.gz in ")


if __name__ == "__main__":
    harness.main()
