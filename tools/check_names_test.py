#!/usr/bin/env python3
"""Tests of tools/check_names."""

import unittest

from load_script import load_script

check_names = load_script("check_names")


class Namespaces(unittest.TestCase):
    def test_a_folder_has_its_own_namespace_and_those_below_it(self):
        inside = "namespace weft::net::internal {\nint f() {\n  return 1;\n}\n}  // namespace\n"
        self.assertEqual(check_names.check({"weft/net/tcp/socket.cc": inside}), [])
        self.assertEqual(
            check_names.check({"weft/comm/socket.cc": inside}),
            [
                "weft/comm/socket.cc:2: defines something in weft::net::internal; its folder has "
                "the namespace weft::comm"
            ],
        )

    def test_base_and_the_headers_for_users_have_the_namespace_weft(self):
        text = "namespace weft {\nclass Error {\n};\n}  // namespace weft\n"
        self.assertEqual(check_names.check({"weft/base/error.h": text}), [])
        self.assertEqual(check_names.check({"weft/weft.h": text}), [])

    def test_other_namespaces_may_have_declarations_only(self):
        text = (
            "namespace weft::net {\nclass Host;\nenum class Kind : int;\n}\nnamespace weft {\n"
            "using comm::Group;\n}  // namespace weft\nnamespace torch::nn {\nvoid f() {}\n}\n"
        )
        self.assertEqual(check_names.check({"weft/comm/group.h": text}), [])

    def test_a_function_does_not_close_its_namespace(self):
        text = "namespace weft::net {\nvoid f() {\n}\nvoid g() {\n}\n}  // namespace weft::net\n"
        self.assertEqual(len(check_names.check({"weft/comm/group.cc": text})), 1)
        self.assertEqual(check_names.check({"weft/net/group.cc": text}), [])


class Classes(unittest.TestCase):
    def test_a_class_is_defined_in_one_file(self):
        text = "namespace weft::plan {\nstruct Candidate {\n  int a = 0;\n};\n}\n"
        self.assertEqual(
            check_names.check({"weft/plan/choice.h": text, "weft/plan/search.h": text}),
            [
                "weft/plan/search.h:2: defines weft::plan::Candidate, as weft/plan/choice.h:2 "
                "does; give it another name"
            ],
        )

    def test_classes_of_unnamed_namespaces_and_declarations_do_not_count(self):
        unnamed = "namespace weft::plan {\nnamespace {\nclass Case final : Base {\n};\n}\n}\n"
        declared = "namespace weft::plan {\nclass Case;\n}\n"
        defined = "namespace weft::plan {\ntemplate <typename T>\nclass Case {\n};\n}\n"
        files = {"weft/plan/a.cc": unnamed, "weft/plan/b.h": declared, "weft/plan/c.h": defined}
        self.assertEqual(check_names.check(files), [])

    def test_text_that_looks_like_a_class_does_not_count(self):
        text = 'namespace weft::plan {\nauto t = R"(\nstruct A {\n)";\n// struct A {\n}\n'
        self.assertEqual(check_names.check({"weft/plan/a.cc": text, "weft/plan/b.cc": text}), [])


if __name__ == "__main__":
    unittest.main()
