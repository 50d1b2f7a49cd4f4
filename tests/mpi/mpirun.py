"""Runs a program as the ranks of an mpirun, on this host or on several that are network namespaces,
and ends as it did.

    mpirun.py --mpi openmpi|mpich --mpirun PATH --ranks N [--hosts H] [--results]
              -- PROGRAM ARGUMENTS…

--hosts H: N / H ranks in each of H namespaces behind one bridge, with an `ip netns exec` agent in
the place of ssh. Needs root; 77 (skip) without. All of it lies in namespaces of the test's own and
ends with it, killed or not. --results: ranks end without MPI_Finalize, which a launcher may call a
failure; what counts is the files that they leave."""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
ISOLATED = "WEFT_TEST_ISOLATED"  # the number of the test, within the namespaces of its own


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def isolate():
    """Goes on in namespaces of its own for mounts and processes: whatever it starts or makes there
    ends with it, however it ends."""
    if os.geteuid() != 0:
        skip("network namespaces need root")
    if ISOLATED in os.environ:
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "netns", "/run/netns")
        return
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        run(*alone, "ip", "netns", "list")
    except (OSError, subprocess.CalledProcessError) as error:
        skip(f"no namespaces here: {error}")
    os.environ[ISOLATED] = str(os.getpid())
    os.execvp("unshare", [*alone, sys.executable, *sys.argv])


@contextlib.contextmanager
def namespaces(count):
    """Namespaces <tag>h0 … with the addresses 10.77.<x>.1 …, on one bridge in a namespace of its
    own; yields (name, address) of each."""
    number = int(os.environ[ISOLATED])
    tag, net = f"wm{number % 100000}", f"10.77.{number % 250}"
    names = [f"{tag}h{i}" for i in range(count)]
    switch = f"{tag}b"
    made = []
    try:
        for name in [switch, *names]:
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for i, name in enumerate(names):
            run(
                "ip", "-n", switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0",
                "netns", name
            )
            run("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{net}.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield [(name, f"{net}.{i + 1}") for i, name in enumerate(names)]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def agent_for(hosts, folder):
    """A script called as ssh is: [options] HOST COMMAND…; it runs the command in HOST's namespace,
    under a host name of its own."""
    cases = "\n".join(f"  {address}|{name}) ns={name};;" for name, address in hosts)
    path = pathlib.Path(folder, "agent")
    path.write_text(f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{cases}
  *) echo "no such host: $1" >&2; exit 255;;
esac
shift
exec ip netns exec "$ns" unshare --uts sh -c 'hostname '"$ns"'; exec sh -c "$0"' "$*"
""")
    path.chmod(0o755)
    return path


def command_of(arguments, hosts, folder):
    """(command, environment) of the mpirun."""
    environment = dict(os.environ)
    each = arguments.ranks // max(1, len(hosts))
    command = [arguments.mpirun, "-n", str(arguments.ranks)]
    if arguments.mpi == "openmpi":
        # As root too, and with more ranks than cores.
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command += ["--oversubscribe"]
        for name in filter(lambda name: hosts and name.startswith(("WEFT_", "OMP_")), environment):
            command += ["-x", name]
        if hosts:
            command += [
                "--host",
                ",".join(f"{address}:{each}" for _, address in hosts),
                "--mca",
                "plm_rsh_agent",
                str(agent_for(hosts, folder)),
                "--mca",
                "btl",
                "tcp,vader,self",
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl_tcp_if_include",
                "eth0",
                "--mca",
                "oob_tcp_if_include",
                "eth0",
            ]
    elif hosts:
        command += [
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(agent_for(hosts, folder)),
            "-iface",
            "eth0",
            "-hosts",
            ",".join(f"{address}:{each}" for _, address in hosts),
        ]
    if hosts:  # mpirun itself stands on the first host
        command = [
            "ip", "netns", "exec", hosts[0][0], "unshare", "--uts", "sh", "-c",
            f'hostname {hosts[0][0]}; exec "$@"', "sh", *command
        ]
    return command + arguments.program, environment


@contextlib.contextmanager
def hosts_of(arguments):
    """The hosts that --hosts asks for; none: this one. Ends the test as skipped where they cannot
    be had."""
    if not arguments.hosts:
        yield []
        return
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(namespaces(arguments.hosts))
        except (OSError, subprocess.CalledProcessError) as error:
            skip(f"no network namespaces here: {error}")
        yield hosts


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def parser_of(text):
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--missing", metavar="MPI", help="skip, since weft was built without this MPI"
    )
    parser.add_argument("--mpi", choices=["openmpi", "mpich"])
    parser.add_argument("--mpirun")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def parse(parser):
    arguments = parser.parse_args()
    if arguments.missing:
        skip(f"{arguments.missing} is not installed, or only its libraries are")
    if arguments.hosts:
        isolate()
    arguments.program = arguments.program[1:]
    return arguments


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--results", action="store_true")
    arguments = parse(parser)
    with tempfile.TemporaryDirectory() as folder, hosts_of(arguments) as hosts:
        command, environment = command_of(arguments, hosts, folder)
        results = pathlib.Path(folder, "results")
        results.mkdir()
        if arguments.results:
            environment["WEFT_RANKS_DIR"] = str(results)
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, timeout=110, check=False
        ).returncode
        if not arguments.results:
            return ended if ended >= 0 else 1
        found = [path.read_text() for path in results.iterdir()]
        print(f"ranks say: {found}")
        return 0 if found == ["passed"] * arguments.ranks else 1


if __name__ == "__main__":
    sys.exit(main())
