#!/usr/bin/env python3
"""Tests of tools/check_catches."""

import unittest

from load_script import load_script

check_catches = load_script("check_catches")


def clause(head, *body):
    return "void f() {\n  try {\n    g();\n  " + "\n    ".join([head, *body]) + "\n  }\n}\n"


class Catches(unittest.TestCase):
    def assert_dropped(self, text, line=4):
        self.assertEqual(
            list(check_catches.check("weft/a.cc", text)),
            [f"weft/a.cc:{line}: the error is dropped; say why in a comment"],
        )

    def assert_kept(self, text):
        self.assertEqual(list(check_catches.check("weft/a.cc", text)), [])

    def test_an_error_that_nothing_uses_is_dropped(self):
        self.assert_dropped(clause("} catch (...) {", "return false;"))
        self.assert_dropped(clause("} catch (const Error&) {", "return;"))
        self.assert_dropped(clause("} catch (const std::exception& error) {", "h();"))
        self.assert_dropped(clause("} catch (...) {", "if (x) {", "  y();", "}"))

    def test_one_that_is_used_or_thrown_again_is_not(self):
        self.assert_kept(clause("} catch (const Error& error) {", "print(error);"))
        self.assert_kept(clause("} catch (...) {", "throw;"))
        self.assert_kept(clause("} catch (...) {", "keep(std::current_exception());"))

    def test_a_comment_gives_the_reason(self):
        self.assert_kept(clause("} catch (...) {  // no memory", "return false;"))
        self.assert_kept(clause("} catch (...) {", "// no memory", "return false;"))

    def test_a_text_is_no_comment_and_no_use(self):
        self.assert_dropped(clause("} catch (const Error& error) {", 'print("error {");'))

    def test_only_the_clause_itself_counts(self):
        after = "// a comment\nvoid error() { throw 1; }\n"
        self.assert_dropped(clause("} catch (const Error&) {", "return;") + after)


if __name__ == "__main__":
    unittest.main()
