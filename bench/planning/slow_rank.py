"""A control group whose processes get a share of one processor. Needs root."""

import contextlib
import os
import pathlib

PERIOD_US = 10_000  # short beside a step, so that steps of a slow rank are alike


class Impossible(Exception):
    """Why there is no such group here."""


def mounts(table="/proc/mounts"):
    """Folder, type and options of each file system."""
    for line in pathlib.Path(table).read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        yield pathlib.Path(folder), kind, options.split(",")


def parent_group(table="/proc/mounts"):
    """The folder in which groups are made, and the version of its interface. Raises Impossible."""
    for folder, kind, options in mounts(table):
        if kind == "cgroup" and "cpu" in options:
            return folder, 1
        if kind == "cgroup2" and "cpu" in (folder / "cgroup.controllers").read_text().split():
            return folder, 2
    raise Impossible("there is no cgroup file system with the controller cpu")


@contextlib.contextmanager
def group_of(share):
    """Yields the file to which a process writes its id to join. Raises Impossible."""
    folder, version = parent_group()
    group = folder / f"weft-planning-{os.getpid()}"
    try:
        if version == 2:
            (folder / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError as error:
        raise Impossible(f"{error}; this needs root") from error
    try:
        quota = int(share * PERIOD_US)
        if version == 2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield group / "cgroup.procs"
    except OSError as error:
        raise Impossible(str(error)) from error
    finally:
        with contextlib.suppress(OSError):  # a process that has not ended yet keeps it
            group.rmdir()


def joined(command, processes):
    """The command, in the group."""
    return ["sh", "-c", f'echo $$ > "{processes}" && exec "$@"', "sh", *command]
