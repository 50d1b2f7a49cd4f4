"""Runs the real `weft` command, looks at its processes from outside, and checks that nothing of a
job is left behind.

A job's processes are found by a tag in their environment, which forks and programs inherit: whoever
carries it belongs to the job, also after the launcher is gone. Where the system lets us (root),
each test script sees a /tmp and a /dev/shm of its own, so that a file left there is the job's; else
only the job's TMPDIR is looked at. Every wait has a limit; a test that runs into it prints what the
job said."""

import ctypes
import functools
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "tools")]
import images  # noqa: E402
import processes  # noqa: E402

WEFT = os.path.abspath(os.environ["WEFT_BINARY"])
WORK = os.path.abspath(os.environ["WEFT_FAULTS_DIR"])
SKIP = 77
ENDLESS = 100000  # epochs of a job that ends when it is told to
IDS = int(pathlib.Path("/proc/sys/kernel/pid_max").read_text())  # process ids begin again there
# A user of this script alone. The limit of processes counts all processes of a user, so a test that
# runs at the same time must have another one.
USER = 20000 + os.getpid() % 40000

TRAIN, TEST = 12000, 200  # images
IMAGES = pathlib.Path(WORK) / f"images-{TRAIN}-{TEST}"  # make_images() makes it
RECIPE = images.recipe(IMAGES)
# Without the keys that a recipe of text cannot have.
TEXT_RECIPE = "".join(
    line for line in RECIPE.splitlines(True) if not line.startswith(("hidden", "dir"))
)
# Environment of a job that trains until something happens to it: rank 0 sleeps for nine tenths of
# its forward and backward, and the others wait for it. It leaves the processors to other tests.
SLEEPS = {"WEFT_SLOW_RANK": "0:10"}



def is_absent(option):
    """Whether weft was built without a component: "WEFT_PLAN", "WEFT_PS" or "WEFT_LINEAR"."""
    return option in os.environ.get("WEFT_FAULTS_ABSENT", "")


def needs(option):
    """Skips a test whose component is absent."""
    return unittest.skipIf(is_absent(option), f"weft was built with {option}=OFF")


# What must not be on a user's screen, however the job ends.
NOISE = (
    "Traceback",
    "terminate called",
    "what():",
    "Segmentation",
    "core dumped",
    "Exception raised from",
    "frame #",
)


def make_images():
    """The images of RECIPE, once for all tests."""
    if IMAGES.exists():
        return
    made = pathlib.Path(tempfile.mkdtemp(dir=WORK, prefix="making-"))
    made.chmod(0o755)  # also for another user
    images.write(made, TRAIN, TEST)
    try:
        made.rename(IMAGES)
    except OSError:  # another test was faster
        shutil.rmtree(made)


