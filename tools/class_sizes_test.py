#!/usr/bin/env python3
"""Tests of tools/class_sizes."""

import collections
import pathlib
import tempfile
import unittest

from load_script import load_script

class_sizes = load_script("class_sizes")


def sizes_of(*texts):
    sizes = collections.defaultdict(class_sizes.Size)
    for number, text in enumerate(texts):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{number}.cc"
            path.write_text(text)
            class_sizes.read(path, "weft/net", sizes)
    return {name: size for (_, name), size in sizes.items()}


class Members(unittest.TestCase):
    def test_counts_members_and_not_functions_types_or_constants(self):
        count, has_functions = class_sizes.members_of("""
            public:
             explicit Box(int width) : width_(width) {}
             int width() const { return width_; }
             virtual void draw() = 0;
             using Map = std::map<int, int>;
             static constexpr int kMost = 3;
             friend class Lid;
            private:
             int width_;
             std::function<void(int, int)> call_;
             std::vector<int> rows_ = {1, 2}, columns_;
             std::atomic<bool> is_open_{false};
            """)
        self.assertEqual((count, has_functions), (5, True))

    def test_a_struct_of_options_has_no_functions(self):
        self.assertEqual(class_sizes.members_of(" int a = 1;\n double b = 2;\n"), (2, False))


class Classes(unittest.TestCase):
    def test_adds_the_methods_in_all_sources(self):
        header = "class Box final : public Thing {\n public:\n  void draw();\n\n  int a_;\n};\n"
        one = "namespace x {\n\nvoid Box::draw() {\n  // {\n  a_ = 1;\n}\n\n}  // namespace x\n"
        two = "Box::Box(int a)\n    : a_(a) {}\n\nint free_function() {\n  return 1;\n}\n"
        box = sizes_of(header, one, two)["Box"]
        self.assertEqual((box.lines, box.members, len(box.sources)), (6 + 4 + 2, 1, 2))

    def test_a_nested_struct_has_its_own_members(self):
        inner = "  struct Inner {\n    int a;\n    int b;\n  };\n"
        sizes = sizes_of("struct Outer {\n" + inner + "  int c;\n};\n")
        self.assertEqual((sizes["Outer::Inner"].members, sizes["Outer"].members), (2, 1))

    def test_names_what_is_beyond_the_measure(self):
        fields = "".join(f"  int field{number};\n" for number in range(20))
        sizes = sizes_of(
            f"struct Options {{\n{fields}}};\n",
            f"struct State {{\n  void change();\n{fields}}};\n",
        )
        self.assertFalse(sizes["Options"].is_beyond())
        self.assertTrue(sizes["State"].is_beyond())


if __name__ == "__main__":
    unittest.main()
