#!/usr/bin/env python3
"""needed.py BUILD NINJA: `cmake --install BUILD` builds each file that it installs.

Compares the files of the install rules with the inputs of the target weft_to_install, which is
built first. So the test needs no build folder without these files."""

import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(r'include\("([^"]+/cmake_install\.cmake)"\)')
RULE = re.compile(r"file\(INSTALL DESTINATION .*?FILES ([^)]*)\)", re.DOTALL)


def scripts(first):
    """The texts of the install rules, from this file on. Removed folders may have others."""
    text = first.read_text()
    yield text
    for name in INCLUDE.findall(text):
        yield from scripts(pathlib.Path(name))


def installed(build):
    """The files in the build folder that the install rules name."""
    for text in scripts(build / "cmake_install.cmake"):
        for files in RULE.findall(text):
            for name in re.findall(r'"([^"]+)"', files):
                path = pathlib.Path(name)
                # The folder of generated headers is an input, too, by its stamp.
                if path.name == "weft" and path.parent.name == "include":
                    path = path.parent / "made"
                if path.is_relative_to(build) and ".cmake" not in path.suffixes:
                    yield path.relative_to(build).as_posix()


def main():
    ninja = sys.argv[2]
    cache = (pathlib.Path(sys.argv[1]) / "CMakeCache.txt").read_text()
    # As the rules write it, which may be through a link.
    build = pathlib.Path(re.search(r"^CMAKE_CACHEFILE_DIR:INTERNAL=(.*)$", cache, re.MULTILINE)[1])
    command = [ninja, "-C", build, "-t", "inputs", "weft_to_install"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    inputs = {line.removeprefix(f"{build}/") for line in text.splitlines()}
    files = {name for name in installed(build) if not name.startswith("shell/")}
    missing = sorted(files - inputs)
    first = (build / "cmake_install.cmake").read_text()
    rule = first.find("build_to_install.cmake")
    if not 0 <= rule < first.find("cmake_install.cmake"):
        missing.append("build_to_install.cmake is not the first rule")
    print("\n".join(missing) or f"{len(files)} installed files are built first")
    sys.exit(1 if missing or not files else 0)


if __name__ == "__main__":
    main()
