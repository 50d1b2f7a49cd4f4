#!/usr/bin/env python3
"""Creates a network link and measures all-reduces over it: weft, Open MPI over TCP and Gloo, in
interleaved rounds (bench/README.md).

    sudo ./dev bench network
    sudo ./dev bench network --rate 1gbit --sizes 26214400
    sudo ./dev bench network --rate 1gbit --sizes 26214400 --ranks-per-host 2 \\
        --impls two-levels,flat-ring,flat-sharded

Needs root."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from processes import without_launchers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
IMPLS = ("weft", "openmpi", "gloo")
CONGESTION = ("weft-reno", "weft-cubic", "weft-bbr")  # weft with this congestion control
LEVELS = ("two-levels", "flat-ring", "flat-sharded")  # weft/comm with several ranks per host
SIZES = "1024,16384,65536,262144,1048576,4194304,26214400"
RESERVED_PORT = 29871


def sh(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Hosts:
    """Two network namespaces with a veth pair between them. If a rate is given, both ends are
    shaped to it. The `with` block deletes them at its end.
    """

    def __init__(self, rate):
        self.names = [f"weft-{os.getpid()}-{host}" for host in range(2)]
        self.devices = [f"wb{os.getpid()}-{host}" for host in range(2)]
        self.addresses = ["10.203.7.1", "10.203.7.2"]
        self.rate = rate

    def __enter__(self):
        try:
            for name in self.names:
                sh("ip", "netns", "add", name)
            sh(
                "ip",
                "link",
                "add",
                self.devices[0],
                "netns",
                self.names[0],
                "type",
                "veth",
                "peer",
                self.devices[1],
                "netns",
                self.names[1],
            )
            for name, device, address in zip(self.names, self.devices, self.addresses):
                sh("ip", "-n", name, "address", "add", f"{address}/24", "dev", device)
                for up in ("lo", device):
                    sh("ip", "-n", name, "link", "set", up, "up")
                if self.rate:
                    sh(
                        "tc",
                        "-n",
                        name,
                        "qdisc",
                        "add",
                        "dev",
                        device,
                        "root",
                        "tbf",
                        "rate",
                        self.rate,
                        "burst",
                        "256kb",
                        "latency",
                        "50ms",
                    )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:  # this also deletes the veth pair
            subprocess.run(("ip", "netns", "delete", name), stderr=subprocess.DEVNULL, check=False)

    def inside(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def sent_bytes(self, host):
        path = f"/sys/class/net/{self.devices[host]}/statistics/tx_bytes"
        return int(
            subprocess.run(
                (*self.inside(host), "cat", path), check=True, capture_output=True, text=True
            ).stdout
        )


class Participant:
    """The ranks of one library, placed as the options request. If there are enough cores, rank r is
    bound to core r.
    """

    def __init__(self, impl, hosts, options):
        self.impl = impl
        self.ranks = 2 * options.ranks_per_host
        self.processes, self.to, self.answers, self.folder = [], [], [], None
        self.bound = self.ranks <= (os.cpu_count() or 1)
        self.host_of = [
            rank // options.ranks_per_host if options.placement == "block" else rank % 2
            for rank in range(self.ranks)
        ]
        start = {"openmpi": self.start_openmpi, "gloo": self.start_gloo}.get(impl)
        (start or (self.start_levels if impl in LEVELS else self.start_weft))(hosts, options)

    def pinned(self, rank):
        return ["taskset", "-c", str(rank)] if self.bound else []

    def start_rank(self, prefix, command, env):
        process = subprocess.Popen(
            prefix + command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=without_launchers(keep="WEFT_") | env,
        )
        self.processes.append(process)
        self.to.append(process.stdin)
        self.answers.append(process.stdout)

    def start_weft(self, hosts, options):
        port = RESERVED_PORT + 10 * (("weft", *CONGESTION).index(self.impl) + 1)
        env = (
            {"WEFT_NETWORK_CONGESTION": self.impl.removeprefix("weft-")}
            if self.impl in CONGESTION
            else {}
        )
        addresses = [
            f"{hosts.addresses[host]}:{port + rank}" for rank, host in enumerate(self.host_of)
        ]
        for rank, host in enumerate(self.host_of):
            prefix = hosts.inside(host) + self.pinned(rank)
            self.start_rank(
                prefix, [f"{options.bin}/weft_network_rank", str(rank), *addresses], env
            )

    def start_levels(self, hosts, options):
        port = RESERVED_PORT + 50 + LEVELS.index(self.impl)
        for rank, host in enumerate(self.host_of):
            command = [f"{options.bin}/weft_network_hosts", self.impl, hosts.addresses[host]]
            self.start_rank(
                hosts.inside(host) + self.pinned(rank), command, self.environment(rank, hosts, port)
            )

    def environment(self, rank, hosts, port):
        local = self.host_of[:rank].count(self.host_of[rank])
        numbers = {
            "RANK": rank,
            "WORLD_SIZE": self.ranks,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": self.ranks // 2,
            "MASTER_PORT": port,
        }
        return {
            "MASTER_ADDR": hosts.addresses[self.host_of[0]],
            **{name: str(number) for name, number in numbers.items()},
        }

    def start_gloo(self, hosts, options):
        for rank, host in enumerate(self.host_of):
            env = self.environment(rank, hosts, RESERVED_PORT)
            env["GLOO_SOCKET_IFNAME"] = hosts.devices[host]
            self.start_rank(
                hosts.inside(host) + self.pinned(rank),
                [options.python, f"{HERE}/gloo_rank.py"],
                env,
            )

    def start_openmpi(self, hosts, options):
        """Starts mpirun on host 0. Instead of ssh, mpirun starts an agent that enters host 1.
        Commands and answers use named pipes.
        """
        self.folder = tempfile.mkdtemp(prefix="weft-network-")
        agent = f"{self.folder}/agent"
        with open(agent, "w") as file:
            file.write(
                f"#!/bin/sh\nshift\nexec {' '.join(hosts.inside(1))} unshare --uts sh -c "
                f"\"hostname host-1; $*\"\n"
            )
        os.chmod(agent, 0o755)
        for rank in range(self.ranks):
            for kind in ("commands", "answers"):
                os.mkfifo(f"{self.folder}/{kind}.{rank}")
        start = 'exec taskset -c $OMPI_COMM_WORLD_RANK "$0"' if self.bound else 'exec "$0"'
        slots = options.ranks_per_host
        tcp = [
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "10.203.7.0/24",
            "--mca",
            "oob_tcp_if_include",
            "10.203.7.0/24",
        ]
        command = [
            "mpirun",
            "--allow-run-as-root",
            "-n",
            str(self.ranks),
            "-H",
            ",".join(f"{a}:{slots}" for a in hosts.addresses),
        ]
        command += ["--mca", "plm_rsh_agent", agent, *tcp, "--bind-to", "none", "--oversubscribe"]
        command += ["--map-by", "slot" if options.placement == "block" else "node"]
        for kind in ("COMMANDS", "ANSWERS"):
            command += ["-x", f"WEFT_NETWORK_{kind}={self.folder}/{kind.lower()}"]
        command += ["sh", "-c", start, f"{options.bin}/weft_network_mpi"]
        host_0 = hosts.inside(0) + [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname host-0; exec "$@"',
            "sh",
        ]
        self.processes.append(subprocess.Popen(host_0 + command, stdin=subprocess.DEVNULL))
        for rank in range(self.ranks):
            self.to.append(open(f"{self.folder}/commands.{rank}", "w"))
            self.answers.append(open(f"{self.folder}/answers.{rank}"))

    def ask(self, command):
        """The samples of the slowest rank. An error names the rank without a correct answer."""
        for pipe in self.to:
            print(command, file=pipe, flush=True)
        samples = []
        for rank, pipe in enumerate(self.answers):
            words = pipe.readline().split()
            if not words or words[0] != "ok":
                raise RuntimeError(f"{self.impl}, rank {rank}: {' '.join(words) or 'it has ended'}")
            samples.append([float(word) for word in words[1:]])
        return [max(sample) for sample in zip(*samples)]

    def stop(self):
        for pipe in self.to:
            try:
                print("quit", file=pipe, flush=True)
            except OSError:
                pass
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.folder:
            shutil.rmtree(self.folder)


def host_line():
    with open("/proc/cpuinfo") as file:
        cpu = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "?"
        )
    return {"cpu": cpu, "cores": os.cpu_count()}


def commit():
    return subprocess.run(
        ("git", "-C", HERE, "rev-parse", "--short", "HEAD"),
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()


class Report:
    def __init__(self, options):
        self.options = options
        self.common = {"commit": commit(), "host": host_line()}

    def line(self, value, unit, **params):
        if not self.options.json:
            return
        link = {
            "link": self.options.rate or "veth",
            "hosts": 2,
            "ranks": 2 * self.options.ranks_per_host,
        }
        if self.options.ranks_per_host > 1:
            link["placement"] = self.options.placement
        p95 = params.pop("p95", None)
        record = {
            "bench": "network",
            "params": {"op": "all_reduce", **params, **link},
            "value": value,
            "unit": unit,
        }
        print(
            json.dumps({**record, "runs": self.options.rounds, "p95": p95, **self.common}),
            flush=True,
        )


def limit_us(size, options):
    """The lowest time that the rate of the link allows: a host must send at least the size of the
    vector, in frames of 1514 bytes with 1448 bytes of data each.
    """
    units = {"mbit": 1e6, "gbit": 1e9}
    rate = float(options.rate[:-4]) * units[options.rate[-4:].lower()]
    return size * 8 / rate * 1514 / 1448 * 1e6


def measure(size, participants, hosts, options, report):
    block = min(max((256 << 10) // size, 1), 50)
    rounds = {p.impl: [] for p in participants}
    every = {p.impl: [] for p in participants}
    sent = {}
    for participant in participants:  # warm up until TCP's windows have grown for these messages
        participant.ask(
            f"all_reduce {size} 1 {min(max((64 << 20) // (size * block), 1), 100)} {block}"
        )
    for number in range(options.rounds):
        for at in range(len(participants)):
            participant = participants[(at + number) % len(participants)]
            before = hosts.sent_bytes(0)
            samples = participant.ask(f"all_reduce {size} {options.samples} 2 {block}")
            calls = 1 + block * (2 + options.samples)
            sent[participant.impl] = (hosts.sent_bytes(0) - before) / calls
            rounds[participant.impl].append(statistics.median(samples))
            every[participant.impl] += samples
    first = participants[0].impl
    text = f"{size:>9} bytes"
    for impl, medians in rounds.items():
        value = statistics.median(medians)
        p95 = sorted(every[impl])[int(0.95 * (len(every[impl]) - 1))]
        report.line(round(value, 2), "us", impl=impl, bytes=size, p95=round(p95, 2))
        report.line(
            round(sent[impl] / size, 4), "bytes sent by host 0 / bytes", impl=impl, bytes=size
        )
        text += f"  {impl} {value:.1f} us"
        if options.rate:
            report.line(
                round(limit_us(size, options) / value, 4), "of line rate", impl=impl, bytes=size
            )
            text += f", {sent[impl] / size:.2f} of it sent" if options.ranks_per_host > 1 else ""
            text += f" ({limit_us(size, options) / value:.1%} of line rate)"
        if impl != first:
            ratio = statistics.median(theirs / ours for theirs, ours in zip(medians, rounds[first]))
            report.line(round(ratio, 3), "times faster", impl=first, against=impl, bytes=size)
            text += f" ({ratio:.2f}x)"
    print(text, file=sys.stderr, flush=True)


def take_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin",
        default="build/bench/bench/network",
        help="folder of weft_network_rank and weft_network_mpi",
    )
    parser.add_argument("--python", default=sys.executable, help="one that imports torch")
    parser.add_argument(
        "--impls",
        default=",".join(IMPLS),
        help=f"of {', '.join(IMPLS + CONGESTION + LEVELS)}; the first is compared with the others",
    )
    parser.add_argument("--sizes", default=SIZES, help="bytes, multiples of 4")
    parser.add_argument(
        "--rate", default="", help="of the link, as tc writes it: 1gbit; default: as fast as it is"
    )
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument(
        "--placement",
        choices=("block", "cyclic"),
        default="block",
        help="of ranks on the hosts: 0 0 1 1 or 0 1 0 1",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=5, help="in a round")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON line a figure on stdout; the table is on stderr",
    )
    options = parser.parse_args()
    unknown = [impl for impl in options.impls.split(",") if impl not in IMPLS + CONGESTION + LEVELS]
    if unknown:
        parser.error(f"no such participant: {', '.join(unknown)}")
    options.bin = os.path.abspath(options.bin)
    return options


def missing(options):
    if os.geteuid() != 0:
        return "network namespaces need root: sudo " + " ".join([sys.executable, *sys.argv])
    for tool in ("ip", "tc", "taskset", "unshare"):
        if not shutil.which(tool):
            return f"no '{tool}' here: apt-get install iproute2 util-linux"
    if not os.path.exists(f"{options.bin}/weft_network_rank"):
        return f"no weft_network_rank in {options.bin}; build it (README.md) or give --bin"
    return None


def start(impls, hosts, options):
    participants = []
    for impl in impls:
        try:
            participants.append(Participant(impl, hosts, options))
            participants[-1].ask("all_reduce 4096 1 0 1")
        except (OSError, RuntimeError) as error:
            print(f"left out: {error}", file=sys.stderr)
            participants[-1].stop() if participants and participants[-1].impl == impl else None
            participants = [p for p in participants if p.impl != impl]
    return participants


def main():
    options = take_options()
    reason = missing(options)
    if reason:
        print(reason, file=sys.stderr)
        return 77
    with Hosts(options.rate) as hosts:
        participants = start(options.impls.split(","), hosts, options)
        if not participants:
            return 1
        watchdog = threading.Timer(
            600, lambda: [process.kill() for p in participants for process in p.processes]
        )
        watchdog.daemon = True
        watchdog.start()
        report = Report(options)
        try:
            for size in map(int, options.sizes.split(",")):
                measure(size, participants, hosts, options, report)
        finally:
            for participant in participants:
                participant.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
