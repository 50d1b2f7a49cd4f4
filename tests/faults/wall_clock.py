"""A wall clock that a test sets forward and back while a job runs (wall_clock.cc)."""

import mmap
import os
import struct

LIBRARY = os.path.abspath(os.environ["WEFT_FAULTS_CLOCK"])


class WallClock:
    def __init__(self, file):
        file.write_bytes(bytes(16))
        self.environment = {"LD_PRELOAD": LIBRARY, "FAULTS_CLOCK": str(file)}
        with open(file, "r+b") as opened:
            self.page = mmap.mmap(opened.fileno(), 16)
        self.offset = 0

    def jump(self, seconds):
        self.offset += seconds
        self.page[:] = struct.pack("qq", self.offset * 10**9, 0)

    def readings(self):
        """How often processes of the job have read the clock since it jumped."""
        return struct.unpack("qq", self.page)[1]
