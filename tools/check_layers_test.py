"""Tests that check_layers finds a breach of each of its rules, and none in a clean tree."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).parent / "check_layers"
LAYERS = "# row folder torch mates\n0 base no\n1 schedule no\n1 plan no schedule\n3 comm yes\n"


class CheckLayers(unittest.TestCase):
    def breaches(self, files):
        """The lines that check_layers prints for a tree of these files. Asserts that the exit
        status agrees with them."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"tools/layers.txt": LAYERS, **files}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        self.assertEqual(run.returncode, 1 if run.stdout else 0)
        return run.stdout.splitlines()

    def assert_breach(self, files, start):
        found = self.breaches(files)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(start), found[0])

    def test_downward_own_and_listed_mates_are_allowed(self):
        self.assertEqual(
            [],
            self.breaches(
                {
                    "weft/comm/a.cc": '#include "weft/base/error.h"\n'
                    '#include "weft/comm/internal/b.h"\n#include <torch/utils.h>\n',
                    "weft/comm/internal/c.cc": '#include "weft/comm/internal/b.h"\n',
                    "weft/plan/a.cc": '#include "weft/schedule/schedule.h"\n#include <vector>\n',
                }
            ),
        )

    def test_upward(self):
        self.assert_breach(
            {"weft/base/a.h": '\n#include "weft/comm/group.h"\n'},
            "weft/base/a.h:2: base (row 0) includes comm (row 3)",
        )

    def test_sideways(self):
        self.assert_breach(
            {"weft/schedule/a.h": '#include "weft/plan/cost.h"\n'},
            "weft/schedule/a.h:1: schedule (row 1) includes plan",
        )

    def test_torch_in_a_torch_free_folder(self):
        self.assert_breach(
            {"weft/base/a.cc": "# include <ATen/core/Tensor.h>\n"},
            "weft/base/a.cc:1: base is torch-free",
        )

    def test_all_of_libtorch(self):
        self.assert_breach(
            {"weft/comm/a.cc": "#include <torch/torch.h>\n"},
            "weft/comm/a.cc:1: <torch/torch.h> doubles the compile time",
        )

    def test_nested_folder_with_a_line_of_its_own(self):
        layers = LAYERS + "3 comm/free no comm\n"
        self.assertEqual(
            [],
            self.breaches(
                {
                    "tools/layers.txt": layers,
                    "weft/comm/a.cc": "#include <torch/utils.h>\n",
                    "weft/comm/free/a.cc": '#include "weft/comm/b.h"\n'
                    '#include "weft/comm/free/internal/c.h"\n',
                }
            ),
        )
        self.assert_breach(
            {"tools/layers.txt": layers, "weft/comm/free/a.cc": "#include <torch/utils.h>\n"},
            "weft/comm/free/a.cc:1: comm/free is torch-free",
        )
        self.assert_breach(
            {"tools/layers.txt": layers, "weft/comm/a.h": '#include "weft/comm/free/b.h"\n'},
            "weft/comm/a.h:1: comm (row 3) includes comm/free",
        )

    def test_private_header_of_another_folder(self):
        self.assert_breach(
            {"weft/comm/a.cc": '#include "weft/base/internal/x.h"\n'},
            "weft/comm/a.cc:1: weft/base/internal/x.h is private",
        )

    def test_private_header_of_the_folder_above(self):
        self.assertEqual(
            [], self.breaches({"weft/comm/mpi/a.cc": '#include "weft/comm/internal/x.h"\n'})
        )
        self.assert_breach(
            {"weft/comm/a.cc": '#include "weft/comm/mpi/internal/x.h"\n'},
            "weft/comm/a.cc:1: weft/comm/mpi/internal/x.h is private",
        )
        self.assert_breach(
            {"weft/comm/mpi2/a.cc": '#include "weft/comm/mpi/internal/x.h"\n'},
            "weft/comm/mpi2/a.cc:1: weft/comm/mpi/internal/x.h",
        )

    def test_private_header_in_a_public_one(self):
        self.assertEqual(
            [], self.breaches({"weft/base/internal/a.h": '#include "weft/base/internal/x.h"\n'})
        )
        self.assert_breach(
            {"weft/base/a.h": '#include "weft/base/internal/x.h"\n'},
            "weft/base/a.h:1: weft/base/internal/x.h is not installed",
        )

    def test_public_headers_that_cannot_be_made(self):
        tree = {
            "cmake/public_headers.txt": "weft/x.h weft/base/a.h\nweft/y.h weft/base/b.h\n",
            "weft/base/a.h": '#pragma once\n#include "weft/base/b.h"\n',
            "weft/base/b.h": "#pragma once\n",
        }
        self.assertEqual([], self.breaches(tree))
        self.assert_breach(
            tree
            | {
                "weft/base/b.h": '#pragma once\n#include "weft/base/c.h"\n',
                "weft/base/c.h": "#pragma once\n",
            },
            "make_public_headers: weft/base/b.h includes weft/base/c.h, which is in no public "
            "header",
        )
        self.assert_breach(
            tree | {"weft/base/b.h": '#pragma once\n#include "weft/base/a.h"\n'},
            "make_public_headers: a circle: weft/x.h -> weft/y.h -> weft/x.h",
        )
        self.assert_breach(
            tree
            | {"cmake/public_headers.txt": "weft/x.h weft/base/a.h\n          weft/base/b.h\n"},
            "make_public_headers: weft/base/a.h includes weft/base/b.h, which comes after it in "
            "weft/x.h",
        )
        self.assert_breach(
            tree | {"cmake/public_headers.txt": "weft/x.h weft/base/c.h\n"},
            "make_public_headers: cmake/public_headers.txt: there is no weft/base/c.h",
        )

    def test_public_header_is_its_headers_of_the_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = {
                "cmake/public_headers.txt": "# a topic\n// Two things.\nweft/x.h weft/base/a.h\n"
                "  weft/base/b.h\nweft/y.h weft/base/c.h\n",
                "weft/base/a.h": "// One: c.h.\n#pragma once\n\n#include <string>\n\n"
                "namespace weft {\nstruct A;\n}  // namespace weft\n",
                "weft/base/b.h": '#pragma once\n\n#include <map>\n\n'
                '#include "weft/base/a.h"\n#include "weft/base/c.h"\n\n'
                "namespace weft {\nstruct B;\n}  // namespace weft\n",
                "weft/base/c.h": "// Three.\n#pragma once\n\nstruct C;\n",
            }
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            script = pathlib.Path(__file__).resolve().parent / "make_public_headers"
            subprocess.run([sys.executable, script, root, root / "out"], check=True)
            self.assertEqual(
                (root / "out/weft/x.h").read_text(),
                '// Two things.\n#pragma once\n\n#include <map>\n#include <string>\n\n'
                '#include "weft/y.h"\n\n// One: weft/y.h.\n\n'
                "namespace weft {\nstruct A;\nstruct B;\n}  // namespace weft\n",
            )
            self.assertEqual(
                (root / "out/weft/y.h").read_text(), "// Three.\n#pragma once\n\nstruct C;\n"
            )

    def test_unknown_folder(self):
        self.assert_breach({"weft/utils/a.h": "\n"}, "weft/utils/a.h: weft/utils is not in")

    def test_header_above_every_folder(self):
        self.assert_breach(
            {"weft/comm/a.cc": '#include "weft/weft.h"\n'}, "weft/comm/a.cc:1: weft/weft.h is above"
        )

    def test_nine_public_headers(self):
        files = {f"weft/base/h{i}.h": "\n" for i in range(8)} | {"weft/base/internal/more.h": "\n"}
        self.assertEqual([], self.breaches(files))
        self.assert_breach(files | {"weft/base/h8.h": "\n"}, "weft/base: 9 public headers")

    def test_long_files(self):
        self.assertEqual(
            [], self.breaches({"weft/base/a.h": "\n" * 250, "weft/base/a.cc": "\n" * 600})
        )
        self.assert_breach({"weft/base/a.h": "\n" * 251}, "weft/base/a.h: 251 lines")
        self.assert_breach({"weft/base/a.cc": "\n" * 601}, "weft/base/a.cc: 601 lines")


if __name__ == "__main__":
    unittest.main()