def remembered(key, run):
    """The answer of run(), which is a value of JSON. The tests of one build share it: the first one
    runs, and leaves the answer in a file. `key`: everything that the answer depends on, apart from
    the build and the recipe."""
    built = os.stat(WEFT)
    folder = pathlib.Path(WORK) / f"answers-{built.st_size}-{built.st_mtime_ns}"
    file = folder / hashlib.sha256(repr((RECIPE, key)).encode()).hexdigest()
    if not file.exists():
        answer = json.dumps(run())
        for old in pathlib.Path(WORK).glob("answers-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        part = folder / f"{file.name}-{os.getpid()}"
        part.write_text(answer)
        part.rename(file)
    return json.loads(file.read_text())


def require_other_user():
    """Skips a test whose processes belong to another user, who has limits of their own."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("only root can change the user of a process")
    for folder in pathlib.Path(WEFT).resolve().parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise unittest.SkipTest(f"another user cannot read {folder}")


def become_user():
    os.setgid(USER)
    os.setuid(USER)


@functools.cache
def private_folders():
    """Gives this process a /dev/shm of 64 MiB (a container's default) and a /tmp of its own. The
    folders, or none where we may not."""
    clone_newns, ms_private = 0x20000, 1 << 18 | 1 << 14
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        os.geteuid() != 0
        or libc.unshare(clone_newns) != 0
        or libc.mount(b"none", b"/", None, ms_private, None) != 0
    ):
        return ()
    folders = [pathlib.Path("/dev/shm")]
    if not any(pathlib.Path(used).resolve().is_relative_to("/tmp") for used in (WEFT, WORK)):
        folders.append(pathlib.Path("/tmp"))
    return tuple(folder for folder in folders if mount_tmpfs(folder, "size=64m"))


def mount_tmpfs(folder, options, flags=0):
    return (
        ctypes.CDLL(None).mount(b"tmpfs", str(folder).encode(), b"tmpfs", flags, options.encode())
        == 0
    )


def wait_until(condition, seconds, what):
    """The first true answer of condition(). what() describes what was missing."""
    limit = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > limit:
            raise AssertionError(f"not within {seconds} s: {what()}")
        time.sleep(0.02)
    return answer


def stat_of(pid):
    """State, parent and start time of a process; none when it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def listening_sockets():
    """inode -> (address, port) of all listening TCP sockets."""
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                words = bytes.fromhex(address)
                raw = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found[fields[9]] = socket.inet_ntop(family, raw), int(port, 16)
    return found


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds
        self.last_line = err.rstrip().rpartition("\n")[2]


class Job:
    """A `weft` command and everything that it starts."""

    def __init__(self, folder, *arguments, env=None, **popen):
        self.folder = pathlib.Path(folder)
        self.tmp = self.folder / "tmp"
        self.tmp.mkdir(exist_ok=True)
        self.tag = "WEFT_FAULTS_TAG=" + os.urandom(16).hex()
        self.others = set()  # processes that are known not to be of the job
        environment = processes.environment(
            TMPDIR=str(self.tmp), WEFT_FAULTS_TAG=self.tag.partition("=")[2]
        ) | (env or {})
        self.began = time.monotonic()
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            streams = {
                "stdin": subprocess.DEVNULL,
                "stdout": out,
                "stderr": err,
                "start_new_session": True,
            }
            self.process = subprocess.Popen(
                [WEFT, *map(str, arguments)], cwd=self.folder, env=environment, **(streams | popen)
            )
        self.sockets = {}

    def processes(self):
        """(pid, start time) of all of the job that are alive, wherever they have got to, in the
        order in which they began."""
        found = []
        for entry in os.scandir("/proc"):
            # The inode tells a process from a later one with its number.
            if not entry.name.isdigit() or (who := (entry.name, entry.inode())) in self.others:
                continue
            try:
                with open(f"/proc/{entry.name}/environ", "rb", buffering=0) as file:
                    environment = file.read()
            except OSError:
                continue
            if self.tag.encode() not in environment:
                if environment:  # else it has none yet, or none any more
                    self.others.add(who)
                continue
            stat = stat_of(entry.name)
            if stat and stat[0] not in "ZX":
                found.append((int(entry.name), stat[2]))
        # Start times have steps of 10 ms.
        return sorted(found, key=lambda one: (one[1], (one[0] - self.process.pid) % IDS))

    def ranks(self):
        """The ranks' process ids, in order: the launcher's children but the first, which keeps the
        store."""
        children = []
        for pid, start in self.processes():
            stat = stat_of(pid)
            if stat and stat[1] == self.process.pid:
                children.append(pid)
        return children[1:]

    def err(self):
        return (self.folder / "err").read_text(errors="replace")

    def out(self):
        return (self.folder / "out").read_text(errors="replace")

    def steps(self):
        try:
            return (self.folder / "runs/run/metrics.jsonl").read_text().count("\n")
        except OSError:
            return 0

    def wait_for(self, condition, what, seconds=20):
        def look():
            if (answer := condition()) or self.process.poll() is None:
                return answer
            raise AssertionError(f"the job ended before {what}:\n{self.err()}")

        return wait_until(look, seconds, lambda: f"{what}; the job said:\n{self.err()}")

    def wait_for_ranks(self, count):
        return self.wait_for(
            lambda: len(found := self.ranks()) == count and found, f"{count} ranks"
        )

    def wait_for_steps(self, count):
        self.wait_for(lambda: self.steps() >= count, f"step {count}")

    def listeners(self):
        """(address, port) of all listening sockets that the job's processes hold now."""
        found = {}
        everywhere = listening_sockets()
        for pid, _ in self.processes():
            try:
                links = [
                    os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
                ]
            except OSError:
                continue
            for inode in (link[8:-1] for link in links if link.startswith("socket:[")):
                if inode in everywhere:
                    found[inode] = everywhere[inode]
        self.sockets |= found
        return set(found.values())

    def finish(self, seconds):
        """Waits for the end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the job still runs after {seconds} s; it said:\n{self.err()}"
            ) from None
        code = code if code >= 0 else 128 - code
        return Result(code, self.out(), self.err(), time.monotonic() - self.began)

    def clean(self):
        for pid, start in self.processes():
            stat = stat_of(pid)
            if stat and stat[2] == start:
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


class FaultTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        private_folders()
        make_images()
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=WORK, prefix="job-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "recipe.toml").write_text(RECIPE)

    def weft(self, *arguments, **how):
        job = Job(self.folder, *arguments, **how)
        self.addCleanup(job.clean)
        return job

    def train(self, ranks, *settings, **how):
        """`weft train` of the small recipe."""
        options = [word for setting in settings for word in ("--set", setting)]
        return self.weft("train", self.folder, "-n", ranks, *options, **how)

    def beside(self, job, *arguments):
        """Another command of weft beside the job, to its end."""
        return subprocess.run(
            [WEFT, *map(str, arguments)], cwd=job.folder, env=processes.environment(), timeout=60,
            capture_output=True, text=True
        )

    def ends(self, job, code, says=(), within=10, last=None):
        """The job ends in time with this code, says what it should (`last`: in its last line), and
        leaves nothing."""
        result = job.finish(within)
        for text in says:
            self.assertIn(text, result.err)
        if last is not None:
            self.assertIn(last, result.last_line, result.err)
        self.assertEqual(result.code, code, result.err)
        for noise in NOISE:
            self.assertNotIn(noise, result.err)
        self.nothing_left(job)
        return result

    def takes_less_than(self, bound, attempt):
        """attempt() makes a run and gives seconds: the best of three is less than the bound."""
        taken = []
        while len(taken) < 3 and min(taken, default=bound) >= bound:
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            taken.append(attempt())
        self.assertLess(min(taken), bound, f"seconds of each run: {taken}")

    def nothing_left(self, job, within=2):
        wait_until(
            lambda: not job.processes(),
            within,
            lambda: f"processes left: {[describe(pid) for pid, _ in job.processes()]}",
        )
        self.assertEqual(
            job.sockets.keys() & listening_sockets().keys(), set(), "listening ports left"
        )
        for folder in (job.tmp, *private_folders()):
            self.assertEqual(os.listdir(folder), [], f"files left in {folder}")


def describe(pid):
    try:
        return pid, pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return pid, "(gone)"


def main():
    program = unittest.main(verbosity=2, exit=False)
    skipped_all = program.result.skipped and program.result.testsRun == len(program.result.skipped)
    raise SystemExit(SKIP if skipped_all else not program.result.wasSuccessful())
