"""Kills a test that runs ranks on hosts of its own (mpirun.py --hosts): nothing of it is left,
neither processes nor network namespaces."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import mpirun


def networks():
    """The network namespaces that a process lives in."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.add(os.readlink(f"/proc/{entry}/ns/net"))
        except OSError:
            continue
    return found


def main():
    if os.geteuid() != 0:
        mpirun.skip("network namespaces need root")
    with tempfile.TemporaryDirectory() as folder:
        launcher = pathlib.Path(folder, "launcher")
        launcher.write_text("#!/bin/sh\nreadlink /proc/self/ns/net\nexec sleep infinity\n")
        launcher.chmod(0o755)
        script = pathlib.Path(__file__).with_name("mpirun.py")
        command = [
            sys.executable, str(script), "--mpi", "openmpi", "--mpirun", str(launcher), "--ranks",
            "2", "--hosts", "2", "--", "true"
        ]
        environment = os.environ | {"TMPDIR": folder}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as test:
            inside = test.stdout.readline().strip()
            if inside.startswith("skipped"):
                mpirun.skip(inside)
            there = inside in networks()
            test.send_signal(signal.SIGKILL)
            test.stdout.read()  # ends when the last process that can write to it has
        # A process that ends closes its files first and leaves its namespaces after that.
        deadline = time.monotonic() + 10
        while (left := inside in networks()) and time.monotonic() < deadline:
            time.sleep(0.01)
    print(f"{inside}: while it ran {there}, afterwards {left}")
    return 0 if there and not left else 1


if __name__ == "__main__":
    sys.exit(main())
