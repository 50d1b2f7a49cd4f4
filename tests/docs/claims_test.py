#!/usr/bin/env python3
"""What the pages say that weft has is what claims.toml says, and the sources prove it."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/docs"))

import claims  # noqa: E402


class Claims(unittest.TestCase):
    def denied(self, text, name="from-others.md"):
        return [claim for _, _, claim in claims.denials(name, text, claims.claims(ROOT))]

    def test_the_pages_agree_with_the_list_and_the_sources(self):
        self.assertEqual(list(claims.problems(ROOT)), [])

    def test_a_sentence_that_denies_a_feature_is_found(self):
        self.assertEqual(self.denied("weft does not support Adasum or MXNet."), ["Adasum"])
        self.assertEqual(
            self.denied("Some words.\nIts trainer does not continue with fewer ranks."),
            ["training continues with fewer ranks"],
        )
        self.assertEqual(
            self.denied("weft does not have offload of weights, autotuning, elastic\ntraining."),
            ["elastic training: ranks join and leave", "tuning of the settings"],
        )

    def test_a_limit_where_it_belongs_and_a_feature_that_is_not_there_are_no_denials(self):
        self.assertEqual(self.denied("Not supported on a GPU: codecs, Adasum.", "gpus.md"), [])
        self.assertEqual(self.denied("weft does not have curriculum learning."), [])
        self.assertEqual(self.denied("`a` is not supported. Adasum combines gradients."), [])
        self.assertEqual(self.denied("```\nweft does not support Adasum\n```"), [])

    def test_a_claim_without_a_proof_is_found(self):
        one = {"name": "x", "of": [], "words": ["x"], "weft": "yes", "proof": "dev: no such words"}
        self.assertEqual(list(claims.unproved(ROOT, [one])), ["x: dev does not have no such words"])
        one = {"name": "x", "of": [], "words": ["x"], "absent": ["all_reduce"]}
        self.assertEqual(len(list(claims.unproved(ROOT, [one]))), 1)


if __name__ == "__main__":
    unittest.main()
