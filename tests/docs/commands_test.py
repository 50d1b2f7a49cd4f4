#!/usr/bin/env python3
"""commands_test.py WEFT: the checker of shell blocks finds the mistakes that pages have."""

import sys
import unittest

from commands import Checker, Failure, commands_of

WEFT = ""


class Commands(unittest.TestCase):
    def setUp(self):
        self.checker = Checker(WEFT)

    def test_right_commands_are_counted(self):
        text = "\n".join(
            [
                "weft train shapes -n 2 --set train.epochs=1   # a comment",
                "A=b weft run -n 2 --tee 3 ./program --any-flag",
                "mpirun --host a:2 weft train shapes && weft runs",
                "srun sh -c 'weft run --nnodes $N -n 8 \\\n  weft train shapes'",
                "cd folder; ./program",
            ]
        )
        self.assertEqual(self.checker.check_text(text), 5)

    def test_mistakes_are_found(self):
        for text in (
            "weft trian shapes",
            "weft train shapes --epochs 2",
            "weft train none",
            "weft train shapes --set train.bacth=2",
            "weft run -n 2 --noded 2 ./program",
            "weft run -n 2 weft train shapes --nmae a",
            "weft plan shwo dp=2",
            "mpirun -n 2 weft train shapes --nmae a",
            "srun sh -c 'weft trian shapes'",
            "weft train --set train.epochs=1",
            "./dev biuld",
            "nosuchprogram",
        ):
            with self.subTest(text), self.assertRaises(Failure):
                self.checker.check_text(text)

    def test_words_keep_their_quotes_comments_end_a_line(self):
        words = list(commands_of("weft train a --set 'parallel.codec=\"powersgd:4\"'  # and more"))
        self.assertEqual(words, [["weft", "train", "a", "--set", 'parallel.codec="powersgd:4"']])


if __name__ == "__main__":
    WEFT = sys.argv.pop(1)
    unittest.main()
