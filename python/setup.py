"""Builds weft_torch._C with the project's CMake files, for the torch of the running Python. Needs
g++, CMake and Ninja, but no network."""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    import torch
except ImportError:
    sys.exit(
        "weft-torch is built against the torch that it will run with: install that torch first, "
        "then repeat with --no-build-isolation"
    )

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("WEFT_PYTHON_BUILD", ROOT / "build" / "wheel")).resolve()
TORCH = torch.__version__.split("+")[0]


class Package(build_py):
    """Copies the Python files and records the version of torch."""

    def run(self):
        super().run()
        folder = pathlib.Path(self.build_lib, "weft_torch")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_built.py").write_text(f'TORCH = "{torch.__version__}"\n')


class Compiled(build_ext):
    def build_extension(self, extension):
        for tool in ("cmake", "ninja"):
            if shutil.which(tool) is None:
                sys.exit(
                    f"weft-torch is built with CMake (3.25 or newer) and Ninja, and there is no "
                    f"{tool} in PATH"
                )
        options = [
            "WEFT_TESTS=OFF", "WEFT_BENCHMARKS=OFF", "WEFT_INSTALL=OFF", "CMAKE_BUILD_TYPE=Release"
        ]
        options += [
            f"CMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
            f"Python3_EXECUTABLE={sys.executable}",
        ]
        subprocess.run(
            [
                "cmake",
                "-S",
                ROOT,
                "-B",
                BUILD,
                "-G",
                "Ninja",
                *(f"-D{option}" for option in options),
            ],
            check=True,
        )
        jobs = os.environ.get("WEFT_JOBS")
        subprocess.run(
            ["ninja", "-C", BUILD, *(["-j", jobs] if jobs else []), "weft_python"], check=True
        )
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(BUILD / "python" / "weft_torch" / "_C.so", target)

    def get_ext_filename(self, name):
        return name.replace(".", os.sep) + ".so"


# setuptools writes its files to the build folder, so that the source tree does not change.
BUILD.mkdir(parents=True, exist_ok=True)
setup(
    ext_modules=[Extension("weft_torch._C", sources=[])],
    cmdclass={"build_ext": Compiled, "build_py": Package},
    install_requires=[f"torch=={'.'.join(TORCH.split('.')[:2])}.*"],
    options={
        "build": {"build_base": str(BUILD / "setuptools")},
        "egg_info": {"egg_base": str(BUILD)},
    },
)
