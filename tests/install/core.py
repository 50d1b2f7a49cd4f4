#!/usr/bin/env python3
"""core.py BUILD CMAKE NINJA: weft::core needs no other component, in this build and in one that has
no other. The package searches for libtorch for each target that links it.

Reads the link interfaces of the package of BUILD. Then configures a build without the other
components, builds nothing, reads its package, and lists the files of its targets."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = ("WEFT_PLAN", "WEFT_PS", "WEFT_LINEAR")
# Folders of the other components.
ABSENT = re.compile(
    r"\bweft/(?:ps|linear|strategy/server|train/planner"
    r"|plan/(?:model|cluster|cost|step|scenario|search|pictures))/"
)
# Their modules, and components, which links all.
MODULE = re.compile(
    r"weft::(?:ps|ps_table|linear|linear_\w+|strategy_server|train_planner|components|plan"
    r"|plan_(?:model|cluster|cost|step|scenario|search))"
)


def interfaces(build):
    """target -> the targets of weft in its link interface, from the exported package"""
    (package,) = build.glob("CMakeFiles/Export/**/weftTargets.cmake")
    pattern = re.compile(
        r"set_target_properties\((weft::\w+) PROPERTIES(.*?)\n\)", re.DOTALL
    )
    return {
        name: re.findall(r"weft::\w+", "".join(re.findall("LINK_LIBRARIES .*", properties)))
        for name, properties in pattern.findall(package.read_text())
    }


def linked(libraries, target):
    """The target, and those that it links."""
    seen, open_ = set(), [target]
    while open_:
        name = open_.pop()
        if name not in seen:
            seen.add(name)
            open_ += libraries.get(name, [])
    return seen


def check_interfaces(build):
    """The modules of other components that weft::core links, as lines."""
    libraries = interfaces(build)
    if not libraries.get("weft::core"):
        return [f"{build}: weft::core links nothing"]
    seen = linked(libraries, "weft::core")
    return [f"{build}: weft::core links {name}" for name in sorted(seen) if MODULE.fullmatch(name)]


def check_torch(build):
    """The targets that link libtorch, for which the package does not search for it, as lines."""
    config = (build / "weftConfig.cmake").read_text()
    searches = re.search(r'set\(_weft_torch_modules "(.*)"\)', config)[1].split(";")
    libraries = interfaces(build)
    return [
        f"{build}: find_package(weft COMPONENTS {name}) does not search for libtorch"
        for name in (target.removeprefix("weft::") for target in sorted(libraries))
        if "weft::torch" in linked(libraries, f"weft::{name}") and name not in searches
    ]


def cached(build):
    """The settings of a build that another one of the same machine needs."""
    text = (build / "CMakeCache.txt").read_text()
    names = ("CMAKE_CXX_COMPILER", "CMAKE_BUILD_TYPE", "WEFT_TORCH", "WEFT_TORCH_ROOT")
    for name in names:
        found = re.search(rf"^{name}:\w+=(.+)$", text, re.MULTILINE)
        if found:
            yield f"-D{name}={found[1]}"


def check_configured(build, cmake, ninja):
    with tempfile.TemporaryDirectory() as folder:
        core = pathlib.Path(folder)
        off = [f"-D{option}=OFF" for option in OPTIONS]
        configure = [cmake, "-S", ROOT, "-B", core, "-G", "Ninja", *cached(build), *off]
        done = subprocess.run(configure, capture_output=True, text=True)
        if done.returncode != 0:
            return ["a build without the other components: " + done.stderr.strip()]
        files = subprocess.run(
            [ninja, "-C", core, "-t", "inputs", "all"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        # The public headers are made from headers of all folders, and those of absent components
        # are left out.
        absent = [name for name in files if ABSENT.search(name) and not name.endswith(".h")]
        built = [f"a build without the other components has {name}" for name in absent]
        return built + check_interfaces(core)


def main():
    build, cmake, ninja = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    problems = check_interfaces(build) + check_torch(build)
    problems += check_configured(build, cmake, ninja)
    print("\n".join(problems) or "weft::core needs no other component")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
