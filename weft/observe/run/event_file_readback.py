"""Reads an event file with TensorBoard's own code and compares it with what
event_file_readback_main.cc wrote.

Usage: event_file_readback.py WRITER. Exits with 77, which ctest reports as skipped, where the
tensorboard package is missing."""

import math
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = subprocess.run(
            [sys.argv[1], folder], check=True, capture_output=True, text=True
        ).stdout.strip()
        # The loader checks both checksums of every record.
        first = next(iter(EventFileLoader(path).Load()))
        assert first.file_version == "brain.Event:2", first
        events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()
        assert sorted(events.Tags()["scalars"]) == [
            "test/accuracy",
            "train/loss",
            "train/samples_per_s",
        ], events.Tags()
        losses = events.Scalars("train/loss")
        assert [event.step for event in losses] == list(range(1000)) + [2**40], len(losses)
        for event in losses[:1000]:
            assert event.value == 1.0 / 2 ** (event.step % 20), event
        assert math.isnan(losses[1000].value), losses[1000]
        assert all(abs(event.wall_time - losses[0].wall_time) < 60 for event in losses)
        assert [(event.step, event.value) for event in events.Scalars("test/accuracy")] == [
            (999, 0.9375)
        ]
        resumed = EventAccumulator(folder + "/resumed", size_guidance={"scalars": 0}).Reload()
        assert [(event.step, event.value) for event in resumed.Scalars("train/loss")] == [
            (1, 0), (2, 0), (3, 0), (4, 4), (5, 4), (6, 4)
        ]
    print("read back", len(losses), "steps")


if __name__ == "__main__":
    main()
