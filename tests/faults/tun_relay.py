"""A network between hosts that are network namespaces of this machine: every packet passes through
this process, which drops, doubles and holds back (so that others overtake it) what a seed says.
What the hosts say above IP is the kernel's own TCP."""

import ctypes
import dataclasses
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time

import harness

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
MTU = 1500
LAST_BYTE_OF_DESTINATION = 19  # in a header of IPv4
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class Weather:
    """What becomes of each packet; shares of 1, times in seconds."""

    drop: float = 0
    duplicate: float = 0
    late: float = 0  # share of the packets that are held back by up to late_by
    late_by: float = 0
    delay: float = 0.0002


@dataclasses.dataclass
class Counts:
    packets: int = 0
    dropped: int = 0
    duplicated: int = 0
    overtook: int = 0


def why_not():
    """What is missing for a Relay; "" if nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    if not shutil.which("ip"):
        return "there is no ip command (iproute2)"
    if not harness.private_folders():
        return "mounts are not allowed here"
    return ""


def enter(namespace):
    """Moves this thread into a network namespace, given by its descriptor."""
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def start_ranks(test, hosts, settings, *flags, **more):
    """One `weft train` of one rank on each host, which has an address and a namespace. Rank 0 has
    the store."""
    jobs = []
    options = [word for setting in settings for word in ("--set", setting)]
    for rank, host in enumerate(hosts):
        folder = test.folder / str(rank)
        folder.mkdir()
        env = {
            "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500",
            "WEFT_HOST_ID": f"host-{rank}", **more
        }
        jobs.append(
            harness.Job(
                folder, "train", test.folder, *flags, *options, env=env,
                preexec_fn=lambda host=host: enter(host.namespace)
            )
        )
        test.addCleanup(jobs[-1].clean)
    return jobs


class Host:
    """A namespace whose only way out is a TUN device, of which this process holds the other end."""

    def __init__(self, number):
        self.name = f"weft-faults-{os.getpid()}-{number}"
        self.address = f"10.77.0.{number + 1}"
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.namespace = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        self.device = None
        # a thread of its own, since it leaves this process's network
        opener = threading.Thread(target=self.open_device)
        opener.start()
        opener.join()
        for words in (
            f"addr add {self.address}/24 dev tun0",
            f"link set tun0 mtu {MTU} up",
            "link set lo up",
        ):
            subprocess.run(["ip", "-n", self.name, *words.split()], check=True)

    def open_device(self):
        enter(self.namespace)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
        self.device = device

    def close(self):
        for descriptor in (self.device, self.namespace):
            if descriptor is not None:
                os.close(descriptor)
        subprocess.run(["ip", "netns", "del", self.name], check=True)


class Relay:
    """Hosts and the wire between them. `weather` may be changed at any time, as well as `dead`:
    numbers of hosts whose packets are all lost, without a word to any host."""

    def __init__(self, seed, weather, hosts=2):
        self.weather = weather
        self.dead = set()
        self.counts = Counts()
        self.random = random.Random(seed)
        self.hosts = []
        self.held = []  # (due, number, device, packet)
        self.numbers = itertools.count()
        self.latest = {}  # device -> when its last packet is due
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.run)
        try:
            for number in range(hosts):
                self.hosts.append(Host(number))
        except BaseException:
            self.close()
            raise
        self.thread.start()

    def run(self):
        poll = select.poll()
        devices = [host.device for host in self.hosts]
        for device in devices:
            poll.register(device, select.POLLIN)
        while not self.closing.is_set():
            wait = (
                0.05 if not self.held else max(0.0, min(0.05, self.held[0][0] - time.monotonic()))
            )
            for device, _ in poll.poll(wait * 1000):
                self.take(devices.index(device), devices)
            while self.held and self.held[0][0] <= time.monotonic():
                self.put(*heapq.heappop(self.held)[2:])

    def take(self, sender, devices):
        for _ in range(64):
            try:
                packet = os.read(devices[sender], 65536)
            except BlockingIOError:
                return
            self.counts.packets += 1
            receiver = packet[LAST_BYTE_OF_DESTINATION] - 1
            if packet[0] >> 4 != 4 or receiver not in range(len(devices)):
                continue  # IPv6, or a broadcast
            cut = not self.dead.isdisjoint((sender, receiver))
            if cut or self.random.random() < self.weather.drop:
                self.counts.dropped += 1
                continue
            self.hold(packet, devices[receiver])
            if self.random.random() < self.weather.duplicate:
                self.counts.duplicated += 1
                self.hold(packet, devices[receiver])

    def hold(self, packet, device):
        late = self.random.random() < self.weather.late
        due = (
            time.monotonic()
            + self.weather.delay
            + (self.random.random() * self.weather.late_by if late else 0)
        )
        self.counts.overtook += due < self.latest.get(device, 0)
        self.latest[device] = max(due, self.latest.get(device, 0))
        heapq.heappush(self.held, (due, next(self.numbers), device, packet))

    @staticmethod
    def put(device, packet):
        try:
            os.write(device, packet)
        except BlockingIOError:
            pass  # its queue is full: lost, as anywhere

    def close(self):
        self.closing.set()
        if self.thread.is_alive():
            self.thread.join()
        for host in self.hosts:
            host.close()
