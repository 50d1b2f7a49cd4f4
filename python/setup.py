"""Builds weft_torch._C with the project's CMake files, for the torch of the running Python. Needs
g++, CMake and Ninja, but no network."""

import contextlib
import os
import pathlib
import re
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


def say(text):
    """Writes a line to the terminal too: pip keeps the output of a build to itself."""
    print(text, flush=True)
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        terminal.write(f"\r  weft-torch: {text}\n")


def run(*command):
    """Runs a command. Says every tenth of ninja's steps."""
    said = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            step = re.match(r"\[(\d+)/(\d+)\]", line)
            done, steps = map(int, step.groups()) if step else (0, 1)
            if 10 * done // steps > said:
                said = 10 * done // steps
                say(f"{done} of {steps} files compiled and linked")
    return process.returncode


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
        say(f"building for torch {torch.__version__} in {BUILD}; the first build takes minutes")
        configured = run(
            "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *(f"-D{option}" for option in options)
        )
        if configured != 0:
            sys.exit(
                "weft-torch: CMake failed, see its lines above; python/README.md lists the Debian "
                "packages that the build needs"
            )
        jobs = os.environ.get("WEFT_JOBS")
        if run("ninja", "-C", BUILD, *(["-j", jobs] if jobs else []), "weft_python") != 0:
            sys.exit("weft-torch: the build failed, see the lines of the compiler above")
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
